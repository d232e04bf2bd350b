//! A validation during a run.

use std::time::Instant;

use sconce_tensor::trace::{self, Kind};
use sconce_tensor::{Error, Precision, Result};

use super::state::Run;
use crate::eval;
use crate::report::{Event, HeadNll};

impl Run<'_> {
    pub(super) fn validate(&mut self) -> Result<()> {
        let began = Instant::now();
        let _span = trace::span(Kind::Step, "validation");
        self.replicas.check()?;
        let policy = self.replicas.stepper().averaged()?;
        let (nll, changed, accuracy, by_head) = match self.validation.1.is_empty() {
            true => (None, None, 0.0, vec![]),
            false => {
                let options = self.options.eval(self.options.saving.validation_stride);
                let report = match eval::score(
                    &policy,
                    &self.validation.1,
                    &options,
                    Precision::F32,
                    &|_, _| (),
                    self.cancel,
                ) {
                    Err(Error::Cancelled) => return Ok(()),
                    other => other?,
                };
                let heads = report.heads.len().max(1) as f64;
                let accuracy = report.heads.iter().map(|h| h.accuracy).sum::<f64>() / heads;
                let by_head: Vec<HeadNll> = report
                    .heads
                    .into_iter()
                    .map(|h| HeadNll { name: h.name, nll: h.nll })
                    .collect();
                (Some(report.nll), report.nll_changed, accuracy, by_head)
            }
        };
        let (step, learning_rate) = (self.progress.step, self.learning_rate());
        let best = self.progress.rate(nll, self.options.schedule.min_delta);
        self.note(learning_rate, nll, by_head.clone());
        let draft = self.draft(&policy, nll, best)?;
        self.save(draft)?;
        if let Some(nll) = nll {
            (self.events)(Event::Validation {
                step,
                epoch: step / self.epoch_steps.max(1),
                nll,
                nll_changed: changed,
                accuracy,
                heads: by_head,
                best,
                seconds: began.elapsed().as_secs_f64(),
            });
        }
        Ok(())
    }
}
