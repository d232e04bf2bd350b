//! LSTM, GRU and sLSTM equal their composed forms.

use candle_core::Tensor;
use sconce_ops as ops;
use sconce_ops::recurrent::{Gates, SlstmState};
use sconce_ops::weights::Weight;

use crate::common::composed::{check, check_in_bf16};
use crate::common::noise;

const LENGTHS: [Option<[usize; 3]>; 2] = [None, Some([43, 0, 17])];

/// Widths without and with a kernel on a card that computes the products of frames too.
const WIDTHS: [usize; 2] = [6, 32];

/// Inputs: `x`, the weights of a layer with `gates` gates, and `states` states, of width h.
fn layer(gates: usize, states: usize, h: usize) -> Vec<Tensor> {
    let d = 5;
    let small = |shape: &[usize], seed| (noise(shape, seed) * 0.4).unwrap();
    let mut all = vec![
        noise(&[3, 43, d], 1),
        small(&[gates * h, d], 2),
        small(&[gates * h, h], 3),
        small(&[gates * h], 4),
        small(&[gates * h], 5),
    ];
    all.extend((0..states as u64).map(|i| noise(&[3, h], 6 + i)));
    all
}

fn gates(t: &[Weight]) -> Gates {
    Gates::new(t[1].clone(), t[2].clone(), t[3].clone(), t[4].clone())
}

#[test]
fn a_gru_equals_its_composed_form() {
    for lengths in LENGTHS {
        let op = |t: &[Weight]| {
            let (y, h) = ops::gru(&t[0], &gates(t), &t[5], lengths.map(Into::into))?;
            Ok(vec![y, h])
        };
        for h in WIDTHS {
            let what = format!("gru of {h}, {lengths:?}");
            check(&what, &layer(3, 1, h), op);
            check_in_bf16(&what, &layer(3, 1, h), op);
        }
    }
}

#[test]
fn an_lstm_equals_its_composed_form() {
    for lengths in LENGTHS {
        let op = |t: &[Weight]| {
            let (y, h, c) = ops::lstm(&t[0], &gates(t), &t[5], &t[6], lengths.map(Into::into))?;
            Ok(vec![y, h, c])
        };
        for h in WIDTHS {
            let what = format!("lstm of {h}, {lengths:?}");
            check(&what, &layer(4, 2, h), op);
            check_in_bf16(&what, &layer(4, 2, h), op);
        }
    }
}

#[test]
fn an_slstm_equals_its_composed_form() {
    let (h, heads) = (6, 2);
    // The first row has seen no frame.
    let seen = Tensor::new(&[[0.0f32], [1.0], [1.0]], &candle_core::Device::Cpu).unwrap();
    let n = (noise(&[3, h], 5).abs().unwrap() + 0.5).unwrap().broadcast_mul(&seen).unwrap();
    // The number e^100 exceeds f32.
    for (large, lengths) in [0.0, 100.0].into_iter().zip(LENGTHS) {
        let projected = [(1, large), (7, 0.0), (8, 0.0), (9, 0.0)]
            .map(|(seed, mean)| noise(&[3, 43, h], seed).affine(2.0, mean).unwrap());
        let inputs = [
            Tensor::cat(&projected, 2).unwrap(),
            noise(&[4 * h, h / heads], 2),
            noise(&[3, h], 3),
            noise(&[3, h], 4),
            n.clone(),
        ];
        let m = (noise(&[3, h], 6) + large).unwrap();
        let op = |t: &[Weight]| {
            let [h, c, n] = [2, 3, 4].map(|i: usize| Tensor::clone(&t[i]));
            let state = SlstmState { h, c, n, m: sconce_tensor::tensor::moved(&m, &t[0])? };
            let lengths = lengths.map(Into::into);
            let (y, state) = ops::slstm(&t[0], &t[1], heads, &state, lengths)?;
            let SlstmState { h, c, n, m } = state;
            // c and n are in units of e^m, and rounding may move m to the next unit.
            Ok(vec![y, h, (c / &n)?, (n.log()? + m)?])
        };
        check(&format!("slstm, i around {large}, {lengths:?}"), &inputs, op);
        if large == 0.0 {
            let tame = inputs.each_ref().map(|t| (t * 0.4).unwrap());
            check_in_bf16("slstm", &tame, op);
        }
    }
}
