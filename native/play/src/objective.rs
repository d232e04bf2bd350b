//! Proximal policy optimisation as an objective (Schulman et al. 2017, equations 7 and 9).
//!
//! The loss of a batch is `policy_weight * policy + value_weight * value - entropy_weight * entropy`, with means over the
//! rows of nonzero weight:
//!
//! 1. policy: `-min(r A, clip(r, 1 - clip, 1 + clip) A)`, where r is the ratio of the likelihoods of the action under
//!    the present weights and under those that chose it;
//! 2. value: `1/2 (v - R)^2`, or with a clip `1/2 max((v - R)^2, (v_old + clip(v - v_old) - R)^2)` (Engstrom et al.
//!    2020, equation 3);
//! 3. entropy: the sum over the heads; for a bounded number that of the Gaussian before the tanh.
//!
//! `approx_kl` is the mean of `r - 1 - log r` (Schulman 2020), `clip_fraction` the share of rows with `|r - 1| > clip`.

mod card;

use std::sync::{Arc, Mutex};

pub(crate) use card::CardLoss;

use sconce_data::{Batch, Extra, Played};
use sconce_nn::head::{Pair, Shape};
use sconce_nn::sampling::FORBIDDEN;
use sconce_nn::spec::Heads;
use sconce_tensor::{Device, Error, Result};
use sconce_train::objective::{Denominators, Figures, Objective, Rows, Sums};
use serde::{Deserialize, Serialize};

use crate::heads::{Choosing, Part};

/// Weights and bounds of the loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Terms {
    /// Bound on `|r - 1|`.
    pub clip: f64,
    /// Factor on the loss of the actions' likelihoods; 1 on a card.
    pub policy_weight: f64,
    /// Bound on the change of a value; `None` leaves values free.
    pub value_clip: Option<f64>,
    /// Factor on the value loss.
    pub value_weight: f64,
    /// Factor on the entropy.
    pub entropy_weight: f64,
    /// Normalisation of the advantages of a batch.
    pub normalise: Normalise,
}

/// Normalisation of the advantages of a batch: less their mean, over their deviation plus 1e-8.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Normalise {
    /// Advantages as they are.
    None,
    /// The deviation of a sample, over n - 1 rows, as PyTorch computes it.
    #[default]
    Sample,
    /// The deviation of a population, over n rows.
    Population,
}

/// The objective.
pub struct Clipped {
    heads: Choosing,
    /// A schedule changes the terms between two updates, for all copies of the objective.
    terms: Arc<Mutex<Terms>>,
}

/// Number of sums of a shard.
const SUMS: usize = 5;
const POLICY: usize = 0;
const VALUE: usize = 1;
const ENTROPY: usize = 2;
const KL: usize = 3;
const CLIPPED: usize = 4;

/// The columns of a batch that the objective reads.
struct Columns<'a> {
    advantages: &'a [f32],
    targets: &'a [f32],
    log_likelihoods: &'a [f32],
    values: &'a [f32],
    /// Action masks, `[n, mask_size]`; empty without them.
    mask: &'a [f32],
}

impl Clipped {
    /// The objective over `heads`.
    ///
    /// # Errors
    /// `Mismatch` for heads without a value.
    pub fn new(heads: &Heads, terms: Terms) -> Result<Self> {
        Ok(Clipped { heads: Choosing::of(heads)?, terms: Arc::new(Mutex::new(terms)) })
    }

    /// Sets the terms of the next updates, for all copies of the objective.
    pub fn set(&self, terms: Terms) {
        *self.terms.lock().unwrap_or_else(|e| e.into_inner()) = terms;
    }

    fn terms(&self) -> Terms {
        *self.terms.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn columns<'a>(&self, rows: &Rows<'a>) -> Result<Columns<'a>> {
        let of = |wanted: Played| {
            let column = column(rows.batch, wanted).ok_or_else(|| Error::not_found(wanted.name()));
            Ok::<_, Error>(rows.of(column?))
        };
        Ok(Columns {
            advantages: of(Played::Advantage)?,
            targets: of(Played::Target)?,
            log_likelihoods: of(Played::LogLikelihood)?,
            values: of(Played::Value)?,
            mask: of(Played::Mask).unwrap_or_default(),
        })
    }

    /// The entropy of a row. Writes the gradient of `pull.loss * nll - pull.entropy * entropy`.
    fn learn(&self, logits: &[f32], labels: &[f32], pull: Pair, gradient: &mut [f32]) -> f64 {
        let of_part = |part: &Part| {
            let span = part.logits..part.logits + part.kind.logits();
            let own = &labels[part.labels..part.labels + part.kind.labels()];
            let shape = Shape::default();
            part.kind.learn(&logits[span.clone()], own, &shape, pull, &mut gradient[span]).entropy
        };
        self.heads.parts.iter().map(of_part).sum()
    }
}

/// A column of a batch.
fn column(batch: &Batch, wanted: Played) -> Option<&[f32]> {
    batch.column(|extra| extra == Extra::Played(wanted))
}

/// Mean and inverse deviation of the advantages of rows of nonzero weight.
fn moments(batch: &Batch, normalise: Normalise) -> Result<[f64; 2]> {
    if normalise == Normalise::None {
        return Ok([0.0, 1.0]);
    }
    let advantages = column(batch, Played::Advantage);
    let advantages = advantages.ok_or_else(|| Error::not_found(Played::Advantage.name()))?;
    let counted = advantages.iter().zip(&batch.weights).filter(|(_, weight)| **weight != 0.0);
    let counted: Vec<f64> = counted.map(|(advantage, _)| f64::from(*advantage)).collect();
    let n = counted.len() as f64;
    let mean = counted.iter().sum::<f64>() / n;
    let squares: f64 = counted.iter().map(|a| (a - mean) * (a - mean)).sum();
    let freedom = if normalise == Normalise::Sample { n - 1.0 } else { n };
    // A single row has no deviation: its advantage becomes 0.
    let deviation = if freedom > 0.0 { (squares / freedom).sqrt() } else { 0.0 };
    Ok([mean, 1.0 / (deviation + 1e-8)])
}

impl Objective for Clipped {
    fn name(&self) -> &'static str {
        "ppo"
    }

    fn copy_on(&self, _device: &Device) -> Result<Box<dyn Objective>> {
        Ok(Box::new(Clipped { heads: self.heads.clone(), terms: self.terms.clone() }))
    }

    fn denominators(&self, batch: &Batch, _first: Option<&Sums>) -> Result<Denominators> {
        let own = moments(batch, self.terms().normalise)?;
        Ok(Denominators::of(&batch.weights)?.with(own.to_vec()))
    }

    fn rows(
        &self,
        rows: &Rows<'_>,
        whole: &Denominators,
        mut gradient: Option<&mut [f32]>,
    ) -> Result<Sums> {
        let (columns, terms) = (self.columns(rows)?, self.terms());
        let Choosing { value: value_at, num_logits, num_labels, mask_size, .. } = self.heads;
        let (labels, weights) = (rows.labels(), rows.weights());
        let [mean, inverse] = whole.own().first_chunk().copied().unwrap_or([0.0, 1.0]);
        let mut sums = [0.0; SUMS];
        let mut masked = vec![0.0; num_logits];
        let mut unused = vec![0.0; if gradient.is_none() { num_logits } else { 0 }];
        for (i, logits) in rows.logits.chunks_exact(num_logits).enumerate() {
            let out = match &mut gradient {
                Some(all) => &mut all[i * num_logits..][..num_logits],
                None => &mut unused[..],
            };
            out.fill(0.0);
            let weight = f64::from(weights[i]);
            if weight == 0.0 {
                continue;
            }
            let mask = columns.mask.get(i * mask_size..(i + 1) * mask_size);
            let logits = match mask {
                Some(mask) => {
                    masked.copy_from_slice(logits);
                    self.heads.forbid(&mut masked, mask);
                    &masked[..]
                }
                None => logits,
            };
            let labels = &labels[i * num_labels..][..num_labels];
            let log_ratio = -self.heads.nll(logits, labels) - f64::from(columns.log_likelihoods[i]);
            let advantage = (f64::from(columns.advantages[i]) - mean) * inverse;
            let ratio = log_ratio.exp();
            let (loss, slope) = policy_loss(ratio, advantage, terms.clip);
            let scale = weight * whole.mean();
            // Without a weight, not even an infinite slope counts.
            let slope = if terms.policy_weight == 0.0 { 0.0 } else { terms.policy_weight * slope };
            let pull = Pair { loss: scale * slope, entropy: scale * terms.entropy_weight };
            let entropy = self.learn(logits, labels, pull, out);
            if mask.is_some() {
                let forbidden = out.iter_mut().zip(logits).filter(|(_, x)| **x <= FORBIDDEN);
                forbidden.for_each(|(gradient, _)| *gradient = 0.0);
            }
            let value = [logits[value_at], columns.values[i], columns.targets[i]];
            let (value_loss, value_slope) = value_loss(value.map(f64::from), terms.value_clip);
            out[value_at] = (scale * terms.value_weight * value_slope) as f32;
            sums[POLICY] += weight * loss;
            sums[VALUE] += weight * value_loss;
            sums[ENTROPY] += weight * entropy;
            sums[KL] += ratio - 1.0 - log_ratio;
            sums[CLIPPED] += f64::from((ratio - 1.0).abs() > terms.clip);
        }
        Ok(Sums(sums.to_vec()))
    }

    fn finish(&self, sums: &Sums, whole: &Denominators) -> Result<Figures> {
        let terms = self.terms();
        let sum = |i: usize| sums.0.get(i).copied().unwrap_or(0.0);
        let [policy, value, entropy] = [POLICY, VALUE, ENTROPY].map(|i| whole.mean() * sum(i));
        let [kl, clipped] = [KL, CLIPPED].map(|i| whole.mean_row() * sum(i));
        let pull = if terms.policy_weight == 0.0 { 0.0 } else { terms.policy_weight * policy };
        let total = pull + terms.value_weight * value - terms.entropy_weight * entropy;
        if !total.is_finite() {
            return Err(Error::NonFinite { what: "loss of ppo".into(), value: total });
        }
        let named = [
            ("policy_loss", policy),
            ("value_loss", value),
            ("entropy", entropy),
            ("approx_kl", kl),
            ("clip_fraction", clipped),
        ];
        let named = named.into_iter().map(|(name, figure)| (name.to_string(), figure)).collect();
        Ok(Figures { total, named, ..Figures::default() })
    }
}

/// The loss of an action, and its derivative by the negative log-likelihood.
fn policy_loss(ratio: f64, advantage: f64, clip: f64) -> (f64, f64) {
    let (free, held) = (ratio * advantage, ratio.clamp(1.0 - clip, 1.0 + clip) * advantage);
    match free <= held {
        true => (-free, free),
        false => (-held, 0.0),
    }
}

/// The loss of a value, and its derivative.
fn value_loss([value, before, target]: [f64; 3], clip: Option<f64>) -> (f64, f64) {
    let error = value - target;
    let free = 0.5 * error * error;
    let Some(clip) = clip else { return (free, error) };
    let change = (value - before).clamp(-clip, clip);
    let held_error = before + change - target;
    let held = 0.5 * held_error * held_error;
    match held > free {
        true if change == value - before => (held, held_error),
        true => (held, 0.0),
        false => (free, error),
    }
}
