use sconce_tensor::rng::Rng;

use super::exact::{Event, Watch, collide, run};
use super::lanes::{Mask, Real, V};
use super::table::{
    BALL_RESTITUTION, BALLS, Balls, GRAVITY, HALF_X, HALF_Y, ROLLING, SPOTS, radius, touching,
};

type Table<F> = Balls<F, 1>;

/// A table with balls at rest at these places, the others fallen.
fn table<F: Real>(places: &[(usize, [f64; 2])]) -> Table<F> {
    let (mut x, mut y, mut on) = ([V::all(0.0); BALLS], [V::all(0.0); BALLS], [V::all(0.0); BALLS]);
    for (ball, [px, py]) in places {
        (x[*ball], y[*ball], on[*ball]) = (V::all(*px), V::all(*py), V::all(1.0));
    }
    Balls::at_rest(&x, &y, &on)
}

/// Sets velocity and slip of a ball.
fn set<F: Real>(balls: &mut Table<F>, ball: usize, v: [f64; 2], u: [f64; 2]) {
    (balls.vx[ball], balls.vy[ball]) = (V::all(v[0]), V::all(v[1]));
    (balls.ux[ball], balls.uy[ball]) = (V::all(u[0]), V::all(u[1]));
}

/// Kinetic energy over mass.
fn energy<const L: usize>(b: &Balls<f64, L>) -> f64 {
    let square = |a: f64, b: f64| a * a + b * b;
    let of = |i: usize| {
        let (vx, vy) = (b.vx[i].0[0], b.vy[i].0[0]);
        let turn = square(vx - b.ux[i].0[0], vy - b.uy[i].0[0]) + b.spin[i].0[0].powi(2);
        0.5 * square(vx, vy) + 0.2 * turn
    };
    (0..BALLS).map(of).sum()
}

/// The first collision of two balls: its time, the table before, and the number of them in the shot.
struct First<F> {
    at: Option<(F, Table<F>)>,
    count: usize,
}

impl<F: Real> First<F> {
    fn of(balls: &mut Table<F>, share: f64) -> Self {
        let mut first = First { at: None, count: 0 };
        run(balls, share, &mut first);
        first
    }
}

impl<F: Real> Watch<F, 1> for First<F> {
    fn event(&mut self, event: Event, _tables: Mask<1>, time: &V<F, 1>, balls: &Table<F>) {
        if matches!(event, Event::Balls(..)) {
            self.at.get_or_insert((time.0[0], balls.clone()));
            self.count += 1;
        }
    }
}

/// The spots with random changes and a random shot.
fn random_table<F: Real>(seed: u64) -> Table<F> {
    let rng = Rng::new(seed, "billiards.test", 0);
    let number = |at: u64, most: f64| most * (2.0 * f64::from(rng.uniform(at)) - 1.0);
    let place = |i: usize| {
        let [x, y] = SPOTS[i];
        (i, [x + number(2 * i as u64, 0.02), y + number(2 * i as u64 + 1, 0.02)])
    };
    let places: Vec<_> = (0..BALLS).map(place).collect();
    let mut balls = table(&places);
    let (angle, speed) = (number(30, std::f64::consts::PI), 5.0 + number(31, 5.0));
    let (top, side) = (number(32, 0.9), number(33, 0.9));
    let (x, y) = (speed * angle.cos(), speed * angle.sin());
    set(&mut balls, 0, [x, y], [x * (1.0 - top), y * (1.0 - top)]);
    balls.spin[0] = V::all(speed * side);
    balls
}

#[test]
fn a_rolling_ball_stops_where_the_closed_form_says() {
    let mut balls: Table<f64> = table(&[(0, [-1.0, 0.1])]);
    set(&mut balls, 0, [0.5, 0.0], [0.0, 0.0]);
    run(&mut balls, 1.0, &mut ());
    let way = 0.25 / (2.0 * ROLLING * GRAVITY);
    assert!((balls.x[0].0[0] - (way - 1.0)).abs() < 1e-9, "{}", balls.x[0].0[0]);
    assert_eq!((balls.vx[0].0[0], balls.y[0].0[0]), (0.0, 0.1));
}

#[test]
fn a_ball_that_slides_rolls_at_five_sevenths_of_its_speed() {
    // It slides for 2 v / (7 mu g), then rolls to a stop.
    let slide = super::table::SLIDING * GRAVITY;
    let mut short: Table<f64> = table(&[(0, [-1.2, 0.0])]);
    set(&mut short, 0, [0.56, 0.0], [0.56, 0.0]);
    run(&mut short, 1.0, &mut ());
    let t = 2.0 * 0.56 / (7.0 * slide);
    let way = 0.56 * t - 0.5 * slide * t * t + 0.4 * 0.4 / (2.0 * ROLLING * GRAVITY);
    assert!((short.x[0].0[0] - (way - 1.2)).abs() < 1e-9, "{}", short.x[0].0[0]);
}

#[test]
fn two_balls_head_on_follow_the_closed_form() {
    let mut balls: Table<f64> = table(&[(0, [-0.5, 0.0]), (1, [0.1, 0.0])]);
    set(&mut balls, 0, [2.0, 0.0], [0.0, 0.0]);
    let (decay, way) = (ROLLING * GRAVITY, 0.6 - touching(0));
    let want = (2.0 - (4.0 - 2.0 * decay * way).sqrt()) / decay;
    let (time, mut at) = First::of(&mut balls, 1.0).at.unwrap();
    assert!((time - want).abs() < 1e-6, "{time} {want}");
    let v = 2.0 - decay * want;
    assert!((at.vx[0].0[0] - v).abs() < 1e-6);
    collide(&mut at, 0, 1, Mask::all(true));
    let (slow, fast) = ((1.0 - BALL_RESTITUTION) / 2.0 * v, (1.0 + BALL_RESTITUTION) / 2.0 * v);
    assert!((at.vx[0].0[0] - slow).abs() < 1e-6 && (at.vx[1].0[0] - fast).abs() < 1e-6);
    assert_eq!((at.vy[0].0[0], at.vy[1].0[0]), (0.0, 0.0));
}

#[test]
fn two_balls_oblique_part_along_the_line_of_their_centres() {
    let offset = 0.03;
    let mut balls: Table<f64> = table(&[(0, [-0.5, 0.0]), (1, [0.1, offset])]);
    set(&mut balls, 0, [2.0, 0.0], [0.0, 0.0]);
    let (_time, mut at) = First::of(&mut balls, 1.0).at.unwrap();
    let v = at.vx[0].0[0];
    collide(&mut at, 0, 1, Mask::all(true));
    let (sin, cos) = (offset / touching(0), (1.0 - (offset / touching(0)).powi(2)).sqrt());
    let kick = (1.0 + BALL_RESTITUTION) / 2.0 * v * cos;
    for (got, want) in [
        (at.vx[1].0[0], kick * cos),
        (at.vy[1].0[0], kick * sin),
        (at.vx[0].0[0], v - kick * cos),
        (at.vy[0].0[0], -kick * sin),
    ] {
        assert!((got - want).abs() < 1e-5, "{got} {want}");
    }
}

#[test]
fn collisions_keep_momentum_and_lose_energy() {
    for seed in 0..1000 {
        let rng = Rng::new(seed, "billiards.pair", 0);
        let number = |at: u64| 4.0 * f64::from(rng.uniform(at)) - 2.0;
        let angle = number(0) * 2.0;
        let reach = touching(0);
        let mut balls: Table<f64> =
            table(&[(0, [0.0, 0.0]), (1, [reach * angle.cos(), reach * angle.sin()])]);
        for ball in 0..2u64 {
            let at = 10 * ball;
            set(
                &mut balls,
                ball as usize,
                [number(at + 1), number(at + 2)],
                [number(at + 3), number(at + 4)],
            );
            balls.spin[ball as usize] = V::all(number(at + 5));
        }
        let sum = |b: &Table<f64>| (b.vx[0].0[0] + b.vx[1].0[0], b.vy[0].0[0] + b.vy[1].0[0]);
        let (before, momentum) = (energy(&balls), sum(&balls));
        collide(&mut balls, 0, 1, Mask::all(true));
        let after = sum(&balls);
        assert!((after.0 - momentum.0).abs() < 1e-12 && (after.1 - momentum.1).abs() < 1e-12);
        assert!(energy(&balls) <= before + 1e-12, "{} {before}", energy(&balls));
    }
}

/// Checks every substep.
struct Checks {
    energy: f64,
    places: [[f64; 2]; BALLS],
    substeps: usize,
    least: f64,
}

impl Watch<f64, 1> for Checks {
    fn substep(&mut self, balls: &Table<f64>, _time: &V<f64, 1>) {
        let now = energy(balls);
        assert!(now <= self.energy * (1.0 + 1e-12) + 1e-15, "{now} after {}", self.energy);
        self.energy = now;
        self.substeps += 1;
        for i in (0..BALLS).filter(|i| balls.on(*i).at(0)) {
            let (x, y) = (balls.x[i].0[0], balls.y[i].0[0]);
            assert!(x.abs() <= HALF_X - radius(i) + 1e-5 && y.abs() <= HALF_Y - radius(i) + 1e-5);
            let way = (x - self.places[i][0]).hypot(y - self.places[i][1]);
            assert!(way <= 0.013 + 1e-5, "ball {i} moved {way}");
            self.places[i] = [x, y];
            for j in (i + 1..BALLS).filter(|j| balls.on(*j).at(0)) {
                let distance = (balls.x[j].0[0] - x).hypot(balls.y[j].0[0] - y);
                self.least = self.least.min(distance - touching(i));
            }
        }
    }
}

#[test]
fn energy_falls_and_balls_never_overlap_leave_or_leap() {
    for seed in 0..200 {
        let mut balls = random_table::<f64>(seed);
        let places = std::array::from_fn(|i| [balls.x[i].0[0], balls.y[i].0[0]]);
        let mut checks = Checks { energy: energy(&balls), places, substeps: 0, least: 1.0 };
        run(&mut balls, 1.0, &mut checks);
        assert!(checks.least > -1e-5, "seed {seed}: an overlap of {} m", -checks.least);
        assert!(checks.substeps > 0);
    }
}

/// Checks every substep of the form that the environments run.
struct Apart;

impl Watch<f32, 1> for Apart {
    fn substep(&mut self, balls: &Table<f32>, time: &V<f32, 1>) {
        for i in (0..BALLS).filter(|i| balls.on(*i).at(0)) {
            let (x, y) = (f64::from(balls.x[i].0[0]), f64::from(balls.y[i].0[0]));
            assert!(x.abs() <= HALF_X - radius(i) + 1e-5 && y.abs() <= HALF_Y - radius(i) + 1e-5);
            for j in (i + 1..BALLS).filter(|j| balls.on(*j).at(0)) {
                let (dx, dy) = (f64::from(balls.x[j].0[0]) - x, f64::from(balls.y[j].0[0]) - y);
                let gap = dx.hypot(dy) - touching(i);
                assert!(gap > -1e-5, "balls {i} and {j} overlap by {} m at {time:?}", -gap);
            }
        }
    }
}

#[test]
fn balls_in_single_precision_never_overlap_or_leave() {
    for seed in 0..200 {
        run(&mut random_table::<f32>(seed), 1.0, &mut Apart);
    }
}

#[test]
fn half_the_substep_gives_the_same_places_after_one_collision() {
    let mut compared = 0;
    for seed in 0..300 {
        let mut full = random_table::<f64>(seed);
        for ball in 2..BALLS {
            full.park(ball, Mask::all(true));
        }
        let mut half = full.clone();
        let (one, other) = (First::of(&mut full, 1.0), First::of(&mut half, 0.5));
        if one.count != 1 {
            continue;
        }
        compared += 1;
        assert_eq!(other.count, 1, "seed {seed}");
        for i in 0..2 {
            let (dx, dy) = (full.x[i].0[0] - half.x[i].0[0], full.y[i].0[0] - half.y[i].0[0]);
            assert!(dx.hypot(dy) < 1e-3, "seed {seed}, ball {i}: {} m", dx.hypot(dy));
        }
    }
    assert!(compared >= 20, "{compared} shots with one collision");
}

#[test]
fn single_precision_is_within_a_tenth_of_a_millimetre_at_the_first_collision() {
    let mut compared = 0;
    for seed in 0..300 {
        let mut wide = random_table::<f64>(seed);
        let mut narrow = random_table::<f32>(seed);
        let (wide, narrow) = (First::of(&mut wide, 1.0).at, First::of(&mut narrow, 1.0).at);
        let (Some((_, wide)), Some((_, narrow))) = (wide, narrow) else { continue };
        compared += 1;
        for i in 0..BALLS {
            let (dx, dy) = (
                wide.x[i].0[0] - f64::from(narrow.x[i].0[0]),
                wide.y[i].0[0] - f64::from(narrow.y[i].0[0]),
            );
            assert!(dx.hypot(dy) < 1e-4, "seed {seed}, ball {i}: {} m", dx.hypot(dy));
        }
    }
    assert!(compared >= 150, "{compared} shots with a collision");
}

/// The energy of a table one second after the shot.
struct Later(f64);

impl Watch<f64, 1> for Later {
    fn substep(&mut self, balls: &Table<f64>, time: &V<f64, 1>) {
        if time.0[0] <= 1.0 {
            self.0 = energy(balls);
        }
    }
}

/// Mean and standard error of balls that fall in a shot, and of the energy one second after it.
fn figures(shots: u64, share: f64) -> [(f64, f64); 2] {
    let (mut fallen, mut energies) = (vec![], vec![]);
    for seed in 0..shots {
        let mut balls = random_table::<f64>(seed);
        let mut later = Later(0.0);
        run(&mut balls, share, &mut later);
        fallen.push((0..BALLS).filter(|i| !balls.on(*i).at(0)).count() as f64);
        energies.push(later.0);
    }
    [fallen, energies].map(|all| {
        let n = all.len() as f64;
        let mean = all.iter().sum::<f64>() / n;
        let variance = all.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0);
        (mean, (variance / n).sqrt())
    })
}

fn compare(shots: u64) {
    let (full, half) = (figures(shots, 1.0), figures(shots, 0.5));
    println!("fallen and energy, full and half substep: {full:?} {half:?}");
    for (one, other) in full.into_iter().zip(half) {
        let error = one.1.hypot(other.1);
        assert!((one.0 - other.0).abs() < 4.0 * error, "{one:?} {other:?}");
        assert!(one.0 > 0.05, "{one:?}");
    }
}

#[test]
fn half_the_substep_gives_the_same_distributions() {
    compare(400);
}

#[test]
#[ignore = "slow: the comparison with 10,000 shots"]
fn half_the_substep_gives_the_same_distributions_of_many_shots() {
    compare(10_000);
}
