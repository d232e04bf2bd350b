//! One head: its loss and entropy in one row, and their gradient.

use std::ops::Range;

use sconce_nn::spec::{HeadKind, Part};
use sconce_tensor::{Error, Result};

use super::options::{FocalHeads, LossOptions, Reduction};

/// Heads that `stick_edge_weight` is about.
const STICK_HEADS: [&str; 2] = ["main_x", "main_y"];

/// One head and the options that concern it.
#[derive(Debug, Clone)]
pub(super) struct Term {
    pub name: String,
    pub kind: HeadKind,
    pub logits: Range<usize>,
    pub labels: Range<usize>,
    /// Of a bernoulli head: button weight and reduction.
    pub scale: f32,
    pub pos_weight: Vec<f32>,
    pub smoothing: f64,
    pub gamma: f64,
    pub edge: Option<f64>,
}

/// Loss and entropy of one head in one row, or the factors of their gradients.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pair {
    pub loss: f64,
    pub entropy: f64,
}

impl Term {
    pub(super) fn new(part: Part, options: &LossOptions, pos_weight: Vec<f32>) -> Self {
        let kind = part.head.kind;
        let bernoulli = matches!(kind, HeadKind::Bernoulli(_));
        let bits = match options.bernoulli_reduction {
            Reduction::Mean => kind.logits() as f32,
            Reduction::Sum => 1.0,
        };
        let focal = bernoulli || options.focal_heads == FocalHeads::All;
        let stick = STICK_HEADS.contains(&part.head.name.as_str());
        Term {
            name: part.head.name.clone(),
            kind,
            logits: part.logits..part.logits + kind.logits(),
            labels: part.labels..part.labels + kind.labels(),
            scale: options.button_weight / bits,
            pos_weight,
            smoothing: f64::from(options.label_smoothing),
            gamma: options.focal_gamma.filter(|_| focal).map_or(0.0, f64::from),
            edge: options.stick_edge_weight.filter(|_| stick).map(f64::from),
        }
    }

    /// Bits; `grad` comes in as `e^x`. With `z = x` for a released and `-x` for a pressed one, the
    /// loss is `softplus(z)` and `1 - p = sigmoid(z)`, neither of which cancels.
    pub(super) fn bernoulli(
        &self,
        x: &[f32],
        bits: &[u16],
        clamp: f32,
        pull: Pair,
        grad: &mut [f32],
    ) -> Result<Pair> {
        let (mut loss, mut entropy) = (0.0, 0.0);
        let share = 1.0 / x.len() as f64;
        let (pull_loss, pull_entropy) = (pull.loss as f32, (pull.entropy * share) as f32);
        let gamma = self.gamma as f32;
        for (((&x, &bit), &weight), grad) in x.iter().zip(bits).zip(&self.pos_weight).zip(grad) {
            let (z, e, weight) = match bit {
                0 => (clip(x, clamp), *grad, self.scale),
                1 => (-clip(x, clamp), 1.0 / *grad, self.scale * weight),
                _ => return Err(outside(&self.name, bit, 1)),
            };
            let (miss, hit) = (e / (1.0 + e), 1.0 / (1.0 + e));
            let nll = e.ln_1p();
            let factor = weight * power(miss.into(), self.gamma) as f32;
            loss += f64::from(factor * nll);
            entropy += f64::from(nll - z * miss);
            let slope = pull_loss * factor * (miss + gamma * nll * hit);
            let slope = slope + pull_entropy * z * miss * hit;
            *grad = if x.abs() <= clamp { slope * if bit == 0 { 1.0 } else { -1.0 } } else { 0.0 };
        }
        Ok(Pair { loss, entropy: entropy * share })
    }

    /// One class; `grad` comes in as `e^x`. The loss is `S (1 - p)^gamma`, S the smoothed
    /// cross-entropy; with q = e / (sum of the others) for other classes and 0 for the true one,
    /// its gradient is `(1 - p)^gamma (p_j - target_j + gamma S (q_j - p_j))`.
    pub(super) fn categorical(
        &self,
        x: &[f32],
        class: &[u16],
        clamp: f32,
        pull: Pair,
        grad: &mut [f32],
    ) -> Result<Pair> {
        let class = class.first().copied().unwrap_or(u16::MAX);
        let target = usize::from(class);
        if target >= x.len() {
            return Err(outside(&self.name, class, x.len() - 1));
        }
        // Summed without the true class, because 1 - p must not cancel.
        let own = f64::from(std::mem::replace(&mut grad[target], 0.0));
        let own_x = f64::from(clip(x[target], clamp));
        let (mut others, mut mean, mut all) = (0.0, 0.0, 0.0);
        for (e, &v) in grad.iter().zip(x) {
            let v = clip(v, clamp);
            others += e;
            mean += e * v;
            all += v;
        }
        let others = f64::from(others);
        let sum = own + others;
        let log_sum = sum.ln();
        let entropy = log_sum - (own * own_x + f64::from(mean)) / sum;

        let share = self.smoothing / (x.len() - 1).max(1) as f64;
        let extra = 1.0 - self.smoothing - share;
        let nll = log_sum - extra * own_x - share * f64::from(all);
        let factor = self.edge(target, x.len()) * power(others / sum, self.gamma);

        let focus = self.gamma * nll;
        let pull_loss = pull.loss * factor;
        let kept = pull_loss * (1.0 - focus) / sum;
        let moved = pull_loss * focus / others;
        let bonus = pull.entropy / sum;
        let offset = entropy - log_sum;
        let own_grad = own * (kept + bonus * (own_x + offset)) - pull_loss * (extra + share);
        let (rest, bonus, offset) = ((kept + moved) as f32, bonus as f32, offset as f32);
        let share = (pull_loss * share) as f32;
        for (e, &v) in grad.iter_mut().zip(x) {
            let slope = *e * (rest + bonus * (clip(v, clamp) + offset)) - share;
            *e = if v.abs() <= clamp { slope } else { 0.0 };
        }
        grad[target] = if x[target].abs() <= clamp { own_grad as f32 } else { 0.0 };
        Ok(Pair { loss: factor * nll, entropy })
    }

    fn edge(&self, target: usize, classes: usize) -> f64 {
        let centre = (classes - 1) as f64 / 2.0;
        match self.edge {
            Some(edge) => 1.0 + (edge - 1.0) * (target as f64 - centre).abs() / centre,
            None => 1.0,
        }
    }
}

#[inline]
pub(super) fn clip(x: f32, clamp: f32) -> f32 {
    x.max(-clamp).min(clamp)
}

/// `base^gamma`; whole exponents, the usual ones, are a few multiplications.
fn power(base: f64, gamma: f64) -> f64 {
    match gamma {
        0.0 => 1.0,
        whole if whole.fract() == 0.0 => base.powi(whole as i32),
        other => base.powf(other),
    }
}

pub(super) fn outside(head: &str, value: u16, max: usize) -> Error {
    Error::out_of_range(format!("label of {head}"), value.into(), 0.0, max as f64)
}
