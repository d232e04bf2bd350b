//! Recurrences whose state is a matrix, compared with their composed forms.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use sconce_ops::attention::THETA;
use sconce_ops::lengths::Lengths;
use sconce_ops::matrix_state::{
    Decay, Options, Readout, log_sigmoid, matrix_state, mlstm_gates, ssd_gates,
};
use sconce_ops::rotary::Rotary;
use sconce_ops::weights::Weight;
use sconce_tensor::tensor::moved;

use crate::common::composed::{check, check_kernels};
use crate::common::{backward, noise, record, wide};

const TIME: usize = 45;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Read {
    Plain,
    Skip,
    Normalised,
}

/// Logarithms of factors from near 1 down to e^-20.
fn logarithms(shape: &[usize], seed: u64) -> Tensor {
    (noise(shape, seed).sqr().unwrap().sqr().unwrap() * -0.3).unwrap()
}

fn decays(heads: usize) -> [Decay; 4] {
    let constant: Vec<f32> = (0..heads).map(|h| (1.0 - 0.5f32.powi(2 + h as i32)).ln()).collect();
    [Decay::Head, Decay::HeadAndInput, Decay::Key, Decay::Constant(constant.into())]
}

fn lengths() -> [Lengths; 2] {
    [None, Some(Arc::from([TIME, 20, 0]))]
}

/// Checks outputs, states and all gradients of streams, state, gates and skip.
fn check_state(options: &Options, columns: usize, read: Read) {
    let Options { heads, key, value, .. } = *options;
    let wide = value + usize::from(read == Read::Normalised);
    let mut inputs = vec![noise(&[3, TIME, columns], 1), noise(&[3, heads, wide, key], 2)];
    let gates = match options.decay {
        Decay::Constant(_) => None,
        Decay::Head => Some(logarithms(&[3, TIME, heads], 3)),
        Decay::HeadAndInput => {
            let parts =
                [logarithms(&[3, TIME, heads], 3), noise(&[3, TIME, heads], 4).abs().unwrap()];
            Some(Tensor::cat(&parts, 2).unwrap())
        }
        Decay::Key => Some(logarithms(&[3, TIME, heads * key], 3)),
    };
    let gated = gates.is_some();
    inputs.extend(gates);
    inputs.extend((read == Read::Skip).then(|| noise(&[heads], 5)));
    let m = noise(&[3, TIME, heads], 6);
    let name = format!("{options:?}, {read:?}");
    let op = |t: &[Weight]| {
        let readout = match read {
            Read::Plain => Readout::Plain,
            Read::Skip => Readout::Skip(t[2 + usize::from(gated)].clone()),
            Read::Normalised => Readout::Normalised(moved(&m, &t[0])?),
        };
        let gates = gated.then(|| &*t[2]);
        let (y, last) = matrix_state(&t[0], gates, &t[1], readout, options)?;
        Ok(vec![y, last])
    };
    match read {
        // The normaliser is a rounded divisor, so 16-bit kernels are not compared.
        Read::Normalised => check(&name, &inputs, op),
        _ => check_kernels(&name, &inputs, op),
    }
}

#[test]
fn every_decay_and_readout_equals_the_composed_form() {
    for decay in decays(2) {
        for read in [Read::Plain, Read::Skip, Read::Normalised] {
            for lengths in lengths() {
                let base = Options::side_by_side(2, 5, 6, decay.clone());
                check_state(&Options { lengths, scale: 0.5, ..base }, 32, read);
            }
        }
    }
}

#[test]
fn rotated_keys_equal_the_composed_form() {
    let rotary = Some(Arc::new(Rotary::new(6, 32, THETA).unwrap()));
    for decay in decays(2).into_iter().filter(|decay| !matches!(decay, Decay::Key)) {
        for lengths in lengths() {
            let base = Options::side_by_side(2, 6, 5, decay.clone());
            check_state(&Options { lengths, rotary: rotary.clone(), ..base }, 34, Read::Plain);
        }
    }
}

#[test]
fn shared_keys_in_other_columns_equal_the_composed_form() {
    for decay in [Decay::Head, Decay::HeadAndInput] {
        let base = Options::side_by_side(6, 4, 5, decay);
        let options = Options { heads_per_group: 3, q: 9, k: 1, v: 17, ..base };
        check_state(&options, 48, Read::Skip);
    }
}

/// Sets the frames past the length of a row to NaN.
fn cut(t: &Tensor) -> Tensor {
    let (_, time, width) = t.dims3().unwrap();
    let mut numbers = crate::common::values(t);
    for (row, length) in numbers.chunks_mut(time * width).zip([TIME, 20, 0]) {
        row[length * width..].fill(f32::NAN);
    }
    Tensor::from_vec(numbers, t.shape(), &Device::Cpu).unwrap()
}

#[test]
fn frames_past_a_length_have_no_effect() {
    record();
    let [_, lengths] = lengths();
    let options = Options { lengths, ..Options::side_by_side(2, 3, 4, Decay::HeadAndInput) };
    let (streams, state) = (noise(&[3, TIME, 20], 1), noise(&[3, 2, 4, 3], 2));
    let gates = logarithms(&[3, TIME, 4], 3);
    let run = |streams: &Tensor, gates: &Tensor| {
        let inputs = [streams, gates].map(|t| candle_core::Var::from_tensor(&wide(t)).unwrap());
        let [x, gates] = &inputs;
        let (y, last) =
            matrix_state(x, Some(gates), &wide(&state), Readout::Plain, &options).unwrap();
        let loss =
            (y.sqr().unwrap().sum_all().unwrap() + last.sqr().unwrap().sum_all().unwrap()).unwrap();
        let store = backward(&loss);
        let [dx, d_gates] = [x, gates].map(|t| store.get(t).unwrap().clone());
        [y, last, dx, d_gates].map(|t| crate::common::values(&t))
    };
    assert_eq!(run(&cut(&streams), &cut(&gates)), run(&streams, &gates));
}

#[test]
fn gates_equal_their_composed_forms() {
    let x = (noise(&[3, TIME, 4], 1) * 5.0).unwrap();
    check("log sigmoid", std::slice::from_ref(&x), |t| Ok(vec![log_sigmoid(&t[0], 0.0625)?]));
    let weights = [noise(&[4], 2), noise(&[4], 3)];
    let [bias, a_log] = weights;
    check("gates of Mamba-2", &[x, bias, a_log], |t| Ok(vec![ssd_gates(&t[0], &t[1], &t[2])?]));
}

#[test]
fn gates_of_an_mlstm_equal_their_composed_form() {
    let raw = (noise(&[3, TIME, 4], 1) * 3.0).unwrap();
    let first = ((noise(&[3, 2], 2) * 64.0).unwrap().round().unwrap() / 64.0).unwrap();
    for lengths in lengths() {
        // Outputs past a length are undefined.
        let within = |x: Tensor| match &lengths {
            None => Ok(x),
            Some(lengths) => {
                let mask = lengths.iter().flat_map(|&n| (0..TIME).map(move |t| u8::from(t < n)));
                let mask = Tensor::from_iter(mask, x.device())?.to_dtype(x.dtype())?;
                x.broadcast_mul(&mask.reshape((3, TIME, 1))?)
            }
        };
        check(&format!("{lengths:?}"), std::slice::from_ref(&raw), |t| {
            let gates = mlstm_gates(&t[0], &moved(&first, &t[0])?, &lengths)?;
            Ok(vec![within(gates.gates)?, within(gates.m)?, gates.last])
        });
    }
}

#[test]
fn wrong_shapes_give_the_same_errors() {
    record();
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap();
    let options = Options::side_by_side(2, 3, 4, Decay::Head);
    let (x, gates, state) = (zeros(&[1, 5, 20]), zeros(&[1, 5, 2]), zeros(&[1, 2, 4, 3]));
    let normalised = Readout::Normalised(zeros(&[1, 5, 2]));
    let skip = Readout::Skip(zeros(&[3]).into());
    for (gates, readout) in [
        (None, Readout::Plain),
        (Some(&state), Readout::Plain),
        (Some(&gates), normalised),
        (Some(&gates), skip),
    ] {
        let run = |x: &Tensor| matrix_state(x, gates, &state, readout.clone(), &options);
        let (want, got) = (run(&x).unwrap_err(), run(&wide(&x)).unwrap_err());
        assert_eq!(got.to_string(), want.to_string());
    }
}
