//! The table: its sizes, the places of balls and pockets, and the balls of `L` tables.
//!
//! The origin is the middle of the table and x runs along its long side, in metres. Ball 0 is the cue ball.

use super::lanes::{Mask, Real, V};

/// Balls of a table, the cue ball included.
pub(super) const BALLS: usize = 8;
/// Half of the length of the table.
pub(super) const HALF_X: f64 = 1.27;
/// Half of the width of the table.
pub(super) const HALF_Y: f64 = 0.635;
/// Radius of a ball with points.
pub(super) const RADIUS: f64 = 0.026;
/// Radius of the cue ball.
pub(super) const CUE_RADIUS: f64 = 0.028;
/// Radius of a pocket. A ball falls when its centre is within it.
pub(super) const POCKET: f64 = 0.05;
/// Restitution of two balls.
pub(super) const BALL_RESTITUTION: f64 = 0.89;
/// Restitution of a cushion.
pub(super) const CUSHION_RESTITUTION: f64 = 0.75;
/// Coefficient of rolling friction.
pub(super) const ROLLING: f64 = 0.01;
/// Coefficient of sliding friction, on the cloth and on cushions.
pub(super) const SLIDING: f64 = 0.2;
/// Coefficient of the friction that slows the spin around the vertical axis.
pub(super) const SPINNING: f64 = 0.044;
/// Acceleration of gravity.
pub(super) const GRAVITY: f64 = 9.81;

/// The places of the balls at the start: those of a snooker table, with the cue ball in the D and ball 1 in the open.
pub(super) const SPOTS: [[f64; 2]; BALLS] = [
    [-0.64, 0.1],
    [0.3, -0.25],
    [-0.64, -0.2],
    [-0.64, 0.2],
    [-0.64, 0.0],
    [0.0, 0.0],
    [0.55, 0.0],
    [0.95, 0.0],
];
/// Largest distance of a coordinate from its spot at the start.
pub(super) const JITTER: f64 = 0.02;
/// Places of the cue ball after it fell, in order of preference.
pub(super) const RETURNS: [[f64; 2]; 10] = [
    [-0.64, 0.1],
    [-0.64, -0.1],
    [-0.74, 0.0],
    [-0.8, 0.15],
    [-0.8, -0.15],
    [-0.9, 0.0],
    [-1.0, 0.2],
    [-1.0, -0.2],
    [-0.5, 0.1],
    [-0.5, -0.1],
];
/// The pockets.
pub(super) const POCKETS: [[f64; 2]; 6] = [
    [-HALF_X, -HALF_Y],
    [0.0, -HALF_Y],
    [HALF_X, -HALF_Y],
    [-HALF_X, HALF_Y],
    [0.0, HALF_Y],
    [HALF_X, HALF_Y],
];

/// The radius of a ball.
pub(super) const fn radius(ball: usize) -> f64 {
    if ball == 0 { CUE_RADIUS } else { RADIUS }
}

/// The distance of the centres of two balls that touch; `ball` is the one with the lower number.
pub(super) const fn touching(ball: usize) -> f64 {
    radius(ball) + RADIUS
}

/// The coordinate at which balls that fell wait. No ball touches another there, nor a cushion.
const PARKED: f64 = 64.0;

/// A number of each ball of `L` tables.
pub(super) type Column<F, const L: usize> = [V<F, L>; BALLS];

/// The balls of `L` tables in motion.
#[derive(Debug, Clone)]
pub(super) struct Balls<F, const L: usize> {
    /// Positions.
    pub(super) x: Column<F, L>,
    pub(super) y: Column<F, L>,
    /// Velocities in m/s.
    pub(super) vx: Column<F, L>,
    pub(super) vy: Column<F, L>,
    /// Velocities of the point of the ball that touches the cloth: 0 for a ball that rolls.
    pub(super) ux: Column<F, L>,
    pub(super) uy: Column<F, L>,
    /// Spin around the vertical axis, as the speed of the ball's equator.
    pub(super) spin: Column<F, L>,
    /// The largest |x| and |y| of the ball's centre between the cushions; infinite for a ball that fell.
    pub(super) max_x: Column<F, L>,
    pub(super) max_y: Column<F, L>,
}

impl<F: Real, const L: usize> Balls<F, L> {
    /// Balls at rest. `on` is 0 where a ball has fallen.
    #[inline(always)]
    pub(super) fn at_rest(x: &Column<F, L>, y: &Column<F, L>, on: &Column<F, L>) -> Self {
        let zero = [V::all(0.0); BALLS];
        let mut balls = Balls {
            x: zero,
            y: zero,
            vx: zero,
            vy: zero,
            ux: zero,
            uy: zero,
            spin: zero,
            max_x: zero,
            max_y: zero,
        };
        for i in 0..BALLS {
            let (max_x, max_y) = (V::all(HALF_X - radius(i)), V::all(HALF_Y - radius(i)));
            balls.x[i] = x[i].max(-max_x).min(max_x);
            balls.y[i] = y[i].max(-max_y).min(max_y);
            (balls.max_x[i], balls.max_y[i]) = (max_x, max_y);
            balls.park(i, on[i].less(V::all(0.5)));
        }
        balls
    }

    /// Takes a ball off the tables of a mask.
    #[inline(always)]
    pub(super) fn park(&mut self, ball: usize, fell: Mask<L>) {
        let zero = V::all(0.0);
        let far = V::all(PARKED * (1 + ball) as f64);
        self.x[ball] = fell.pick(far, self.x[ball]);
        self.y[ball] = fell.pick(far, self.y[ball]);
        for column in [&mut self.vx, &mut self.vy, &mut self.ux, &mut self.uy, &mut self.spin] {
            column[ball] = fell.pick(zero, column[ball]);
        }
        self.max_x[ball] = fell.pick(V::all(f64::INFINITY), self.max_x[ball]);
        self.max_y[ball] = fell.pick(V::all(f64::INFINITY), self.max_y[ball]);
    }

    /// The tables on which a ball has not fallen.
    #[inline(always)]
    pub(super) fn on(&self, ball: usize) -> Mask<L> {
        self.max_x[ball].less(V::all(PARKED))
    }

    /// The square of the distance of a ball from the pocket that is nearest to it.
    #[inline(always)]
    pub(super) fn pocket_distance(&self, ball: usize) -> V<F, L> {
        let x = self.x[ball].size();
        let x = x.min(V::all(HALF_X) - x);
        let y = V::all(HALF_Y) - self.y[ball].size();
        x * x + y * y
    }
}
