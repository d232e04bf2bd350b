//! Learning from a batch: losses, and gradients that stay with the weights until an update.

use sconce_nn::backbone::State;
use sconce_ops::weights::Weights;
use sconce_tensor::tape::{self, Gradients};
use sconce_tensor::{Error, Result, Tensor, memory};

use super::examples::{Among, Examples};
use super::gradient::{Total, add};
use super::losses::Losses;
use super::stepper::Stepper;
use crate::lesson::Lesson;
use crate::loss::{Denominators, Sums};

/// Losses, and the states of the learner and of a teacher after a batch.
pub type Learned = (Losses, Option<State>, Option<State>);

impl Stepper<'_> {
    /// Adds `share` times the gradient of a batch to what the next [`update`](Self::update) takes; gives
    /// the batch's losses, and the state after it as [`step_from`](Self::step_from). Dropout is drawn from
    /// `draw`.
    ///
    /// Batches whose shares are their [`mean_weight`](Examples::mean_weight)s have together the
    /// gradient of one batch of all their rows, up to the order of sums; but what a loss takes from the
    /// whole of a batch, `head_normalize` and the entropy of rows of other weights, it takes from each.
    /// One whose frames all weigh nothing adds nothing, and has the loss 0.
    pub fn learn(
        &mut self,
        x: Examples<'_>,
        state: &State,
        draw: u64,
        share: f64,
    ) -> Result<(Losses, Option<State>)> {
        let (losses, state, _) = self.learn_from(x, state, draw, share, None)?;
        Ok((losses, state))
    }

    /// As [`learn`](Self::learn), beside a teacher; gives the teacher's state after the batch too.
    pub fn learn_from(
        &mut self,
        x: Examples<'_>,
        state: &State,
        draw: u64,
        share: f64,
        lesson: Option<Lesson<'_>>,
    ) -> Result<Learned> {
        self.learn_among(x, state, draw, share, lesson, None)
    }

    /// As [`learn_from`](Self::learn_from), from windows among those of a batch, which counts for `share`.
    pub fn learn_among(
        &mut self,
        x: Examples<'_>,
        state: &State,
        draw: u64,
        share: f64,
        lesson: Option<Lesson<'_>>,
        among: Option<Among<'_>>,
    ) -> Result<Learned> {
        if x.weights.iter().all(|weight| *weight == 0.0) {
            let first = among.map_or(0, |among| among.first);
            let (state, taught) = match self.unroll.carry {
                true => self.pass(x, state, draw, first, lesson, |_, _, _| Ok(()))?,
                false => (None, None),
            };
            // Other windows of the batch count.
            self.learned += among.map_or(0.0, |_| share);
            return Ok((Losses::default(), state, taught));
        }
        let scale = share * self.scale();
        let learned = memory::caught(|| self.backward(x, state, draw, scale, lesson, among));
        let learned = learned.and_then(|(losses, store, after, taught)| {
            census(self.policy.weights(), &store)?;
            Ok((losses, after, taught))
        });
        match learned {
            Ok(_) => self.learned += share,
            Err(_) => self.forget(),
        }
        learned
    }

    /// Losses of the heads of some windows of a batch, from window `first` on, added over the rows: what
    /// an objective that [normalises](Objective::normalises) wants to know of all windows beforehand.
    pub(crate) fn head_sums(
        &self,
        x: Examples<'_>,
        state: &State,
        draw: u64,
        first: usize,
    ) -> Result<Sums> {
        let mut total = None;
        memory::caught(|| {
            self.pass(x, state, draw, first, None, |x, logits, _| {
                add(&mut total, self.sums(&logits, x)?);
                Ok(())
            })
        })?;
        total.ok_or_else(|| Error::not_found("rows of a batch"))
    }

    /// Forward and backward, part by part. Gradients are left with the weights, but for candle's of
    /// the last part.
    pub(super) fn backward(
        &self,
        x: Examples<'_>,
        state: &State,
        step: u64,
        share: f64,
        lesson: Option<Lesson<'_>>,
        among: Option<Among<'_>>,
    ) -> Result<(Losses, Gradients, Option<State>, Option<State>)> {
        let (first, mut denominators) = match among {
            Some(among) => (among.first, Some(among.denominators.clone())),
            None => (0, self.denominators(x, state, step)?),
        };
        let (mut total, mut last, mut divergence) = (Total::default(), None::<Gradients>, 0.0);
        let tape = tape::record();
        let (after, taught) = self.pass(x, state, step, first, lesson, |x, logits, advice| {
            let denominators = match &denominators {
                Some(known) => known,
                None => denominators.insert(self.normalised(&logits, x)?),
            };
            let advice = lesson.map(|lesson| lesson.teacher).zip(advice);
            let denominators = denominators.times(share);
            let (kl, gradient) = self.part(&logits, x, &denominators, advice, &mut total)?;
            divergence += kl;
            // Of a chunk of burn-in only the state is wanted.
            if x.weights.iter().all(|weight| *weight == 0.0) {
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
        Ok((losses, last.ok_or_else(rows)?, after, taught))
    }

    /// What every part has to know of the whole batch; none if the only part can tell itself.
    fn denominators(
        &self,
        x: Examples<'_>,
        state: &State,
        step: u64,
    ) -> Result<Option<Denominators>> {
        let (batch, time) = (x.frames.batch, x.frames.time);
        let mut first = None;
        if self.objective.normalises() {
            if self.micro_batches(batch).count() * self.chunks(time).count() == 1 {
                return Ok(None);
            }
            // A pass of its own, with the same dropout and without a backward pass.
            first = Some(self.head_sums(x, state, step, 0)?);
        }
        let weights = Some(x.weights);
        self.objective.denominators(x.weights.len(), weights, first.as_ref()).map(Some)
    }

    pub(super) fn normalised(&self, logits: &Tensor, x: Examples<'_>) -> Result<Denominators> {
        let first = self.sums(logits, x)?;
        self.objective.denominators(x.weights.len(), Some(x.weights), Some(&first))
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
