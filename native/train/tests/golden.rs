//! Losses, optimiser and schedules against vectors made in float64.

mod support;

use sconce_core::spec::{Heads, HeadsKind};
use sconce_train::loss::{
    FocalHeads, LossOptions, PosWeight, Reduction, imitation, nll_rows, pos_weight_auto,
};
use sconce_train::optimiser::{AdamW, AdamWConfig, Parameter, clip_global_norm};
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
    let count = |b: usize| pressed.iter().skip(b).step_by(8).filter(|p| **p == 1).count();
    let rates: Vec<f64> = (0..8).map(|b| count(b) as f64 / n).collect();
    golden.check("output.rate", rates.iter().copied());
    golden.check("output.pos_weight", wide(&pos_weight_auto(&rates)));
}

#[test]
fn adamw_follows_the_reference_for_ten_updates() {
    let golden = Golden::open("optim_adamw");
    let names = ["w", "b", "z"];
    // The reference lets every parameter decay.
    let mut params = names.map(|n| golden.f32(&format!("param.{n}")));
    let parameters = names.iter().zip(&params);
    let parameters =
        parameters.map(|(n, p)| Parameter { name: n.to_string(), len: p.len(), decay: true });
    let mut adam = AdamW::new(AdamWConfig::default(), parameters.collect());
    let grads = names.map(|n| golden.f32(&format!("input.grad.{n}")));
    let mut after: [Vec<f32>; 3] = Default::default();
    for t in 0..10 {
        let [w, b, z] = &mut params;
        let now = |i: usize, len: usize| &grads[i][t * len..(t + 1) * len];
        let grads = [now(0, w.len()), now(1, b.len()), now(2, z.len())];
        adam.step(&mut [w, b, z], &grads, 1e-2).unwrap();
        after.iter_mut().zip(&params).for_each(|(a, p)| a.extend(p));
    }
    for (name, after) in names.iter().zip(&after) {
        golden.check(&format!("output.param.{name}"), wide(after));
    }
    let state: Vec<_> = adam.state().collect();
    assert_eq!(state.len(), 6);
    for (name, values) in state {
        golden.check(&format!("output.state.{name}"), wide(values));
    }
}

#[test]
fn the_global_norm_is_clipped_from_huge_to_zero() {
    let golden = Golden::open("clip_global_norm");
    for case in ["large", "small", "huge", "zero"] {
        let mut w = golden.f32(&format!("input.{case}.w"));
        let mut b = golden.f32(&format!("input.{case}.b"));
        let norm = clip_global_norm(&mut [&mut w, &mut b], 1.0).unwrap();
        golden.check(&format!("output.{case}.norm"), [norm]);
        golden.check(&format!("output.{case}.w"), wide(&w));
        golden.check(&format!("output.{case}.b"), wide(&b));
    }
}

#[test]
fn schedules_give_the_rate_of_every_update() {
    let golden = Golden::open("schedules");
    let number = |key: &str| golden.config[key].as_f64().unwrap();
    let kinds = [
        ("constant", ScheduleKind::Constant),
        ("linear", ScheduleKind::Linear { min: 0.0 }),
        ("cosine", ScheduleKind::Cosine { min: 0.0 }),
    ];
    for (label, kind) in kinds {
        for (suffix, warmup_steps) in [("", 0), ("_warmup", number("warmup") as u64)] {
            // The golden length is that of the decay alone.
            let total_steps = number("total") as u64 + warmup_steps;
            let schedule = Schedule { kind, base: number("base"), warmup_steps, total_steps };
            let rates = (0..181).map(|t| schedule.rate(t));
            golden.check(&format!("output.{label}{suffix}"), rates);
        }
    }
}
