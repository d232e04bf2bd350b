//! Checks which work is due after a step: figures from a card, a validation, a save.

use std::sync::atomic::Ordering;

use super::state::Run;
use crate::step::MOST_PENDING;

impl Run<'_> {
    /// Whether figures that wait on a card are needed now: for the learning curve, or for decisions before the next
    /// step.
    pub(super) fn must_settle(&self) -> bool {
        let step = self.progress.step;
        !self.waiting.is_empty()
            && (self.waiting.len() == MOST_PENDING
                || self.notes_step(step)
                || self.validation_is_due()
                || self.save_is_due()
                || self.ask_is_due()
                || step.is_multiple_of(self.epoch_steps.max(1))
                || step >= self.schedule.total_steps
                || self.spent() >= 1.0
                || self.cancel.load(Ordering::Relaxed))
    }

    /// Whether a step is a point of the learning curve, which has ten between two validations.
    pub(super) fn notes_step(&self, step: u64) -> bool {
        step.is_multiple_of((self.validate_every() / 10).max(1))
    }

    /// Whether a validation is due: after every `validate_every` steps and at the end of the run, at most once per
    /// step.
    pub(super) fn validation_is_due(&self) -> bool {
        let step = self.progress.step;
        let over = step >= self.schedule.total_steps || self.spent() >= 1.0;
        step != self.progress.validated && (over || step.is_multiple_of(self.validate_every()))
    }

    /// Whether a save is due by the clock or by steps. A save that falls due while another is in flight is made
    /// afterwards.
    pub(super) fn save_is_due(&self) -> bool {
        let (step, (saved, at)) = (self.progress.step, self.saved);
        let by_step =
            self.options.saving.save_every.is_some_and(|every| step / every > saved / every);
        let by_clock = |minutes| step > saved && at.elapsed().as_secs_f64() >= 60.0 * minutes;
        by_step || self.options.saving.save_minutes.is_some_and(by_clock)
    }

    fn validate_every(&self) -> u64 {
        self.options.saving.validate_every.unwrap_or(self.epoch_steps).max(1)
    }
}
