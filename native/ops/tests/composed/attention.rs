//! Attention and softmax compared with their composed forms.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use sconce_ops::attention::{Cache, Pairing, Projections, THETA, Window};
use sconce_ops::dropout::{Dropout, Origin};
use sconce_ops::lengths::Lengths;
use sconce_ops::weights::Weight;
use sconce_ops::{self as ops, Affine, HeadNorms, Norm, Residual};
use sconce_tensor::Result;
use sconce_tensor::rng::Rng;

use crate::common::composed::{check, check_kernels};
use crate::common::{apart, backward, noise, record, values, wide};

/// Frames seen by the rows of a batch: none, some, and more than any window holds.
const SEEN: [usize; 3] = [0, 3, 997];

/// Sizes of a case: heads, head_dim, window, frames of the sequence, and frames of each row.
type Case = (usize, usize, usize, usize, Option<[usize; 3]>);

const CASES: [Case; 6] = [
    (2, 6, 5, 70, None),
    (2, 6, 5, 70, Some([70, 2, 0])),
    (1, 16, 60, 150, Some([66, 150, 1])),
    (3, 4, 60, 43, None),
    (2, 4, 1, 43, Some([43, 7, 0])),
    (2, 8, 4, 1, None),
];

/// An attention, and the cache before the sequence.
struct Attention {
    window: Arc<Window>,
    seen: Tensor,
    lengths: Lengths,
    /// Queries, keys and values of the sequence, then the cached keys and values.
    inputs: [Tensor; 3],
}

impl Attention {
    fn new((heads, head_dim, size, time, lengths): Case, pairing: Pairing) -> Self {
        let window = Window::new(heads, head_dim, size, pairing, THETA).unwrap();
        let ring = [3, size, window.width()];
        let seen = SEEN.map(|n| if n < size { n } else { size + n % size } as f32);
        let qkv = noise(&[3, time, 3 * window.width()], 1);
        Attention {
            window: Arc::new(window),
            seen: Tensor::from_slice(&seen, (3, 1), &Device::Cpu).unwrap(),
            lengths: lengths.map(|lengths| Arc::from(&lengths[..])),
            inputs: [qkv, noise(&ring, 2), noise(&ring, 3)],
        }
    }

    fn cache(&self, keys: &Tensor, values: &Tensor) -> Cache {
        let seen = self.seen.to_device(keys.device()).unwrap();
        Cache { keys: keys.clone(), values: values.clone(), seen }
    }

    fn run(&self, qkv: &Tensor, keys: &Tensor, values: &Tensor) -> Result<Vec<Tensor>> {
        let cache = self.cache(keys, values);
        let (y, Cache { keys, values, seen }) =
            ops::attention(qkv, &cache, &self.window, self.lengths.clone())?;
        Ok(vec![y, keys, values, seen.to_dtype(qkv.dtype())?])
    }

    /// The inputs in f64, which select the composed form.
    fn wide(&self) -> [Tensor; 3] {
        self.inputs.each_ref().map(wide)
    }
}

fn single(t: &Tensor) -> Tensor {
    t.to_dtype(DType::F32).unwrap()
}

#[test]
fn attention_its_cache_and_its_gradients_equal_the_composed_form() {
    record();
    for pairing in [Pairing::Half, Pairing::Interleaved] {
        for case in CASES {
            let attention = Attention::new(case, pairing);
            check_kernels(&format!("{case:?}, {pairing:?}"), &attention.inputs, |t| {
                attention.run(&t[0], &t[1], &t[2])
            });
        }
    }
}

#[test]
fn a_composed_sequence_in_pieces_equals_the_whole() {
    record();
    let attention = Attention::new((2, 8, 5, 23, None), Pairing::Half);
    let [qkv, keys, values] = attention.wide();
    let whole = attention.run(&qkv, &keys, &values).unwrap();
    for piece in [1, 2, 9] {
        let (mut cache, mut parts) = (attention.cache(&keys, &values), vec![]);
        for begin in (0..23).step_by(piece) {
            let part = qkv.narrow(1, begin, piece.min(23 - begin)).unwrap();
            let (y, next) = ops::attention(&part, &cache, &attention.window, None).unwrap();
            parts.push(y);
            cache = next;
        }
        let y = Tensor::cat(&parts, 1).unwrap();
        assert!(apart(&single(&y), &single(&whole[0])) < 1e-6, "by {piece}");
        let after = [&cache.keys, &cache.values, &cache.seen];
        for (got, want) in after.into_iter().zip(&whole[1..]) {
            assert_eq!(
                crate::common::values(&single(got)),
                crate::common::values(&single(want)),
                "by {piece}"
            );
        }
    }
}

#[test]
fn the_last_query_equals_the_composed_form() {
    record();
    for case in CASES {
        let attention = Attention::new((case.0, case.1, case.2, case.3, None), Pairing::Half);
        let run = |[qkv, keys, values]: &[Tensor; 3], cached| {
            let cache = attention.cache(keys, values);
            ops::attention_of_last(qkv, &cache, &attention.window, cached).unwrap()
        };
        for cached in [true, false] {
            let (want, after) = run(&attention.inputs, cached);
            let (got, composed) = run(&attention.wide(), cached);
            assert!(apart(&single(&got), &want) < 1e-5, "{case:?}");
            assert_eq!(after.is_some(), composed.is_some());
            let keys = |cache: Option<Cache>| cache.map(|cache| values(&single(&cache.keys)));
            assert_eq!(keys(composed), keys(after), "{case:?}");
        }
    }
}

#[test]
fn weights_by_age_equal_the_composed_form() {
    record();
    for pairing in [Pairing::Half, Pairing::Interleaved] {
        for case in CASES {
            let attention = Attention::new(case, pairing);
            let run = |[qkv, keys, values]: &[Tensor; 3]| {
                let (cache, window) = (attention.cache(keys, values), &attention.window);
                ops::attention_weights(qkv, &cache, window, attention.lengths.clone()).unwrap()
            };
            let got = run(&attention.wide());
            assert!(apart(&single(&got), &run(&attention.inputs)) < 1e-5, "{case:?}");
        }
    }
}

/// Sets the frames past the length of a row to NaN.
fn cut(t: &Tensor, lengths: [usize; 3]) -> Tensor {
    let (_, time, width) = t.dims3().unwrap();
    let mut numbers = crate::common::values(t);
    for (row, length) in numbers.chunks_mut(time * width).zip(lengths) {
        row[length * width..].fill(f32::NAN);
    }
    Tensor::from_vec(numbers, t.shape(), &Device::Cpu).unwrap()
}

#[test]
fn unseen_frames_and_frames_past_a_length_have_no_effect() {
    record();
    let mut attention = Attention::new((2, 6, 5, 45, Some([45, 7, 0])), Pairing::Half);
    let [qkv, keys, values] = attention.inputs.clone();
    attention.seen = attention.seen.zeros_like().unwrap();
    let run = |qkv: &Tensor, keys: &Tensor, values: &Tensor| {
        let qkv = candle_core::Var::from_tensor(&wide(qkv)).unwrap();
        let y = attention.run(&qkv, &wide(keys), &wide(values)).unwrap().swap_remove(0);
        let gradients = backward(&y.sqr().unwrap().sum_all().unwrap());
        [crate::common::values(&y), crate::common::values(gradients.get(&qkv).unwrap())]
    };
    let [none, beyond] = [[0; 3], [45, 7, 0]];
    let got = run(&cut(&qkv, beyond), &cut(&keys, none), &cut(&values, none));
    assert_eq!(got, run(&qkv, &keys, &values));
}

#[test]
fn softmax_with_and_without_a_mask_equals_the_composed_form() {
    let x = (noise(&[3, 7, 37], 1) * 20.0).unwrap();
    check("softmax", std::slice::from_ref(&x), |t| Ok(vec![ops::softmax(&t[0])?]));
    // In one row the mask selects nothing, in another a single number.
    let wanted = |i: usize| match i / 37 {
        2 => false,
        3 => i % 37 == 5,
        _ => !i.is_multiple_of(3),
    };
    let mask: Arc<[bool]> = (0..x.elem_count()).map(wanted).collect();
    check("masked softmax", &[x], |t| Ok(vec![ops::masked_softmax(&t[0], mask.clone())?]));
}

#[test]
fn a_softmax_of_only_minus_infinity_is_0_and_has_no_gradient() {
    record();
    let x = [f32::NEG_INFINITY, f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY];
    let x = Tensor::new(&[[x[0], x[1]], [x[2], x[3]]], &Device::Cpu).unwrap();
    let x = candle_core::Var::from_tensor(&wide(&x)).unwrap();
    let y = ops::softmax(&x).unwrap();
    assert_eq!(values(&y), [0.0, 0.0, 1.0, 0.0]);
    let gradients = backward(&y.sqr().unwrap().sum_all().unwrap());
    assert_eq!(values(gradients.get(&x).unwrap()), [0.0; 4]);
}

#[test]
fn wrong_shapes_give_the_same_errors() {
    record();
    let attention = Attention::new((2, 8, 5, 3, None), Pairing::Half);
    let [qkv, keys, values] = &attention.inputs;
    let cache = attention.cache(keys, values);
    let narrow = qkv.narrow(2, 0, 47).unwrap();
    let few = Cache { keys: keys.narrow(0, 0, 2).unwrap(), ..cache.clone() };
    let long: Lengths = Some(vec![1, 2, 4].into());
    for (qkv, cache, lengths) in [(&narrow, &cache, None), (qkv, &few, None), (qkv, &cache, long)] {
        let run = |qkv: &Tensor| ops::attention(qkv, cache, &attention.window, lengths.clone());
        let (want, got) = (run(qkv).unwrap_err(), run(&wide(qkv)).unwrap_err());
        assert_eq!(got.to_string(), want.to_string());
    }
}

/// Runs a layer. `t` holds `x`, the cache, then all weights; `options` say whether the norm has a shift, whether there
/// is dropout, and whether heads have norms.
fn layer(attention: &Attention, t: &[Weight], options: [bool; 3]) -> Result<Vec<Tensor>> {
    let [shift, drops, heads] = options;
    let mut rest = t[7..].iter().cloned();
    let mut norm = |shift: bool| {
        let weight = rest.next().unwrap();
        Norm { weight, bias: shift.then(|| rest.next().unwrap()), eps: 1e-5 }
    };
    let affine = |i: usize| Affine { weight: t[i].clone(), bias: Some(t[i + 1].clone()) };
    let dropout = || Dropout::new(0.3, Rng::new(7, "residual", 1), Origin::default());
    let residual = Residual { norm: norm(shift), dropout: drops.then(dropout) };
    let norms = heads.then(|| HeadNorms { queries: norm(true), keys: norm(true) });
    let projections = Projections { qkv: affine(3), norms, out: affine(5) };
    let (cache, lengths) = (attention.cache(&t[1], &t[2]), attention.lengths.clone());
    let (y, next) = ops::attention_residual(
        &t[0],
        &residual,
        &projections,
        &cache,
        &attention.window,
        lengths,
        true,
    )?;
    let next = next.unwrap();
    Ok(vec![y, next.keys, next.values])
}

#[test]
fn a_residual_layer_and_its_gradients_equal_the_composed_form() {
    let (h, case) = (7, (2, 4, 4, 45, Some([45, 20, 1])));
    for options in [[true, false, false], [false, true, true], [true, true, false]] {
        let attention = Attention::new(case, Pairing::Half);
        let d = attention.window.width();
        let small = |shape: &[usize], seed| (noise(shape, seed) * 0.7).unwrap();
        let [_, keys, values] = attention.inputs.clone();
        let mut inputs = vec![small(&[3, 45, h], 3), keys, values];
        inputs.extend([small(&[3 * d, h], 4), small(&[3 * d], 5)]);
        inputs.extend([small(&[h, d], 6), small(&[h], 7), (small(&[h], 8) + 1.0).unwrap()]);
        inputs.extend(options[0].then(|| small(&[h], 9)));
        inputs.extend((10..14).filter(|_| options[2]).map(|seed| small(&[4], seed)));
        check(&format!("{options:?}"), &inputs, |t| layer(&attention, t, options));
    }
}

/// The kernels of flash attention, where a card has them. Their operands and results are rounded to 16 bits, so the
/// results are close to those of the other kernels, and not equal. Frames that do not exist are 0.
#[cfg(feature = "flash-attn")]
#[test]
fn flash_attention_of_a_window_is_close_to_the_op() {
    record();
    use sconce_tensor::Precision;

    let Some(card) = crate::common::card() else { return };
    // Fewer queries than a block has, and more; all head sizes.
    for (head_dim, time, pairing) in [
        (32, 60, Pairing::Half),
        (64, 150, Pairing::Half),
        (64, 2, Pairing::Interleaved),
        (128, 64, Pairing::Interleaved),
    ] {
        let window = Arc::new(Window::new(2, head_dim, time, pairing, THETA).unwrap());
        let qkv = noise(&[3, time, 3 * window.width()], 1);
        let there = qkv.to_device(&card).unwrap();
        for lengths in [None, Some(Arc::from([time, 1, 0]))] {
            let run = |qkv: &Tensor| {
                let mut cache = Cache::empty(&window, 3).unwrap();
                for part in [&mut cache.keys, &mut cache.values, &mut cache.seen] {
                    *part = part.to_device(qkv.device()).unwrap();
                }
                let (y, next) = ops::attention(qkv, &cache, &window, lengths.clone()).unwrap();
                [y, next.keys, next.values, next.seen].map(|t| t.to_device(&Device::Cpu).unwrap())
            };
            let (want, own) = (run(&qkv), run(&there));
            for precision in [Precision::Bf16, Precision::F16] {
                let got = precision.during(|| run(&there));
                let name = format!("{head_dim}, {time}, {pairing:?}, {lengths:?}, {precision}");
                let largest = values(&want[0]).into_iter().fold(0.0f32, |m, v| m.max(v.abs()));
                assert!(apart(&got[0], &want[0]) < 2e-2 * largest, "{name}");
                assert_ne!(
                    values(&got[0]),
                    values(&own[0]),
                    "{name}: not computed by flash attention"
                );
                for (got, own) in got[1..].iter().zip(&own[1..]) {
                    assert_eq!(values(got), values(own), "{name}");
                }
                let exists = |row: usize, t| lengths.as_ref().is_none_or(|n| t < n[row]);
                for (at, frame) in values(&got[0]).chunks_exact(window.width()).enumerate() {
                    let blank = frame.iter().all(|v| *v == 0.0);
                    assert_eq!(!blank, exists(at / time, at % time), "{name}");
                }
            }
        }
    }
}
