//! The checkpoints of a run: the policy of a validation, and the state to resume from.

use std::time::Instant;

use sconce_nn::Policy;
use sconce_nn::checkpoint::{Optimiser, Snapshot};
use sconce_tensor::trace;
use sconce_tensor::{Error, Result};
use serde_json::{Value, json};

use super::folder::{Keep, Kind};
use super::saver::{Draft, Save};
use super::state::Run;
use crate::options::{DataOptions, SavingOptions, TrainOptions};

impl Run<'_> {
    /// Drafts a validated policy for saving; `None` if it is neither the best nor among those to keep.
    pub(super) fn draft(
        &mut self,
        policy: &Policy,
        nll: Option<f64>,
        best: bool,
    ) -> Result<Option<Draft>> {
        let kept = self.progress.keep(nll, self.options.saving.keep_best);
        let step = self.progress.step;
        let numbered = self.folder.numbered(Kind::Best, step);
        let (path, numbered) = match (best, kept) {
            (false, false) => return Ok(None),
            (false, true) => (numbered, None),
            (true, kept) => (self.folder.file(Kind::Best), kept.then_some(numbered)),
        };
        let snapshot = policy.snapshot(self.notes(nll), Optimiser::new())?;
        Ok(Some(Draft { snapshot, path, numbered }))
    }

    /// Notes on the policy of this step, for later playing and scoring.
    fn notes(&self, nll: Option<f64>) -> Value {
        let TrainOptions {
            data: DataOptions { frame_delay, frame_delay_max, window_size, .. },
            ..
        } = self.options;
        json!({
            "step": self.progress.step, "nll": nll, "frame_delay": frame_delay,
            "frame_delay_max": frame_delay_max, "window_size": window_size,
            "precision": self.progress.precision,
        })
    }

    /// Starts to write copies of a policy and of the state; the run continues meanwhile.
    pub(super) fn save(&mut self, policy: Option<Draft>) -> Result<()> {
        let _span = trace::span(trace::Kind::Step, "copies for a save");
        // Waiting ensures that at most one copy of the state exists.
        self.saver.wait(self.events);
        let step = self.progress.step;
        self.saved = (step, Instant::now());
        let TrainOptions { saving: SavingOptions { keep_last, .. }, .. } = self.options;
        let path = self.folder.file(Kind::Last);
        let snapshot = match self.snapshot() {
            // The run continues: the next save may have enough memory.
            Err(error @ Error::OutOfMemory { .. }) => {
                self.saver.fail(step, path, &error, self.events);
                return Ok(());
            }
            snapshot => snapshot?,
        };
        let state = Draft {
            snapshot,
            path,
            numbered: (keep_last > 0).then(|| self.folder.numbered(Kind::Last, step)),
        };
        let best = self.progress.kept.iter().map(|(step, _)| *step).collect();
        let keep = Keep { last: keep_last, best };
        self.saver.save(Save { step, policy, state, keep }, self.events);
        Ok(())
    }

    /// The whole state, from which a run resumes.
    fn snapshot(&mut self) -> Result<Snapshot> {
        self.progress.updates = self.replicas.stepper().optimiser().updates();
        self.progress.micro_batch = Some(self.room.windows());
        self.progress.growth = self.room.growth();
        self.progress.loss_scale = self.replicas.stepper().loss_scale();
        let run =
            serde_json::to_value(&self.progress).map_err(|e| Error::corrupt("progress", e))?;
        let mut moments = self.replicas.stepper().moments()?;
        self.replicas.save(&mut moments)?;
        Ok(self.replicas.stepper().snapshot(self.notes(None), moments)?.of_run(run))
    }
}
