//! Losses, optimisers and schedules against golden data in float64.

mod support;

use sconce_data::Batch;
use sconce_nn::head::{Direction, Gaussian};
use sconce_nn::spec::{Embedding, Head, HeadKind, Heads, HeadsKind};
use sconce_nn::{Policy, Spec};
use sconce_train::objective::imitation::{
    FocalHeads, LossOptions, PosWeight, Reduction, imitation, nll_rows, pos_weight_auto,
};
use sconce_train::objective::teacher::{Factor, Lesson, Teacher};
use sconce_train::objective::{Companion, Objective, Rows};
use sconce_train::optimiser::{Kind, Optimiser, OptimiserConfig, Parameter, clip, squared_norm};
use sconce_train::schedule::{Schedule, ScheduleKind};
use support::Golden;

fn wide(values: &[f32]) -> impl Iterator<Item = f64> {
    values.iter().map(|&v| f64::from(v))
}

fn options(golden: &Golden) -> LossOptions {
    let config = &golden.config;
    let number = |key: &str| config[key].as_f64().map(|v| v as f32);
    LossOptions {
        button_weight: number("button_weight").unwrap(),
        bernoulli_reduction: Reduction::Mean,
        pos_weight: golden.optional("input.pos_weight").map_or(PosWeight::None, PosWeight::Given),
        label_smoothing: number("label_smoothing").unwrap(),
        focal_gamma: number("focal_gamma"),
        focal_heads: match config["focal_heads"].as_str() {
            Some("buttons") => FocalHeads::Bernoulli,
            _ => FocalHeads::All,
        },
        stick_edge_weight: number("stick_edge_weight"),
        entropy_weight: number("entropy_weight").unwrap(),
        head_normalize: config["head_normalize"].as_bool().unwrap(),
        clamp: number("clamp").unwrap(),
    }
}

/// The tensors of all heads side by side, `[n, sum of widths]`.
fn beside<T: Copy>(heads: &Heads, n: usize, get: impl Fn(&str) -> Vec<T>) -> Vec<T> {
    let parts: Vec<_> = heads.parts.iter().map(|h| get(&h.name)).collect();
    let row = |i: usize| {
        parts.iter().flat_map(move |p| p[i * p.len() / n..(i + 1) * p.len() / n].to_vec())
    };
    (0..n).flat_map(row).collect()
}

fn check_imitation(name: &str) {
    let golden = Golden::open(name);
    let heads = Heads::controller(HeadsKind::Independent);
    let n = golden.config["batch"].as_u64().unwrap() as usize;
    let logits = beside(&heads, n, |h| golden.f32(&format!("input.logits.{h}")));
    let labels = beside(&heads, n, |h| golden.labels(&format!("input.target.{h}")));
    let weights = golden.optional("input.frame_weights");
    let mut grad = vec![f32::NAN; logits.len()];
    let options = options(&golden);
    let loss =
        imitation(&heads, &logits, &labels, weights.as_deref(), &options, Some(&mut grad)).unwrap();
    golden.check("output.loss", [loss.value]);
    golden.check("output.entropy_bonus", [loss.entropy_bonus]);
    golden.check("output.per_sample", wide(&loss.per_sample));
    for (part, mean) in heads.iter().zip(&loss.per_head) {
        let (name, width) = (&part.head.name, part.head.kind.logits());
        golden.check(&format!("output.head.{name}"), [*mean]);
        let own = grad.chunks(heads.num_logits()).flat_map(|row| &row[part.logits..][..width]);
        golden.check(&format!("grad.input.logits.{name}"), own.map(|&g| f64::from(g)));
    }
    let blind = imitation(&heads, &logits, &labels, weights.as_deref(), &options, None).unwrap();
    assert_eq!(blind, loss, "a gradient changes nothing about the loss");
}

macro_rules! imitation_cases {
    ($($name:ident),* $(,)?) => {
        $(#[test]
        fn $name() {
            check_imitation(stringify!($name));
        })*
    };
}

imitation_cases!(
    imitation_plain,
    imitation_button_weight,
    imitation_pos_weight,
    imitation_label_smoothing,
    imitation_focal2,
    imitation_focal3,
    imitation_focal_buttons,
    imitation_stick_edge,
    imitation_frame_weights,
    imitation_entropy,
    imitation_head_normalize,
    imitation_head_normalize_floor,
    imitation_clamp,
    imitation_clamp_all,
    imitation_all,
    imitation_all_normalized,
);

#[test]
fn plain_nll_sums_the_bits_that_the_golden_mean_averages() {
    let golden = Golden::open("imitation_plain");
    let heads = Heads::controller(HeadsKind::Independent);
    let n = golden.config["batch"].as_u64().unwrap() as usize;
    let logits = beside(&heads, n, |h| golden.f32(&format!("input.logits.{h}")));
    let labels = beside(&heads, n, |h| golden.labels(&format!("input.target.{h}")));
    let mut out = vec![0.0; n * 6];
    nll_rows(&heads, &logits, &labels, &mut out).unwrap();
    for (h, head) in heads.parts.iter().enumerate() {
        let sum: f64 = out.chunks(6).map(|row| f64::from(row[h])).sum();
        let bits = if h == 0 { 8.0 } else { 1.0 };
        golden.check(&format!("output.head.{}", head.name), [sum / n as f64 / bits]);
    }
}

#[test]
fn automatic_weights_of_pressed_bits() {
    let golden = Golden::open("pos_weight_auto");
    let pressed = golden.labels("input.pressed");
    let n = (pressed.len() / 8) as f64;
    let count = |b: usize| pressed.iter().skip(b).step_by(8).filter(|p| **p == 1.0).count();
    let rates: Vec<f64> = (0..8).map(|b| count(b) as f64 / n).collect();
    golden.check("output.rate", rates.iter().copied());
    golden.check("output.pos_weight", wide(&pos_weight_auto(&rates)));
}

/// The numbers of the golden file, in place of the defaults.
fn optimiser(golden: &Golden, kind: Kind) -> Optimiser {
    let config = &golden.config;
    let own = OptimiserConfig::new(kind);
    let number = |key: &str, own: Option<f64>| own.map(|own| config[key].as_f64().unwrap_or(own));
    let beta =
        |i: usize, own: Option<f64>| own.map(|own| config["betas"][i].as_f64().unwrap_or(own));
    let config = OptimiserConfig {
        beta1: beta(0, own.beta1),
        beta2: number("alpha", beta(1, own.beta2)),
        eps: number("eps", own.eps),
        momentum: number("momentum", own.momentum),
        nesterov: own.nesterov.map(|own| config["nesterov"].as_bool().unwrap_or(own)),
        weight_decay: config["weight_decay"].as_f64().unwrap_or(0.0),
        kind,
    };
    // In the references every parameter decays.
    let parameter = |name: &str| Parameter {
        name: name.into(),
        len: golden.f32(&format!("param.{name}")).len(),
        decay: true,
    };
    Optimiser::new(config, ["w", "b", "z"].map(parameter).into())
}

fn check_optimiser(name: &str, kind: Kind) {
    let golden = Golden::open(name);
    let mut optimiser = optimiser(&golden, kind);
    let names = ["w", "b", "z"];
    let mut params = names.map(|n| golden.f32(&format!("param.{n}")));
    let grads = names.map(|n| golden.f32(&format!("input.grad.{n}")));
    let lr = golden.config["lr"].as_f64().unwrap();
    let mut after: [Vec<f32>; 3] = Default::default();
    for t in 0..golden.config["steps"].as_u64().unwrap() as usize {
        let [w, b, z] = &mut params;
        let now = |i: usize, len: usize| &grads[i][t * len..(t + 1) * len];
        let grads = [now(0, w.len()), now(1, b.len()), now(2, z.len())];
        optimiser.step(&mut [w, b, z], &grads, lr).unwrap();
        after.iter_mut().zip(&params).for_each(|(a, p)| a.extend(p));
    }
    for (name, after) in names.iter().zip(&after) {
        golden.check(&format!("output.param.{name}"), wide(after));
    }
    for (name, values) in optimiser.state().unwrap() {
        golden.check(&format!("output.state.{name}"), wide(&values));
    }
}

macro_rules! optimiser_cases {
    ($($name:ident: $kind:ident),* $(,)?) => {
        $(#[test]
        fn $name() {
            check_optimiser(stringify!($name), Kind::$kind);
        })*
    };
}

optimiser_cases!(
    optim_adamw: AdamW,
    optim_adam: Adam,
    optim_adam_decay: Adam,
    optim_sgd: Sgd,
    optim_sgd_nesterov: Sgd,
    optim_sgd_decay: Sgd,
    optim_rmsprop: RmsProp,
    optim_rmsprop_decay: RmsProp,
    optim_radam: RAdam,
    optim_radam_decay: RAdam,
    optim_lamb: Lamb,
    optim_adabelief: AdaBelief,
    optim_yogi: Yogi,
    optim_lion: Lion,
);

/// SGD with steps of 1 from 0, whose weights are the negated gradients that were taken.
fn descent(lens: &[usize]) -> Optimiser {
    let config = OptimiserConfig { momentum: Some(0.0), ..OptimiserConfig::new(Kind::Sgd) };
    let parameter = |(i, len): (usize, &usize)| Parameter::new(i.to_string(), &[*len]);
    Optimiser::new(config, lens.iter().enumerate().map(parameter).collect())
}

#[test]
fn the_global_norm_is_clipped_from_huge_to_zero() {
    let golden = Golden::open("clip_global_norm");
    for case in ["large", "small", "huge", "zero"] {
        let grads = ["w", "b"].map(|n| golden.f32(&format!("input.{case}.{n}")));
        let squares = grads.iter().map(|g| squared_norm(g)).sum();
        let (norm, factor) = clip(squares, 1.0, 1.0).unwrap();
        golden.check(&format!("output.{case}.norm"), [norm]);
        let mut descent = descent(&[grads[0].len(), grads[1].len()]);
        descent.begin();
        for (i, name) in ["w", "b"].iter().enumerate() {
            let mut p = vec![0.0; grads[i].len()];
            descent.update(i, &mut p, &grads[i], factor, 1.0).unwrap();
            golden.check(&format!("output.{case}.{name}"), p.iter().map(|&v| -f64::from(v)));
        }
    }
}

#[test]
fn accumulated_gradients_are_averaged_and_then_clipped() {
    let golden = Golden::open("grad_accumulation");
    let number = |key: &str| golden.config[key].as_f64().unwrap();
    let (updates, parts) = (number("updates") as usize, number("micro_batches") as usize);
    let names = ["weight", "bias"];
    let mut params = names.map(|n| golden.f32(&format!("param.{n}")));
    let micro = names.map(|n| golden.f32(&format!("output.micro_{n}")));
    let config =
        OptimiserConfig { weight_decay: number("weight_decay"), ..OptimiserConfig::default() };
    // In the reference every parameter decays.
    let parameter =
        |i: usize| Parameter { name: names[i].into(), len: params[i].len(), decay: true };
    let mut adam = Optimiser::new(config, vec![parameter(0), parameter(1)]);
    let (mut norms, mut after) = (vec![], [vec![], vec![]]);
    for update in 0..updates {
        let sums = [0, 1].map(|i| {
            let len = params[i].len();
            let mut sum = vec![0.0f32; len];
            for part in micro[i].chunks(len).skip(update * parts).take(parts) {
                sum.iter_mut().zip(part).for_each(|(sum, g)| *sum += g);
            }
            sum
        });
        let squares = sums.iter().map(|sum| squared_norm(sum)).sum();
        let (norm, factor) = clip(squares, parts as f64, number("max_norm")).unwrap();
        norms.push(norm);
        adam.begin();
        for i in 0..2 {
            adam.update(i, &mut params[i], &sums[i], factor, number("lr")).unwrap();
            after[i].extend(wide(&params[i]));
        }
    }
    golden.check("output.norm", norms);
    for (name, after) in names.iter().zip(after) {
        golden.check(&format!("output.{name}"), after);
    }
}

#[test]
fn the_average_of_the_weights_has_no_initial_bias() {
    let golden = Golden::open("ema");
    let decay = golden.config["decay"].as_f64().unwrap();
    let (path, start) = (golden.f32("input.param"), golden.f32("input.start"));
    let len = start.len();
    let mut descent = descent(&[len]).averaging(Some(decay));
    let (mut corrected, mut from_zero, mut from_start) = (vec![], vec![], vec![]);
    for (t, at) in path.chunks(len).enumerate() {
        // A step without a gradient, at the next point of the path.
        descent.step(&mut [&mut at.to_vec()], &[&vec![0.0; len]], 1.0).unwrap();
        let left = decay.powi(t as i32 + 1);
        for (average, &start) in wide(&descent.averages().unwrap().unwrap()[0]).zip(&start) {
            corrected.push(average);
            from_zero.push((1.0 - left) * average);
            from_start.push((1.0 - left) * average + left * f64::from(start));
        }
    }
    golden.check("output.corrected", corrected);
    golden.check("output.from_zero", from_zero);
    golden.check("output.from_start", from_start);
}

#[test]
fn schedules_give_the_rate_of_every_update() {
    let golden = Golden::open("schedules");
    let number = |key: &str| golden.config[key].as_f64().unwrap();
    let restarts =
        |mult| ScheduleKind::CosineRestarts { min: 0.0, period: number("period") as u64, mult };
    let kinds = [
        ("constant", ScheduleKind::Constant),
        ("linear", ScheduleKind::Linear { min: 0.0 }),
        ("cosine", ScheduleKind::Cosine { min: 0.0 }),
        ("exponential", ScheduleKind::Exponential { rate: number("rate") }),
        ("cosine_restarts", restarts(1)),
        ("cosine_restarts_x2", restarts(2)),
    ];
    for (label, kind) in kinds {
        for (suffix, warmup_steps) in [("", 0), ("_warmup", number("warmup") as u64)] {
            // The length in the golden file is that of the decay alone.
            let decay = number("total") as u64;
            let run = Schedule {
                kind,
                base: number("base"),
                warmup_steps,
                total_steps: decay + warmup_steps,
                decay_steps: None,
            };
            let given = Schedule { total_steps: 1, decay_steps: Some(decay), ..run };
            for schedule in [run, given] {
                let rates = (0..181).map(|t| schedule.rate(t));
                golden.check(&format!("output.{label}{suffix}"), rates);
            }
        }
    }
}

/// A policy with these heads, and with a value after them if `value`, whose logits a test gives itself.
fn companion(kinds: &[(&str, HeadKind)], value: bool) -> Companion {
    let value = value.then_some(("value", HeadKind::Value(1)));
    let kinds = kinds.iter().chain(&value);
    let head = |(name, kind): &(&str, HeadKind)| Head {
        name: (*name).into(),
        kind: *kind,
        hidden_size: 0,
    };
    let parts = kinds.map(head).collect();
    let heads = Heads { kind: HeadsKind::Independent, parts, stream_size: 4, prior: false };
    let backbone = serde_json::json!({"mlp": {
        "hidden_sizes": [4], "layer_norm": false, "residual": false, "dropout": 0.0, "input_dropout": 0.0,
    }});
    let (embedding, backbone) = (Embedding::vector(2), serde_json::from_value(backbone).unwrap());
    let spec = Spec { embedding, backbone, heads, critic: None };
    Companion::new(Policy::init(&spec, 1).unwrap(), "the teacher".into(), String::new())
}

/// Columns side by side, `[n, sum of widths]`.
fn columns(n: usize, all: &[Vec<f32>]) -> Vec<f32> {
    (0..n)
        .flat_map(|i| all.iter().flat_map(move |c| &c[i * c.len() / n..][..c.len() / n]))
        .copied()
        .collect()
}

#[test]
fn a_student_of_several_teachers_has_the_loss_and_gradients_of_torch_distributions() {
    let discrete = [("bits", HeadKind::Bernoulli(8)), ("choice", HeadKind::Categorical(17))];
    let numbers = Gaussian { size: 3, low: -1.0, high: 2.0 };
    let numbers = [("at", HeadKind::Gaussian(numbers))];
    for (name, kinds, columns_of) in [
        ("distill_teachers_reverse", &discrete[..], ["bits", "choice"]),
        ("distill_teachers_forward", &discrete, ["bits", "choice"]),
        ("distill_teachers_plain", &discrete, ["bits", "choice"]),
        ("distill_teachers_tanh_reverse", &numbers, ["mean", "log_std"]),
        ("distill_teachers_tanh_forward", &numbers, ["mean", "log_std"]),
    ] {
        let golden = Golden::open(name);
        let count = |key: &str| golden.config[key].as_u64().unwrap() as usize;
        let (n, teachers) = (count("batch"), count("teachers"));
        let of = |who: &str| columns_of.map(|column| golden.f32(&format!("input.{who}.{column}")));
        let direction = match golden.config["direction"].as_str() {
            Some("reverse") => Direction::Reverse,
            _ => Direction::Forward,
        };
        let (temperature, weight) =
            (golden.config["temperature"].as_f64().unwrap_or(1.0), Factor::new(1.0));
        // The second teacher has a value, so that its rows are wider.
        let companions = (0..teachers).map(|i| companion(kinds, i == 1)).collect();
        let own = companion(kinds, false);
        let lesson = Lesson { direction, temperature, weight };
        let objective = Teacher::new(companions, &own.spec().heads, lesson).unwrap();
        let theirs: Vec<Vec<f32>> = (0..teachers)
            .map(|i| {
                let mut all = of(&format!("teacher{i}")).to_vec();
                all.extend((i == 1).then(|| vec![7.0; n]));
                columns(n, &all)
            })
            .collect();
        let weights = golden.f32("input.frame_weights");
        let batch = Batch { weights, ..Batch::default() };
        let logits = columns(n, &of("student"));
        let companions = theirs.iter().map(Vec::as_slice).collect();
        let rows = Rows { logits: &logits, companions, batch: &batch, range: 0..n };
        let whole = objective.denominators(&batch, None).unwrap();
        let mut gradient = vec![f32::NAN; logits.len()];
        let sums = objective.rows(&rows, &whole, Some(&mut gradient)).unwrap();
        let figures = objective.finish(&sums, &whole).unwrap();
        golden.check("output.kl", [figures.named["teacher_kl"]]);
        golden.check("output.loss", [figures.total]);
        let (width, mut first) = (gradient.len() / n, 0);
        for (column, own) in columns_of.iter().zip(of("student")) {
            let own = own.len() / n;
            let part = gradient.chunks(width).flat_map(|row| &row[first..first + own]);
            golden.check(&format!("grad.input.student.{column}"), part.map(|&v| f64::from(v)));
            first += own;
        }
    }
}

#[test]
fn bounded_numbers_have_no_temperature() {
    let numbers = Gaussian { size: 1, low: -1.0, high: 1.0 };
    let kinds = [("bits", HeadKind::Bernoulli(2)), ("push", HeadKind::Gaussian(numbers))];
    let of = |temperature| {
        let lesson =
            Lesson { direction: Direction::Forward, temperature, weight: Factor::new(1.0) };
        let heads = companion(&kinds, false).spec().heads.clone();
        Teacher::new(vec![companion(&kinds, false)], &heads, lesson).map(drop)
    };
    of(1.0).unwrap();
    let error = of(2.0).unwrap_err().to_string();
    let expected = "teacher_temperature: expected 1 beside the bounded numbers of head push, got 2";
    assert_eq!(error, expected);
}
