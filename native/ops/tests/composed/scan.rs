//! Linear recurrences equal their composed forms.

use std::sync::Arc;

use candle_core::Tensor;
use sconce_ops::weights::Weight;
use sconce_ops::wkv::NOTHING;
use sconce_ops::{self as ops, MambaWeights, Selective, Wkv};

use crate::common::composed::{check, check_kernels};
use crate::common::{backward, noise, record, values, wide};

type Lengths = Option<Arc<[usize]>>;

const C: usize = 6;

/// More rows than a card's grid can have along y.
const MANY: usize = 65_537;

/// Windows: their frames, and the frames of each row.
fn windows() -> [(usize, Lengths); 4] {
    [(43, None), (43, Some([43, 0, 17].into())), (64, Some([3, 64, 63].into())), (1, None)]
}

/// Normal numbers around `mean`.
fn around(mean: f64, deviation: f64, shape: &[usize], seed: u64) -> Tensor {
    noise(shape, seed).affine(deviation, mean).unwrap()
}

/// Checks a cell in all windows; `inputs` have `[3, t]` frames, and the first state `[3, c]` is the
/// last of all inputs.
fn cell(
    name: &str,
    inputs: impl Fn(usize) -> Vec<Tensor>,
    op: impl Fn(&[Weight], Lengths) -> sconce_tensor::Result<Tensor>,
) {
    for (time, lengths) in windows() {
        let mut inputs = inputs(time);
        inputs.push(noise(&[3, C], 9));
        let name = format!("{name}, {time} frames, {lengths:?}");
        check_kernels(&name, &inputs, |t| Ok(vec![op(t, lengths.clone())?]));
    }
}

#[test]
fn the_plain_recurrence_equals_its_composed_form() {
    let gate = |shape: &[usize]| around(0.5, 1.0, shape, 1).tanh().unwrap();
    cell(
        "gates of each frame",
        |t| vec![gate(&[3, t, C]), noise(&[3, t, C], 2)],
        |t, lengths| ops::linear_recurrence(&t[0], &t[1], &t[2], lengths),
    );
    cell(
        "one gate for all frames",
        |t| vec![gate(&[C]), noise(&[3, t, C], 2)],
        |t, lengths| ops::linear_recurrence(&t[0], &t[1], &t[2], lengths),
    );
}

#[test]
fn more_rows_than_a_side_of_a_grid_equal_the_composed_form() {
    let (frames, states) = ([MANY, 1, 1], [MANY, 1]);
    let gate = around(0.5, 1.0, &frames, 1).tanh().unwrap();
    let inputs = [gate, noise(&frames, 2), noise(&states, 9)];
    check("many recurrences", &inputs, |t| {
        Ok(vec![ops::linear_recurrence(&t[0], &t[1], &t[2], None)?])
    });
    let of_state = |seed| noise(&states, seed);
    let inputs = [
        noise(&frames, 1),
        noise(&frames, 2),
        noise(&[1], 3),
        noise(&[1], 4),
        of_state(5),
        of_state(6),
    ];
    check("many averages", &inputs, |t| {
        let [k, v, w, u, mean, weight] = std::array::from_fn(|i| &*t[i]);
        Ok(ops::wkv(Wkv { k, v, w, u, mean, weight }, None)?.into())
    });
}

#[test]
fn min_gru_and_min_lstm_equal_their_composed_forms() {
    cell(
        "minGRU",
        |t| vec![around(0.0, 2.0, &[3, t, 2 * C], 1)],
        |t, lengths| ops::min_gru(&t[0], &t[1], lengths),
    );
    for (mean, deviation, eps) in [(0.0, 2.0, 0.0), (0.0, 2.0, 1e-3), (-200.0, 0.0, 0.0)] {
        cell(
            &format!("minLSTM, gates around {mean}, eps {eps}"),
            |t| {
                let gates = around(mean, deviation, &[3, t, 2 * C], 1);
                vec![Tensor::cat(&[gates, noise(&[3, t, C], 2)], 2).unwrap()]
            },
            |t, lengths| ops::min_lstm(&t[0], &t[1], eps, lengths),
        );
    }
}

#[test]
fn an_rg_lru_equals_its_composed_form_also_for_decays_near_1() {
    for mean in [2.0, 9.0] {
        cell(
            &format!("RG-LRU, lambda around {mean}"),
            |t| vec![noise(&[3, t, 2 * C], 1), noise(&[3, t, C], 2), around(mean, 1.0, &[C], 3)],
            |t, lengths| ops::rg_lru(&t[0], &t[1], &t[2], &t[3], lengths),
        );
    }
}

#[test]
fn a_decay_of_exactly_one_keeps_gradients_finite() {
    record();
    let numbers = [noise(&[1, 4, 6], 1), noise(&[1, 4, 3], 2), around(200.0, 0.0, &[3], 3)];
    let inputs: Vec<Weight> = numbers
        .iter()
        .map(|t| candle_core::Var::from_tensor(&wide(t)).unwrap().into_inner().into())
        .collect();
    let h0 = wide(&noise(&[1, 3], 4));
    let h = ops::rg_lru(&inputs[0], &inputs[1], &inputs[2], &h0, None).unwrap();
    let gradients = backward(&h.sum_all().unwrap());
    for (i, input) in inputs.iter().enumerate() {
        let gradient = values(gradients.get(input).expect("a gradient"));
        assert!(gradient.iter().all(|v| v.is_finite()), "input {i}: {gradient:?}");
    }
}

#[test]
fn an_hgrn_equals_its_composed_form() {
    cell(
        "HGRN",
        |t| {
            let bound = (noise(&[C], 2).tanh().unwrap() + 1.0).unwrap() * 0.5;
            vec![around(0.0, 2.0, &[3, t, 3 * C], 1), bound.unwrap()]
        },
        |t, lengths| ops::hgrn(&t[0], &t[1], &t[2], lengths),
    );
}

#[test]
fn a_diagonal_state_space_equals_its_composed_form_also_over_short_steps() {
    for step in [-1.0, -12.0] {
        cell(
            &format!("S5, steps around e^{step}"),
            |t| {
                let weights = [around(0.0, 0.5, &[C], 2), around(step, 0.5, &[C], 3)];
                [vec![noise(&[3, t, C], 1)], weights.to_vec()].concat()
            },
            |t, lengths| ops::diagonal_ssm(&t[0], &t[1], &t[2], &t[3], lengths),
        );
    }
}

#[test]
fn a_lower_bound_equals_its_composed_form() {
    let bounds = around(0.0, 2.0, &[4, C], 1);
    for layer in 1..4 {
        check(&format!("bound of layer {layer}"), std::slice::from_ref(&bounds), |t| {
            Ok(vec![ops::lower_bound(&t[0], layer)?])
        });
    }
    let first = ops::lower_bound(&wide(&bounds), 0).unwrap();
    assert_eq!(values(&first), [0.0; C]);
}

/// The inputs u, B, C, h, A, dt, its bias, D and z.
fn selective([b, t, c, n]: [usize; 4], dt: &[usize]) -> Vec<Tensor> {
    vec![
        noise(&[b, t, c], 1),
        noise(&[b, t, n], 2),
        noise(&[b, t, n], 3),
        noise(&[b, c, n], 4),
        around(0.0, 0.5, &[c, n], 5),
        around(0.0, 1.0, dt, 6),
        around(-1.0, 0.5, &[c], 7),
        noise(&[c], 8),
        noise(&[b, t, c], 9),
    ]
}

#[test]
fn a_selective_scan_with_all_inputs_equals_its_composed_form() {
    for (time, lengths) in windows() {
        for dt in [&[3, time, C][..], &[C]] {
            let name = format!("all of a scan, {time} frames, {lengths:?}, dt {dt:?}");
            check_kernels(&name, &selective([3, time, C, 5], dt), |t| {
                let inputs = Selective {
                    u: &t[0],
                    dt: &t[5],
                    dt_bias: Some(&t[6]),
                    dt_softplus: true,
                    a: &t[4],
                    a_log: true,
                    b: &t[1],
                    c: &t[2],
                    d: Some(&t[7]),
                    z: Some(&t[8]),
                    h: &t[3],
                };
                let (y, h) = ops::selective_scan(inputs, lengths.clone())?;
                Ok(vec![y, h])
            });
        }
    }
}

#[test]
fn a_selective_scan_with_required_inputs_equals_its_composed_form() {
    for (time, lengths) in windows() {
        let mut numbers = selective([3, time, C, 5], &[3, time, C]);
        numbers.truncate(6);
        numbers[4] = numbers[4].exp().unwrap().neg().unwrap();
        numbers[5] = numbers[5].abs().unwrap();
        check_kernels(&format!("the least of a scan, {time} frames, {lengths:?}"), &numbers, |t| {
            let inputs = Selective {
                u: &t[0],
                dt: &t[5],
                dt_bias: None,
                dt_softplus: false,
                a: &t[4],
                a_log: false,
                b: &t[1],
                c: &t[2],
                d: None,
                z: None,
                h: &t[3],
            };
            let (y, h) = ops::selective_scan(inputs, lengths.clone())?;
            Ok(vec![y, h])
        });
    }
}

#[test]
fn a_mamba_layer_equals_its_composed_form() {
    let (h, n, rank, k) = (4, 5, 2, 3);
    let small = |shape: &[usize], seed| around(0.0, 0.5, shape, seed);
    for (time, lengths) in windows() {
        let inputs = [
            noise(&[3, time, h], 1),
            noise(&[3, C, k - 1], 2),
            noise(&[3, C, n], 3),
            small(&[2 * C, h], 4),
            small(&[C, 1, k], 5),
            small(&[C], 6),
            small(&[rank + 2 * n, C], 7),
            small(&[C, rank], 8),
            small(&[C], 9),
            small(&[C, n], 10),
            small(&[C], 11),
            small(&[h, C], 12),
        ];
        check(&format!("mamba, {time} frames, {lengths:?}"), &inputs, |t| {
            let weights = MambaWeights {
                in_proj: &t[3],
                conv: &t[4],
                conv_bias: &t[5],
                x_proj: &t[6],
                dt_proj: &t[7],
                dt_bias: &t[8],
                a_log: &t[9],
                d: &t[10],
                out_proj: &t[11],
            };
            let states = [Tensor::clone(&t[1]), Tensor::clone(&t[2])];
            let (y, [conv, ssm]) = ops::mamba(&t[0], &states, &weights, lengths.clone())?;
            Ok(vec![y, conv, ssm])
        });
    }
}

/// The inputs k, v, w and u.
fn rwkv(time: usize) -> Vec<Tensor> {
    vec![
        around(0.0, 3.0, &[3, time, C], 1),
        noise(&[3, time, C], 2),
        around(-1.0, 1.0, &[C], 3),
        noise(&[C], 4),
    ]
}

#[test]
fn a_wkv_equals_its_composed_form() {
    for (time, lengths) in windows() {
        let mut inputs = rwkv(time);
        inputs.extend([noise(&[3, C], 5), noise(&[3, C], 6)]);
        check_kernels(&format!("wkv, {time} frames, {lengths:?}"), &inputs, |t| {
            let [k, v, w, u, mean, weight] = std::array::from_fn(|i| &*t[i]);
            Ok(ops::wkv(Wkv { k, v, w, u, mean, weight }, lengths.clone())?.into())
        });
    }
}

#[test]
fn a_wkv_from_the_first_frame_equals_its_composed_form() {
    check("wkv from nothing", &rwkv(43), |t| {
        let [k, v, w, u] = std::array::from_fn(|i| &*t[i]);
        let mean = k.narrow(1, 0, 1)?.squeeze(1)?.zeros_like()?;
        let weight = mean.affine(0.0, f64::from(NOTHING))?;
        let wkv = Wkv { k, v, w, u, mean: &mean, weight: &weight };
        Ok(ops::wkv(wkv, None)?.into())
    });
}

#[test]
fn wrong_shapes_give_the_same_errors() {
    let (x, h0) = (noise(&[2, 5, 6], 1), noise(&[2, 3], 2));
    let wrong = |of: fn(&Tensor) -> Tensor| {
        let [x, h0] = [&x, &h0].map(of);
        [
            ops::min_gru(&of(&noise(&[2, 5, 7], 1)), &h0, None),
            ops::hgrn(&of(&noise(&[2, 5, 9], 1)), &of(&noise(&[1], 3)), &h0, None),
            ops::linear_recurrence(&of(&noise(&[6], 1)), &x, &h0, None),
            ops::min_gru(&x, &h0, Some([5, 6].into())),
        ]
        .map(|result| result.unwrap_err().to_string())
    };
    assert_eq!(wrong(wide), wrong(Tensor::clone));
}
