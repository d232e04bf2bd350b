//! Learning from a batch: losses, and gradients that stay with the weights until an update.

use sconce_data::Batch;
use sconce_ops::weights::Weights;
use sconce_tensor::tape::{self, Gradients};
use sconce_tensor::{Error, Result, Tensor, memory};

use super::gradient::{Total, add};
use super::losses::{Learned, Losses};
use super::stepper::Stepper;
use super::task::Task;
use crate::loss::{Denominators, Sums};

impl Stepper<'_> {
    /// Adds the gradient of a batch, times its share, to what the next [`update`](Self::update) takes.
    ///
    /// Batches whose shares are their [`mean_weight`](Batch::mean_weight)s have together the
    /// gradient of one batch of all their rows, up to the order of sums; but what a loss takes from the
    /// whole of a batch, `head_normalize` and the entropy of rows of other weights, it takes from each.
    /// One whose frames all weigh nothing adds nothing, and has the loss 0.
    pub fn learn(&mut self, task: Task<'_>) -> Result<Learned> {
        if task.is_silent() {
            let mut learned = Learned::default();
            if self.unroll.carry {
                (learned.state, learned.taught) = self.pass(task, |_, _, _| Ok(()))?;
            }
            // Other windows of the batch count.
            self.learned += task.denominators.map_or(0.0, |_| task.share);
            return Ok(learned);
        }
        let scaled = Task { share: task.share * self.scale(), ..task };
        let learned = memory::caught(|| self.backward(scaled));
        let learned = learned.and_then(|(learned, store)| {
            census(self.policy.weights(), &store)?;
            Ok(learned)
        });
        match learned {
            Ok(_) => self.learned += task.share,
            Err(_) => self.forget(),
        }
        learned
    }

    /// Losses of the heads of some windows of a batch, added over the rows: what an objective that
    /// [normalises](crate::loss::Objective::normalises) wants to know of all windows beforehand. No teacher looks on.
    pub(crate) fn head_sums(&self, task: Task<'_>) -> Result<Sums> {
        let mut total = None;
        memory::caught(|| {
            self.pass(Task { lesson: None, ..task }, |batch, logits, _| {
                add(&mut total, self.sums(&logits, batch)?);
                Ok(())
            })
        })?;
        total.ok_or_else(|| Error::not_found("rows of a batch"))
    }

    /// Forward and backward, part by part. Gradients are left with the weights, but for candle's of
    /// the last part.
    pub(super) fn backward(&self, task: Task<'_>) -> Result<(Learned, Gradients)> {
        let Task { lesson, share, .. } = task;
        let mut denominators = match task.denominators {
            Some(whole) => Some(whole.clone()),
            None => self.denominators(task)?,
        };
        let (mut total, mut last, mut divergence) = (Total::default(), None::<Gradients>, 0.0);
        let tape = tape::record();
        let (state, taught) = self.pass(task, |batch, logits, advice| {
            let denominators = match &denominators {
                Some(known) => known,
                None => denominators.insert(self.normalised(&logits, batch)?),
            };
            let advice = lesson.map(|lesson| lesson.teacher).zip(advice);
            let denominators = denominators.times(share);
            let (kl, gradient) = self.part(&logits, batch, &denominators, advice, &mut total)?;
            divergence += kl;
            // Of a chunk of burn-in only the state is wanted.
            if batch.weights.iter().all(|weight| *weight == 0.0) {
                tape.forget();
                return Ok(());
            }
            if let Some(store) = last.take() {
                self.policy.weights().values().try_for_each(|w| w.gather(&store).map(drop))?;
            }
            // The loss is not a node of the graph: its gradient at the logits starts the backward pass.
            last = Some(tape::backward(&logits, gradient)?);
            Ok(())
        })?;
        let rows = || Error::not_found("rows of a batch");
        let denominators = denominators.ok_or_else(rows)?;
        let loss = self.objective.finish(&self.sums_of(total)?, &denominators)?;
        let teacher_kl = lesson.map(|_| divergence * denominators.mean());
        let pull = lesson.zip(teacher_kl).map_or(0.0, |(lesson, kl)| lesson.teacher.weight() * kl);
        let losses = Losses { total: loss.value + pull, heads: loss.per_head, teacher_kl };
        Ok((Learned { losses, state, taught }, last.ok_or_else(rows)?))
    }

    /// What every part has to know of the whole batch; none if the only part can tell itself.
    fn denominators(&self, task: Task<'_>) -> Result<Option<Denominators>> {
        let Batch { frames, weights, .. } = task.batch;
        let mut first = None;
        if self.objective.normalises() {
            if self.micro_batches(frames.batch).count() * self.chunks(frames.time).count() == 1 {
                return Ok(None);
            }
            // A pass of its own, with the same dropout and without a backward pass.
            first = Some(self.head_sums(task)?);
        }
        self.objective.denominators(weights.len(), Some(weights), first.as_ref()).map(Some)
    }

    pub(super) fn normalised(&self, logits: &Tensor, batch: &Batch) -> Result<Denominators> {
        let first = self.sums(logits, batch)?;
        self.objective.denominators(batch.weights.len(), Some(&batch.weights), Some(&first))
    }
}

/// Gathers the gradients, and refuses a model of which some weight would never learn, by the names of
/// those weights.
pub(super) fn census(weights: &Weights, store: &Gradients) -> Result<()> {
    let mut missing = vec![];
    for (name, weight) in weights {
        if !weight.gather(store)? {
            missing.push(name.clone());
        }
    }
    match missing.is_empty() {
        true => Ok(()),
        false => Err(Error::NoGradient { weights: missing }),
    }
}
