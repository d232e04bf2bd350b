//! The forward pass over a batch, by micro-batches and chunks of frames.

use std::ops::Range;

use sconce_data::Batch;
use sconce_nn::backbone::{Context, State};
use sconce_tensor::trace::{self, Kind};
use sconce_tensor::{Result, Tensor};

use super::stepper::Stepper;
use super::task::{Part, Task};
use crate::objective::{Companion, Outputs};
use crate::states::States;
use crate::unroll::stretches;

impl Stepper<'_> {
    /// Runs the forward pass, part by part. `each` receives a part of the batch and its outputs, including the
    /// companions' outputs if `companions` is set. Returns the states after the windows if windows carry on.
    pub(super) fn pass(
        &self,
        task: Task<'_>,
        companions: bool,
        mut each: impl FnMut(&Batch, Outputs) -> Result<()>,
    ) -> Result<Option<States>> {
        let batch = task.batch;
        let companions = companions.then(|| self.objectives.companions());
        let companions: Vec<&Companion> = companions.into_iter().flatten().collect();
        let mut after = vec![];
        for rows in self.micro_batches(batch.frames.batch) {
            let mut state = task.state.rows(&rows)?;
            let mut beside = self.beside(&companions, task, &rows)?;
            for range in self.chunks(batch.frames.time) {
                self.go_on()?;
                let part = Part::cut(batch, rows.clone(), range.clone());
                let goes_on = self.goes_on(&part);
                let (logits, next) = self.forward(&part, &state, task)?;
                state = if goes_on { next.hand_on()? } else { next.detach() };
                let mut outputs = Outputs { logits, companions: vec![] };
                for (i, (companion, state)) in companions.iter().zip(&mut beside).enumerate() {
                    let Batch { frames, seen, labels, .. } = &*part.batch;
                    let frames = seen.of(i).unwrap_or(frames);
                    let (logits, next) = companion.logits(frames, labels, state, goes_on)?;
                    outputs.companions.push(logits);
                    *state = next;
                }
                each(&part.batch, outputs)?;
            }
            if self.unroll.carry {
                after.push(States { learner: state, companions: beside });
            }
        }
        joined(after)
    }

    /// The companions' states before some windows; zero states if none are given.
    fn beside(
        &self,
        companions: &[&Companion],
        task: Task<'_>,
        rows: &Range<usize>,
    ) -> Result<Vec<State>> {
        let state = |(i, companion): (usize, &&Companion)| match task.companions.get(i) {
            Some(state) => state.rows(rows),
            None => companion.zero_state(rows.len()),
        };
        companions.iter().enumerate().map(state).collect()
    }

    /// Whether a later part continues from the state after `part`.
    fn goes_on(&self, part: &Part<'_>) -> bool {
        self.unroll.carry || part.range.end < part.window
    }

    pub(super) fn chunks(&self, time: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        stretches(time, self.unroll.truncate_bptt)
    }

    pub(super) fn micro_batches(&self, batch: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        stretches(batch, self.unroll.micro_batch)
    }

    /// Logits of a part.
    fn forward(&self, part: &Part<'_>, state: &State, task: Task<'_>) -> Result<(Tensor, State)> {
        let _span = trace::span(Kind::Step, "forward pass");
        let context = Context::training(self.seed, task.draw).in_precision(self.precision);
        let mut context = context
            .chunk(part.window, part.range.start, part.range.len())
            .from_window(task.first + part.rows.start);
        if let Some(every) = self.unroll.recompute {
            context = context.recomputing(every);
        }
        if !self.goes_on(part) {
            context = context.forgetting();
        }
        self.policy.forward(&part.batch.frames, Some(&part.batch.labels), state, &context)
    }
}

/// Joins the states of consecutive rows; `None` without states.
fn joined(parts: Vec<States>) -> Result<Option<States>> {
    let Some(first) = parts.first() else { return Ok(None) };
    let of = |state: &dyn Fn(&States) -> State| {
        State::joined(&parts.iter().map(state).collect::<Vec<_>>())
    };
    let companions = 0..first.companions.len();
    Ok(Some(States {
        learner: of(&|states| states.learner.clone())?,
        companions: companions
            .map(|i| of(&|states| states.companions[i].clone()))
            .collect::<Result<_>>()?,
    }))
}
