//! The published form of the physics: explicit Euler steps of 1/60 s, in which balls that are fast pass through others.
//!
//! Kept to compare speeds and results with the published ones. Nothing else should use it: at 50 m/s a ball moves by 16
//! of its diameters in a step.

use sconce_tensor::simd::{LANES, mul_add};

use super::lanes::V;
use super::table::{
    BALL_RESTITUTION, BALLS, Balls, CUSHION_RESTITUTION, GRAVITY, POCKET, ROLLING, touching,
};

/// Seconds of a step.
const STEP: f64 = 1.0 / 60.0;
/// Steps of a shot.
pub(super) const STEPS: usize = 200;

/// Runs a shot.
#[inline(always)]
pub(super) fn run<const FMA: bool>(balls: &mut Balls<f32, LANES>) {
    for _ in 0..STEPS {
        let fell = advance::<FMA>(balls);
        if fell.less(V::all(POCKET * POCKET)).any() {
            pot(balls);
        }
        for i in 0..BALLS - 1 {
            let limit = V::all(touching(i) * touching(i));
            if nearest::<FMA>(balls, i).less(limit).any() {
                for j in i + 1..BALLS {
                    collide(balls, i, j);
                }
            }
        }
    }
}

/// Moves all balls by a step. Returns the square of the smallest distance of a ball from a pocket.
#[inline(always)]
fn advance<const FMA: bool>(balls: &mut Balls<f32, LANES>) -> V<f32, LANES> {
    let step = V::all(STEP);
    let mut fell = V::all(1.0);
    for i in 0..BALLS {
        let (vx, vy) = (balls.vx[i], balls.vy[i]);
        let slower = fused::<FMA>(
            inverse_root::<FMA>(fused::<FMA>(vx, vx, vy * vy)),
            V::all(-ROLLING * GRAVITY * STEP),
            V::all(1.0),
        )
        .max(V::all(0.0));
        (balls.x[i], balls.vx[i]) =
            bounce(fused::<FMA>(vx, step, balls.x[i]), vx * slower, balls.max_x[i]);
        (balls.y[i], balls.vy[i]) =
            bounce(fused::<FMA>(vy, step, balls.y[i]), vy * slower, balls.max_y[i]);
        fell = fell.min(balls.pocket_distance(i));
    }
    fell
}

/// Puts a coordinate beyond a cushion back onto it, and reflects the velocity.
#[inline(always)]
fn bounce(
    x: V<f32, LANES>,
    v: V<f32, LANES>,
    max: V<f32, LANES>,
) -> (V<f32, LANES>, V<f32, LANES>) {
    let back = v * V::all(-CUSHION_RESTITUTION);
    (x.min(max).max(-max), max.less(x.size()).pick(back, v))
}

#[inline(never)]
fn pot(balls: &mut Balls<f32, LANES>) {
    for i in 0..BALLS {
        balls.park(i, balls.pocket_distance(i).less(V::all(POCKET * POCKET)));
    }
}

/// The square of the distance of a ball from the nearest of the balls after it.
#[inline(always)]
fn nearest<const FMA: bool>(balls: &Balls<f32, LANES>, i: usize) -> V<f32, LANES> {
    let mut least = V::all(1.0);
    for j in i + 1..BALLS {
        let (dx, dy) = (balls.x[j] - balls.x[i], balls.y[j] - balls.y[i]);
        least = least.min(fused::<FMA>(dx, dx, dy * dy));
    }
    least
}

/// Separates two balls that overlap, and exchanges their impulse if they approach each other.
#[inline(always)]
fn collide(balls: &mut Balls<f32, LANES>, i: usize, j: usize) {
    let (dx, dy) = (balls.x[j] - balls.x[i], balls.y[j] - balls.y[i]);
    let square = dx * dx + dy * dy;
    let hit = square.less(V::all(touching(i) * touching(i)));
    if !hit.any() {
        return;
    }
    let distance = square.max(V::all(1e-12)).root();
    let (nx, ny) = (dx / distance, dy / distance);
    let apart = hit.pick((V::all(touching(i)) - distance) * V::all(0.5), V::all(0.0));
    let closing = (balls.vx[i] - balls.vx[j]) * nx + (balls.vy[i] - balls.vy[j]) * ny;
    let impulse = closing.max(V::all(0.0)) * V::all((1.0 + BALL_RESTITUTION) / 2.0);
    let impulse = hit.pick(impulse, V::all(0.0));
    for (ball, side) in [(i, V::all(-1.0)), (j, V::all(1.0))] {
        let (push, kick) = (side * apart, side * impulse);
        balls.x[ball] = balls.x[ball] + push * nx;
        balls.y[ball] = balls.y[ball] + push * ny;
        balls.vx[ball] = balls.vx[ball] + kick * nx;
        balls.vy[ball] = balls.vy[ball] + kick * ny;
    }
}

#[inline(always)]
#[allow(clippy::needless_range_loop)] // one lane or one ball of all arrays at a time
fn fused<const FMA: bool>(a: V<f32, LANES>, b: V<f32, LANES>, c: V<f32, LANES>) -> V<f32, LANES> {
    let mut out = c.0;
    for i in 0..LANES {
        out[i] = mul_add::<FMA>(a.0[i], b.0[i], c.0[i]);
    }
    V(out)
}

/// `1 / sqrt(a)` with a relative error near 1e-5, without a division; a huge number for 0.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // one lane or one ball of all arrays at a time
fn inverse_root<const FMA: bool>(a: V<f32, LANES>) -> V<f32, LANES> {
    let mut out = a.0;
    for i in 0..LANES {
        let half = -0.5 * a.0[i];
        let guess = f32::from_bits(0x5F37_59DF - (a.0[i].to_bits() >> 1));
        let guess = guess * mul_add::<FMA>(half * guess, guess, 1.5);
        out[i] = guess * mul_add::<FMA>(half * guess, guess, 1.5);
    }
    V(out)
}
