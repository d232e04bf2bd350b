//! The end of a run: scores of its best policy, and its report.

use sconce_nn::Policy;
use sconce_nn::checkpoint::Snapshot;
use sconce_tensor::{Error, Precision, Result};

use super::folder::Kind;
use super::saver::Finished;
use super::state::Run;
use crate::eval;
use crate::metrics::Report;
use crate::report::{BaselineReport, Event, RunReport, Stopped};

impl Run<'_> {
    pub(super) fn finish(mut self, mut stopped: Stopped) -> Result<RunReport> {
        let Finished { saves, unwritten, lost } = self.saver.finish(self.events);
        let (mut policy, mut baselines) = (None, vec![]);
        if stopped != Stopped::Stopped
            && self.options.saving.evaluate
            && !self.validation.1.is_empty()
        {
            match self.scores(unwritten) {
                Ok((report, others)) => (policy, baselines) = (Some(report), others),
                Err(Error::Cancelled) => stopped = Stopped::Stopped,
                Err(error) => return Err(error),
            }
        }
        let mut report = RunReport {
            stopped,
            steps: self.progress.step,
            best_step: self.progress.best_step,
            seconds: self.progress.seconds,
            weights: self.replicas.stepper().policy().num_weights(),
            micro_batch: Some(self.room.windows()),
            precision: self.progress.precision,
            skipped_updates: self
                .replicas
                .stepper()
                .loss_scale()
                .map_or(0, |scale| scale.skipped()),
            spec: self.replicas.stepper().policy().spec().clone(),
            options: self.options,
            loader: self.source.flow(),
            saves,
            policy,
            baselines,
            history: self.progress.history,
            train: self.train,
            validation: self.validation.0,
        };
        if let Err(error) = self.folder.write_report(&report) {
            (self.events)(report.saves.fail(report.steps, self.folder.report(), &error));
        }
        match lost {
            None => Ok(report),
            Some((path, reason)) => {
                // Converting through text keeps the digits of numbers as the user wrote them.
                let text = serde_json::to_string(&report);
                let report = text.and_then(|text| serde_json::from_str(&text));
                let report = report.map_err(|e| Error::corrupt("report", e))?;
                Err(Error::Unsaved { path, reason, report: Box::new(report) })
            }
        }
    }

    /// Scores the best policy, which may have no file, and the baselines, on every frame of the validation games.
    fn scores(&self, unwritten: Option<Snapshot>) -> Result<(Report, Vec<BaselineReport>)> {
        let options = self.options.eval(1);
        let views = &self.validation.1;
        let best = match unwritten.map(Snapshot::into_weights) {
            Some(parts) => parts.and_then(|(manifest, w)| Policy::from_checkpoint(manifest, w))?,
            None => Policy::load(&self.folder.file(Kind::Best))?,
        };
        let best = best.on(self.replicas.stepper().policy().device())?;
        let progress = |done, total| (self.events)(Event::Evaluating { done, total });
        let report = eval::score(&best, views, &options, Precision::F32, &progress, self.cancel)?;
        let spec = self.replicas.stepper().policy().spec();
        let baselines = eval::score_baselines(&self.counts, spec, views, &options, self.cancel)?;
        Ok((report, baselines))
    }
}
