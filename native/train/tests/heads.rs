//! Kinds of heads, and advantage-weighted imitation, against golden data in float64.

#[path = "support/parts.rs"]
mod parts;
mod support;

use std::ops::Range;

use parts::{Part, add, heads, part, parts};
use sconce_data::{Batch, Extra};
use sconce_nn::head::{Direction, Gaussian, Pair, Shape};
use sconce_nn::spec::{Head, HeadKind, Heads, HeadsKind};
use sconce_train::objective::advantage::{Advantage, AdvantageOptions};
use sconce_train::objective::imitation::LossOptions;
use sconce_train::objective::{Denominators, Objective, Rows};
use support::Golden;

fn likelihoods(case: &str) {
    let golden = Golden::open(case);
    let rows = golden.config["batch"].as_u64().unwrap() as usize;
    let cotangent = |name: &str| golden.f32(&format!("input.cotangent.{name}"));
    let pulls = ["log_prob.total", "entropy.total", "kl.total"].map(cotangent);
    let of_mode = golden.optional("input.cotangent.mode.stick");
    let (mut totals, mut gradients) = (vec![[0.0; 3]; rows], vec![]);
    let mut stick = vec![[0.0; 3]; rows];
    for part_of in parts(&golden) {
        let mut own = vec![];
        for row in 0..rows {
            let (x, y) = (
                part_of.logits(&golden, "", row, rows),
                part_of.logits(&golden, "other.", row, rows),
            );
            let label = part_of.label(&golden, row, rows);
            let pull = Pair { loss: -f64::from(pulls[0][row]), entropy: -f64::from(pulls[1][row]) };
            let mut gradient = vec![f32::NAN; x.len()];
            let kind = part_of.kind;
            let shape = Shape::default();
            let told = kind.learn(&x, &label, &shape, pull, &mut gradient);
            let scale = f64::from(pulls[2][row]);
            let kl = kind.divergence(Direction::Forward, &x, &y, scale, &mut gradient);
            assert!((told.loss - kind.nll(&x, &label)).abs() < 1e-5 * told.loss.abs().max(1.0));
            assert!((told.entropy - kind.entropy(&x)).abs() < 1e-5, "{case}: {told:?}");
            if let (Some(number), Some(of_mode), HeadKind::Gaussian(bounds)) =
                (part_of.number, &of_mode, kind)
            {
                // The part of the mode in the gradient of the mean.
                let slope = 0.5 * (bounds.high - bounds.low) * (1.0 - x[0].tanh().powi(2));
                gradient[0] += slope * part(of_mode, row, rows)[number];
            }
            let figures = [-told.loss, told.entropy, kl];
            totals[row].iter_mut().zip(figures).for_each(|(sum, figure)| *sum += figure);
            if part_of.number.is_some() {
                stick[row].iter_mut().zip(figures).for_each(|(sum, figure)| *sum += figure);
            }
            own.push(gradient);
        }
        add(&golden, &part_of, &own, &mut gradients);
    }
    for (i, name) in ["log_prob", "entropy", "kl"].into_iter().enumerate() {
        golden.check(&format!("output.{name}.total"), totals.iter().map(|row| row[i]));
        if of_mode.is_some() {
            golden.check(&format!("output.{name}.stick"), stick.iter().map(|row| row[i]));
        }
    }
    for (name, gradient) in gradients {
        golden.check(&name, gradient);
    }
}

#[test]
fn likelihood_entropy_divergence_and_gradient_of_each_kind_are_those_of_float64() {
    let cases = ["categorical", "bernoulli", "tanh_state", "tanh_free", "mixed", "mixed_state"];
    cases.iter().for_each(|case| likelihoods(&format!("play_{case}")));
}

#[test]
fn numbers_next_to_a_bound_have_a_likelihood() {
    let golden = Golden::open("play_tanh_near_bounds");
    let [means, log_stds, low, high, actions] = ["mean", "log_std", "low", "high", "action"]
        .map(|name| golden.f32(&format!("input.{name}")));
    let n = low.len();
    let log_prob = actions.chunks(n).zip(means.chunks(n)).map(|(actions, means)| {
        let of = |i: usize| {
            let kind = HeadKind::Gaussian(Gaussian { size: 1, low: low[i], high: high[i] });
            -kind.nll(&[means[i], log_stds[i]], &[actions[i]])
        };
        (0..n).map(of).sum::<f64>()
    });
    golden.check("output.log_prob", log_prob.collect::<Vec<_>>());
    // The distance to a bound does not depend on the range, even at 0, where f32 numbers are very dense.
    let at_bound = |low: f32, high: f32, label: f32| {
        let kind = HeadKind::Gaussian(Gaussian { size: 1, low, high });
        kind.nll(&[0.0, 0.0], &[label]) - f64::from(high - low).ln()
    };
    let expected = at_bound(-1.0, 1.0, 1.0);
    for (low, high) in [(-1.0, 1.0), (0.0, 1.0), (-1.0, 0.0), (0.0, 1000.0)] {
        for label in [low, high] {
            let nll = at_bound(low, high, label);
            assert!((nll - expected).abs() < 1e-6, "{label} of {low}..{high}: {nll}");
        }
    }
}

/// Rows of a batch whose returns are its advantages, as the value of each is 0.
fn batch(golden: &Golden, parts: &[Part], rows: usize) -> (Vec<f32>, Batch) {
    let (mut logits, mut labels) = (vec![], vec![]);
    for row in 0..rows {
        logits.extend(parts.iter().flat_map(|part| part.logits(golden, "", row, rows)));
        logits.push(0.0);
        labels.extend(parts.iter().flat_map(|part| part.label(golden, row, rows)));
    }
    let masked = golden.config.get("mask").is_some_and(|mask| mask == true);
    let weights = if masked { golden.labels("input.mask") } else { vec![1.0; rows] };
    let beside = vec![(Extra::Return { discount: 1.0 }, golden.f32("input.advantage"))];
    (logits, Batch { labels, weights, beside, ..Batch::default() })
}

#[test]
fn advantage_weighted_imitation_is_that_of_float64() {
    for case in ["categorical", "tanh", "mixed"] {
        let golden = Golden::open(&format!("play_awr_{case}"));
        let (rows, parts) = (golden.config["batch"].as_u64().unwrap() as usize, parts(&golden));
        let heads = heads(&parts);
        let options = AdvantageOptions {
            temperature: golden.config["beta"].as_f64().unwrap(),
            max_weight: golden.config["weight_max"].as_f64().unwrap(),
            value_weight: 0.0,
        };
        let objective = Advantage::new(&heads, &LossOptions::plain(), options).unwrap();
        let (logits, batch) = batch(&golden, &parts, rows);
        let range: Range<usize> = 0..rows;
        let whole = objective.denominators(&batch, None).unwrap();
        let all = Rows { logits: &logits, companions: vec![], batch: &batch, range };
        let mut gradient = vec![f32::NAN; logits.len()];
        let sums = objective.rows(&all, &whole, Some(&mut gradient)).unwrap();
        golden.check("output.loss", [objective.finish(&sums, &whole).unwrap().total]);
        let (mut named, mut from, width) = (vec![], 0, logits.len() / rows);
        for part in &parts {
            let span = from..from + part.kind.logits();
            from = span.end;
            let own: Vec<_> =
                gradient.chunks(width).map(|row| row[span.clone()].to_vec()).collect();
            add(&golden, part, &own, &mut named);
        }
        named.into_iter().for_each(|(name, gradient)| golden.check(&name, gradient));
    }
}

#[test]
fn the_loss_of_a_value_is_that_of_float64() {
    for case in ["play_value", "play_value_weighted"] {
        let golden = Golden::open(case);
        let [values, returns] =
            ["value", "return"].map(|name| golden.f32(&format!("input.{name}")));
        let rows = values.len();
        let weights = golden.optional("input.weight").unwrap_or_else(|| vec![1.0; rows]);
        let head = |name: &str, kind| Head { name: name.into(), kind, hidden_size: 0 };
        let parts = vec![head("go", HeadKind::Bernoulli(1)), head("value", HeadKind::Value(1))];
        let heads = Heads { kind: HeadsKind::Independent, parts, stream_size: 1, prior: false };
        // Nothing is imitated: the largest weight is almost 0.
        let options = AdvantageOptions { temperature: 1.0, max_weight: 1e-30, value_weight: 1.0 };
        let objective = Advantage::new(&heads, &LossOptions::plain(), options).unwrap();
        let logits: Vec<f32> = values.iter().flat_map(|value| [0.0, *value]).collect();
        let beside = vec![(Extra::Return { discount: 1.0 }, returns)];
        let batch = Batch { labels: vec![0.0; rows], weights, beside, ..Batch::default() };
        let whole = Denominators::of(&batch.weights).unwrap().with(vec![1.0; 2]);
        let all = Rows { logits: &logits, companions: vec![], batch: &batch, range: 0..rows };
        let mut gradient = vec![f32::NAN; logits.len()];
        let sums = objective.rows(&all, &whole, Some(&mut gradient)).unwrap();
        let figures = objective.finish(&sums, &whole).unwrap();
        golden.check("output.loss", [figures.named["value_loss"]]);
        let of_values = gradient.iter().skip(1).step_by(2).map(|v| f64::from(*v));
        golden.check("grad.input.value", of_values.collect::<Vec<_>>());
    }
}
