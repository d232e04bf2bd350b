//! The callback between two steps.

use sconce_tensor::{Error, Result};

use super::state::Run;
use super::watch::Verdict;
use crate::report::Event;

impl Run<'_> {
    /// Whether the callback is due before the next step.
    pub(super) fn ask_is_due(&self) -> bool {
        let (step, asked) = (self.progress.step, self.progress.asked);
        let every = self.options.saving.callback_every;
        self.ask.is_some() && step > asked && step.is_multiple_of(every.max(1))
    }

    /// Calls the callback and applies its verdict. Returns whether the run should end.
    pub(super) fn ask(&mut self) -> Result<bool> {
        let step = self.progress.step;
        self.progress.asked = step;
        let Some(verdict) = self.ask.map(|ask| ask(step)) else { return Ok(false) };
        let Some(Verdict { learning_rate, stop }) = verdict else {
            (self.events)(Event::CallbackLate { step });
            return Ok(false);
        };
        if let Some(rate) = learning_rate {
            if !(0.0..=MAX_RATE).contains(&rate) {
                let field = "learning_rate of the callback";
                return Err(Error::out_of_range(field, rate, 0.0, MAX_RATE));
            }
            self.progress.learning_rate = Some(rate);
        }
        Ok(stop)
    }
}

/// Largest learning rate, the same as in the options.
const MAX_RATE: f64 = 1000.0;
