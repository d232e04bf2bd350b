//! Acrobot-v1: two links that swing up by a motor in the joint between them (Sutton 1996), with the equations of Sutton
//! & Barto's book.
//!
//! State: angle of the first link (rad, 0 hangs down), angle of the second link relative to the first, and their
//! velocities. A step is one Runge-Kutta step of 0.2 s. Each step pays -1, except the last one of an episode that
//! terminates, which pays 0.

use std::f32::consts::PI;

use sconce_tensor::trig::{sin_cos_with, wrap_with};

use super::{Dynamics, World, choice, uniform};
use crate::vectorised::Kernel;

const GRAVITY: f32 = 9.8;
const MASS: f32 = 1.0;
const LENGTH: f32 = 1.0;
/// Distance from a joint to the centre of mass of its link.
const CENTRE: f32 = 0.5;
const INERTIA: f32 = 1.0;
/// Seconds per step.
const STEP_S: f32 = 0.2;
const MAX_SPEED_1: f32 = 4.0 * PI;
const MAX_SPEED_2: f32 = 9.0 * PI;

/// Acrobot-v1.
pub(crate) const WORLD: World = World {
    name: "acrobot",
    inputs: || vec![choice("action", "0 applies a torque of -1, 1 none, 2 a torque of 1", 3)],
    time_limit: 500,
    terms: &["step"],
    players: &[],
    solved: Some(-100.0),
    image: None,
    kernel: Kernel::new::<Acrobot, 4, 1, 6, 1>(),
};

struct Acrobot;

impl Dynamics<4, 1, 6, 1> for Acrobot {
    fn start(words: [u32; 4]) -> [f32; 4] {
        words.map(|word| uniform(word, -0.1, 0.1))
    }

    #[inline(always)]
    fn step<const FMA: bool>(
        state: [f32; 4],
        [action]: [f32; 1],
        _limit: f32,
    ) -> ([f32; 4], [f32; 1], bool) {
        let [theta_1, theta_2, dot_1, dot_2] = runge_kutta::<FMA>(state, action - 1.0);
        let next = [
            wrap_with::<FMA>(theta_1),
            wrap_with::<FMA>(theta_2),
            dot_1.clamp(-MAX_SPEED_1, MAX_SPEED_1),
            dot_2.clamp(-MAX_SPEED_2, MAX_SPEED_2),
        ];
        let (_, first) = sin_cos_with::<FMA>(next[0]);
        let (_, second) = sin_cos_with::<FMA>(next[1] + next[0]);
        let terminated = -first - second > 1.0;
        (next, [if terminated { 0.0 } else { -1.0 }], terminated)
    }

    /// `[cos angle 1, sin angle 1, cos angle 2, sin angle 2, velocity 1, velocity 2]`.
    #[inline(always)]
    fn observe<const FMA: bool>(
        [theta_1, theta_2, dot_1, dot_2]: [f32; 4],
        _seat: usize,
    ) -> [f32; 6] {
        let (sin_1, cos_1) = sin_cos_with::<FMA>(theta_1);
        let (sin_2, cos_2) = sin_cos_with::<FMA>(theta_2);
        [cos_1, sin_1, cos_2, sin_2, dot_1, dot_2]
    }
}

/// The classical Runge-Kutta method of order 4.
#[inline(always)]
fn runge_kutta<const FMA: bool>(state: [f32; 4], torque: f32) -> [f32; 4] {
    let at = |slope: [f32; 4], h: f32| std::array::from_fn(|i| state[i] + h * slope[i]);
    let k1 = rate::<FMA>(state, torque);
    let k2 = rate::<FMA>(at(k1, STEP_S / 2.0), torque);
    let k3 = rate::<FMA>(at(k2, STEP_S / 2.0), torque);
    let k4 = rate::<FMA>(at(k3, STEP_S), torque);
    std::array::from_fn(|i| state[i] + STEP_S / 6.0 * (k1[i] + 2.0 * k2[i] + 2.0 * k3[i] + k4[i]))
}

/// The derivative of the state by time.
#[inline(always)]
fn rate<const FMA: bool>([theta_1, theta_2, dot_1, dot_2]: [f32; 4], torque: f32) -> [f32; 4] {
    let (sin_1, _) = sin_cos_with::<FMA>(theta_1);
    let (sin_2, cos_2) = sin_cos_with::<FMA>(theta_2);
    let (sin_12, _) = sin_cos_with::<FMA>(theta_1 + theta_2);
    let coupled = MASS * LENGTH * CENTRE;
    let own = MASS * CENTRE * CENTRE;
    let d1 = own
        + MASS * (LENGTH * LENGTH + CENTRE * CENTRE + 2.0 * LENGTH * CENTRE * cos_2)
        + INERTIA
        + INERTIA;
    let d2 = MASS * (CENTRE * CENTRE + LENGTH * CENTRE * cos_2) + INERTIA;
    // The book writes cos(x - pi/2), which is sin(x).
    let phi_2 = MASS * CENTRE * GRAVITY * sin_12;
    let phi_1 = -coupled * (dot_2 * dot_2) * sin_2 - 2.0 * coupled * dot_2 * dot_1 * sin_2
        + (MASS * CENTRE + MASS * LENGTH) * GRAVITY * sin_1
        + phi_2;
    let acc_2 = (torque + d2 / d1 * phi_1 - coupled * (dot_1 * dot_1) * sin_2 - phi_2)
        / (own + INERTIA - d2 * d2 / d1);
    let acc_1 = -(d2 * acc_2 + phi_1) / d1;
    [dot_1, dot_2, acc_1, acc_2]
}
