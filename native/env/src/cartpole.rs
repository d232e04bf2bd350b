//! A pole on a cart (Barto, Sutton & Anderson 1983) with the constants of Gymnasium's CartPole-v1.

use std::f64::consts::TAU;

use sconce_tensor::rng::Rng;
use sconce_tensor::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::environment::{Environment, Step};

const GRAVITY: f64 = 9.8;
const POLE_MASS: f64 = 0.1;
const TOTAL_MASS: f64 = 1.1;
/// Half the length of the pole, in metres.
const LENGTH: f64 = 0.5;
const POLE_MASS_LENGTH: f64 = POLE_MASS * LENGTH;
const FORCE: f64 = 10.0;
/// Seconds per step.
const TAU_S: f64 = 0.02;
const MAX_X: f64 = 2.4;
/// Twelve degrees, in radians.
const MAX_THETA: f64 = 12.0 * TAU / 360.0;
const MAX_STEPS: u32 = 500;
/// Bound on each state value at the start of an episode.
const RESET: f64 = 0.05;
/// Velocities are divided by this value (m/s or rad/s) in observations.
const SPEED: f64 = 2.0;

/// Position of the cart (m), its velocity (m/s), angle of the pole (rad, 0 is upright), its velocity (rad/s).
pub(crate) type State = [f64; 4];

/// The CartPole environment. Action 0 pushes to the left, action 1 to the right. The reward of each step is 1.
#[derive(Debug, Clone)]
pub struct CartPole {
    state: State,
    steps: u32,
    ended: bool,
    velocities: bool,
}

impl CartPole {
    /// Returns an environment at the start of the episode with seed 0. Without `velocities` an observation has position
    /// and angle only, so that a policy needs memory to balance the pole.
    pub fn new(velocities: bool) -> Self {
        let mut env = CartPole { state: [0.0; 4], steps: 0, ended: false, velocities };
        env.reset(0);
        env
    }

    /// Begins an episode in the given state.
    pub fn reset_to(&mut self, state: State) {
        (self.state, self.steps, self.ended) = (state, 0, false);
    }

    /// The full state of the world.
    pub fn state(&self) -> State {
        self.state
    }
}

impl Environment for CartPole {
    fn observation_size(&self) -> usize {
        if self.velocities { 4 } else { 2 }
    }

    fn actions(&self) -> usize {
        2
    }

    fn reset(&mut self, seed: u64) {
        let rng = Rng::new(seed, "cartpole.reset", 0);
        let draw = |i| RESET * (2.0 * f64::from(rng.uniform(i)) - 1.0);
        self.reset_to([draw(0), draw(1), draw(2), draw(3)]);
    }

    /// Writes `[x, theta]`, or `[x, x_dot, theta, theta_dot]` with velocities. Positions and angles are in units of the
    /// bound at which an episode ends, velocities in units of 2 m/s and 2 rad/s.
    fn observe(&self, out: &mut [f32]) -> Result<()> {
        let [x, x_dot, theta, theta_dot] = self.state;
        let (x, theta) = (x / MAX_X, theta / MAX_THETA);
        match (self.velocities, out) {
            (false, [a, b]) => (*a, *b) = (x as f32, theta as f32),
            (true, [a, b, c, d]) => {
                (*a, *b) = (x as f32, (x_dot / SPEED) as f32);
                (*c, *d) = (theta as f32, (theta_dot / SPEED) as f32);
            }
            (_, out) => {
                return Err(Error::mismatch("observation", self.observation_size(), out.len()));
            }
        }
        Ok(())
    }

    fn step(&mut self, action: usize) -> Result<Step> {
        if action > 1 {
            return Err(Error::out_of_range("action", action as f64, 0.0, 1.0));
        }
        if self.ended {
            return Err(Error::mismatch("step", "a running episode", "one that has ended"));
        }
        self.state = advance(self.state, action);
        self.steps += 1;
        let terminated = self.state[0].abs() > MAX_X || self.state[2].abs() > MAX_THETA;
        let truncated = self.steps >= MAX_STEPS;
        self.ended = terminated || truncated;
        Ok(Step { reward: 1.0, terminated, truncated })
    }
}

/// One step of the explicit Euler method. The order of operations is that of the published simulator, so that results
/// agree to the last bit.
fn advance([x, x_dot, theta, theta_dot]: State, action: usize) -> State {
    let force = if action == 1 { FORCE } else { -FORCE };
    let (sin, cos) = theta.sin_cos();
    let pushed = (force + POLE_MASS_LENGTH * (theta_dot * theta_dot) * sin) / TOTAL_MASS;
    let inertia = LENGTH * (4.0 / 3.0 - POLE_MASS * (cos * cos) / TOTAL_MASS);
    let theta_acc = (GRAVITY * sin - cos * pushed) / inertia;
    let x_acc = pushed - POLE_MASS_LENGTH * theta_acc * cos / TOTAL_MASS;
    [
        x + TAU_S * x_dot,
        x_dot + TAU_S * x_acc,
        theta + TAU_S * theta_dot,
        theta_dot + TAU_S * theta_acc,
    ]
}

/// Gains of the linear-quadratic regulator (state cost 1, 0, 10, 0; force cost 0.1). A common factor is arbitrary: only
/// the sign of the weighted sum decides the action.
const GAINS: State = [0.072, 0.104, 1.0, 0.249];

/// The action of an expert that knows the full state.
pub fn expert(state: &State) -> usize {
    let sum: f64 = GAINS.iter().zip(state).map(|(gain, value)| gain * value).sum();
    usize::from(sum > 0.0)
}

/// Options of games that the expert plays.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Demonstrations {
    /// Number of games, at most 10,000.
    pub games: usize,
    /// Maximum frames of a game, at most 500.
    pub steps: usize,
    /// Minimum frames of a game. A shorter game is discarded and another one is played.
    pub min_steps: usize,
    /// Share of actions, 0..1, that are random instead of the expert's. The label stays the expert's action, so a
    /// policy learns to recover from states that the expert never reaches.
    pub perturb: f32,
    /// Whether frames include velocities; the expert always sees velocities.
    pub velocities: bool,
    /// Seed of all games.
    pub seed: u64,
}

impl Default for Demonstrations {
    fn default() -> Self {
        Demonstrations {
            games: 100,
            steps: 500,
            min_steps: 60,
            perturb: 0.1,
            velocities: false,
            seed: 0,
        }
    }
}

/// One episode of the expert.
///
/// # Shapes
/// `x: [steps, observation_size]`, `labels: [steps]`. `labels[t]` is the expert's action in the state of `x[t]`, before
/// any random replacement.
#[derive(Debug, Clone, PartialEq)]
pub struct Game {
    /// The observations, row by row.
    pub x: Vec<f32>,
    /// The expert's actions, 0 or 1.
    pub labels: Vec<f32>,
}

/// Maximum number of games, which take about 100 MB.
const MAX_GAMES: usize = 10_000;

impl Demonstrations {
    /// Plays the games. The first games do not depend on `games`.
    ///
    /// # Errors
    /// `OutOfRange` for `games`, `steps` and `perturb`, and if too few games reach `min_steps` frames.
    pub fn play(&self) -> Result<Vec<Game>> {
        let most = f64::from(MAX_STEPS);
        let steps = self.steps as f64;
        if self.steps < self.min_steps.max(1) || self.steps > MAX_STEPS as usize {
            return Err(Error::out_of_range("steps", steps, self.min_steps.max(1) as f64, most));
        }
        if !(0.0..=1.0).contains(&self.perturb) {
            return Err(Error::out_of_range("perturb", self.perturb.into(), 0.0, 1.0));
        }
        if self.games > MAX_GAMES {
            return Err(Error::out_of_range("games", self.games as f64, 0.0, MAX_GAMES as f64));
        }
        let mut games = Vec::with_capacity(self.games);
        for episode in 0.. {
            if games.len() == self.games {
                break;
            }
            // With sensible options most games are long enough; with others the bound ends the loop.
            if episode >= 20 * self.games as u64 + 100 {
                let long = games.len() as f64;
                return Err(Error::out_of_range("long games", long, self.games as f64, most));
            }
            let game = self.episode(episode)?;
            if game.labels.len() >= self.min_steps {
                games.push(game);
            }
        }
        Ok(games)
    }

    fn episode(&self, episode: u64) -> Result<Game> {
        let rng = Rng::new(self.seed, "cartpole.demonstration", episode);
        let mut env = CartPole::new(self.velocities);
        env.reset(u64::from(rng.u32(0)) << 32 | u64::from(rng.u32(1)));
        let mut game = Game { x: Vec::new(), labels: Vec::new() };
        let mut frame = vec![0.0; env.observation_size()];
        for t in 1..=self.steps as u64 {
            env.observe(&mut frame)?;
            let wanted = expert(&env.state());
            game.x.extend_from_slice(&frame);
            game.labels.push(wanted as f32);
            // Random indices 0 and 1 chose the start state. Each step uses two more, from 2 on.
            let disturbed = rng.uniform(2 * t) < self.perturb;
            let action = if disturbed { rng.u32(2 * t + 1) as usize & 1 } else { wanted };
            if env.step(action)?.is_last() {
                break;
            }
        }
        Ok(game)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The return of an episode in which a share of the expert's actions is random.
    fn play(seed: u64, perturb: f32) -> f64 {
        let mut env = CartPole::new(false);
        env.reset(seed);
        let rng = Rng::new(seed, "test", 0);
        let mut total = 0.0;
        for t in 0.. {
            let disturbed = rng.uniform(2 * t) < perturb;
            let action =
                if disturbed { rng.u32(2 * t + 1) & 1 } else { expert(&env.state()) as u32 };
            let step = env.step(action as usize).unwrap();
            total += step.reward;
            if step.is_last() {
                return total;
            }
        }
        unreachable!("an episode has an end")
    }

    #[test]
    fn the_expert_balances_to_the_time_limit_also_when_disturbed() {
        for seed in 0..50 {
            assert_eq!(play(seed, 0.0), 500.0, "seed {seed}");
            assert_eq!(play(seed, 0.1), 500.0, "seed {seed}, disturbed");
        }
        let mean = (0..50).map(|seed| play(seed, 0.2)).sum::<f64>() / 50.0;
        assert!(mean > 480.0, "{mean}");
    }

    #[test]
    fn without_velocities_and_memory_the_pole_falls() {
        let blind = |seed| {
            let mut env = CartPole::new(false);
            env.reset(seed);
            let mut steps = 0;
            let mut seen = [0.0; 2];
            loop {
                env.observe(&mut seen).unwrap();
                steps += 1;
                if env.step(usize::from(seen[1] > 0.0)).unwrap().is_last() {
                    return steps;
                }
            }
        };
        let mean = (0..50).map(blind).sum::<u32>() / 50;
        assert!(mean < 100, "{mean}");
    }

    #[test]
    fn resets_repeat_for_a_seed_and_are_small_and_centred() {
        let start = |seed| {
            let mut env = CartPole::new(true);
            env.reset(seed);
            env.state()
        };
        assert_eq!(start(7), start(7));
        assert_ne!(start(7), start(8));
        let all: Vec<f64> = (0..500).flat_map(start).collect();
        assert!(all.iter().all(|v| v.abs() <= 0.05) && all.iter().any(|v| v.abs() > 0.049));
        assert!((all.iter().sum::<f64>() / all.len() as f64).abs() < 0.003);
    }

    #[test]
    fn an_observation_is_scaled_to_the_bounds_and_may_hide_velocities() {
        let state = [2.4, 1.0, -MAX_THETA / 2.0, -3.0];
        let (mut full, mut hidden) = ([0.0; 4], [0.0; 2]);
        for (velocities, out) in [(true, full.as_mut_slice()), (false, hidden.as_mut_slice())] {
            let mut env = CartPole::new(velocities);
            env.reset_to(state);
            env.observe(out).unwrap();
        }
        assert_eq!((full, hidden), ([1.0, 0.5, -0.5, -1.5], [1.0, -0.5]));
        let error = CartPole::new(false).observe(&mut [0.0; 3]).unwrap_err();
        assert_eq!(error.to_string(), "observation: expected 2, got 3");
    }

    #[test]
    fn an_episode_is_truncated_at_500_steps_and_refuses_steps_after_its_end() {
        let mut env = CartPole::new(true);
        for t in 1..=500 {
            let step = env.step(expert(&env.state())).unwrap();
            assert_eq!((step.terminated, step.truncated), (false, t == 500));
        }
        assert!(matches!(env.step(0), Err(Error::Mismatch { .. })));
        assert!(matches!(env.step(2), Err(Error::OutOfRange { .. })));
    }

    #[test]
    fn demonstrations_repeat_for_a_seed_and_differ_between_seeds() {
        let some = Demonstrations { games: 5, seed: 3, ..Demonstrations::default() };
        let games = some.play().unwrap();
        assert_eq!(games, some.play().unwrap());
        assert_ne!(games, Demonstrations { seed: 4, ..some }.play().unwrap());
        assert_ne!(games[0], games[1]);
        // The first games do not depend on the number of games.
        assert_eq!(games[..2], Demonstrations { games: 2, ..some }.play().unwrap());
    }

    #[test]
    fn a_label_is_the_expert_s_action_for_its_row() {
        let options =
            Demonstrations { games: 3, perturb: 0.3, velocities: true, ..Default::default() };
        for game in options.play().unwrap() {
            assert_eq!(game.x.len(), game.labels.len() * 4);
            for (x, label) in game.x.chunks(4).zip(&game.labels) {
                let scales = [MAX_X, SPEED, MAX_THETA, SPEED];
                let state = std::array::from_fn(|i| f64::from(x[i]) * scales[i]);
                let sum: f64 = GAINS.iter().zip(&state).map(|(g, v): (_, &f64)| g * v).sum();
                // Near 0 the rounding of the row to f32 may change the expert's action.
                assert!(sum.abs() < 1e-6 || expert(&state) == *label as usize);
            }
        }
    }

    #[test]
    fn short_games_are_discarded_and_options_without_long_games_refused() {
        let wild = Demonstrations { games: 20, perturb: 0.5, ..Demonstrations::default() };
        let games = wild.play().unwrap();
        assert_eq!(games.len(), 20);
        assert!(games.iter().all(|g| (60..=500).contains(&g.labels.len())));
        assert!(games.iter().any(|g| g.labels.len() < 500));
        let hopeless = Demonstrations { perturb: 1.0, min_steps: 400, ..wild };
        assert!(matches!(hopeless.play(), Err(Error::OutOfRange { .. })));
        for bad in [
            Demonstrations { steps: 501, ..wild },
            Demonstrations { steps: 59, ..wild },
            Demonstrations { perturb: f32::NAN, ..wild },
        ] {
            assert!(matches!(bad.play(), Err(Error::OutOfRange { .. })));
        }
    }
}
