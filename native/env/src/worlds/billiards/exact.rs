//! The exact form of the physics.
//!
//! A substep is so short that no ball moves further than half of a radius. Within it the motion of a ball has a closed
//! form: it slides under constant friction, then rolls, then rests. The substep takes each ball along the chord of its
//! path, and ends early at the first event on a chord, whose time is the root of a quadratic: two balls touch, a ball
//! touches a cushion, or a ball falls. The event is resolved there. Each table has its own substeps.

use super::lanes::{Mask, Real, V};
use super::table::{
    BALL_RESTITUTION, BALLS, Balls, CUSHION_RESTITUTION, Column, GRAVITY, HALF_X, HALF_Y, POCKET,
    RADIUS, ROLLING, SLIDING, SPINNING, touching,
};

/// Seconds after which the balls of a shot are stopped.
pub(super) const MAX_TIME: f64 = 30.0;
/// Substeps after which the balls of a shot are stopped.
const MAX_SUBSTEPS: usize = 1 << 15;
/// Longest substep of a table with a ball that slides, in seconds. A chord differs from a path by at most 1e-5 m.
const SLIDING_STEP: f64 = 1.0 / 160.0;
/// Longest substep of a table whose balls only roll.
const ROLLING_STEP: f64 = 1.0 / 35.0;
/// Distance by which balls are apart after they touched, in metres. It keeps the next event of the same balls from
/// coming without any time in between.
const GAP: f64 = 2e-6;
/// A speed too small to divide by.
const TINY: f64 = 1e-12;

/// An event on some tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// Two balls touch.
    Balls(usize, usize),
    /// A ball touches a cushion.
    Cushion(usize),
    /// A ball falls.
    Pocket(usize),
}

/// Sees all substeps and events of a shot.
pub(super) trait Watch<F, const L: usize> {
    /// Called before an event is resolved.
    #[inline(always)]
    fn event(&mut self, _event: Event, _tables: Mask<L>, _time: &V<F, L>, _balls: &Balls<F, L>) {}

    /// Called after each substep, with the seconds of each table since the beginning of the shot.
    #[inline(always)]
    fn substep(&mut self, _balls: &Balls<F, L>, _time: &V<F, L>) {}
}

impl<F, const L: usize> Watch<F, L> for () {}

/// Runs a shot until all balls rest or [`MAX_TIME`] is over. `share` shortens the substeps: 1 is the normal length.
#[inline(always)]
pub(super) fn run<F: Real, const L: usize>(
    balls: &mut Balls<F, L>,
    share: f64,
    watch: &mut impl Watch<F, L>,
) {
    let (zero, one) = (V::all(0.0), V::all(1.0));
    let mut time = zero;
    let mut paths = Paths::none();
    for _ in 0..MAX_SUBSTEPS {
        let (span, awake) = span(balls, time, share);
        if !zero.less(span).any() {
            return;
        }
        paths.lay(balls, span, &awake);
        let first = paths.first_event(balls, &awake);
        let cut = first.less(one);
        if cut.any() {
            paths.cut(balls, first, span * first, &awake);
            time = time + span * first;
            paths.follow(balls, span * first, &awake);
            resolve(balls, cut, &time, watch);
        } else {
            time = time + span;
            paths.follow(balls, span, &awake);
        }
        watch.substep(balls, &time);
    }
}

/// The length of the next substep, 0 for a table at rest, and the balls that move or spin on any table.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // one lane or one ball of all arrays at a time
fn span<F: Real, const L: usize>(
    balls: &Balls<F, L>,
    time: V<F, L>,
    share: f64,
) -> (V<F, L>, [bool; BALLS]) {
    let zero = V::all(0.0);
    let (mut fastest, mut slip) = (zero, zero);
    let mut awake = [false; BALLS];
    for i in 0..BALLS {
        let v = balls.vx[i] * balls.vx[i] + balls.vy[i] * balls.vy[i];
        let u = balls.ux[i] * balls.ux[i] + balls.uy[i] * balls.uy[i];
        // A ball that spins in place is awake too: its spin falls on a table alone as beside others.
        awake[i] = zero.less(v + u + balls.spin[i] * balls.spin[i]).any();
        (fastest, slip) = (fastest.max(v), slip.max(u));
    }
    // Friction can make a ball that slides faster by this within the substep.
    let faster = V::all(SLIDING * GRAVITY * SLIDING_STEP);
    let longest = zero.less(slip).pick(V::all(SLIDING_STEP), V::all(ROLLING_STEP));
    let span = longest.min(V::all(RADIUS / 2.0) / (fastest.root() + faster)) * V::all(share);
    let moves = zero.less(fastest + slip) & time.less(V::all(MAX_TIME));
    (moves.pick(span, zero), awake)
}

/// The paths of the balls in a substep: displacements, and velocities at the end.
struct Paths<F, const L: usize> {
    dx: Column<F, L>,
    dy: Column<F, L>,
    vx: Column<F, L>,
    vy: Column<F, L>,
    ux: Column<F, L>,
    uy: Column<F, L>,
}

impl<F: Real, const L: usize> Paths<F, L> {
    #[inline(always)]
    fn none() -> Self {
        let zero = [V::all(0.0); BALLS];
        Paths { dx: zero, dy: zero, vx: zero, vy: zero, ux: zero, uy: zero }
    }

    /// The paths of a substep.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // one lane or one ball of all arrays at a time
    fn lay(&mut self, balls: &Balls<F, L>, span: V<F, L>, awake: &[bool; BALLS]) {
        for i in 0..BALLS {
            if awake[i] {
                self.solve(balls, i, span);
            } else {
                (self.dx[i], self.dy[i]) = (V::all(0.0), V::all(0.0));
            }
        }
    }

    /// The closed form of a ball's motion: sliding until the slip is 0, then rolling until the ball rests.
    #[inline(always)]
    fn solve(&mut self, balls: &Balls<F, L>, i: usize, span: V<F, L>) {
        let (zero, half, tiny) = (V::all(0.0), V::all(0.5), V::all(TINY));
        let (slide, roll) = (V::all(SLIDING * GRAVITY), V::all(ROLLING * GRAVITY));
        let (vx, vy, ux, uy) = (balls.vx[i], balls.vy[i], balls.ux[i], balls.uy[i]);

        let slip = (ux * ux + uy * uy).root();
        let inverse = V::all(1.0) / slip.max(tiny);
        let (nx, ny) = (ux * inverse, uy * inverse);
        let slides = slip * V::all(2.0 / (7.0 * SLIDING * GRAVITY));
        let t = slides.min(span);
        let lost = slide * t;
        let drift = half * lost * t;
        let (dx, dy) = (vx * t - nx * drift, vy * t - ny * drift);
        let (vx, vy) = (vx - nx * lost, vy - ny * lost);
        let (slips, lost) = (span.less(slides), lost * V::all(3.5));
        self.ux[i] = slips.pick(ux - nx * lost, zero);
        self.uy[i] = slips.pick(uy - ny * lost, zero);

        let speed = (vx * vx + vy * vy).root();
        let inverse = V::all(1.0) / speed.max(tiny);
        let (nx, ny) = (vx * inverse, vy * inverse);
        let (rest, stop) = (span - t, speed * V::all(1.0 / (ROLLING * GRAVITY)));
        let t = rest.min(stop);
        let lost = roll * t;
        let way = (speed - half * lost) * t;
        self.dx[i] = dx + nx * way;
        self.dy[i] = dy + ny * way;
        let rolls = rest.less(stop);
        self.vx[i] = rolls.pick(vx - nx * lost, zero);
        self.vy[i] = rolls.pick(vy - ny * lost, zero);
    }

    /// The first event on the chords, as a share of the substep; 1 without one.
    #[inline(always)]
    fn first_event(&self, balls: &Balls<F, L>, awake: &[bool; BALLS]) -> V<F, L> {
        let (zero, mut first) = (V::all(0.0), V::all(1.0));
        for i in 0..BALLS - 1 {
            let mut least = V::all(1.0);
            for j in (i + 1..BALLS).filter(|j| awake[i] | awake[*j]) {
                let (_, b, c) = self.pair(balls, i, j);
                least = least.min(c + b + b);
            }
            if least.less(zero).any() {
                for j in (i + 1..BALLS).filter(|j| awake[i] | awake[*j]) {
                    let (a, b, c) = self.pair(balls, i, j);
                    if (c + b + b).less(zero).any() {
                        first = first.min(root(a, b, c));
                    }
                }
            }
        }
        let near = V::all((POCKET + RADIUS) * (POCKET + RADIUS));
        for i in (0..BALLS).filter(|i| awake[*i]) {
            let (x, y) = (balls.x[i] + self.dx[i], balls.y[i] + self.dy[i]);
            let beyond = (x.size() - balls.max_x[i]).max(y.size() - balls.max_y[i]);
            if zero.less(beyond).any() {
                first = first.min(cushion(balls.x[i], self.dx[i], balls.max_x[i]));
                first = first.min(cushion(balls.y[i], self.dy[i], balls.max_y[i]));
            }
            if balls.pocket_distance(i).less(near).any() {
                first = first.min(self.pocket(balls, i));
            }
        }
        first
    }

    /// Coefficients of `a s^2 + 2 b s + c`: the square of the distance of two balls less that at which they touch.
    #[inline(always)]
    fn pair(&self, balls: &Balls<F, L>, i: usize, j: usize) -> (V<F, L>, V<F, L>, V<F, L>) {
        let (x, y) = (balls.x[j] - balls.x[i], balls.y[j] - balls.y[i]);
        let (dx, dy) = (self.dx[j] - self.dx[i], self.dy[j] - self.dy[i]);
        let c = x * x + y * y - V::all(touching(i) * touching(i));
        (dx * dx + dy * dy, x * dx + y * dy, c)
    }

    /// The share of the substep after which a ball is within the nearest pocket.
    #[inline(always)]
    fn pocket(&self, balls: &Balls<F, L>, i: usize) -> V<F, L> {
        let (half_x, half_y) = (V::all(HALF_X), V::all(HALF_Y));
        let middle = balls.x[i].size().less(half_x * V::all(0.5));
        let x = balls.x[i] - middle.pick(V::all(0.0), half_x * balls.x[i].sign());
        let y = balls.y[i] - half_y * balls.y[i].sign();
        let (dx, dy) = (self.dx[i], self.dy[i]);
        let c = x * x + y * y - V::all(POCKET * POCKET);
        root(dx * dx + dy * dy, x * dx + y * dy, c)
    }

    /// Shortens the paths to a share of the substep, which is `span` seconds long.
    #[inline(always)]
    fn cut(&mut self, balls: &Balls<F, L>, share: V<F, L>, span: V<F, L>, awake: &[bool; BALLS]) {
        for i in (0..BALLS).filter(|i| awake[*i]) {
            let (dx, dy) = (self.dx[i] * share, self.dy[i] * share);
            self.solve(balls, i, span);
            (self.dx[i], self.dy[i]) = (dx, dy);
        }
    }

    /// Moves the balls to the ends of their paths.
    #[inline(always)]
    fn follow(&self, balls: &mut Balls<F, L>, span: V<F, L>, awake: &[bool; BALLS]) {
        let zero = V::all(0.0);
        let slower = span * V::all(2.5 * SPINNING * GRAVITY);
        for i in (0..BALLS).filter(|i| awake[*i]) {
            balls.x[i] = balls.x[i] + self.dx[i];
            balls.y[i] = balls.y[i] + self.dy[i];
            (balls.vx[i], balls.vy[i]) = (self.vx[i], self.vy[i]);
            (balls.ux[i], balls.uy[i]) = (self.ux[i], self.uy[i]);
            let spin = balls.spin[i];
            balls.spin[i] = spin.sign() * (spin.size() - slower).max(zero);
        }
    }
}

/// The smaller root of `a s^2 + 2 b s + c` where the distance falls, at least 0; 1 if there is none before 1.
#[inline(always)]
fn root<F: Real, const L: usize>(a: V<F, L>, b: V<F, L>, c: V<F, L>) -> V<F, L> {
    let (zero, one) = (V::all(0.0), V::all(1.0));
    let square = b * b - a * c;
    // This form of the root does not cancel. `b` is negative where the root is used.
    let at = c.max(zero) / (square.max(zero).root() - b).max(V::all(1e-30));
    let falls = b.less(zero) & V::all(-1e-30).less(square);
    falls.pick(at.min(one), one)
}

/// The share of the substep after which a coordinate reaches a cushion.
#[inline(always)]
fn cushion<F: Real, const L: usize>(x: V<F, L>, d: V<F, L>, max: V<F, L>) -> V<F, L> {
    let one = V::all(1.0);
    let side = d.sign();
    let (d, way) = (d.size(), (max - side * x).max(V::all(0.0)));
    (way.less(d)).pick(way / d.max(V::all(1e-30)), one)
}

/// Resolves the events on the tables of a mask.
#[inline(always)]
fn resolve<F: Real, const L: usize>(
    balls: &mut Balls<F, L>,
    tables: Mask<L>,
    time: &V<F, L>,
    watch: &mut impl Watch<F, L>,
) {
    let within = V::all((POCKET + GAP) * (POCKET + GAP));
    for i in 0..BALLS {
        let fell = balls.pocket_distance(i).less(within) & tables;
        if fell.any() {
            watch.event(Event::Pocket(i), fell, time, balls);
            balls.park(i, fell);
        }
        let edge = V::all(GAP / 2.0);
        let touches_x = (balls.max_x[i] - balls.x[i].size()).less(edge) & tables;
        let touches_y = (balls.max_y[i] - balls.y[i].size()).less(edge) & tables;
        if touches_x.any() {
            watch.event(Event::Cushion(i), touches_x, time, balls);
            bounce_x(balls, i, touches_x);
        }
        if touches_y.any() {
            watch.event(Event::Cushion(i), touches_y, time, balls);
            bounce_y(balls, i, touches_y);
        }
    }
    for i in 0..BALLS - 1 {
        let reach = touching(i) + GAP / 2.0;
        for j in i + 1..BALLS {
            let (x, y) = (balls.x[j] - balls.x[i], balls.y[j] - balls.y[i]);
            let square = x * x + y * y;
            let touch = square.less(V::all(reach * reach)) & tables;
            if touch.any() {
                watch.event(Event::Balls(i, j), touch, time, balls);
                collide(balls, i, j, touch);
            }
        }
    }
}

/// Reflects a ball at a cushion across x.
#[inline(always)]
fn bounce_x<F: Real, const L: usize>(balls: &mut Balls<F, L>, i: usize, touches: Mask<L>) {
    let side = balls.x[i].sign();
    let x = side * (balls.max_x[i] - V::all(GAP));
    balls.x[i] = touches.pick(x, balls.x[i]);
    let (kick, rub) = reflected(side * balls.vx[i], balls.vy[i] + side * balls.spin[i], touches);
    balls.vx[i] = balls.vx[i] - side * kick;
    balls.ux[i] = balls.ux[i] - side * kick;
    balls.vy[i] = balls.vy[i] - rub;
    balls.uy[i] = balls.uy[i] - rub;
    balls.spin[i] = balls.spin[i] - side * rub * V::all(2.5);
}

/// Reflects a ball at a cushion across y.
#[inline(always)]
fn bounce_y<F: Real, const L: usize>(balls: &mut Balls<F, L>, i: usize, touches: Mask<L>) {
    let side = balls.y[i].sign();
    let y = side * (balls.max_y[i] - V::all(GAP));
    balls.y[i] = touches.pick(y, balls.y[i]);
    let (kick, rub) = reflected(side * balls.vy[i], balls.vx[i] - side * balls.spin[i], touches);
    balls.vy[i] = balls.vy[i] - side * kick;
    balls.uy[i] = balls.uy[i] - side * kick;
    balls.vx[i] = balls.vx[i] - rub;
    balls.ux[i] = balls.ux[i] - rub;
    balls.spin[i] = balls.spin[i] + side * rub * V::all(2.5);
}

/// The changes of velocity at a cushion: away from it, and along it by friction, which at most stops the slip.
#[inline(always)]
fn reflected<F: Real, const L: usize>(
    towards: V<F, L>,
    slip: V<F, L>,
    touches: Mask<L>,
) -> (V<F, L>, V<F, L>) {
    let zero = V::all(0.0);
    let kick = touches.pick(towards.max(zero) * V::all(1.0 + CUSHION_RESTITUTION), zero);
    let most = kick * V::all(SLIDING);
    (kick, (slip * V::all(2.0 / 7.0)).min(most).max(-most))
}

/// Exchanges the impulse of two balls that touch along the line of their centres, and puts them [`GAP`] apart.
#[inline(always)]
pub(super) fn collide<F: Real, const L: usize>(
    balls: &mut Balls<F, L>,
    i: usize,
    j: usize,
    touch: Mask<L>,
) {
    let zero = V::all(0.0);
    let (x, y) = (balls.x[j] - balls.x[i], balls.y[j] - balls.y[i]);
    let distance = (x * x + y * y).root().max(V::all(TINY));
    let (nx, ny) = (x / distance, y / distance);
    let apart = (V::all(touching(i) + GAP) - distance).max(zero) * V::all(0.5);
    let apart = touch.pick(apart, zero);
    let closing = (balls.vx[i] - balls.vx[j]) * nx + (balls.vy[i] - balls.vy[j]) * ny;
    let impulse = closing.max(zero) * V::all((1.0 + BALL_RESTITUTION) / 2.0);
    let impulse = touch.pick(impulse, zero);
    for (ball, side) in [(i, V::all(-1.0)), (j, V::all(1.0))] {
        let (push, kick) = (side * apart, side * impulse);
        balls.x[ball] = balls.x[ball] + push * nx;
        balls.y[ball] = balls.y[ball] + push * ny;
        for (column, n) in [(&mut balls.vx, nx), (&mut balls.ux, nx)] {
            column[ball] = column[ball] + kick * n;
        }
        for (column, n) in [(&mut balls.vy, ny), (&mut balls.uy, ny)] {
            column[ball] = column[ball] + kick * n;
        }
    }
}
