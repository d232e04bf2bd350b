//! Learning from a batch: losses, and gradients that are accumulated until an update.

use sconce_data::Batch;
use sconce_ops::weights::Weights;
use sconce_tensor::tape::{self, Gradients};
use sconce_tensor::trace::{self, Kind};
use sconce_tensor::{Error, Result, Tensor, memory};

use super::metrics::Learned;
use super::stepper::Stepper;
use super::task::Task;
use crate::objective::{Denominators, Sums, Total};

impl Stepper<'_> {
    /// Adds the gradient of a batch, times its share, to the sum of the next [`update`](Self::update).
    ///
    /// Batches whose shares are their [`mean_weight`](Batch::mean_weight)s have together the gradient of one batch of
    /// all their rows, up to the order of sums. Figures of a whole batch are an exception, because each batch computes
    /// them alone: `head_normalize`, and the entropy of rows of different weights. A batch whose frames all have weight
    /// 0 adds nothing, and has the loss 0.
    pub fn learn(&mut self, task: Task<'_>) -> Result<Learned> {
        if task.is_silent() {
            let mut learned = Learned::default();
            if self.unroll.carry {
                learned.states = self.pass(task, true, |_, _| Ok(()))?;
            }
            // This share counts even if its weights are 0: other replicas have windows of nonzero weight.
            self.learned += task.denominators.map_or(0.0, |_| task.share);
            return Ok(learned);
        }
        let scaled = Task { share: task.share * self.scale(), ..task };
        let learned = memory::caught(|| self.backward(scaled));
        let learned = learned.and_then(|(learned, store)| {
            census(&self.learning, &store)?;
            Ok(learned)
        });
        match learned {
            Ok(_) => self.learned += task.share,
            Err(_) => self.forget(),
        }
        learned
    }

    /// Sums of a first pass over some windows of a batch, for objectives that need the sums of all windows
    /// [beforehand](crate::objective::Objective::two_passes). Companions do not run.
    pub(crate) fn first_pass(&self, task: Task<'_>) -> Result<Vec<Sums>> {
        let mut total = None;
        memory::caught(|| {
            self.pass(task, false, |batch, outputs| {
                let sums = self.objectives.sums(&outputs.logits, batch)?;
                match &mut total {
                    None => total = Some(sums),
                    Some(total) => add(total, &sums),
                }
                Ok(())
            })
        })?;
        total.ok_or_else(|| Error::not_found("rows of a batch"))
    }

    /// Runs forward and backward passes, part by part. Gradients are stored with the weights, except candle's gradients
    /// of the last part, which are returned.
    pub(super) fn backward(&self, task: Task<'_>) -> Result<(Learned, Gradients)> {
        let mut denominators = match task.denominators {
            Some(whole) => Some(whole.to_vec()),
            None => self.denominators(task)?,
        };
        let (mut total, mut last) = (Total::default(), None::<Gradients>);
        let tape = tape::record();
        let states = self.pass(task, true, |batch, outputs| {
            let denominators = match &denominators {
                Some(known) => known,
                None => denominators.insert(self.after_first_pass(&outputs.logits, batch)?),
            };
            let whole: Vec<_> = denominators.iter().map(|d| d.times(task.share)).collect();
            let gradient = {
                let _span = trace::span(Kind::Step, "loss");
                self.objectives.gradient(&outputs, batch, &whole, &mut total)?
            };
            // A chunk of burn-in has a state but no gradient.
            if batch.weights.iter().all(|weight| *weight == 0.0) {
                tape.forget();
                return Ok(());
            }
            if let Some(store) = last.take() {
                self.learning.values().try_for_each(|w| w.gather(&store).map(drop))?;
            }
            // The loss is no node of the graph: its gradient at the logits starts the backward pass.
            let _span = trace::span(Kind::Step, "backward pass");
            last = Some(tape::backward(&outputs.logits, gradient)?);
            Ok(())
        })?;
        let rows = || Error::not_found("rows of a batch");
        let denominators = denominators.ok_or_else(rows)?;
        let figures = self.objectives.finish(&total, &denominators)?;
        Ok((Learned { figures, states }, last.ok_or_else(rows)?))
    }

    /// Denominators of the whole batch, which every part needs; `None` for a single part, which computes the
    /// denominators itself.
    fn denominators(&self, task: Task<'_>) -> Result<Option<Vec<Denominators>>> {
        let mut first = None;
        if self.objectives.two_passes() {
            let frames = &task.batch.frames;
            if self.micro_batches(frames.batch).count() * self.chunks(frames.time).count() == 1 {
                return Ok(None);
            }
            // The first pass runs apart, with the same dropout and without a backward pass.
            first = Some(self.first_pass(task)?);
        }
        self.objectives.denominators(task.batch, first.as_deref()).map(Some)
    }

    /// Denominators of a batch in a single part, whose forward pass is also the first pass.
    pub(super) fn after_first_pass(
        &self,
        logits: &Tensor,
        batch: &Batch,
    ) -> Result<Vec<Denominators>> {
        let first = self.objectives.sums(logits, batch)?;
        self.objectives.denominators(batch, Some(&first))
    }
}

/// Adds the sums of other rows to `total`, for each objective.
pub(crate) fn add(total: &mut [Sums], sums: &[Sums]) {
    total.iter_mut().zip(sums).for_each(|(total, sums)| total.add(sums));
}

/// Gathers the gradients. Refuses a model with weights that no gradient reaches, and names these weights.
pub(super) fn census(weights: &Weights, store: &Gradients) -> Result<()> {
    let (mut missing, mut ignored) = (vec![], vec![]);
    for (name, weight) in weights {
        if !weight.gather(store)? {
            missing.push(name.clone());
        }
        if weight.inputs().is_some_and(|inputs| inputs.is_ignored()) {
            ignored.push(name.as_str());
        }
    }
    if missing.is_empty() && !ignored.is_empty() {
        return Err(Error::Unavailable {
            what: "quantise_activations".into(),
            reason: format!("the inputs of {} are not rounded", ignored.join(", ")),
        });
    }
    match missing.is_empty() {
        true => Ok(()),
        false => Err(Error::NoGradient { weights: missing }),
    }
}
