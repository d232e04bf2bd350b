//! Pendulum-v1: a pendulum to swing up and hold upright with a weak motor.
//!
//! State: angle (rad, 0 is upright, not wrapped), angular velocity (rad/s). Each step costs
//! `angle^2 + 0.1 velocity^2 + 0.001 torque^2` of the state before the step, with the wrapped angle and the clipped
//! torque. Episodes end at the time limit only.

use std::f32::consts::PI;

use sconce_tensor::trig::{sin_cos_with, wrap_with};

use super::{Dynamics, World, continuous, uniform};
use crate::vectorised::Kernel;

const GRAVITY: f32 = 10.0;
const MASS: f32 = 1.0;
const LENGTH: f32 = 1.0;
/// Largest angle in radians that is not wrapped.
const MOST_TURNED: f32 = 4096.0;
/// Seconds per step.
const STEP_S: f32 = 0.05;
const MAX_SPEED: f32 = 8.0;
const MAX_TORQUE: f32 = 2.0;

/// Pendulum-v1.
pub(crate) const WORLD: World = World {
    name: "pendulum",
    inputs: || vec![continuous("action", "torque (Nm)", MAX_TORQUE)],
    time_limit: 200,
    terms: &["angle", "velocity", "control"],
    players: &[],
    solved: None,
    image: None,
    kernel: Kernel::new::<Pendulum, 2, 1, 3, 3>(),
};

struct Pendulum;

impl Dynamics<2, 1, 3, 3> for Pendulum {
    fn start(words: [u32; 4]) -> [f32; 2] {
        [uniform(words[0], -PI, PI), uniform(words[1], -1.0, 1.0)]
    }

    #[inline(always)]
    fn step<const FMA: bool>(
        [theta, theta_dot]: [f32; 2],
        [action]: [f32; 1],
        _limit: f32,
    ) -> ([f32; 2], [f32; 3], bool) {
        let torque = action.clamp(-MAX_TORQUE, MAX_TORQUE);
        let angle = wrap_with::<FMA>(theta);
        let terms = [-(angle * angle), -0.1 * (theta_dot * theta_dot), -0.001 * (torque * torque)];
        let (sin, _) = sin_cos_with::<FMA>(theta);
        let acceleration =
            3.0 * GRAVITY / (2.0 * LENGTH) * sin + 3.0 / (MASS * LENGTH * LENGTH) * torque;
        let theta_dot = (theta_dot + acceleration * STEP_S).clamp(-MAX_SPEED, MAX_SPEED);
        let next = theta + theta_dot * STEP_S;
        // A larger angle would have fewer digits after the point, and none of them right in the end.
        let next = if next.abs() > MOST_TURNED { wrap_with::<FMA>(next) } else { next };
        ([next, theta_dot], terms, false)
    }

    /// `[cos angle, sin angle, velocity]`.
    #[inline(always)]
    fn observe<const FMA: bool>([theta, theta_dot]: [f32; 2], _seat: usize) -> [f32; 3] {
        let (sin, cos) = sin_cos_with::<FMA>(theta);
        [cos, sin, theta_dot]
    }
}
