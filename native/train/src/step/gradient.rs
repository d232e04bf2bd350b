//! The loss of a part of a batch and its gradient at the logits, on the device that has them.

use std::sync::OnceLock;

use sconce_data::Batch;
use sconce_ops::form::is_for_kernels;
use sconce_tensor::{Error, Result, Tensor, pool, tensor};

use super::stepper::Stepper;
use super::task::rows;
use crate::loss::{Denominators, Objective, SHARD_ROWS, Sums, card};
use crate::teacher::Teacher;

impl Stepper<'_> {
    /// Losses of the heads, added over the rows.
    pub(super) fn sums(&self, logits: &Tensor, batch: &Batch) -> Result<Sums> {
        if is_for_kernels(logits) {
            let (loss, rows) = self.there(logits, batch)?;
            loss.sums(rows, false)?;
            return Ok(Sums::of_totals(&loss.totals()?));
        }
        let (n, width) = logits.dims2()?;
        tensor::read(logits, |logits| Ok(self.objective.sums(rows(logits, width, batch)(0, n))))?
    }

    /// As [`loss_and_gradient`], with what a part adds to the loss in the total.
    pub(super) fn part(
        &self,
        logits: &Tensor,
        batch: &Batch,
        denominators: &Denominators,
        advice: Option<(&Teacher, Tensor)>,
        total: &mut Total,
    ) -> Result<(f64, Tensor)> {
        if is_for_kernels(logits) && advice.is_none() {
            let (loss, rows) = self.there(logits, batch)?;
            let gradient = loss.gradient(rows, &denominators.numbers(), total.there)?;
            total.there = true;
            return Ok((0.0, gradient));
        }
        let (sums, kl, gradient) =
            loss_and_gradient(&self.objective, logits, batch, denominators, advice)?;
        add(&mut total.here, sums);
        Ok((kl, gradient))
    }

    pub(super) fn sums_of(&self, total: Total) -> Result<Sums> {
        if let (true, Some(loss)) = (total.there, self.on_card.get()) {
            return Ok(Sums::of_totals(&loss.totals()?));
        }
        total.here.ok_or_else(|| Error::not_found("rows of a batch"))
    }

    /// The objective on the card of these logits, and rows for it whose labels have been looked at.
    fn there<'a>(
        &self,
        logits: &'a Tensor,
        batch: &'a Batch,
    ) -> Result<(&card::Loss, card::Rows<'a>)> {
        let Batch { labels, weights, .. } = batch;
        self.objective.check_labels(labels, weights)?;
        let rows = card::Rows { logits, labels, weights };
        Ok((self.loss_on_card(logits)?, rows))
    }

    /// The objective on the card of `x`.
    pub(super) fn loss_on_card(&self, x: &Tensor) -> Result<&card::Loss> {
        if let Some(loss) = self.on_card.get() {
            return Ok(loss);
        }
        let loss = card::Loss::new(&self.objective.table(), x)?;
        Ok(self.on_card.get_or_init(|| loss))
    }
}

/// Sums of the parts of a batch, added up here or on the card of their logits.
#[derive(Default)]
pub(super) struct Total {
    here: Option<Sums>,
    there: bool,
}

pub(super) fn add(total: &mut Option<Sums>, sums: Sums) {
    match total {
        Some(total) => total.add(&sums),
        None => *total = Some(sums),
    }
}

/// What a chunk adds to the loss and to the divergence from a teacher with these logits, and the gradient
/// of the whole at its own, in fixed shards of rows. Computed here, whatever the logits' device.
pub(super) fn loss_and_gradient(
    objective: &Objective,
    logits: &Tensor,
    batch: &Batch,
    denominators: &Denominators,
    advice: Option<(&Teacher, Tensor)>,
) -> Result<(Sums, f64, Tensor)> {
    let (n, width) = logits.dims2()?;
    let (sums, kl, gradient) = tensor::read(logits, |logits| {
        let rows = rows(logits, width, batch);
        let alone = |first, gradient: &mut [f32]| {
            objective.backward(rows(first, gradient.len() / width), denominators, gradient, None)
        };
        let Some((teacher, advice)) = advice else {
            return Ok(shards(n, width, |first, gradient| Ok((alone(first, gradient)?, 0.0))));
        };
        tensor::read(&advice, |advice| {
            Ok(shards(n, width, |first, gradient| {
                let sums = alone(first, gradient)?;
                let (count, scale) = (gradient.len() / width, denominators.mean());
                let advice = &advice[first * width..][..gradient.len()];
                let logits = &logits[first * width..][..gradient.len()];
                let weights = &batch.weights[first..first + count];
                Ok((sums, teacher.pull(logits, advice, weights, scale, gradient)))
            }))
        })
    })??;
    Ok((sums, kl, tensor::beside(logits, gradient, (n, width))?))
}

/// What `backward(first row, its gradient)` of each shard gives, added in order, and the gradient.
fn shards(
    n: usize,
    width: usize,
    backward: impl Fn(usize, &mut [f32]) -> Result<(Sums, f64)> + Sync,
) -> Result<(Sums, f64, Vec<f32>)> {
    let mut gradient = vec![0.0; n * width];
    let sums: Vec<OnceLock<Result<(Sums, f64)>>> =
        (0..n.div_ceil(SHARD_ROWS)).map(|_| OnceLock::new()).collect();
    pool::for_each_rows(&mut gradient, width, SHARD_ROWS, |first, gradient| {
        let _ = sums[first / SHARD_ROWS].set(backward(first, gradient));
    });
    let (mut total, mut divergence) = (None, 0.0);
    for sum in sums.into_iter().filter_map(OnceLock::into_inner) {
        let (sums, kl) = sum?;
        add(&mut total, sums);
        divergence += kl;
    }
    let total = total.ok_or_else(|| Error::not_found("rows of a batch"))?;
    Ok((total, divergence, gradient))
}
