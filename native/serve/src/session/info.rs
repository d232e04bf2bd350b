//! Figures of a session.

use sconce_nn::packed::Plan;
use sconce_realtime::{Encoding, Packed};
use serde::Serialize;

use super::open::Session;
use super::options::{Lane, Mode, Path};
use crate::model::Cost;

/// Options, size, lanes and cost of a session.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Info {
    /// How much of the past a decision sees.
    pub mode: Mode,
    /// Frames of a window.
    pub window_size: usize,
    /// Frames, beyond the next, before an input takes effect.
    pub frame_delay: usize,
    /// Seed of all choices.
    pub seed: u64,
    /// Decisions made since the session was opened or reset.
    pub frames: u64,
    /// Decisions that can be taken back.
    pub rollback: usize,
    /// Bytes of states and kept frames, without the weights.
    pub bytes: usize,
    /// Lane of a decision that steps the state by one frame.
    pub lane: Lane,
    /// Lane of a decision on a window.
    pub window_lane: Lane,
    /// Path of most decisions. A window is computed by the policy's own ops, except where only a plan is loaded.
    pub path: Path,
    /// Encoding of the weights on that path.
    pub weights: Encoding,
    /// Encoding of each matrix on that path; empty without a plan.
    pub matrices: Vec<Packed>,
    /// Measured cost of a decision.
    pub cost: Cost,
}

impl Session {
    /// Present options, size, lanes and cost.
    pub fn info(&self) -> Info {
        Info {
            mode: self.options.mode,
            window_size: self.options.window_size,
            frame_delay: self.delay,
            seed: self.seed,
            frames: self.moments.now().frames,
            rollback: self.options.rollback,
            bytes: self.moments.bytes() + self.ring.bytes(),
            lane: self.lane(self.cost.step_us),
            window_lane: self.lane(self.cost.window_us),
            path: self.path(),
            weights: self.packed().map_or(Encoding::F32, Plan::encoding),
            matrices: self.packed().map_or(vec![], |plan| plan.matrices().to_vec()),
            cost: self.cost,
        }
    }

    fn path(&self) -> Path {
        let steps = !self.windows() || self.policy().is_outline();
        let packed = self.model.plan().is_some() && steps;
        if packed { Path::Packed } else { Path::Ops }
    }

    /// The plan, if it makes most decisions.
    fn packed(&self) -> Option<&Plan> {
        self.model.plan().filter(|_| self.path() == Path::Packed)
    }
}
