//! One head, and the options that concern it.

use std::ops::Range;

use sconce_nn::head::{Pair, Shape};
use sconce_nn::spec::{HeadKind, Part};
use sconce_tensor::Result;

use super::options::{FocalHeads, LossOptions, Reduction};

/// Heads that `stick_edge_weight` applies to.
const STICK_HEADS: [&str; 2] = ["main_x", "main_y"];

/// One head and the options that concern it.
#[derive(Debug, Clone)]
pub(super) struct Term {
    pub name: String,
    pub kind: HeadKind,
    pub logits: Range<usize>,
    pub labels: Range<usize>,
    /// Factor on the loss of bits, from the button weight and the reduction.
    pub scale: f32,
    pub pos_weight: Vec<f32>,
    pub smoothing: f64,
    pub gamma: f64,
    pub edge: Option<f64>,
}

impl Term {
    pub(super) fn new(part: Part, options: &LossOptions, pos_weight: Vec<f32>) -> Self {
        let kind = part.head.kind;
        let bits = match options.bernoulli_reduction {
            Reduction::Mean => kind.bits().max(1) as f32,
            Reduction::Sum => 1.0,
        };
        let focal = kind.bits() > 0 || options.focal_heads == FocalHeads::All;
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

    /// Returns loss and entropy in one row and writes the gradient. The entropy of a head of bits is their mean.
    pub(super) fn learn(
        &self,
        logits: &[f32],
        labels: &[f32],
        clamp: f32,
        pull: Pair,
        gradient: &mut [f32],
    ) -> Result<Pair> {
        check(&self.name, self.kind, labels)?;
        let shape = Shape {
            scale: self.scale,
            pos_weight: &self.pos_weight,
            smoothing: self.smoothing,
            gamma: self.gamma,
            edge: self.edge,
            entropy: 1.0 / self.kind.bits().max(1) as f64,
            clamp,
        };
        Ok(self.kind.learn(logits, labels, &shape, pull, gradient))
    }
}

/// Refuses labels that are invalid for a head.
pub(super) fn check(name: &str, kind: HeadKind, labels: &[f32]) -> Result<()> {
    labels.iter().try_for_each(|label| kind.check(*label, || format!("label of {name}")))
}
