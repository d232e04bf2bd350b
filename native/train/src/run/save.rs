//! What a run leaves on disk: the policy of a validation, and the state to go on from.

use std::time::Instant;

use sconce_nn::Policy;
use sconce_nn::checkpoint::{Optimiser, Snapshot};
use sconce_tensor::{Error, Result};
use serde_json::{Value, json};

use super::folder::{Keep, Kind};
use super::saver::{Draft, Save};
use super::state::Run;
use crate::options::{DataOptions, SavingOptions, TrainOptions};

impl Run<'_> {
    /// The file of a policy that was validated, unless it is neither the best nor among those to keep.
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

    /// What playing and scoring need to know of a policy of this step.
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

    /// Has a policy and the state written from copies of them, while the run goes on.
    pub(super) fn save(&mut self, policy: Option<Draft>) -> Result<()> {
        // One copy of the state at a time.
        self.saver.wait(self.events);
        let step = self.progress.step;
        self.saved = (step, Instant::now());
        let TrainOptions { saving: SavingOptions { keep_last, .. }, .. } = self.options;
        let path = self.folder.file(Kind::Last);
        let snapshot = match self.snapshot() {
            // The run goes on, and the next save may have room.
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

    /// All that a run goes on from.
    fn snapshot(&mut self) -> Result<Snapshot> {
        self.progress.updates = self.replicas.stepper().optimiser().updates();
        self.progress.micro_batch = Some(self.room.windows());
        self.progress.loss_scale = self.replicas.stepper().loss_scale();
        let run =
            serde_json::to_value(&self.progress).map_err(|e| Error::corrupt("progress", e))?;
        let moments = self.replicas.stepper().optimiser().state()?.into_iter();
        let mut moments: Optimiser = moments.map(|(n, v)| (n, v.into_owned())).collect();
        self.replicas.save(&mut moments)?;
        Ok(self.replicas.stepper().snapshot(self.notes(None), moments)?.of_run(run))
    }
}
