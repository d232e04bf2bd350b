//! MountainCar-v0: a car too weak to drive straight up a hill (Moore 1990).
//!
//! State: position, velocity. Each step pays -1, also the one that reaches the goal.

use sconce_tensor::trig::sin_cos_with;

use super::{Dynamics, World, choice, uniform};
use crate::vectorised::Kernel;

const FORCE: f32 = 0.001;
const GRAVITY: f32 = 0.0025;
const MAX_SPEED: f32 = 0.07;
const MIN_X: f32 = -1.2;
const MAX_X: f32 = 0.6;
const GOAL: f32 = 0.5;

/// MountainCar-v0.
pub(crate) const WORLD: World = World {
    name: "mountain_car",
    inputs: || vec![choice("action", "0 drives to the left, 1 coasts, 2 drives to the right", 3)],
    time_limit: 200,
    terms: &["step"],
    players: &[],
    solved: Some(-110.0),
    image: None,
    kernel: Kernel::new::<MountainCar, 2, 1, 2, 1>(),
};

struct MountainCar;

impl Dynamics<2, 1, 2, 1> for MountainCar {
    fn start(words: [u32; 4]) -> [f32; 2] {
        [uniform(words[0], -0.6, -0.4), 0.0]
    }

    #[inline(always)]
    fn step<const FMA: bool>(
        state: [f32; 2],
        [action]: [f32; 1],
        _limit: f32,
    ) -> ([f32; 2], [f32; 1], bool) {
        let [x, v] = drive::<FMA>(state, (action - 1.0) * FORCE);
        ([x, v], [-1.0], (x >= GOAL) & (v >= 0.0))
    }

    #[inline(always)]
    fn observe<const FMA: bool>(state: [f32; 2], _seat: usize) -> [f32; 2] {
        state
    }
}

/// Position and velocity after a step with an acceleration. The car stops at the left wall.
#[inline(always)]
pub(super) fn drive<const FMA: bool>([x, v]: [f32; 2], acceleration: f32) -> [f32; 2] {
    let (_, cos) = sin_cos_with::<FMA>(3.0 * x);
    let v = (v + (acceleration - GRAVITY * cos)).clamp(-MAX_SPEED, MAX_SPEED);
    let x = (x + v).clamp(MIN_X, MAX_X);
    let v = if (x == MIN_X) & (v < 0.0) { 0.0 } else { v };
    [x, v]
}
