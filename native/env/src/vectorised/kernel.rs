//! The step of a shard of environments, compiled for each world and for the widest vectors of the CPU.
//!
//! Environments lie in blocks of [`LANES`]. All environments of a block take a step together, without branches; then
//! the few whose episode ended are recorded and reset one by one.

use sconce_tensor::dispatch;
use sconce_tensor::rng::Rng;
use sconce_tensor::simd::LANES;

use super::shard::{Counters, Lanes, MAX_TERMS, Shard, status};
use super::{Autoreset, Episode};
use crate::worlds::{Dynamics, Player};

/// The sizes of a world and its functions.
#[derive(Clone, Copy)]
pub(crate) struct Kernel {
    /// Numbers of a state.
    pub(crate) state: usize,
    /// Numbers of an observation.
    pub(crate) observation: usize,
    /// Number of players.
    pub(crate) seats: usize,
    /// Steps all environments of a shard.
    pub(crate) step: fn(&mut Shard<'_>, &Rules),
    /// Begins the next episode of one environment of a shard.
    pub(crate) reset: fn(&mut Shard<'_>, &Rules, usize),
    /// Writes the observation of a seat in a state.
    pub(crate) observe: fn(&[f32], usize, &mut [f32]),
}

/// The options of [`Envs`](super::Envs) as the kernels read them.
pub(crate) struct Rules {
    pub(crate) weights: [f32; MAX_TERMS],
    pub(crate) limit: u32,
    pub(crate) repeat: u32,
    pub(crate) autoreset: Autoreset,
    pub(crate) opponent: Option<Player>,
    /// The stream of start states. Its step is the episode, its index the environment.
    pub(crate) starts: Rng,
    /// The stream of the scripted player. Its step is made of episode and step, its index is the environment.
    pub(crate) moves: Rng,
}

/// The result of a step in each environment of a block.
struct Outcome {
    rewards: [f32; LANES],
    terminated: [u32; LANES],
    truncated: [u32; LANES],
}

impl Kernel {
    /// The kernel of a world.
    pub(crate) const fn new<
        W: Dynamics<S, I, O, T>,
        const S: usize,
        const I: usize,
        const O: usize,
        const T: usize,
    >() -> Self {
        Kernel {
            state: S,
            observation: O,
            seats: W::SEATS,
            step: step::<W, S, I, O, T>,
            reset: reset::<W, S, I, O, T>,
            observe: observe::<W, S, I, O, T>,
        }
    }
}

dispatch! {
    fn step<
        [W: Dynamics<S, I, O, T>, const S: usize, const I: usize, const O: usize, const T: usize],
        [W, S, I, O, T]
    >(shard: &mut Shard<'_>, rules: &Rules) {
        let mut terms = [[0.0; LANES]; T];
        for block in 0..shard.counters.len() {
            let input = gather::<W, S, I, O, T>(shard, rules, block);
            let before = shard.counters[block].status.0;
            let mut outcome =
                Outcome { rewards: [0.0; LANES], terminated: [0; LANES], truncated: [0; LANES] };
            if let Some(state) = shard.state[block * S..].first_chunk_mut::<S>() {
                let counters = &mut shard.counters[block];
                for _ in 0..rules.repeat {
                    advance::<W, S, I, O, T, FMA>(
                        state, counters, &input, rules, &mut outcome, &mut terms,
                    );
                }
            }
            write_outcome::<W, S, I, O, T>(shard, block, &outcome);
            write_observations::<W, S, I, O, T, FMA>(shard, block);
            let after = &shard.counters[block].status.0;
            let events = (0..LANES).fold(0, |any, i| any | (before[i] | after[i]) & status::ENDED);
            if events != 0 {
                settle::<W, S, I, O, T>(shard, rules, block, &before, &outcome);
            }
        }
        for (sum, lanes) in shard.log.terms.iter_mut().zip(&terms) {
            *sum += lanes.iter().map(|v| f64::from(*v)).sum::<f64>();
        }
    }
}

/// One step of the world in all running environments of a block.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // one lane of all arrays at a time
fn advance<
    W: Dynamics<S, I, O, T>,
    const S: usize,
    const I: usize,
    const O: usize,
    const T: usize,
    const FMA: bool,
>(
    state: &mut [Lanes<f32>; S],
    counters: &mut Counters,
    input: &[[f32; LANES]; I],
    rules: &Rules,
    outcome: &mut Outcome,
    terms: &mut [[f32; LANES]; T],
) {
    let (limit, last) = (rules.limit as f32, rules.limit);
    for i in 0..LANES {
        let old: [f32; S] = std::array::from_fn(|k| state[k].0[i]);
        let chosen = std::array::from_fn(|k| input[k][i]);
        let (new, paid, terminated) = W::step::<FMA>(old, chosen, limit);
        let runs = counters.status.0[i] == status::RUNS;
        for k in 0..S {
            state[k].0[i] = if runs { new[k] } else { old[k] };
        }
        let mut reward = 0.0;
        for k in 0..T {
            let paid = if runs { paid[k] } else { 0.0 };
            reward += rules.weights[k] * paid;
            terms[k][i] += paid;
        }
        outcome.rewards[i] += reward;
        counters.returns.0[i] += reward;
        let steps = counters.steps.0[i] + u32::from(runs);
        counters.steps.0[i] = steps;
        let terminated = u32::from(terminated & runs);
        let truncated = u32::from((steps >= last) & runs);
        outcome.terminated[i] |= terminated;
        outcome.truncated[i] |= truncated;
        counters.status.0[i] |= terminated | truncated;
    }
}

/// The inputs of a block, one array per number. Lanes without an environment get zeros.
#[inline(always)]
fn gather<
    W: Dynamics<S, I, O, T>,
    const S: usize,
    const I: usize,
    const O: usize,
    const T: usize,
>(
    shard: &Shard<'_>,
    rules: &Rules,
    block: usize,
) -> [[f32; LANES]; I] {
    let mut input = [[0.0; LANES]; I];
    if W::SEATS > 1 && rules.opponent.is_some() {
        gather_against::<W, S, I, O, T>(shard, rules, block, &mut input);
        return input;
    }
    let (given, _) = shard.inputs.as_chunks::<I>();
    let given = &given[block * LANES..];
    if let Some(given) = given.first_chunk::<LANES>() {
        for (i, numbers) in given.iter().enumerate() {
            (0..I).for_each(|k| input[k][i] = numbers[k]);
        }
    } else {
        for (i, numbers) in given.iter().enumerate() {
            (0..I).for_each(|k| input[k][i] = numbers[k]);
        }
    }
    input
}

/// [`gather`] where a scripted player takes seat 1.
#[inline(never)]
fn gather_against<
    W: Dynamics<S, I, O, T>,
    const S: usize,
    const I: usize,
    const O: usize,
    const T: usize,
>(
    shard: &Shard<'_>,
    rules: &Rules,
    block: usize,
    input: &mut [[f32; LANES]; I],
) {
    let labels = I / W::SEATS;
    let mut chosen = [0.0; I];
    for i in 0..shard.live(block) {
        let env = block * LANES + i;
        let (own, other) = chosen.split_at_mut(labels);
        own.copy_from_slice(&shard.inputs[env * labels..][..labels]);
        let counters = &shard.counters[block];
        let time = u64::from(counters.episodes.0[i]) << 32 | u64::from(counters.steps.0[i]);
        let words = rules.moves.at(time).block((shard.first + env) as u64);
        let seen = W::observe::<false>(shard.lane(block, i), 1);
        if let Some(player) = rules.opponent {
            player(&seen, words, other);
        }
        (0..I).for_each(|k| input[k][i] = chosen[k]);
    }
}

/// Writes rewards and flags of a block to the caller's rows.
#[inline(always)]
fn write_outcome<
    W: Dynamics<S, I, O, T>,
    const S: usize,
    const I: usize,
    const O: usize,
    const T: usize,
>(
    shard: &mut Shard<'_>,
    block: usize,
    outcome: &Outcome,
) {
    let (at, seats) = (block * LANES, shard.seats);
    if W::SEATS == 1
        && let Some(rewards) = shard.rewards[at..].first_chunk_mut::<LANES>()
        && let Some(terminated) = shard.terminated[at..].first_chunk_mut::<LANES>()
        && let Some(truncated) = shard.truncated[at..].first_chunk_mut::<LANES>()
    {
        *rewards = outcome.rewards;
        *terminated = outcome.terminated.map(|flag| flag as u8);
        *truncated = outcome.truncated.map(|flag| flag as u8);
        return;
    }
    for i in 0..shard.live(block) {
        for seat in 0..seats {
            let row = (at + i) * seats + seat;
            let reward = outcome.rewards[i];
            shard.rewards[row] = if seat == 0 { reward } else { -reward };
            shard.terminated[row] = outcome.terminated[i] as u8;
            shard.truncated[row] = outcome.truncated[i] as u8;
        }
    }
}

/// Writes the observations of a block to the caller's rows.
#[inline(always)]
fn write_observations<
    W: Dynamics<S, I, O, T>,
    const S: usize,
    const I: usize,
    const O: usize,
    const T: usize,
    const FMA: bool,
>(
    shard: &mut Shard<'_>,
    block: usize,
) {
    if W::SEATS == 1
        && shard.stack.is_empty()
        && let Some(state) = shard.state[block * S..].first_chunk::<S>()
        && let (rows, _) = shard.observations.as_chunks_mut::<O>()
        && let Some(rows) = rows[block * LANES..].first_chunk_mut::<LANES>()
    {
        for (i, row) in rows.iter_mut().enumerate() {
            *row = W::observe::<FMA>(std::array::from_fn(|k| state[k].0[i]), 0);
        }
        return;
    }
    for i in 0..shard.live(block) {
        for seat in 0..shard.seats {
            let seen = W::observe::<FMA>(shard.lane(block, i), seat);
            shard.show((block * LANES + i) * shard.seats + seat, &seen, false);
        }
    }
}

/// Records the episodes of a block that ended in this step, and resets the environments whose turn it is.
#[inline(never)]
fn settle<
    W: Dynamics<S, I, O, T>,
    const S: usize,
    const I: usize,
    const O: usize,
    const T: usize,
>(
    shard: &mut Shard<'_>,
    rules: &Rules,
    block: usize,
    before: &[u32; LANES],
    outcome: &Outcome,
) {
    for i in 0..shard.live(block) {
        let ended = shard.counters[block].status.0[i] & status::ENDED != 0;
        let waited = before[i] & status::ENDED != 0;
        if ended && !waited {
            record(shard, block, i, outcome.terminated[i] != 0);
        }
        let due = match rules.autoreset {
            Autoreset::SameStep => ended,
            Autoreset::NextStep => waited,
            Autoreset::Disabled => false,
        };
        if due {
            reset::<W, S, I, O, T>(shard, rules, block * LANES + i);
        }
    }
}

/// Appends the rows of an environment to the lists of ended rows, and its episode to the log.
fn record(shard: &mut Shard<'_>, block: usize, i: usize, terminated: bool) {
    let (env, seats) = (block * LANES + i, shard.seats);
    let width = shard.width;
    for seat in 0..seats {
        let row = env * seats + seat;
        shard.log.ended.push((shard.first * seats + row) as u32);
        shard.log.finals.extend_from_slice(&shard.observations[row * width..][..width]);
        let counters = &shard.counters[block];
        let ret = counters.returns.0[i];
        shard.log.finish(Episode {
            env: (shard.first + env) as u32,
            seat: seat as u32,
            ret: if seat == 0 { ret } else { -ret },
            length: counters.steps.0[i],
            terminated,
        });
    }
}

/// Begins the next episode of environment `env` of the shard and writes its observations.
fn reset<
    W: Dynamics<S, I, O, T>,
    const S: usize,
    const I: usize,
    const O: usize,
    const T: usize,
>(
    shard: &mut Shard<'_>,
    rules: &Rules,
    env: usize,
) {
    let (block, i) = (env / LANES, env % LANES);
    let counters = &mut shard.counters[block];
    let episode = counters.begin(i);
    let words = rules.starts.at(u64::from(episode)).block((shard.first + env) as u64);
    let state = W::start(words);
    for (lanes, value) in shard.state[block * S..].iter_mut().zip(state) {
        lanes.0[i] = value;
    }
    for seat in 0..shard.seats {
        let seen = W::observe::<false>(state, seat);
        shard.show(env * shard.seats + seat, &seen, true);
    }
}

fn observe<
    W: Dynamics<S, I, O, T>,
    const S: usize,
    const I: usize,
    const O: usize,
    const T: usize,
>(
    state: &[f32],
    seat: usize,
    out: &mut [f32],
) {
    if let Some(state) = state.first_chunk::<S>() {
        out.copy_from_slice(&W::observe::<false>(*state, seat));
    }
}
