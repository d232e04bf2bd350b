//! A session in a few numbers.

use sconce_nn::packed::Plan;
use sconce_realtime::{Encoding, Packed};
use serde::Serialize;

use super::open::Session;
use super::options::{Lane, Mode, Path};
use crate::model::Cost;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Info {
    pub mode: Mode,
    pub window_size: usize,
    pub frame_delay: usize,
    pub seed: u64,
    /// Decisions made since the session was opened or reset.
    pub frames: u64,
    pub rollback: usize,
    /// Bytes of the state and of the frames that are kept, without the weights.
    pub bytes: usize,
    /// Where a decision by a step runs, and one by a window.
    pub lane: Lane,
    pub window_lane: Lane,
    /// What makes most decisions; a window is computed by the policy's own ops.
    pub path: Path,
    /// How the weights of that are written.
    pub weights: Encoding,
    /// How each matrix of that is.
    pub matrices: Vec<Packed>,
    pub cost: Cost,
}

impl Session {
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
        let packed = self.model.plan().is_some() && !self.windows();
        if packed { Path::Packed } else { Path::Ops }
    }

    /// What makes most decisions, if it is a plan.
    fn packed(&self) -> Option<&Plan> {
        self.model.plan().filter(|_| self.path() == Path::Packed)
    }
}
