//! Quantised weights, which move to their grid while a run learns, and pruned weights, which are removed.
//!
//! Rollouts are played by the weights that forward passes read, so before the end of the ramp their returns are those of
//! weights between f32 and the grid, or with too few zeros. From the first rollout of quantised or pruned weights on, the
//! mean return and the best policy begin anew.

use sconce_tensor::Result;

use super::Run;
use super::progress::{Progress, RECENT};

impl Run<'_> {
    /// Moves quantised weights on toward their grid, and removes weights that are pruned.
    pub(super) fn anneal(&mut self) -> Result<()> {
        let Some(share) = self.options.annealed(self.before_the_last()) else { return Ok(()) };
        let annealed = self.progress.anneal(share);
        self.learner.anneal(annealed)
    }

    /// The share of the run that has passed, so that it is 1 for the weights that play the last rollout: of its updates, or of
    /// its time where that is less.
    fn before_the_last(&self) -> f64 {
        let updates = self.progress.updates as f64 / self.updates.saturating_sub(1).max(1) as f64;
        updates.max(self.clock.seconds() / self.budget()).min(1.0)
    }

    /// A run that quantises or prunes its weights reaches its target with quantised or pruned ones.
    pub(super) fn target_is_reached(&self) -> bool {
        let mean = self.progress.mean_return();
        let quantised = self.progress.quantised || self.options.annealed(0.0).is_none();
        let enough = self.progress.recent.len() == RECENT && quantised;
        enough && self.options.schedule.target_return.zip(mean).is_some_and(|(t, mean)| mean >= t)
    }
}

impl Progress {
    /// Notes how far quantised weights are on the way to their grid, and returns it.
    fn anneal(&mut self, share: f64) -> f64 {
        self.annealed = self.annealed.max(share);
        if self.annealed >= 1.0 {
            self.quantised_from.get_or_insert(self.updates);
        }
        self.annealed
    }

    /// Forgets the returns of weights that were not on their grid yet, before the first episodes of weights that are.
    /// `update` is the number of updates of the weights that played.
    pub(super) fn renew(&mut self, update: u64) {
        if self.quantised || self.quantised_from.is_none_or(|from| update < from) {
            return;
        }
        self.quantised = true;
        self.recent.clear();
        (self.best, self.best_is_full) = (None, false);
    }
}
