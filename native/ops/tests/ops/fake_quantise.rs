//! Fake quantisation against golden data, its composed form, and its definition.

use candle_core::{Device, Tensor, Var};
use sconce_ops::fake_quantise::{finest_steps, first_steps};
use sconce_ops::{Codes, Groups, fake_quantise, learned_step};
use sconce_tensor::pool;

use crate::common::composed::check;
use crate::common::{Golden, apart, backward, noise, record, values, wide};

fn tensor(numbers: &[f32], shape: &[usize]) -> Tensor {
    Tensor::from_slice(numbers, shape, &Device::Cpu).unwrap()
}

fn variable(tensor: &Tensor) -> Tensor {
    Var::from_tensor(tensor).unwrap().into_inner()
}

/// The groups of a matrix `shape` with `steps` per row.
fn groups_of(shape: &[usize], width: Option<usize>) -> Groups {
    Groups::new(shape[0], shape[1], width.unwrap_or(shape[1])).unwrap()
}

#[test]
fn given_steps_reproduce_the_reference() {
    for name in ["fake_quant_tensor", "fake_quant_channel"] {
        for golden in Golden::everywhere(name) {
            let (x, step) = (golden.variable("input.x"), golden.tensor("input.scale"));
            let groups = match step.elem_count() {
                1 => Groups::whole(x.elem_count()).unwrap(),
                _ => groups_of(x.dims(), None),
            };
            let codes = Codes::full(8).unwrap();
            let y = fake_quantise(&x, &step, None, codes, groups).unwrap();
            golden.check("output.y", &y);
            let loss = golden.loss(&[("y", &y)]);
            golden.check_gradients(&loss, &Default::default(), &[("x", &x)]);
        }
    }
}

#[test]
fn learned_steps_reproduce_the_reference() {
    let cases = [
        ("compress_lsq_int8_row", Codes::symmetric(8), None),
        ("compress_lsq_int4_row", Codes::symmetric(4), None),
        ("compress_lsq_int4_row_full", Codes::full(4), None),
        ("compress_lsq_int8_group16", Codes::symmetric(8), Some(16)),
        ("compress_lsq_int4_group16", Codes::symmetric(4), Some(16)),
    ];
    for (name, codes, width) in cases {
        for golden in Golden::everywhere(name) {
            let [x, step] = ["input.weight", "input.step"].map(|key| golden.variable(key));
            let (codes, groups) = (*codes.as_ref().unwrap(), groups_of(x.dims(), width));
            let y = learned_step(&x, &step, None, codes, groups).unwrap();
            golden.check("output.y", &y);
            let loss = golden.loss(&[("y", &y)]);
            golden.check_gradients(&loss, &Default::default(), &[("weight", &x), ("step", &step)]);
            let first = first_steps(&values(&x.detach()), codes, groups);
            golden.check("output.start", &tensor(&first, golden.shape("output.start")));
        }
    }
}

#[test]
fn learned_offsets_reproduce_the_reference() {
    for (name, bits) in [("compress_lsq_offset_int8", 8), ("compress_lsq_offset_int4", 4)] {
        for golden in Golden::everywhere(name) {
            let keys = ["input.x", "input.step", "input.offset"];
            let [x, step, offset] = keys.map(|key| golden.variable(key));
            let groups = Groups::whole(x.elem_count()).unwrap();
            let codes = Codes::unsigned(bits).unwrap();
            let y = learned_step(&x, &step, Some(&offset), codes, groups).unwrap();
            golden.check("output.y", &y);
            let loss = golden.loss(&[("y", &y)]);
            let inputs = [("x", &x), ("step", &step), ("offset", &offset)];
            golden.check_gradients(&loss, &Default::default(), &inputs);
        }
    }
}

/// The values, and the gradient of the numbers.
fn straight(inputs: &[Tensor], codes: Codes, groups: Groups) -> [Tensor; 2] {
    record();
    let x = variable(&inputs[0]);
    let y = fake_quantise(&x, &inputs[1], Some(&inputs[2]), codes, groups).unwrap();
    let dy = noise(y.dims(), 7).to_dtype(y.dtype()).unwrap();
    let gradients = backward(&(&y * dy).unwrap().sum_all().unwrap());
    [y.detach(), gradients.get(&x).expect("gradient").clone()]
}

#[test]
fn both_forms_agree_on_groups_with_zeros_and_offsets() {
    // 35,000 numbers are three shards; the last group of a row is short.
    let (rows, cols) = (70, 500);
    let groups = Groups::new(rows, cols, 48).unwrap();
    let x = noise(&[rows, cols], 1);
    let step = ((noise(&[groups.count()], 2).abs().unwrap() * 0.01).unwrap() + 0.05).unwrap();
    let whole = (noise(&[groups.count()], 3) * 3.0).unwrap().round().unwrap();
    let codes = Codes::symmetric(5).unwrap();
    let inputs = [x.clone(), step.clone(), whole];
    let got = straight(&inputs, codes, groups);
    let want = straight(&inputs.map(|t| wide(&t)), codes, groups);
    for (got, want) in got.iter().zip(&want) {
        assert!(apart(got, want) < 1e-5, "{}", apart(got, want));
    }
    let mut inputs = vec![x, step];
    check("learned steps", &inputs, |t| Ok(vec![learned_step(&t[0], &t[1], None, codes, groups)?]));
    inputs.push((noise(&[groups.count()], 4) * 0.3).unwrap());
    check("learned offsets", &inputs, |t| {
        Ok(vec![learned_step(&t[0], &t[1], Some(&t[2]), codes, groups)?])
    });
}

#[test]
fn ties_round_to_even_in_both_forms() {
    let x = tensor(&[0.5, 1.5, 2.5, -0.5, -1.5, -2.5], &[1, 6]);
    let step = tensor(&[1.0], &[1]);
    let (codes, groups) = (Codes::symmetric(4).unwrap(), Groups::rows(1, 6).unwrap());
    for (x, step) in [(x.clone(), step.clone()), (wide(&x), wide(&step))] {
        for y in [
            fake_quantise(&x, &step, None, codes, groups),
            learned_step(&x, &step, None, codes, groups),
        ] {
            assert_eq!(values(&y.unwrap()), [0.0, 2.0, 2.0, 0.0, -2.0, -2.0]);
        }
    }
}

#[test]
fn wrong_counts_and_steps_are_named() {
    let x = noise(&[2, 4], 1);
    let (codes, groups) = (Codes::symmetric(8).unwrap(), Groups::rows(2, 4).unwrap());
    let text = |x: &Tensor, step: &[f32], beside: Option<&Tensor>| {
        let step = tensor(step, &[step.len()]);
        let got = [
            fake_quantise(x, &step, beside, codes, groups),
            learned_step(x, &step, beside, codes, groups),
        ];
        let [one, other] = got.map(|y| y.unwrap_err().to_string());
        assert_eq!(one, other);
        one
    };
    assert_eq!(text(&x, &[1.0], None), "steps: expected 2, got 1");
    assert_eq!(text(&noise(&[3, 3], 1), &[1.0; 2], None), "numbers to quantise: expected 8, got 9");
    assert_eq!(text(&x, &[1.0; 2], Some(&x)), "zeros or offsets: expected 2, got 8");
    assert!(text(&x, &[1.0, -0.5], None).starts_with("step: -0.5 is outside"));
    assert_eq!(text(&x, &[1.0, f32::NAN], None), "step is not finite (NaN)");
}

#[test]
fn first_steps_of_zeros_are_one() {
    let (codes, groups) = (Codes::symmetric(4).unwrap(), Groups::rows(2, 2).unwrap());
    let got = first_steps(&[0.0, 0.0, 0.7, -0.7], codes, groups);
    assert_eq!(got[0], 1.0);
    assert!((f64::from(got[1]) - 1.4 / 7f64.sqrt()).abs() < 1e-6);
}

#[test]
fn the_finest_steps_span_their_groups_on_any_number_of_threads() {
    let (codes, groups) = (Codes::symmetric(4).unwrap(), Groups::new(2, 5, 3).unwrap());
    let x = [0.5, -3.5, 1.0, 0.0, 0.0, 1e-38, -7e-40, 0.0, -7.0, 14.0];
    assert_eq!(finest_steps(&x, codes, groups), [0.5, 1.0, 1.0, 2.0]);
    let (rows, cols) = (300, 130);
    let x = values(&noise(&[rows, cols], 3));
    let groups = Groups::new(rows, cols, 32).unwrap();
    let largest = |group: &[f32]| group.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
    let want: Vec<f32> = groups.of(&x).map(|group| largest(group) / 7.0).collect();
    for threads in [1, 3] {
        pool::set_threads(threads).unwrap();
        assert_eq!(finest_steps(&x, codes, groups), want);
    }
    pool::set_threads(pool::available()).unwrap();
}
