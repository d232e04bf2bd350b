use sconce_data::Batch;
use sconce_nn::spec::{self, Embedding, HeadsKind};
use sconce_tensor::rng::Rng;

use super::*;
use crate::options::DataOptions;

fn teacher(direction: Direction) -> Teacher {
    let part = |name: &str, kind| Head { name: name.into(), kind, hidden_size: 4 };
    let parts = vec![
        part("go", HeadKind::Bernoulli(2)),
        part("to", HeadKind::Categorical(3)),
        part("at", HeadKind::Categorical(2)),
    ];
    let heads = Heads { kind: HeadsKind::Independent, parts, stream_size: 4, prior: false };
    let backbone = spec::Backbone::Mlp(spec::MlpConfig {
        hidden_sizes: vec![4],
        layer_norm: false,
        residual: false,
        activation: Default::default(),
        dropout: 0.0,
        input_dropout: 0.0,
    });
    let spec = Spec { embedding: Embedding::vector(2), backbone, heads, critic: None };
    let policy = Policy::init(&spec, 1).unwrap();
    let companions = vec![Companion::new(policy, "the teacher".into(), String::new())];
    let lesson = Lesson { direction, temperature: 1.0, weight: Factor::new(0.5) };
    Teacher::new(companions, &spec.heads, lesson).unwrap()
}

/// Log-probabilities of all actions: two bits, a head of three classes and a head of two.
fn joint(x: &[f64]) -> Vec<f64> {
    let bit = |x: f64, on: bool| -(if on { -x } else { x }).exp().ln_1p();
    let class = |x: &[f64], i: usize| x[i] - x.iter().map(|v| v.exp()).sum::<f64>().ln();
    let mut all = vec![];
    for a in [false, true] {
        for b in [false, true] {
            for c in 0..3 {
                for d in 0..2 {
                    let bits = bit(x[0], a) + bit(x[1], b);
                    all.push(bits + class(&x[2..5], c) + class(&x[5..7], d));
                }
            }
        }
    }
    all
}

fn kl(direction: Direction, x: &[f64], y: &[f64]) -> f64 {
    let (p, q) = match direction {
        Direction::Forward => (joint(x), joint(y)),
        Direction::Reverse => (joint(y), joint(x)),
    };
    p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum()
}

#[test]
fn the_divergence_and_its_gradient_are_those_of_the_joint_distributions() {
    const ROWS: usize = 6;
    let rng = Rng::new(3, "logits", 0);
    let x: Vec<f32> = (0..7 * ROWS as u64).map(|i| 3.0 * rng.normal(i)).collect();
    let y: Vec<f32> = (0..7 * ROWS as u64).map(|i| 3.0 * rng.normal(i + 1000)).collect();
    let weights = [1.0, 0.0, 2.0, 0.5, 1.0, 3.0];
    for direction in [Direction::Forward, Direction::Reverse] {
        let mut grad = vec![10.0; x.len()];
        let sum = teacher(direction).pull().add(&x, &[&y], &weights, 0.25, &mut grad);
        let mut wanted = 0.0;
        for (row, &weight) in weights.iter().enumerate() {
            let row_of = |v: &[f32]| -> Vec<f64> {
                v[7 * row..7 * row + 7].iter().map(|&v| v.into()).collect()
            };
            let (x, y) = (row_of(&x), row_of(&y));
            wanted += f64::from(weight) * kl(direction, &x, &y);
            for i in 0..7 {
                let at = |h: f64| {
                    let mut x = x.clone();
                    x[i] += h;
                    kl(direction, &x, &y)
                };
                let slope = (at(1e-5) - at(-1e-5)) / 2e-5;
                let want = 10.0 + 0.5 * 0.25 * f64::from(weight) * slope;
                let got = f64::from(grad[7 * row + i]);
                assert!((got - want).abs() < 2e-6, "{direction:?} {row} {i}: {got} {want}");
            }
        }
        assert!((sum - wanted).abs() < 1e-5 * wanted, "{direction:?}: {sum} is not {wanted}");
    }
}

/// Divergence of the distributions over the allowed bits and classes.
fn masked_kl(direction: Direction, x: &[f64], y: &[f64], mask: &[f32]) -> f64 {
    let (x, y) = match direction {
        Direction::Forward => (x, y),
        Direction::Reverse => (y, x),
    };
    let bit = |i: usize| {
        let log = |x: f64, on: f64| -(-on * x).exp().ln_1p();
        let of = |on: f64| log(x[i], on).exp() * (log(x[i], on) - log(y[i], on));
        if mask[i] == 0.0 { 0.0 } else { of(1.0) + of(-1.0) }
    };
    let head = |span: std::ops::Range<usize>| {
        let allowed: Vec<usize> = span.filter(|i| mask[*i] != 0.0).collect();
        let sum = |x: &[f64]| allowed.iter().map(|i| x[*i].exp()).sum::<f64>().ln();
        let (log_x, log_y) = (sum(x), sum(y));
        let of = |i: &usize| {
            let (p, q) = (x[*i] - log_x, y[*i] - log_y);
            p.exp() * (p - q)
        };
        allowed.iter().map(of).sum::<f64>()
    };
    bit(0) + bit(1) + head(2..5) + head(5..7)
}

#[test]
fn with_masks_the_divergence_is_that_among_the_allowed_actions() {
    const ROWS: usize = 4;
    let rng = Rng::new(3, "logits", 0);
    let x: Vec<f32> = (0..7 * ROWS as u64).map(|i| 2.0 * rng.normal(i)).collect();
    let y: Vec<f32> = (0..7 * ROWS as u64).map(|i| 2.0 * rng.normal(i + 1000)).collect();
    let one = [1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0];
    let mask = [one, [1.0; 7], [0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0], one].concat();
    let batch = Batch {
        weights: vec![1.0, 2.0, 1.0, 0.0],
        beside: vec![(Extra::Played(Played::Mask), mask.clone())],
        ..Batch::default()
    };
    for direction in [Direction::Forward, Direction::Reverse] {
        let teacher = teacher(direction);
        let whole = teacher.denominators(&batch, None).unwrap();
        // The first row is not among these.
        let rows =
            Rows { logits: &x[7..], companions: vec![&y[7..]], batch: &batch, range: 1..ROWS };
        let mut gradient = vec![9.0; 21];
        let sums = teacher.rows(&rows, &whole, Some(&mut gradient)).unwrap();
        let wide = |v: &[f32]| v.iter().map(|v| f64::from(*v)).collect::<Vec<_>>();
        let mut wanted = 0.0;
        for row in 1..ROWS {
            let span = 7 * row..7 * row + 7;
            let (x, y, mask) = (wide(&x[span.clone()]), wide(&y[span.clone()]), &mask[span]);
            let weight = f64::from(batch.weights[row]);
            wanted += weight * masked_kl(direction, &x, &y, mask);
            for i in 0..7 {
                let at = |h: f64| {
                    let mut x = x.clone();
                    x[i] += h;
                    masked_kl(direction, &x, &y, mask)
                };
                let slope = (at(1e-5) - at(-1e-5)) / 2e-5;
                let want = 0.5 * whole.mean() * weight * slope;
                let got = gradient[7 * (row - 1) + i];
                assert!((f64::from(got) - want).abs() < 1e-6, "{direction:?}: {got} {want}");
                assert!(mask[i] == 1.0 || got == 0.0, "{direction:?}: {got}");
            }
        }
        assert!((sums.0[0] - wanted).abs() < 1e-5 * wanted, "{} {wanted}", sums.0[0]);
    }
}

#[test]
fn a_learner_equal_to_the_teacher_has_no_gradient_however_certain_both_are() {
    let x = [90.0, -90.0, 80.0, -80.0, 0.0, 0.25, -0.25];
    for direction in [Direction::Forward, Direction::Reverse] {
        let mut grad = [0.0; 7];
        assert_eq!(teacher(direction).pull().add(&x, &[&x], &[1.0], 1.0, &mut grad), 0.0);
        assert_eq!(grad, [0.0; 7]);
    }
}

#[test]
fn a_teacher_of_another_game_action_space_or_delay_is_refused_with_both_named() {
    let teacher = teacher(Direction::Forward);
    let options = TrainOptions {
        data: DataOptions { frame_delay: 2, ..DataOptions::default() },
        ..TrainOptions::default()
    };
    let spec = teacher.companions[0].spec().clone();
    assert!(fits(teacher.companions[0].policy(), "the teacher", &spec, &options).is_ok());
    let other = Spec { embedding: Embedding::vector(3), ..spec.clone() };
    let error = fits(teacher.companions[0].policy(), "the teacher", &other, &options)
        .unwrap_err()
        .to_string();
    assert_eq!(error, "game of the teacher: expected vectors of 3, got vectors of 2");
    let mut other = spec.clone();
    other.heads.parts[1].kind = HeadKind::Categorical(4);
    let error = fits(teacher.companions[0].policy(), "the teacher", &other, &options)
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("action space of the teacher: expected "), "{error}");

    let file = tempfile::tempdir().unwrap();
    let path = file.path().join("teacher.safetensors");
    teacher.companions[0].policy().save(&path, serde_json::json!({ "frame_delay": 1 })).unwrap();
    let error = fits(&Policy::load(&path).unwrap(), "the teacher", &spec, &options)
        .unwrap_err()
        .to_string();
    assert_eq!(error, "frame delay of the teacher: expected 2..=2, got 1..=1");
    let range = TrainOptions {
        data: DataOptions { frame_delay: 1, frame_delay_max: Some(3), ..options.data },
        ..options
    };
    assert!(fits(&Policy::load(&path).unwrap(), "the teacher", &spec, &range).is_err());
    let notes = serde_json::json!({ "frame_delay": 1, "frame_delay_max": 3 });
    teacher.companions[0].policy().save(&path, notes).unwrap();
    assert!(fits(&Policy::load(&path).unwrap(), "the teacher", &spec, &range).is_ok());
}
