//! The forward pass over a batch, one micro-batch and one chunk of frames after the other.

use std::ops::Range;

use sconce_nn::backbone::{Context, State};
use sconce_tensor::{Result, Tensor};

use super::examples::{Examples, Part};
use super::stepper::Stepper;
use crate::lesson::Lesson;
use crate::unroll::stretches;

impl Stepper<'_> {
    /// Forward, part by part, of windows from `first` on of a batch: `each` gets the examples of a part, its
    /// logits and a teacher's of them. Gives the states after the windows, where they are carried on.
    pub(super) fn pass(
        &self,
        x: Examples<'_>,
        state: &State,
        step: u64,
        first: usize,
        lesson: Option<Lesson<'_>>,
        mut each: impl FnMut(Examples<'_>, Tensor, Option<Tensor>) -> Result<()>,
    ) -> Result<(Option<State>, Option<State>)> {
        let (mut after, mut taught_after) = (vec![], vec![]);
        for rows in self.micro_batches(x.frames.batch) {
            let mut state = state.rows(&rows)?;
            let mut taught = lesson.map(|lesson| lesson.state.rows(&rows)).transpose()?;
            for range in self.chunks(x.frames.time) {
                self.go_on()?;
                let part = Part::cut(x, rows.clone(), range.clone());
                let goes_on = self.goes_on(&part);
                let (logits, next) = self.forward(&part, &state, step, first)?;
                state = if goes_on { next.hand_on()? } else { next.detach() };
                let mut advice = None;
                if let (Some(lesson), Some(state)) = (lesson, &mut taught) {
                    let frames = lesson.part(&rows, &range);
                    let (logits, next) =
                        lesson.teacher.logits(&frames, &part.labels, state, goes_on)?;
                    (advice, *state) = (Some(logits), next);
                }
                each(part.examples(), logits, advice)?;
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

    /// Logits of a part of windows from `first` on.
    fn forward(
        &self,
        part: &Part<'_>,
        state: &State,
        step: u64,
        first: usize,
    ) -> Result<(Tensor, State)> {
        let context = Context::training(self.seed, step).in_precision(self.precision);
        let mut context = context
            .chunk(part.window, part.range.start, part.range.len())
            .from_window(first + part.rows.start);
        if let Some(every) = self.unroll.recompute {
            context = context.recomputing(every);
        }
        if !self.goes_on(part) {
            context = context.forgetting();
        }
        self.policy.forward(&part.frames, Some(&part.labels), state, &context)
    }
}

/// The states of some rows and of those after them, if there are any.
fn joined(parts: &[State]) -> Result<Option<State>> {
    if parts.is_empty() { Ok(None) } else { State::joined(parts).map(Some) }
}
