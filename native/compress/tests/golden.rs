//! Quantisation, pruning, low rank and distillation against golden data in float64.

#[path = "../../train/tests/support/mod.rs"]
mod support;

use std::sync::atomic::AtomicBool;

use sconce_compress::{
    Distillation, Fake, FakeOptions, Gptq, Grid, Hessian, Keep, Kind, Matrix, Method, Order, Per,
    Quantised, Rank, SecondOrder, Share, Target, Truncation, magnitude, two_four,
};
use support::Golden;

static RUNNING: AtomicBool = AtomicBool::new(false);

fn matrix(golden: &Golden, name: &str) -> Matrix {
    let shape = golden.config["shape"].as_array().unwrap();
    let [rows, cols] = [0, 1].map(|i| shape[i].as_u64().unwrap() as usize);
    Matrix::new(name, rows, cols, golden.f32(name)).unwrap()
}

fn codes(golden: &Golden, name: &str) -> Vec<i16> {
    golden.indices(name).iter().map(|v| *v as i64 as i16).collect()
}

fn wide(all: &[f32]) -> Vec<f64> {
    all.iter().map(|v| f64::from(*v)).collect()
}

/// `x w^T` of inputs `[3, columns]`.
fn outputs(golden: &Golden, weight: &[f32], cols: usize) -> Vec<f64> {
    let x = golden.f32("input.x");
    let dot = |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(x, w)| f64::from(x * w)).sum::<f64>();
    x.chunks(cols).flat_map(|x| weight.chunks(cols).map(move |w| dot(x, w))).collect()
}

#[test]
fn codes_scales_and_zero_points_are_those_of_float64() {
    let cases = [
        ("quant_int8_tensor", 8, Per::Tensor, false),
        ("quant_int8_channel", 8, Per::Row, false),
        ("quant_int4_group32", 4, Per::Group(32), false),
        ("compress_int8_group16", 8, Per::Group(16), false),
        ("compress_int4_group16", 4, Per::Group(16), false),
        ("compress_uint8_group16", 8, Per::Group(16), true),
        ("compress_uint4_group32", 4, Per::Group(32), true),
    ];
    for (name, bits, per, zero_point) in cases {
        let golden = Golden::open(name);
        let weight = matrix(&golden, "input.weight");
        let grid = Grid { bits, per, zero_point, scale: Default::default() };
        let quantised = Quantised::nearest(&weight, grid).unwrap();
        assert_eq!(quantised.codes, codes(&golden, "output.q"), "{name}");
        golden.check("output.scale", wide(&quantised.scales));
        if zero_point {
            assert_eq!(quantised.zeros, codes(&golden, "output.zero"), "{name}");
        }
        let back = quantised.dequantise().unwrap();
        golden.check("output.dequantised", wide(&back));
        golden.check("output.y", outputs(&golden, &back, weight.cols()));
        assert_eq!(quantised.clone().checked().unwrap(), quantised, "{name}");
    }
}

#[test]
fn learned_steps_have_the_values_and_gradients_of_float64() {
    for (name, per) in [
        ("compress_lsq_int4_row", Per::Row),
        ("compress_lsq_int4_row_full", Per::Row),
        ("compress_lsq_int8_group16", Per::Group(16)),
    ] {
        let golden = Golden::open(name);
        let x = matrix(&golden, "input.weight");
        let bits = golden.config["bits"].as_u64().unwrap() as u32;
        let grid = Grid { bits, per, zero_point: false, scale: Default::default() };
        let options = FakeOptions { grid, full_range: name.ends_with("full"), learned: true };
        let start = Fake::default().run(&x, options).unwrap();
        golden.check("output.start", wide(&start.steps));
        assert_eq!(start.gradients, None);
        let fake = Fake {
            steps: Some(golden.f32("input.step")),
            gradient: Some(golden.f32("input.cotangent.y")),
            zeros: None,
        };
        let faked = fake.run(&x, options).unwrap();
        golden.check("output.y", wide(&faked.y));
        let [dx, steps, offsets] = faked.gradients.unwrap();
        golden.check("grad.input.weight", wide(&dx));
        golden.check("grad.input.step", wide(&steps));
        assert!(offsets.is_empty());
    }
}

#[test]
fn gptq_has_the_codes_and_errors_of_the_sequential_form() {
    let cases = [
        ("compress_gptq_int4_row", Per::Row),
        ("compress_gptq_int8_row", Per::Row),
        ("compress_gptq_int4_group8", Per::Group(8)),
        ("compress_gptq_int4_order", Per::Row),
    ];
    for (name, per) in cases {
        let golden = Golden::open(name);
        let weight = matrix(&golden, "input.weight");
        let cols = weight.cols();
        let hessian = Matrix::new("hessian", cols, cols, golden.f32("input.hessian")).unwrap();
        let hessian = Hessian::of(&hessian).unwrap();
        let bits = golden.config["bits"].as_u64().unwrap() as u32;
        let order = if name.ends_with("order") { Order::Diagonal } else { Order::Given };
        let grid = Grid { bits, per, zero_point: false, scale: Default::default() };
        let gptq = Gptq { grid, damping: golden.config["damping"].as_f64().unwrap(), order };
        let calibrated = gptq.run(&weight, &hessian, &RUNNING).unwrap();
        assert_eq!(calibrated.quantised.codes, codes(&golden, "output.q"), "{name}");
        golden.check("output.scale", wide(&calibrated.quantised.scales));
        golden.check("output.dequantised", wide(&calibrated.dequantised));
        golden.check("output.error", [calibrated.error]);
        if order == Order::Diagonal {
            assert_eq!(calibrated.quantised.order, golden.indices("output.order"));
        }
        // The reference rounds to nearest with a scale for each row, whatever the groups.
        let by_row = Gptq { grid: Grid { per: Per::Row, ..grid }, ..gptq };
        let by_row = by_row.run(&weight, &hessian, &RUNNING).unwrap();
        golden.check("output.error_nearest", [by_row.nearest_error]);
    }
}

#[test]
fn masks_are_those_of_the_reference() {
    let golden = Golden::open("prune_masks");
    let weight = matrix(&golden, "input.weight");
    for sparsity in [0.5, 0.7, 0.9] {
        let pruned = magnitude(&weight, sparsity, Share::Tensor).unwrap();
        let mask: Vec<f32> = pruned.mask.iter().map(|kept| f32::from(*kept)).collect();
        assert_eq!(mask, golden.labels(&format!("output.mask_{sparsity}")), "{sparsity}");
    }
    let pruned = two_four(&weight).unwrap().pruned;
    let mask: Vec<f32> = pruned.mask.iter().map(|kept| f32::from(*kept)).collect();
    assert_eq!(mask, golden.labels("output.mask_2_4"));
    assert_eq!(pruned.weight, golden.f32("output.pruned_2_4"));
}

#[test]
fn two_of_four_keep_the_values_and_places_of_the_reference() {
    let golden = Golden::open("compress_two_four");
    let kept = two_four(&matrix(&golden, "input.weight")).unwrap();
    let mask: Vec<f32> = kept.pruned.mask.iter().map(|kept| f32::from(*kept)).collect();
    assert_eq!(mask, golden.labels("output.mask"));
    assert_eq!(kept.pruned.weight, golden.f32("output.pruned"));
    assert_eq!(kept.values, golden.f32("output.values"));
    assert!(kept.index.iter().map(|v| usize::from(*v)).eq(golden.indices("output.index")));
}

fn product(left: &[f32], right: &[f32], rank: usize, cols: usize) -> Vec<f64> {
    let row = |left: &[f32]| {
        (0..cols)
            .map(|j| {
                let terms = (0..rank).map(|k| f64::from(left[k]) * f64::from(right[k * cols + j]));
                terms.sum::<f64>()
            })
            .collect::<Vec<_>>()
    };
    left.chunks(rank).flat_map(row).collect()
}

#[test]
fn truncations_are_those_of_float64() {
    for name in ["low_rank", "compress_svd_wide", "compress_svd_tall"] {
        let golden = Golden::open(name);
        let weight = matrix(&golden, "input.weight");
        for rank in golden.config["ranks"].as_array().unwrap() {
            let rank = rank.as_u64().unwrap() as usize;
            for (method, power_iterations) in [(Method::Exact, 0), (Method::Randomised, 8)] {
                let truncation =
                    Truncation { rank: Rank::Rank(rank), method, power_iterations, seed: 1 };
                let found = truncation.run(&weight, &RUNNING).unwrap();
                let got = product(&found.left, &found.right, rank, weight.cols());
                golden.check(&format!("output.product_{rank}"), got);
                if method == Method::Exact {
                    golden.check(&format!("output.error_{rank}"), [found.error]);
                    golden.check("output.singular_values", wide(&found.singular_values));
                }
                if let (Some(energy), Method::Exact) = (golden.optional("output.energy"), method) {
                    assert!((found.energy - f64::from(energy[rank - 1])).abs() < 1e-6, "{name}");
                }
            }
        }
    }
}

/// A run learns from several teachers by the same formula, which `native/train` checks with the same numbers.
#[test]
fn the_mean_of_teachers_has_the_loss_and_gradients_of_torch_distributions() {
    for name in ["distill_teachers_plain", "distill_teachers_reverse"] {
        let golden = Golden::open(name);
        let number = |key: &str| golden.config[key].as_f64().unwrap();
        let (rows, temperature) = (number("batch") as usize, number("temperature"));
        let weights = wide(&golden.f32("input.frame_weights"));
        let (total, mut kl) = (weights.iter().sum::<f64>(), 0.0);
        for (head, kind) in [("bits", Kind::Bernoulli), ("choice", Kind::Categorical)] {
            let loss = Distillation { kind, temperature, alpha: 1.0 };
            let input = |who: &str| golden.f32(&format!("input.{who}.{head}"));
            let size = input("student").len() / rows;
            // Bits are averaged here, and added in a run.
            let each = if kind == Kind::Bernoulli { size as f64 } else { 1.0 };
            let mut gradient = vec![];
            for (row, weight) in weights.iter().enumerate() {
                let of = |who: &str| {
                    Matrix::new(who, 1, size, input(who)[row * size..][..size].to_vec()).unwrap()
                };
                let teachers = ["teacher0", "teacher1", "teacher2"].map(of);
                let found = loss.run(&of("student"), &teachers, None).unwrap();
                let share = each * weight / total;
                kl += share * found.soft;
                gradient.extend(found.gradient.iter().map(|slope| share * f64::from(*slope)));
            }
            golden.check(&format!("grad.input.student.{head}"), gradient);
        }
        golden.check("output.kl", [kl]);
        golden.check("output.loss", [temperature * temperature * kl]);
    }
}

#[test]
fn distillation_has_the_losses_and_gradients_of_float64() {
    for (name, kind) in
        [("distill_categorical", Kind::Categorical), ("distill_buttons", Kind::Bernoulli)]
    {
        let golden = Golden::open(name);
        let number = |key: &str| golden.config[key].as_f64().unwrap();
        let [rows, cols] = ["batch", "size"].map(|key| number(key) as usize);
        let [student, teacher] = ["student", "teacher"]
            .map(|key| Matrix::new(key, rows, cols, golden.f32(&format!("input.{key}"))).unwrap());
        let target = golden.labels("input.target");
        let target = match kind {
            Kind::Categorical => Target::Classes(target.iter().map(|v| *v as usize).collect()),
            Kind::Bernoulli => Target::Bits(target.iter().map(|v| *v as u8).collect()),
        };
        let loss =
            Distillation { kind, temperature: number("temperature"), alpha: number("alpha") };
        // The mean of equal teachers is each of them.
        for count in 1..4 {
            let teachers = vec![teacher.clone(); count];
            let found = loss.run(&student, &teachers, Some(&target)).unwrap();
            golden.check("output.soft", [found.soft]);
            golden.check("output.hard", [found.hard]);
            golden.check("output.loss", [found.loss]);
            golden.check("grad.input.student", wide(&found.gradient));
        }
    }
}

#[test]
fn second_order_pruning_has_the_weights_and_errors_of_the_sequential_form() {
    for name in ["prune_second_order_two_four", "prune_second_order_0.6"] {
        let golden = Golden::open(name);
        let weight = matrix(&golden, "input.weight");
        let cols = weight.cols();
        let hessian = Matrix::new("hessian", cols, cols, golden.f32("input.hessian")).unwrap();
        let hessian = Hessian::of(&hessian).unwrap();
        let keep = golden.config["sparsity"].as_f64().map_or(Keep::TwoFour, Keep::Sparsity);
        let rule = SecondOrder { keep, damping: golden.config["damping"].as_f64().unwrap() };
        let pruned = rule.run(&weight, &hessian, &RUNNING).unwrap();
        let mask: Vec<f32> = pruned.iter().map(|w| f32::from(u8::from(*w != 0.0))).collect();
        assert_eq!(mask, golden.labels("output.mask"), "{name}");
        golden.check("output.pruned", wide(&pruned));
        golden.check("output.error", [hessian.error(&weight, &pruned).unwrap()]);

        let bad = [
            (SecondOrder { damping: 1.5, ..rule }, &weight, "damping"),
            (SecondOrder { keep: Keep::Sparsity(-0.1), ..rule }, &weight, "sparsity"),
            (rule, &Matrix::new("weight", 1, 4, vec![1.0; 4]).unwrap(), "calibration"),
        ];
        for (rule, weight, named) in bad {
            let error = rule.run(weight, &hessian, &RUNNING).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
        let cancelled = AtomicBool::new(true);
        assert!(rule.run(&weight, &hessian, &cancelled).is_err());
    }
}
