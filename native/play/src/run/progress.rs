//! How far a run is, and its learning curve.

use std::collections::{BTreeMap, VecDeque};

use sconce_env::Episode;
use serde::{Deserialize, Serialize};

use crate::league::Faced;

/// Episodes over which returns are averaged.
pub(super) const RECENT: usize = 100;

/// How far a run is. A resumed run goes on from it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Updates so far.
    pub updates: u64,
    /// Steps of all environments so far.
    pub steps: u64,
    /// Seconds so far.
    pub seconds: f64,
    /// Episodes so far.
    pub episodes: u64,
    /// Returns and lengths of the last episodes.
    pub recent: VecDeque<(f32, u32)>,
    /// The best mean return so far, and the updates that its policy has had.
    pub best: Option<(f64, u64)>,
    /// Whether the best mean is one of 100 episodes.
    pub best_is_full: bool,
    /// How far quantised weights are on the way to their grid, or pruned weights on that to their sparsity, from 0 to 1.
    /// It never falls.
    #[serde(default)]
    pub annealed: f64,
    /// Updates before quantised weights were on their grid; `None` before.
    #[serde(default)]
    pub quantised_from: Option<u64>,
    /// Whether the recent episodes are those of quantised weights.
    #[serde(default)]
    pub quantised: bool,
    /// The learning curve.
    pub history: Vec<Point>,
    /// Updates whose means are not in the curve yet.
    pub pending: Vec<Point>,
    /// Updates of the optimiser so far.
    pub optimiser_updates: u64,
}

/// Figures of an update, or their means over several.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Updates so far, this one included.
    pub updates: u64,
    /// Steps of all environments so far.
    pub steps: u64,
    /// Seconds so far.
    pub seconds: f64,
    /// Episodes so far.
    pub episodes: u64,
    /// Mean return of the last 100 episodes; `None` before the first end.
    pub mean_return: Option<f64>,
    /// Mean length of the last 100 episodes in steps; `None` before the first end.
    pub mean_length: Option<f64>,
    /// Steps of an update over its seconds.
    pub steps_per_second: f64,
    /// Share of the time that the rollout took.
    pub rollout_share: f64,
    /// Learning rate.
    pub learning_rate: f64,
    /// Norm of the gradient before it is shortened.
    pub grad_norm: f64,
    /// The loss.
    pub loss: f64,
    /// Figures of the objectives by name: `policy_loss`, `value_loss`, `entropy`, `approx_kl`, `clip_fraction`.
    pub figures: BTreeMap<String, f64>,
    /// Share of the variance of the targets that the values explained before the update.
    pub explained_variance: f64,
    /// Share of the updates that the divergence ended.
    pub stopped_early: f64,
    /// Mean of each reward term of the first seat per step, unweighted; empty in a league.
    pub rewards: BTreeMap<String, f64>,
    /// Elo of the policy in its league.
    #[serde(default)]
    pub elo: Option<f64>,
    /// The opponents, and the policy's results against each so far.
    #[serde(default)]
    pub opponents: Vec<Faced>,
}

impl Progress {
    /// Counts episodes, and the number of others that ended before them.
    pub(super) fn count(&mut self, episodes: &[Episode], others: u64) {
        self.episodes += episodes.len() as u64 + others;
        self.recent.extend(episodes.iter().map(|episode| (episode.ret, episode.length)));
        let old = self.recent.len().saturating_sub(RECENT);
        self.recent.drain(..old);
    }

    /// Whether a mean return is one of 100 episodes.
    pub(super) fn is_full(&self) -> bool {
        self.recent.len() == RECENT
    }

    /// Whether the present mean return is the best so far. A mean of fewer episodes is luck: one of 100 replaces it.
    pub(super) fn is_better(&self, mean: f64) -> bool {
        let Some((best, _)) = self.best else { return true };
        match (self.is_full(), self.best_is_full) {
            (true, false) => true,
            (false, true) => false,
            _ => mean > best,
        }
    }

    fn mean(&self, of: impl Fn(&(f32, u32)) -> f64) -> Option<f64> {
        let n = self.recent.len();
        (n > 0).then(|| self.recent.iter().map(of).sum::<f64>() / n as f64)
    }

    /// Mean return of the last episodes.
    pub fn mean_return(&self) -> Option<f64> {
        self.mean(|(ret, _)| f64::from(*ret))
    }

    /// Mean length of the last episodes in steps.
    pub fn mean_length(&self) -> Option<f64> {
        self.mean(|(_, length)| f64::from(*length))
    }

    /// Adds an update to the curve, whose points are means of `every` updates.
    pub(super) fn add(&mut self, point: Point, every: u64) {
        self.pending.push(point);
        if self.pending.len() as u64 >= every.max(1) {
            self.settle();
        }
    }

    /// Adds the means of the pending updates to the curve.
    pub(super) fn settle(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        let n = pending.len() as f64;
        let Some(last) = pending.last().cloned() else { return };
        let mean = |of: &dyn Fn(&Point) -> f64| pending.iter().map(of).sum::<f64>() / n;
        let named = |of: fn(&Point) -> &BTreeMap<String, f64>| {
            let value = |name: &String| mean(&|p| of(p).get(name).copied().unwrap_or(0.0));
            of(&last).keys().map(|name| (name.clone(), value(name))).collect()
        };
        self.history.push(Point {
            steps_per_second: mean(&|p| p.steps_per_second),
            rollout_share: mean(&|p| p.rollout_share),
            grad_norm: mean(&|p| p.grad_norm),
            loss: mean(&|p| p.loss),
            figures: named(|p| &p.figures),
            explained_variance: mean(&|p| p.explained_variance),
            stopped_early: mean(&|p| p.stopped_early),
            rewards: named(|p| &p.rewards),
            ..last
        });
    }
}
