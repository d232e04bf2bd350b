//! Independent bits with one logit each, such as buttons.

use sconce_tensor::Tensor;
use sconce_tensor::rng::Uniforms;
use sconce_tensor::simd::{exp, sigmoid};

use super::counter::{self, Counter};
use super::distribution::{
    BaselineKind, Chance, Direction, Distribution, Pair, PriorRead, Shape, clip, log_sum_exp, power,
};
use crate::Result;
use crate::bounds::{MAX_SIZE, within};
use crate::ops::gather::one_hot;
use crate::sampling::{FORBIDDEN, Sampling};

/// This many independent bits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bernoulli(pub(super) usize);

/// Number of values of a bit.
const CLASSES: usize = 2;

impl Distribution for Bernoulli {
    fn logits(&self) -> usize {
        self.0
    }

    fn labels(&self) -> usize {
        self.0
    }

    fn classes(&self) -> usize {
        CLASSES
    }

    fn bits(&self) -> usize {
        self.0
    }

    fn bounds(&self) -> [f32; 2] {
        [0.0, 1.0]
    }

    fn on_card(&self) -> Option<i32> {
        Some(0)
    }

    fn validate(&self, field: &str) -> Result<()> {
        within(&format!("{field}.size"), self.0, 1, MAX_SIZE)
    }

    fn choose(&self, logits: &[f32], chance: &Chance<'_>, out: &mut [f32]) {
        let mut uniforms = Uniforms::new(*chance.rng);
        for (i, (logit, bit)) in logits.iter().zip(out).enumerate() {
            let held = chance.held.and_then(|held| held.get(i)) == Some(&1.0);
            let uniform = || uniforms.at(chance.index + i as u64);
            // The probability of a forbidden bit is a tiny number above 0, because `exp` saturates.
            let set = *logit > FORBIDDEN && pressed(chance.sampling, *logit, held, uniform);
            *bit = f32::from(u8::from(set));
        }
    }

    /// The mean distance of the bits' probabilities from one half, scaled to 0..1.
    fn confidence(&self, logits: &[f32]) -> f32 {
        logits.iter().map(|&l| (sigmoid(l) - 0.5).abs() * 2.0).sum::<f32>() / self.0 as f32
    }

    /// A bit is predicted as set above a probability of one half. All bits of the label must agree with the prediction.
    fn is_likely(&self, logits: &[f32], label: &[f32]) -> bool {
        logits.iter().zip(label).all(|(x, bit)| (*x > 0.0) == (*bit == 1.0))
    }

    fn encode(&self, label: &[f32], out: &mut [f32]) {
        out.copy_from_slice(label);
    }

    fn encode_there(&self, labels: &Tensor, shape: [usize; 2], first: usize) -> Result<Tensor> {
        one_hot(labels, shape, first, self.0, false)
    }

    fn nll(&self, logits: &[f32], label: &[f32]) -> f64 {
        let of_bit = |(x, bit): (&f32, &f32)| {
            let z = if *bit == 0.0 { *x } else { -x };
            f64::from(z.max(0.0)) + f64::from(exp(-z.abs()).ln_1p())
        };
        logits.iter().zip(label).map(of_bit).sum()
    }

    fn entropy(&self, logits: &[f32]) -> f64 {
        let of_bit = |x: &f32| {
            let (x, e) = (f64::from(x.abs()), f64::from(-x.abs()).exp());
            e.ln_1p() + x * e / (1.0 + e)
        };
        logits.iter().map(of_bit).sum()
    }

    /// For the logit x, let `z = x` for a released bit and `z = -x` for a pressed bit. Then neither the loss
    /// `softplus(z)` nor `1 - p`, which is `sigmoid(z)`, cancels.
    fn learn(
        &self,
        logits: &[f32],
        label: &[f32],
        shape: &Shape<'_>,
        pull: Pair,
        gradient: &mut [f32],
    ) -> Pair {
        for (e, &x) in gradient.iter_mut().zip(logits) {
            *e = exp(clip(x, shape.clamp));
        }
        let (mut loss, mut entropy) = (0.0, 0.0);
        let (pull_loss, pull_entropy) = (pull.loss as f32, (pull.entropy * shape.entropy) as f32);
        let gamma = shape.gamma as f32;
        for (i, ((&x, &bit), grad)) in logits.iter().zip(label).zip(gradient).enumerate() {
            let z = clip(x, shape.clamp);
            let (z, e, weight) = match bit == 0.0 {
                true => (z, *grad, shape.scale),
                false => {
                    let weight = shape.pos_weight.get(i).copied().unwrap_or(1.0);
                    (-z, 1.0 / *grad, shape.scale * weight)
                }
            };
            let (miss, hit) = (e / (1.0 + e), 1.0 / (1.0 + e));
            let nll = e.ln_1p();
            let factor = weight * power(miss.into(), shape.gamma) as f32;
            loss += f64::from(factor * nll);
            entropy += f64::from(nll - z * miss);
            let slope = pull_loss * factor * (miss + gamma * nll * hit);
            let slope = slope + pull_entropy * z * miss * hit;
            let side = if bit == 0.0 { 1.0 } else { -1.0 };
            *grad = if x.abs() <= shape.clamp { slope * side } else { 0.0 };
        }
        Pair { loss, entropy: entropy * shape.entropy }
    }

    fn divergence(
        &self,
        direction: Direction,
        x: &[f32],
        y: &[f32],
        scale: f64,
        gradient: &mut [f32],
    ) -> f64 {
        let bits = x.iter().zip(y).zip(gradient).map(|((&x, &y), gradient)| {
            let (kl, slope) = divergence(direction, x.into(), y.into());
            *gradient += (scale * slope) as f32;
            kl
        });
        bits.sum()
    }

    fn mixture(&self, parts: &[&[f32]], out: &mut [f32]) -> bool {
        for (i, out) in out.iter_mut().enumerate() {
            let own = parts.iter().map(|part| f64::from(part[i]));
            let (set, unset) = (own.clone().map(|x| -softplus(-x)), own.map(|x| -softplus(x)));
            *out = (log_sum_exp(set) - log_sum_exp(unset)) as f32;
        }
        true
    }

    /// The table has a row of logits for a previous 0, one for a previous 1, and one for no previous label.
    fn prior(&self) -> [usize; 2] {
        [CLASSES + 1, self.0]
    }

    fn prior_read(&self) -> PriorRead {
        PriorRead::Rows(1)
    }

    fn prior_key(&self, previous: Option<&[f32]>, out: &mut Vec<u32>) {
        out.extend((0..self.0).map(|i| (row(previous, i) * self.0 + i) as u32));
    }

    fn add_prior(&self, table: &[f32], previous: Option<&[f32]>, logits: &mut [f32]) {
        for (i, logit) in logits.iter_mut().enumerate() {
            *logit += table[row(previous, i) * self.0 + i];
        }
    }

    fn counts(&self) -> usize {
        self.0 * counter::len(CLASSES)
    }

    fn count(&self, previous: Option<&[f32]>, label: &[f32], counts: &mut [f64]) {
        let own = counts.chunks_exact_mut(counter::len(CLASSES));
        for (i, (bit, counts)) in label.iter().zip(own).enumerate() {
            let before = previous.and_then(|previous| previous.get(i)).copied();
            counter::count(before, *bit, CLASSES, counts);
        }
    }

    fn fit(&self, baseline: BaselineKind, counts: &[f64]) -> Vec<f32> {
        let own = counts.chunks_exact(counter::len(CLASSES));
        let tables: Vec<_> =
            own.map(|counts| Counter::new(counts, CLASSES).table(baseline)).collect();
        let rows = 0..=CLASSES;
        rows.flat_map(|row| tables.iter().map(move |p| logit(&p[CLASSES * row..]))).collect()
    }

    fn press_rates(&self, counts: &[f64]) -> Vec<f64> {
        let own = counts.chunks_exact(counter::len(CLASSES));
        own.map(|counts| Counter::new(counts, CLASSES).rate(1)).collect()
    }
}

/// Row of the prior's table for the previous value of a bit.
fn row(previous: Option<&[f32]>, bit: usize) -> usize {
    let value = previous.and_then(|previous| previous.get(bit));
    value.map_or(CLASSES, |value| (*value as usize).min(CLASSES))
}

/// The logit of the second of two probabilities that sum to 1.
fn logit(p: &[f64]) -> f32 {
    (p[1].ln() - p[0].ln()) as f32
}

fn pressed(sampling: &Sampling, logit: f32, held: bool, uniform: impl FnOnce() -> f32) -> bool {
    if sampling.deterministic || sampling.deterministic_buttons {
        let threshold = if held { sampling.release_threshold } else { sampling.press_threshold };
        return sigmoid(logit) > threshold;
    }
    uniform() < sigmoid(logit / sampling.temperature)
}

/// Divergence of a bit, and its derivative at the learner's logit.
fn divergence(direction: Direction, x: f64, y: f64) -> (f64, f64) {
    let (p, q) = (1.0 / (1.0 + (-x).exp()), 1.0 / (1.0 + (-y).exp()));
    match direction {
        Direction::Forward => (p * (x - y) - softplus(x) + softplus(y), p * (1.0 - p) * (x - y)),
        Direction::Reverse => (q * (y - x) - softplus(y) + softplus(x), p - q),
    }
}

/// `log(1 + e^z)`
fn softplus(z: f64) -> f64 {
    z.max(0.0) + (-z.abs()).exp().ln_1p()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn a_held_button_stays_between_the_two_thresholds() {
        let sampling = Sampling {
            deterministic: true,
            press_threshold: 0.6,
            release_threshold: 0.3,
            ..Sampling::default()
        };
        let rng = Rng::new(1, "test", 0);
        let mut out = [9.0];
        for (held, want) in [(0.0, 0.0), (1.0, 1.0)] {
            let held = Some(&[held][..]);
            let chance = Chance { sampling: &sampling, rng: &rng, index: 0, held };
            Bernoulli(1).choose(&[-0.1], &chance, &mut out);
            assert_eq!(out, [want]);
        }
    }
}
