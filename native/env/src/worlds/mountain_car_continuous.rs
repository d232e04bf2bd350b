//! MountainCarContinuous-v0: the mountain car with an action in -1..=1.
//!
//! State: position, velocity. Reaching the goal pays 100. Each step costs 0.1 times the square of the action as given,
//! although the car drives with the action clipped to -1..=1.

use super::mountain_car::drive;
use super::{Dynamics, World, continuous, uniform};
use crate::vectorised::Kernel;

const POWER: f32 = 0.0015;
const GOAL: f32 = 0.45;

/// MountainCarContinuous-v0.
pub(crate) const WORLD: World = World {
    name: "mountain_car_continuous",
    inputs: || vec![continuous("action", "force to the right", 1.0)],
    time_limit: 999,
    terms: &["goal", "control"],
    players: &[],
    solved: Some(90.0),
    image: None,
    kernel: Kernel::new::<MountainCarContinuous, 2, 1, 2, 2>(),
};

struct MountainCarContinuous;

impl Dynamics<2, 1, 2, 2> for MountainCarContinuous {
    fn start(words: [u32; 4]) -> [f32; 2] {
        [uniform(words[0], -0.6, -0.4), 0.0]
    }

    #[inline(always)]
    fn step<const FMA: bool>(
        state: [f32; 2],
        [action]: [f32; 1],
        _limit: f32,
    ) -> ([f32; 2], [f32; 2], bool) {
        let [x, v] = drive::<FMA>(state, action.clamp(-1.0, 1.0) * POWER);
        let terminated = (x >= GOAL) & (v >= 0.0);
        let goal = if terminated { 100.0 } else { 0.0 };
        ([x, v], [goal, -0.1 * (action * action)], terminated)
    }

    #[inline(always)]
    fn observe<const FMA: bool>(state: [f32; 2], _seat: usize) -> [f32; 2] {
        state
    }
}
