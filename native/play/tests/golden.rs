//! Advantages, V-trace and the loss of PPO against golden data in float64.

#[path = "../../train/tests/support/parts.rs"]
mod parts;
#[path = "../../train/tests/support/mod.rs"]
mod support;

use parts::{Part, add, heads, parts};
use sconce_data::{Batch, Extra, Played};
use sconce_play::objective::{Clipped, Normalise, Terms};
use sconce_play::returns::{Bars, Discounts, Steps, advantages, v_trace};
use sconce_train::objective::{Figures, Objective, Rows};
use support::Golden;

/// Columns of a segment in a golden file.
struct Columns([Vec<f32>; 3], [Vec<u8>; 2]);

impl Columns {
    fn of(golden: &Golden) -> Self {
        let flags = |name: &str| golden.labels(name).iter().map(|v| *v as u8).collect();
        Columns(
            ["reward", "value", "next_value"].map(|name| golden.f32(&format!("input.{name}"))),
            ["terminated", "truncated"].map(|name| flags(&format!("input.{name}"))),
        )
    }

    fn steps(&self, rows: usize) -> Steps<'_> {
        let ([rewards, values, next_values], [terminated, truncated]) = (&self.0, &self.1);
        Steps { rows, rewards, values, next_values, terminated, truncated }
    }
}

fn number(golden: &Golden, name: &str) -> f32 {
    golden.config[name].as_f64().unwrap() as f32
}

fn rows(golden: &Golden) -> usize {
    golden.config["envs"].as_u64().unwrap() as usize
}

fn widened(all: &[f32]) -> Vec<f64> {
    all.iter().map(|v| f64::from(*v)).collect()
}

#[test]
fn advantages_are_those_of_float64() {
    for case in ["gae_plain", "gae_ends", "gae_lambda1"] {
        let golden = Golden::open(case);
        let discounts =
            Discounts { gamma: number(&golden, "gamma"), lambda: number(&golden, "lam") };
        let columns = Columns::of(&golden);
        let returns = advantages(columns.steps(rows(&golden)), discounts).unwrap();
        golden.check("output.advantage", widened(&returns.advantages));
        golden.check("output.return", widened(&returns.targets));
    }
}

#[test]
fn v_trace_is_that_of_float64() {
    for case in ["play_vtrace", "play_vtrace_ends", "play_vtrace_bars"] {
        let golden = Golden::open(case);
        let discounts =
            Discounts { gamma: number(&golden, "gamma"), lambda: number(&golden, "lam") };
        let bars = Bars { rho: number(&golden, "rho_bar"), c: number(&golden, "c_bar") };
        let columns = Columns::of(&golden);
        let ratios = golden.f32("input.log_rho");
        let traced = v_trace(columns.steps(rows(&golden)), &ratios, discounts, bars).unwrap();
        golden.check("output.target", widened(&traced.targets));
        golden.check("output.advantage", widened(&traced.advantages));
    }
}

/// Logits, the value last in each row, and the batch of a case.
fn batch(golden: &Golden, parts: &[Part], rows: usize) -> (Vec<f32>, Batch) {
    let values = golden.f32("input.value");
    let (mut logits, mut labels) = (vec![], vec![]);
    for (row, value) in values.iter().enumerate() {
        logits.extend(parts.iter().flat_map(|part| part.logits(golden, "", row, rows)));
        logits.push(*value);
        labels.extend(parts.iter().flat_map(|part| part.label(golden, row, rows)));
    }
    let mut weights = golden.optional("input.weight").unwrap_or_else(|| vec![1.0; rows]);
    if golden.config["mask"] == true {
        weights.iter_mut().zip(golden.labels("input.mask")).for_each(|(w, mask)| *w *= mask);
    }
    let column = |played: Played, name: &str| (Extra::Played(played), golden.f32(name));
    let mut beside = vec![
        column(Played::Advantage, "input.advantage"),
        column(Played::Target, "input.return"),
        column(Played::LogLikelihood, "input.old_log_prob"),
        column(Played::Value, "input.old_value"),
    ];
    if golden.config["allowed"] == true {
        beside.push((Extra::Played(Played::Mask), golden.labels("input.allowed")));
    }
    (logits, Batch { labels, weights, beside, ..Batch::default() })
}

fn terms(golden: &Golden) -> Terms {
    let number = |name: &str| golden.config[name].as_f64();
    Terms {
        clip: number("clip").unwrap(),
        policy_weight: 1.0,
        value_clip: number("value_clip"),
        value_weight: number("value_coef").unwrap(),
        entropy_weight: number("entropy_coef").unwrap(),
        normalise: match golden.config["normalise"].as_str() {
            None => Normalise::None,
            Some("sample") => Normalise::Sample,
            Some(_) => Normalise::Population,
        },
    }
}

/// The figures of a case and the gradient of its logits.
fn loss(golden: &Golden, parts: &[Part], split: &[usize]) -> (Figures, Vec<f32>) {
    let rows = golden.config["batch"].as_u64().unwrap() as usize;
    let objective = Clipped::new(&heads(parts), terms(golden)).unwrap();
    let (logits, batch) = batch(golden, parts, rows);
    let whole = objective.denominators(&batch, None).unwrap();
    let (width, mut gradient) = (logits.len() / rows, vec![f32::NAN; logits.len()]);
    let mut sums = sconce_train::objective::Sums::default();
    let bounds: Vec<usize> = [0].iter().chain(split).chain([&rows]).copied().collect();
    for range in bounds.windows(2).map(|pair| pair[0]..pair[1]) {
        let logits = &logits[range.start * width..range.end * width];
        let gradient = &mut gradient[range.start * width..range.end * width];
        let some = Rows { logits, companions: vec![], batch: &batch, range };
        sums.add(&objective.rows(&some, &whole, Some(gradient)).unwrap());
    }
    (objective.finish(&sums, &whole).unwrap(), gradient)
}

#[test]
fn loss_figures_and_gradients_of_all_heads_are_those_of_float64() {
    let cases = [
        "categorical",
        "bernoulli",
        "tanh",
        "tanh_state",
        "mixed",
        "normalise",
        "normalise_sample",
        "value_clip",
        "weights",
        "mask",
        "masked_actions",
    ];
    for case in cases {
        let golden = Golden::open(&format!("play_ppo_{case}"));
        let parts = parts(&golden);
        let (figures, gradient) = loss(&golden, &parts, &[]);
        golden.check("output.loss", [figures.total]);
        for name in ["policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction"] {
            golden.check(&format!("output.{name}"), [figures.named[name]]);
        }
        let (mut named, mut from) = (vec![], 0);
        let width = parts.iter().map(|part| part.kind.logits()).sum::<usize>() + 1;
        for part in &parts {
            let span = from..from + part.kind.logits();
            from = span.end;
            let own: Vec<_> =
                gradient.chunks(width).map(|row| row[span.clone()].to_vec()).collect();
            add(&golden, part, &own, &mut named);
        }
        let of_value = gradient.iter().skip(width - 1).step_by(width);
        named.push(("grad.input.value".into(), of_value.map(|v| f64::from(*v)).collect()));
        named.into_iter().for_each(|(name, gradient)| golden.check(&name, gradient));
        // The shards of a batch have together the gradient of the batch.
        assert_eq!(loss(&golden, &parts, &[5, 12]).1, gradient, "{case}");
    }
}
