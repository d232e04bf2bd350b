//! Billiards: eight balls on a table with six pockets. A step of the environment is a shot.
//!
//! The table is 2.54 m by 1.27 m. The cue ball has a radius of 0.028 m, the balls 1 to 7 have one of 0.026 m and are
//! worth as many points; all have the same mass. The target is the ball with the lowest number on the table. A shot ends
//! when all balls rest, or after 30 s, and an episode after three shots or when the balls 1 to 7 have fallen. A cue ball
//! that fell returns to a free place near its spot.
//!
//! Inputs: the angle of the shot in half turns (0 is along x, 0.5 along y), its power (1 is 10 m/s), top spin and side
//! spin, in shares of the spin that a cue can give. The two spins together are at most 1.
//!
//! | term | reward of a shot |
//! |---|---|
//! | `target` | 20 if the target falls |
//! | `other` | 10 for each other ball that falls |
//! | `scratch` | -15 if the cue ball falls |
//! | `miss` | -3 if no ball but the cue ball falls |
//! | `centre` | 5 with the cue ball in the middle of the table, falling to 0 in the corners; 0 after a scratch |
//!
//! State: x of all balls, y of all balls, then for the balls 1 to 7 whether each is on the table and whether it has moved
//! in this episode, shots, their share of the time limit, and whether the last shot was a scratch.
//!
//! The physics are those of [`exact`]. The world `billiards_published` has those of [`published`], in which a power of 1
//! is 50 m/s and spin has no effect; it is there to compare with published results, and for nothing else.

mod exact;
mod lanes;
mod published;
mod table;
#[cfg(test)]
mod tests;
mod trace;

use sconce_game::{InputKind, InputPart};
use sconce_tensor::simd::{LANES, mul_add};
use sconce_tensor::trig::sin_cos_with;

use super::{Dynamics, World, continuous, part};
use crate::vectorised::Kernel;
use lanes::V;
use table::{BALLS, Balls, Column, HALF_X, HALF_Y, JITTER, POCKETS, RETURNS, SPOTS, touching};
pub use trace::{Shot, ShotEvent, ShotEventKind, shot};

/// Numbers of a state.
pub(crate) const STATE: usize = 33;
/// Numbers of an input.
pub(crate) const INPUTS: usize = 4;
const OBSERVATION: usize = 29;
const TERMS: usize = 5;
/// Balls with points.
const POINTS: usize = BALLS - 1;
/// Places in a state.
const Y: usize = BALLS;
const ON: usize = 2 * BALLS;
const MOVED: usize = ON + POINTS;
const SHOTS: usize = MOVED + POINTS;
const TIME: usize = SHOTS + 1;
const SCRATCH: usize = TIME + 1;

/// Speed of the cue ball at full power, in m/s.
const SPEED: f32 = 10.0;
const PUBLISHED_SPEED: f32 = 50.0;
/// Speed of the surface of a ball with the largest spin, as a share of the ball's speed: the cue hits half a radius from
/// the middle.
const SPIN: f32 = 1.25;
/// A ball has moved if it lies further than this from its place before, in metres.
const MOVE: f32 = 1e-3;

/// Shots in the exact form.
pub(crate) const WORLD: World = World {
    name: "billiards",
    inputs: parts,
    time_limit: 3,
    terms: &["target", "other", "scratch", "miss", "centre"],
    players: &[],
    solved: None,
    image: None,
    kernel: Kernel::new::<Billiards<false>, STATE, INPUTS, OBSERVATION, TERMS>(),
};

/// Shots in the published form.
pub(crate) const PUBLISHED: World = World {
    name: "billiards_published",
    kernel: Kernel::new::<Billiards<true>, STATE, INPUTS, OBSERVATION, TERMS>(),
    ..WORLD
};

fn parts() -> Vec<InputPart> {
    vec![
        continuous("angle", "direction of the shot in half turns", 1.0),
        part(
            "power",
            "share of the largest speed of the cue ball",
            InputKind::Continuous { size: 1, min: 0.0, max: 1.0 },
        ),
        continuous("top", "top spin, negative for back spin", 1.0),
        continuous("side", "side spin, positive for counterclockwise from above", 1.0),
    ]
}

struct Billiards<const IS_PUBLISHED: bool>;

impl<const IS_PUBLISHED: bool> Dynamics<STATE, INPUTS, OBSERVATION, TERMS>
    for Billiards<IS_PUBLISHED>
{
    const WHOLE_BLOCKS: bool = true;
    // A shot takes microseconds, so that two shards are worth two threads.
    const PARALLEL: usize = 1025;

    /// The spots with a random byte of change in each coordinate.
    fn start(words: [u32; 4]) -> [f32; STATE] {
        let mut state = [0.0; STATE];
        for (i, [x, y]) in SPOTS.into_iter().enumerate() {
            let pair = words[i / 2] >> (16 * (i % 2));
            let change = |byte: u32| (byte & 0xFF) as f32 / 127.5 - 1.0;
            state[i] = x as f32 + JITTER as f32 * change(pair);
            state[Y + i] = y as f32 + JITTER as f32 * change(pair >> 8);
        }
        state[ON..MOVED].fill(1.0);
        state
    }

    fn step<const FMA: bool>(
        state: [f32; STATE],
        input: [f32; INPUTS],
        limit: f32,
    ) -> ([f32; STATE], [f32; TERMS], bool) {
        let runs = std::array::from_fn(|i| i == 0);
        let (states, terms, ends) = Self::step_block::<FMA>(
            &state.map(|v| [v; LANES]),
            &input.map(|v| [v; LANES]),
            runs,
            limit,
        );
        (states.map(|lanes| lanes[0]), terms.map(|lanes| lanes[0]), ends[0])
    }

    #[inline(always)]
    fn step_block<const FMA: bool>(
        state: &[[f32; LANES]; STATE],
        input: &[[f32; LANES]; INPUTS],
        runs: [bool; LANES],
        limit: f32,
    ) -> ([[f32; LANES]; STATE], [[f32; LANES]; TERMS], [bool; LANES]) {
        let mut balls = struck::<FMA, IS_PUBLISHED>(state, input, runs);
        if IS_PUBLISHED {
            published::run::<FMA>(&mut balls);
        } else {
            exact::run(&mut balls, 1.0, &mut ());
        }
        let (mut next, mut terms) = (*state, [[0.0; LANES]; TERMS]);
        let mut ends = [false; LANES];
        for i in (0..LANES).filter(|i| runs[*i]) {
            let old = std::array::from_fn(|k| state[k][i]);
            let (new, paid, over) = judged(&old, &balls, i, limit);
            (0..STATE).for_each(|k| next[k][i] = new[k]);
            (0..TERMS).for_each(|k| terms[k][i] = paid[k]);
            ends[i] = over;
        }
        (next, terms, ends)
    }

    /// `[x, y of the cue ball; x, y, on the table of the balls 1 to 7; aim, straightness; shots / limit, share of balls
    /// moved, share of balls fallen, scratch]`. Coordinates are shares of half of the table, in -1..=1, and 0 for a ball
    /// that fell. The aim is the angle in half turns that pots the target without spin in the pocket with the straightest
    /// shot, and straightness the cosine of the angle between that shot and the way of the target. Moved and fallen count
    /// the balls 1 to 7 in the whole episode; scratch is 1 if the cue ball fell in the last shot.
    #[inline(always)]
    fn observe<const FMA: bool>(state: [f32; STATE], _seat: usize) -> [f32; OBSERVATION] {
        let mut seen = [0.0; OBSERVATION];
        let place = |i: usize| (state[i] / HALF_X as f32, state[Y + i] / HALF_Y as f32);
        (seen[0], seen[1]) = place(0);
        let (mut moved, mut on) = (0.0, 0.0);
        for i in 1..BALLS {
            let (x, y) = place(i);
            let here = state[ON + i - 1];
            let at = 3 * i - 1;
            (seen[at], seen[at + 1], seen[at + 2]) = (x * here, y * here, here);
            moved += state[MOVED + i - 1];
            on += here;
        }
        let [aim, straightness] = aim::<FMA>(&state);
        let rest = &mut seen[OBSERVATION - 6..];
        rest.copy_from_slice(&[
            aim,
            straightness,
            state[TIME],
            moved / POINTS as f32,
            1.0 - on / POINTS as f32,
            state[SCRATCH],
        ]);
        seen
    }
}

/// The balls at the moment of the shot. Tables that do not run are at rest.
#[inline(always)]
fn struck<const FMA: bool, const IS_PUBLISHED: bool>(
    state: &[[f32; LANES]; STATE],
    input: &[[f32; LANES]; INPUTS],
    runs: [bool; LANES],
) -> Balls<f32, LANES> {
    let column = |at: usize| -> Column<f32, LANES> { std::array::from_fn(|i| V(state[at + i])) };
    let on = std::array::from_fn(|i| if i == 0 { V::all(1.0) } else { V(state[ON + i - 1]) });
    let mut balls = Balls::at_rest(&column(0), &column(Y), &on);
    for i in (0..LANES).filter(|i| runs[*i]) {
        let shot = std::array::from_fn(|k| input[k][i]);
        let [vx, vy, ux, uy, spin] = strike::<FMA, IS_PUBLISHED>(shot);
        (balls.vx[0].0[i], balls.vy[0].0[i]) = (vx, vy);
        (balls.ux[0].0[i], balls.uy[0].0[i]) = (ux, uy);
        balls.spin[0].0[i] = spin;
    }
    balls
}

/// Velocity, slip and side spin of the cue ball after the cue hit it.
#[inline(always)]
fn strike<const FMA: bool, const IS_PUBLISHED: bool>(
    [angle, power, top, side]: [f32; INPUTS],
) -> [f32; 5] {
    let (sin, cos) = sin_cos_with::<FMA>(angle.clamp(-1.0, 1.0) * std::f32::consts::PI);
    let speed = power.clamp(0.0, 1.0);
    if IS_PUBLISHED {
        let speed = speed * PUBLISHED_SPEED;
        return [speed * cos, speed * sin, 0.0, 0.0, 0.0];
    }
    let speed = speed * SPEED;
    let (top, side) = (top.clamp(-1.0, 1.0), side.clamp(-1.0, 1.0));
    let scale = SPIN / (top * top + side * side).max(1.0).sqrt();
    let slip = speed * (1.0 - scale * top);
    [speed * cos, speed * sin, slip * cos, slip * sin, speed * scale * side]
}

/// The state of table `i` after a shot, its reward terms, and whether the episode has terminated.
#[inline(always)]
fn judged(
    old: &[f32; STATE],
    balls: &Balls<f32, LANES>,
    i: usize,
    limit: f32,
) -> ([f32; STATE], [f32; TERMS], bool) {
    let mut new = *old;
    let (mut target, mut others, mut left) = (0.0, 0.0, 0.0);
    let mut is_target = true;
    for ball in 1..BALLS {
        let (was, here) = (old[ON + ball - 1] > 0.5, balls.on(ball).at(i));
        let (x, y) = if here { (balls.x[ball].0[i], balls.y[ball].0[i]) } else { (0.0, 0.0) };
        let (dx, dy) = (x - old[ball], y - old[Y + ball]);
        if was && (!here || dx * dx + dy * dy > MOVE * MOVE) {
            new[MOVED + ball - 1] = 1.0;
        }
        if was && !here {
            *(if is_target { &mut target } else { &mut others }) += 1.0;
        }
        is_target &= !was;
        (new[ball], new[Y + ball]) = (x, y);
        new[ON + ball - 1] = if here { 1.0 } else { 0.0 };
        left += new[ON + ball - 1];
    }
    let scratch = !balls.on(0).at(i);
    let [x, y] = if scratch { returned(&new) } else { [balls.x[0].0[i], balls.y[0].0[i]] };
    (new[0], new[Y]) = (x, y);
    new[SHOTS] += 1.0;
    new[TIME] = new[SHOTS] / limit;
    new[SCRATCH] = if scratch { 1.0 } else { 0.0 };
    let corner = (HALF_X * HALF_X + HALF_Y * HALF_Y) as f32;
    let centre = 5.0 * (1.0 - ((x * x + y * y) / corner).sqrt());
    let terms = [
        20.0 * target,
        10.0 * others,
        if scratch { -15.0 } else { 0.0 },
        if target + others == 0.0 { -3.0 } else { 0.0 },
        if scratch { 0.0 } else { centre },
    ];
    (new, terms, left == 0.0)
}

/// A free place for a cue ball that fell. Each of seven balls blocks one of the ten places at most.
#[inline(never)]
fn returned(state: &[f32; STATE]) -> [f32; 2] {
    let free = |[x, y]: &[f64; 2]| {
        (1..BALLS).all(|ball| {
            let (dx, dy) = (f64::from(state[ball]) - x, f64::from(state[Y + ball]) - y);
            state[ON + ball - 1] < 0.5 || dx * dx + dy * dy > touching(0) * touching(0)
        })
    };
    let place = RETURNS.iter().find(|place| free(place)).unwrap_or(&RETURNS[0]);
    place.map(|v| v as f32)
}

/// The angle in half turns that pots the target, and how straight that shot is; zeros without a target.
#[inline(always)]
fn aim<const FMA: bool>(state: &[f32; STATE]) -> [f32; 2] {
    let (mut tx, mut ty, mut found) = (0.0, 0.0, 0.0);
    for ball in (1..BALLS).rev() {
        let here = state[ON + ball - 1] > 0.5;
        tx = if here { state[ball] } else { tx };
        ty = if here { state[Y + ball] } else { ty };
        found = if here { 1.0 } else { found };
    }
    let (mut best, mut ax, mut ay) = (-2.0, 1.0, 0.0);
    for [px, py] in POCKETS {
        let (px, py) = (px as f32 - tx, py as f32 - ty);
        let inverse = 1.0 / (px * px + py * py).max(1e-12).sqrt();
        let (nx, ny) = (px * inverse, py * inverse);
        // The cue ball has to arrive where it touches the target opposite to the pocket.
        let (gx, gy) =
            (tx - touching(0) as f32 * nx - state[0], ty - touching(0) as f32 * ny - state[Y]);
        let cosine = (gx * nx + gy * ny) / (gx * gx + gy * gy).max(1e-12).sqrt();
        let better = cosine > best;
        best = if better { cosine } else { best };
        ax = if better { gx } else { ax };
        ay = if better { gy } else { ay };
    }
    [found * half_turns::<FMA>(ay, ax), found * best]
}

/// `atan2(y, x) / pi` with an error near 1e-6.
#[inline(always)]
fn half_turns<const FMA: bool>(y: f32, x: f32) -> f32 {
    let (a, b) = (x.abs(), y.abs());
    let (small, large) = if b > a { (a, b) } else { (b, a) };
    let t = small / large.max(1e-30);
    let z = t * t;
    let mut p = -0.011_721_2;
    for c in [0.052_653_32, -0.116_432_87, 0.193_543_46, -0.332_623_47, 0.999_977_26] {
        p = mul_add::<FMA>(p, z, c);
    }
    let turn = p * t * std::f32::consts::FRAC_1_PI;
    let turn = if b > a { 0.5 - turn } else { turn };
    let turn = if x < 0.0 { 1.0 - turn } else { turn };
    if y < 0.0 { -turn } else { turn }
}
