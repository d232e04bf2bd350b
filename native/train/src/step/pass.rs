//! The forward pass over a batch, one micro-batch and one chunk of frames after the other.

use std::ops::Range;

use sconce_data::Batch;
use sconce_nn::backbone::{Context, State};
use sconce_tensor::{Result, Tensor};

use super::stepper::Stepper;
use super::task::{Part, Task};
use crate::unroll::stretches;

impl Stepper<'_> {
    /// Forward, part by part: `each` gets a part of the batch, its logits and a teacher's of them. Gives the states
    /// after the windows, the learner's and the teacher's, where they are carried on.
    pub(super) fn pass(
        &self,
        task: Task<'_>,
        mut each: impl FnMut(&Batch, Tensor, Option<Tensor>) -> Result<()>,
    ) -> Result<(Option<State>, Option<State>)> {
        let Task { batch, lesson, .. } = task;
        let (mut after, mut taught_after) = (vec![], vec![]);
        for rows in self.micro_batches(batch.frames.batch) {
            let mut state = task.state.rows(&rows)?;
            let mut taught = lesson.map(|lesson| lesson.state.rows(&rows)).transpose()?;
            for range in self.chunks(batch.frames.time) {
                self.go_on()?;
                let part = Part::cut(batch, rows.clone(), range.clone());
                let goes_on = self.goes_on(&part);
                let (logits, next) = self.forward(&part, &state, task)?;
                state = if goes_on { next.hand_on()? } else { next.detach() };
                let mut advice = None;
                if let (Some(lesson), Some(state)) = (lesson, &mut taught) {
                    let frames = lesson.part(&rows, &range);
                    let (logits, next) =
                        lesson.teacher.logits(&frames, &part.batch.labels, state, goes_on)?;
                    (advice, *state) = (Some(logits), next);
                }
                each(&part.batch, logits, advice)?;
            }
            if self.unroll.carry {
                after.push(state);
                taught_after.extend(taught);
            }
        }
        Ok((joined(&after)?, joined(&taught_after)?))
    }

    /// Whether somebody goes on where a part ends.
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

/// The states of some rows and of those after them, if there are any.
fn joined(parts: &[State]) -> Result<Option<State>> {
    if parts.is_empty() { Ok(None) } else { State::joined(parts).map(Some) }
}
