//! Fake quantisation against golden data, its composed form, and its definition.

use candle_core::{Device, Tensor, Var};
use sconce_ops::fake_quantise::{InputGrid, finest_steps, first_steps, learned_step_gradients};
use sconce_ops::recurrent::Gates;
use sconce_ops::weights::Weight;
use sconce_ops::{Activation, Codes, Groups, fake_quantise, learned_step, linear};
use sconce_tensor::pool;

use crate::common::composed::check;
use crate::common::{Golden, apart, backward, gradient, noise, record, values, wide};

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
            let dy = golden.tensor("input.cotangent.y");
            if x.device().is_cpu() {
                let step = values(&step.detach());
                let found = learned_step_gradients(&x.detach(), &step, &dy, codes, groups);
                for (name, found) in ["weight", "step"].into_iter().zip(found.unwrap()) {
                    let key = format!("grad.input.{name}");
                    golden.check(&key, &tensor(&found, golden.shape(&key)));
                }
            }
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

/// Two layers as a run learns them: products read weights on their grid, and the gradient there is mapped to the weights
/// and to the steps.
#[test]
fn layers_with_learned_steps_and_rounded_inputs_reproduce_the_reference() {
    for (name, bits) in [("lsq_layers_int8", 8), ("lsq_layers_int4", 4)] {
        let golden = Golden::open(name);
        let codes = Codes::symmetric(bits).unwrap();
        let layer = |layer: &str| {
            let weight = golden.tensor(&format!("param.{layer}.weight"));
            let steps = values(&golden.tensor(&format!("param.{layer}.step")));
            let groups = groups_of(weight.dims(), (bits == 4).then_some(32));
            let step = tensor(&steps, &[steps.len()]);
            let shown = learned_step(&weight, &step, None, codes, groups).unwrap();
            let shown = Weight::from(variable(&shown)).rounding(InputGrid::new(bits).unwrap());
            let bias = Weight::from(golden.variable(&format!("param.{layer}.bias")));
            (weight, steps, groups, shown, bias)
        };
        let (up, down, x) = (layer("up"), layer("down"), golden.variable("input.x"));
        let hidden = linear(&x, &up.3, Some(&up.4), Activation::Tanh).unwrap();
        let y = linear(&hidden, &down.3, Some(&down.4), Activation::None).unwrap();
        golden.check("output.y", &y);
        let gradients = backward(&golden.loss(&[("y", &y)]));
        golden.check("grad.input.x", gradients.get(&x).unwrap());
        for (name, (weight, steps, groups, shown, bias)) in [("up", up), ("down", down)] {
            assert!(!shown.inputs().unwrap().is_ignored());
            golden.check(&format!("grad.param.{name}.bias"), &gradient("bias", &bias, &gradients));
            let dy = gradient("weight", &shown, &gradients);
            let found = learned_step_gradients(&weight, &steps, &dy, codes, groups).unwrap();
            for (kind, found) in ["weight", "step"].into_iter().zip(found) {
                let key = format!("grad.param.{name}.{kind}");
                golden.check(&key, &tensor(&found, golden.shape(&key)));
            }
        }
    }
}

/// `sum(y c)` of a layer whose weight is on the grid of its steps, and its gradients at the weight and at the steps.
#[test]
fn gradients_through_a_layer_are_finite_differences() {
    let (rows, cols, codes) = (6, 40, Codes::symmetric(4).unwrap());
    let groups = Groups::new(rows, cols, 32).unwrap();
    let (x, c) = (noise(&[9, cols], 1), noise(&[9, rows], 2));
    let weight = values(&noise(&[rows, cols], 3));
    let steps: Vec<f32> = finest_steps(&weight, codes, groups).iter().map(|s| 0.7 * s).collect();
    let shown = |weight: &[f32], steps: &[f32]| {
        let (weight, steps) = (tensor(weight, &[rows, cols]), tensor(steps, &[groups.count()]));
        learned_step(&weight, &steps, None, codes, groups).unwrap()
    };
    let loss = |shown: &Tensor| {
        let y = linear(&x, &shown.clone().into(), None, Activation::Tanh).unwrap();
        let pairs = values(&y).into_iter().zip(values(&c));
        pairs.map(|(y, c)| f64::from(y) * f64::from(c)).sum::<f64>()
    };
    record();
    let at = Weight::from(variable(&shown(&weight, &steps)));
    let y = linear(&x, &at, None, Activation::Tanh).unwrap();
    let dy = gradient("weight", &at, &backward(&(y * &c).unwrap().sum_all().unwrap()));
    let found = learned_step_gradients(&tensor(&weight, &[rows, cols]), &steps, &dy, codes, groups);
    let [of_weights, of_steps] = found.unwrap();
    // The straight-through rule is the slope of a sum that moves by the rule's own derivative: of the step by
    // round(w / s) - w / s inside of the range and by the last code beyond it, of the weight by 1 inside.
    let ratio = |i: usize, group: usize| weight[i] / steps[group];
    let group_of = |i: usize| i / cols * 2 + (i % cols) / 32;
    let moved = |step: Option<usize>, number: Option<usize>, by: f32| {
        let mut all = values(&shown(&weight, &steps));
        for (i, w) in all.iter_mut().enumerate() {
            let v = ratio(i, group_of(i));
            let inside = v.abs() < 7.0;
            if step == Some(group_of(i)) {
                *w += by * if inside { v.round_ties_even() - v } else { v.clamp(-7.0, 7.0) };
            }
            if number == Some(i) && inside {
                *w += by;
            }
        }
        loss(&tensor(&all, &[rows, cols]))
    };
    let by = 1e-3;
    let slope =
        |step, number| (moved(step, number, by) - moved(step, number, -by)) / (2.0 * f64::from(by));
    let lengths: Vec<usize> = groups.lengths().collect();
    for (group, found) in of_steps.iter().enumerate() {
        let g = 1.0 / (lengths[group % 2] as f64 * 7.0).sqrt();
        let want = g * slope(Some(group), None);
        assert!((f64::from(*found) - want).abs() < 2e-3 * want.abs().max(0.1), "{found}, {want}");
    }
    for i in (0..rows * cols).step_by(7) {
        let (found, want) = (f64::from(of_weights[i]), slope(None, Some(i)));
        assert!((found - want).abs() < 2e-3 * want.abs().max(0.1), "{i}: {found}, {want}");
    }
    assert!(weight.iter().enumerate().any(|(i, _)| ratio(i, group_of(i)).abs() > 7.0));
}

#[test]
fn inputs_are_rounded_to_multiples_of_their_largest_magnitudes() {
    let x = values(&noise(&[3, 70], 5));
    for (bits, width, most) in [(8, 70, 32_512.0), (4, 32, 127.0)] {
        let mut rounded = x.clone();
        InputGrid::new(bits).unwrap().round(&mut rounded, 70);
        let rows = x.chunks(70).zip(rounded.chunks(70));
        for (x, rounded) in rows.flat_map(|(x, r)| x.chunks(width).zip(r.chunks(width))) {
            let largest = x.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            let scale = f64::from(largest) / most;
            for (x, rounded) in x.iter().zip(rounded) {
                let code = f64::from(*rounded) / scale;
                assert!((code - code.round()).abs() < 1e-2 && code.round().abs() <= most);
                assert!((f64::from(*x) / scale - code).abs() < 0.51, "{x} became {rounded}");
            }
        }
        assert_ne!(x, rounded);
        let grid = InputGrid::new(bits).unwrap();
        let mut odd = [0.0, 0.0, 1.0, f32::NAN, f32::INFINITY, 2.0];
        grid.round(&mut odd[..2], 2);
        grid.round(&mut odd[2..4], 2);
        grid.round(&mut odd[4..], 2);
        assert!(odd[..2] == [0.0; 2] && odd[2..].iter().all(|x| x.is_nan()), "{odd:?}");
    }
    let error = InputGrid::new(5).unwrap_err().to_string();
    assert!(error.starts_with("bits: 5 is outside 4..8"), "{error}");
}

/// A GRU whose products round their inputs, frame by frame of products that do.
#[test]
fn a_sequence_of_rounded_states_equals_its_frames_and_has_their_gradients() {
    let (batch, time, width, hidden) = (3, 5, 37, 34);
    let shapes =
        [vec![3 * hidden, width], vec![3 * hidden, hidden], vec![3 * hidden], vec![3 * hidden]];
    let drawn: Vec<Tensor> =
        shapes.iter().enumerate().map(|(i, s)| (noise(s, i as u64 + 1) * 0.2).unwrap()).collect();
    let (x, h0, dy) = (
        noise(&[batch, time, width], 7),
        noise(&[batch, hidden], 8),
        noise(&[batch, time, hidden], 9),
    );
    for bits in [4, 8] {
        let weights = || -> Vec<Weight> {
            let of = |(i, own): (usize, &Tensor)| {
                let own = Weight::from(variable(own));
                if i < 2 { own.rounding(InputGrid::new(bits).unwrap()) } else { own }
            };
            drawn.iter().enumerate().map(of).collect()
        };
        record();
        let (whole, x1) = (weights(), variable(&x));
        let [ih, hh, bi, bh] = &whole[..] else { unreachable!() };
        let gates = Gates::new(ih.clone(), hh.clone(), bi.clone(), bh.clone());
        let (y, _) = sconce_ops::gru(&x1, &gates, &h0, None).unwrap();
        let of_whole = backward(&(&y * &dy).unwrap().sum_all().unwrap());
        let (parts, x2) = (weights(), variable(&x));
        let [ih, hh, bi, bh] = &parts[..] else { unreachable!() };
        let (mut h, mut all) = (h0.clone(), vec![]);
        for t in 0..time {
            let frame = x2.narrow(1, t, 1).unwrap().squeeze(1).unwrap().contiguous().unwrap();
            let (i, s) = (
                linear(&frame, ih, Some(bi), Activation::None).unwrap(),
                linear(&h.contiguous().unwrap(), hh, Some(bh), Activation::None).unwrap(),
            );
            let part = |of: &Tensor, at: usize| of.narrow(1, at * hidden, hidden).unwrap();
            let sigmoid =
                |x: Tensor| (((x.neg().unwrap().exp().unwrap()) + 1.0).unwrap()).recip().unwrap();
            let r = sigmoid((part(&i, 0) + part(&s, 0)).unwrap());
            let z = sigmoid((part(&i, 1) + part(&s, 1)).unwrap());
            let n = (part(&i, 2) + (r * part(&s, 2)).unwrap()).unwrap().tanh().unwrap();
            h = ((&n - (&z * &n).unwrap()).unwrap() + (&z * &h).unwrap()).unwrap();
            all.push(h.unsqueeze(1).unwrap());
        }
        let frames = Tensor::cat(&all, 1).unwrap();
        let of_parts = backward(&(&frames * &dy).unwrap().sum_all().unwrap());
        assert!(apart(&y, &frames) < 1e-5, "{bits}: {}", apart(&y, &frames));
        let of_x = apart(of_whole.get(&x1).unwrap(), of_parts.get(&x2).unwrap());
        assert!(of_x < 1e-4, "{bits}: {of_x}");
        for (i, (a, b)) in whole.iter().zip(&parts).enumerate() {
            let (a, b) = (gradient("whole", a, &of_whole), gradient("frames", b, &of_parts));
            assert!(apart(&a, &b) < 1e-4, "{bits}, weight {i}: {}", apart(&a, &b));
        }
        let plain: Vec<Weight> = drawn.iter().map(|own| own.clone().into()).collect();
        let [ih, hh, bi, bh] = &plain[..] else { unreachable!() };
        let gates = Gates::new(ih.clone(), hh.clone(), bi.clone(), bh.clone());
        let (plain, _) = sconce_ops::gru(&x, &gates, &h0, None).unwrap();
        assert!(apart(&y, &plain) > if bits == 4 { 1e-3 } else { 1e-6 });
    }
}
