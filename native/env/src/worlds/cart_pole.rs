//! CartPole-v1: a pole on a cart (Barto, Sutton & Anderson 1983), and its form without velocities.
//!
//! State: position (m), velocity (m/s), angle (rad, 0 is upright), angular velocity (rad/s). Each step pays 1, also the
//! last one.

use sconce_tensor::trig::sin_cos_with;

use super::{Dynamics, World, choice, uniform};
use crate::vectorised::Kernel;

const GRAVITY: f32 = 9.8;
const POLE_MASS: f32 = 0.1;
/// The inverse of the total mass, 1.1 kg. Multiplying takes less time than dividing.
const PER_MASS: f32 = 1.0 / 1.1;
/// Half the length of the pole, in metres.
const LENGTH: f32 = 0.5;
const POLE_MASS_LENGTH: f32 = POLE_MASS * LENGTH;
const FORCE: f32 = 10.0;
/// Seconds per step.
const TAU_S: f32 = 0.02;
pub(super) const MAX_X: f32 = 2.4;
/// Twelve degrees, in radians.
const MAX_THETA: f32 = (12.0 * 2.0 * std::f64::consts::PI / 360.0) as f32;
/// Bound on each state value at the start of an episode.
const START: f32 = 0.05;

/// CartPole-v1.
pub(crate) const WORLD: World = World {
    name: "cart_pole",
    inputs: || vec![choice("action", "0 pushes the cart to the left, 1 to the right", 2)],
    time_limit: 500,
    terms: &["alive"],
    players: &[],
    solved: Some(475.0),
    image: None,
    kernel: Kernel::new::<CartPole, 4, 1, 4, 1>(),
};

/// CartPole-v1 that shows position and angle only, so that a policy needs memory.
pub(crate) const VELOCITY_LESS: World = World {
    name: "cart_pole_velocity_less",
    kernel: Kernel::new::<VelocityLess, 4, 1, 2, 1>(),
    ..WORLD
};

pub(super) struct CartPole;
struct VelocityLess;

impl Dynamics<4, 1, 4, 1> for CartPole {
    fn start(words: [u32; 4]) -> [f32; 4] {
        words.map(|word| uniform(word, -START, START))
    }

    /// One step of the explicit Euler method, in the reference simulator's order of operations.
    #[inline(always)]
    fn step<const FMA: bool>(
        [x, x_dot, theta, theta_dot]: [f32; 4],
        [action]: [f32; 1],
        _limit: f32,
    ) -> ([f32; 4], [f32; 1], bool) {
        let force = if action == 1.0 { FORCE } else { -FORCE };
        let (sin, cos) = sin_cos_with::<FMA>(theta);
        let pushed = (force + POLE_MASS_LENGTH * (theta_dot * theta_dot) * sin) * PER_MASS;
        let inertia = LENGTH * (4.0 / 3.0 - POLE_MASS * (cos * cos) * PER_MASS);
        let theta_acc = (GRAVITY * sin - cos * pushed) / inertia;
        let x_acc = pushed - POLE_MASS_LENGTH * theta_acc * cos * PER_MASS;
        let next = [
            x + TAU_S * x_dot,
            x_dot + TAU_S * x_acc,
            theta + TAU_S * theta_dot,
            theta_dot + TAU_S * theta_acc,
        ];
        (next, [1.0], (next[0].abs() > MAX_X) | (next[2].abs() > MAX_THETA))
    }

    #[inline(always)]
    fn observe<const FMA: bool>(state: [f32; 4], _seat: usize) -> [f32; 4] {
        state
    }
}

impl Dynamics<4, 1, 2, 1> for VelocityLess {
    fn start(words: [u32; 4]) -> [f32; 4] {
        CartPole::start(words)
    }

    #[inline(always)]
    fn step<const FMA: bool>(
        state: [f32; 4],
        input: [f32; 1],
        limit: f32,
    ) -> ([f32; 4], [f32; 1], bool) {
        CartPole::step::<FMA>(state, input, limit)
    }

    #[inline(always)]
    fn observe<const FMA: bool>([x, _, theta, _]: [f32; 4], _seat: usize) -> [f32; 2] {
        [x, theta]
    }
}
