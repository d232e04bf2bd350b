//! How far the logits of one frame are from a teacher's, and the gradient of that.

use sconce_nn::spec::HeadKind;
use sconce_tensor::simd::exp;
use serde::{Deserialize, Serialize};

/// Which distribution the expectation is over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// KL(learner || teacher), the expectation over what the learner would do: it may leave out what the
    /// teacher does, and is punished for what the teacher would not do.
    #[default]
    Forward,
    /// KL(teacher || learner): it is punished for what it leaves out.
    Reverse,
}

/// One head of one row; adds `scale` times its gradient at `x`.
pub(crate) fn divergence(
    kind: HeadKind,
    direction: Direction,
    x: &[f32],
    y: &[f32],
    scale: f64,
    grad: &mut [f32],
) -> f64 {
    match kind {
        HeadKind::Bernoulli(_) => {
            let bits = x.iter().zip(y).zip(grad);
            bits.map(|((&x, &y), grad)| {
                let (kl, slope) = bit(direction, x.into(), y.into());
                *grad += (scale * slope) as f32;
                kl
            })
            .sum()
        }
        HeadKind::Categorical(_) => classes(direction, x, y, scale, grad),
    }
}

/// Divergence of a bit, and its derivative at the learner's logit.
fn bit(direction: Direction, x: f64, y: f64) -> (f64, f64) {
    let (p, q) = (1.0 / (1.0 + (-x).exp()), 1.0 / (1.0 + (-y).exp()));
    let softplus = |z: f64| z.max(0.0) + (-z.abs()).exp().ln_1p();
    match direction {
        Direction::Forward => (p * (x - y) - softplus(x) + softplus(y), p * (1.0 - p) * (x - y)),
        Direction::Reverse => (q * (y - x) - softplus(y) + softplus(x), p - q),
    }
}

fn classes(direction: Direction, x: &[f32], y: &[f32], scale: f64, grad: &mut [f32]) -> f64 {
    let (log_x, log_y) = (log_sum(x), log_sum(y));
    let probability = |v: f32, log: f64| f64::from(exp((f64::from(v) - log) as f32));
    let ratio = |x: f32, y: f32| (f64::from(x) - log_x) - (f64::from(y) - log_y);
    let pairs = || x.iter().copied().zip(y.iter().copied());
    match direction {
        Direction::Forward => {
            let kl: f64 = pairs().map(|(x, y)| probability(x, log_x) * ratio(x, y)).sum();
            for ((x, y), grad) in pairs().zip(grad) {
                *grad += (scale * probability(x, log_x) * (ratio(x, y) - kl)) as f32;
            }
            kl
        }
        Direction::Reverse => {
            for ((x, y), grad) in pairs().zip(grad) {
                *grad += (scale * (probability(x, log_x) - probability(y, log_y))) as f32;
            }
            pairs().map(|(x, y)| -probability(y, log_y) * ratio(x, y)).sum()
        }
    }
}

fn log_sum(x: &[f32]) -> f64 {
    let largest = x.iter().fold(f32::NEG_INFINITY, |m, &v| m.max(v));
    let sum: f64 = x.iter().map(|&v| f64::from(exp(v - largest))).sum();
    f64::from(largest) + sum.ln()
}
