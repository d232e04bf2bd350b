//! Matches between all pairs of players.
//!
//! Game `i` of a pair has an environment of its own, which depends on the seed and on `i`; the seats alternate. Sampled
//! actions depend on the place of the pair in the list of all pairs too, so other players in the list change them. Games
//! are cut into parts of a fixed size, so results do not depend on the number of threads.

use std::sync::atomic::{AtomicBool, Ordering};

use sconce_env::{EnvOptions, EnvSpec, Stepped, VectorEnv};
use sconce_nn::sampling::Sampling;
use sconce_tensor::rng::Rng;
use sconce_tensor::{Error, Result, pool};
use serde::{Deserialize, Serialize};

use super::elo::{Rating, ratings};
use crate::rollout::{Frozen, Outcome, Seated, Seen, score};
use crate::side_by_side::side_by_side;

/// The most players of a call.
const MAX_PLAYERS: usize = 256;
/// The most games of a pair.
const MAX_GAMES: usize = 65_536;
/// Games of a part, which one thread plays side by side.
const PART: usize = 128;

/// How all pairs play.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tournament {
    /// Games of each pair, 1..=65,536.
    pub games: usize,
    /// Seed of the start states and of all choices.
    pub seed: u64,
    /// Whether policies take the most likely action instead of a sampled one.
    pub deterministic: bool,
}

impl Default for Tournament {
    fn default() -> Self {
        Tournament { games: 200, seed: 0, deterministic: false }
    }
}

/// Results of all pairs, `[players][players]`. A diagonal is 0.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Payoff {
    /// Games that the row's player has won against the column's one.
    pub wins: Vec<Vec<u32>>,
    /// Games without a winner.
    pub draws: Vec<Vec<u32>>,
    /// Elo of each player.
    pub ratings: Vec<Rating>,
}

/// Wins and draws of the first player of a pair.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    wins: u32,
    draws: u32,
}

/// Lets all pairs of players play.
///
/// # Errors
/// `Mismatch` for an environment with another number of seats than two and for a policy that does not fit it,
/// `OutOfRange` for the number of games, `NonFinite` for a logit or a memory that is not finite, `Cancelled`.
pub fn play(
    players: &[Frozen],
    env: &EnvOptions,
    tournament: Tournament,
    cancelled: &AtomicBool,
) -> Result<Payoff> {
    checked(players, env, tournament)?;
    let n = players.len();
    let pairs: Vec<[usize; 2]> = (0..n).flat_map(|a| (a + 1..n).map(move |b| [a, b])).collect();
    let parts = tournament.games.div_ceil(PART);
    let all = (0..pairs.len() * parts).map(|i| (i / parts, i % parts));
    let tallies = side_by_side("a part of the matches", all, |(pair, part)| {
        let [a, b] = pairs[pair];
        let games = Games { env, tournament, pair: pair as u64, first: part * PART };
        pool::serial(|| games.play([&players[a], &players[b]], cancelled))
    })?;
    let mut payoff =
        Payoff { wins: vec![vec![0; n]; n], draws: vec![vec![0; n]; n], ratings: vec![] };
    for ([a, b], tallies) in pairs.iter().zip(tallies.chunks(parts)) {
        let (wins, draws) = (tallies.iter().map(|t| t.wins), tallies.iter().map(|t| t.draws));
        let (wins, draws) = (wins.sum::<u32>(), draws.sum::<u32>());
        (payoff.draws[*a][*b], payoff.draws[*b][*a]) = (draws, draws);
        payoff.wins[*a][*b] = wins;
        payoff.wins[*b][*a] = tournament.games as u32 - wins - draws;
    }
    payoff.ratings = rated(&payoff);
    Ok(payoff)
}

/// Rates players by results from elsewhere, `[players][players]` as in a [`Payoff`]. Pairs may have unequal numbers of
/// games, also none.
///
/// # Errors
/// `OutOfRange` for the number of players, `Mismatch` for matrices of other shapes.
pub fn rate(wins: Vec<Vec<u32>>, draws: Vec<Vec<u32>>) -> Result<Payoff> {
    let n = wins.len();
    within("players", n, 2, MAX_PLAYERS)?;
    for (what, matrix) in [("wins", &wins), ("draws", &draws)] {
        let rows = [&[matrix.len()], &matrix.iter().map(Vec::len).collect::<Vec<_>>()[..]].concat();
        if let Some(got) = rows.into_iter().find(|got| *got != n) {
            return Err(Error::mismatch(format!("rows and columns of {what}"), n, got));
        }
    }
    let payoff = Payoff { wins, draws, ratings: vec![] };
    let ratings = rated(&payoff);
    Ok(Payoff { ratings, ..payoff })
}

fn checked(players: &[Frozen], env: &EnvOptions, tournament: Tournament) -> Result<()> {
    let spec = sconce_env::spec(env)?;
    if spec.seats != 2 {
        return Err(Error::mismatch("seats of the environment", 2, spec.seats));
    }
    within("players", players.len(), 2, MAX_PLAYERS)?;
    within("games", tournament.games, 1, MAX_GAMES)?;
    players.iter().try_for_each(|player| match player {
        Frozen::Learned(policy) => spec.check_policy(policy.spec()),
        Frozen::Scripted(_) => Ok(()),
    })
}

fn within(what: &str, number: usize, least: usize, most: usize) -> Result<()> {
    match (least..=most).contains(&number) {
        true => Ok(()),
        false => Err(Error::out_of_range(what, number as f64, least as f64, most as f64)),
    }
}

fn rated(payoff: &Payoff) -> Vec<Rating> {
    let n = payoff.wins.len();
    let of = |at: &dyn Fn(usize, usize) -> f64| -> Vec<Vec<f64>> {
        let cell = |i: usize, j: usize| if i == j { 0.0 } else { at(i, j) };
        (0..n).map(|i| (0..n).map(|j| cell(i, j)).collect()).collect()
    };
    let count = |matrix: &[Vec<u32>], i: usize, j: usize| f64::from(matrix[i][j]);
    let (wins, draws) = (&payoff.wins, &payoff.draws);
    let scored = |i: usize, j: usize| count(wins, i, j) + 0.5 * count(draws, i, j);
    let games = |i: usize, j: usize| count(wins, i, j) + count(wins, j, i) + count(draws, i, j);
    ratings(&of(&scored), &of(&games))
}

/// A part of the games of a pair.
struct Games<'a> {
    env: &'a EnvOptions,
    tournament: Tournament,
    pair: u64,
    first: usize,
}

impl Games<'_> {
    /// Plays the first episode of each environment.
    fn play(&self, players: [&Frozen; 2], cancelled: &AtomicBool) -> Result<Tally> {
        let count = (self.tournament.games - self.first).min(PART);
        let (first, seed) = (self.first as u64, self.tournament.seed);
        let options = EnvOptions { count, first, seed, ..self.env.clone() };
        let mut envs = sconce_env::open(&options)?;
        let mut seated = players.map(Seated::new);
        for (side, own) in seated.iter_mut().enumerate() {
            let rows: Vec<u32> = (0..count).map(|i| self.row(i, side) as u32).collect();
            own.reseat(|_| false, &rows)?;
        }
        let mut table = Table::new(&*envs, options.frame_stack);
        let (mut scores, mut ended, mut left) = (vec![None; count], vec![], count);
        for step in 0.. {
            if cancelled.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
            table.step(&mut *envs, &mut seated, self.seen(step))?;
            envs.episodes(&mut ended);
            for episode in ended.drain(..) {
                let env = episode.env as usize;
                let row = 2 * env + episode.seat as usize;
                if row == self.row(env, 0) && scores[env].is_none() {
                    scores[env] = Some(score(episode.ret));
                    left -= 1;
                }
            }
            if left == 0 {
                break;
            }
        }
        let count = |wanted: f64| scores.iter().filter(|score| **score == Some(wanted)).count();
        Ok(Tally { wins: count(1.0) as u32, draws: count(0.5) as u32 })
    }

    /// The row of one side in an environment. The seats alternate.
    fn row(&self, env: usize, side: usize) -> usize {
        2 * env + (self.first + env + side) % 2
    }

    /// Sampling and random numbers of a step.
    fn seen(&self, step: u64) -> (Sampling, Rng, u64) {
        let deterministic = self.tournament.deterministic;
        let sampling = Sampling { deterministic, ..Sampling::default() };
        let rng = Rng::new(self.tournament.seed, &format!("league.pair.{}", self.pair), 0);
        (sampling, rng, step << 32 | (2 * self.first as u64))
    }
}

/// Inputs and results of all rows.
struct Table {
    spec: EnvSpec,
    inputs: Vec<f32>,
    observations: Vec<f32>,
    rewards: Vec<f32>,
    flags: [Vec<u8>; 2],
    outcome: Outcome,
    /// Observations in a row.
    frame_stack: usize,
}

impl Table {
    fn new(envs: &dyn VectorEnv, frame_stack: usize) -> Self {
        let (rows, spec) = (envs.rows(), envs.spec().clone());
        let mut observations = vec![0.0; rows * spec.observation_size];
        envs.observe(&mut observations);
        Table {
            inputs: vec![0.0; rows * spec.labels()],
            observations,
            rewards: vec![0.0; rows],
            flags: [vec![0; rows], vec![0; rows]],
            outcome: Outcome::default(),
            frame_stack,
            spec,
        }
    }

    fn step(
        &mut self,
        envs: &mut dyn VectorEnv,
        seated: &mut [Seated; 2],
        (sampling, rng, step): (Sampling, Rng, u64),
    ) -> Result<()> {
        let rows = (&self.observations[..], envs.masks());
        let seen = Seen::of(&self.spec, self.frame_stack, rows, &sampling, (rng, step));
        seated.iter_mut().try_for_each(|own| own.act(&seen, &mut self.inputs))?;
        let [terminated, truncated] = &mut self.flags;
        envs.step(
            &self.inputs,
            &mut Stepped {
                observations: &mut self.observations,
                rewards: &mut self.rewards,
                terminated,
                truncated,
                ended: &mut self.outcome.ended,
                final_observations: &mut self.outcome.final_observations,
            },
        )
    }
}
