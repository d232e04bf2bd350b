//! The step of a shard of environments, compiled for each world and for the widest vectors of the CPU.
//!
//! Environments lie in blocks of [`LANES`]. All environments of a block take a step together, without branches. After
//! all blocks of the shard, the few environments whose episode ended are recorded and reset, again [`LANES`] at a time.

use std::marker::PhantomData;

use sconce_tensor::dispatch;
use sconce_tensor::rng::Rng;
use sconce_tensor::simd::LANES;

use super::Episode;
use super::autoreset::Autoreset;
use super::shard::{Counters, Lanes, MAX_TERMS, Shard, status};
use crate::dynamics::{Dynamics, Player};

/// The sizes of a world and its functions.
#[derive(Clone, Copy)]
pub(crate) struct Kernel {
    /// Numbers of a state.
    pub(crate) state: usize,
    /// Numbers of an observation.
    pub(crate) observation: usize,
    /// Number of players.
    pub(crate) seats: usize,
    /// Environments from which on threads share a step.
    pub(crate) parallel: usize,
    /// Whether `environments.cu` has the world.
    pub(crate) on_card: bool,
    /// Steps all environments of a shard.
    pub(crate) step: fn(&mut Shard<'_>, &Rules),
    /// Begins the next episode in some environments of a shard.
    pub(crate) reset: fn(&mut Shard<'_>, &Rules, &[u32]),
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
    /// Index of the first environment, which chooses its random numbers.
    pub(crate) first: u64,
    /// Whether all environments have the random numbers of the first one.
    pub(crate) alike: bool,
    /// The stream of start states. Its step is the episode, its index the environment.
    pub(crate) starts: Rng,
    /// The stream of the scripted player. Its step is made of episode and step, its index is the environment.
    pub(crate) moves: Rng,
}

impl Rules {
    /// The index by which an environment chooses its random numbers.
    fn index(&self, env: usize) -> u64 {
        if self.alike { self.first } else { self.first + env as u64 }
    }
}

/// The result of a step in each environment of a block.
#[derive(Default)]
struct Outcome {
    rewards: [f32; LANES],
    terminated: [u32; LANES],
    truncated: [u32; LANES],
}

impl Outcome {
    /// The lanes, as bits, whose episode ended.
    #[inline(always)]
    fn ends(&self) -> u32 {
        // No lane has a shift of 0, so that all lanes are computed in the same way: in one vector.
        let shifted = |i: usize| (self.terminated[i] | self.truncated[i]) << (i + 1);
        let mut bits: [u32; LANES] = std::array::from_fn(shifted);
        let mut half = LANES / 2;
        while half > 0 {
            for i in 0..half {
                bits[i] |= bits[i + half];
            }
            half /= 2;
        }
        bits[0] >> 1
    }

    /// Writes rewards and flags of a block row by row, for the last block and for several seats.
    #[inline(never)]
    fn write_rows(&self, shard: &mut Shard<'_>, block: usize) {
        for i in 0..shard.live(block) {
            for seat in 0..shard.seats {
                let row = (block * LANES + i) * shard.seats + seat;
                let reward = self.rewards[i];
                shard.rewards[row] = if seat == 0 { reward } else { -reward };
                shard.terminated[row] = self.terminated[i] as u8;
                shard.truncated[row] = self.truncated[i] as u8;
            }
        }
    }
}

/// The code of one world. Its type parameters are those of [`Dynamics`].
pub(super) struct Engine<W, const S: usize, const I: usize, const O: usize, const T: usize>(
    PhantomData<W>,
);

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
            parallel: W::PARALLEL,
            on_card: !W::WHOLE_BLOCKS,
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
        Engine::<W, S, I, O, T>::step::<FMA>(shard, rules);
    }
}

dispatch! {
    fn reset<
        [W: Dynamics<S, I, O, T>, const S: usize, const I: usize, const O: usize, const T: usize],
        [W, S, I, O, T]
    >(shard: &mut Shard<'_>, rules: &Rules, envs: &[u32]) {
        Engine::<W, S, I, O, T>::reset::<FMA>(shard, rules, envs);
    }
}

dispatch! {
    fn observe<
        [W: Dynamics<S, I, O, T>, const S: usize, const I: usize, const O: usize, const T: usize],
        [W, S, I, O, T]
    >(state: &[f32], seat: usize, out: &mut [f32]) {
        if let Some(state) = state.first_chunk::<S>() {
            out.copy_from_slice(&W::observe::<FMA>(*state, seat));
        }
    }
}

impl<W: Dynamics<S, I, O, T>, const S: usize, const I: usize, const O: usize, const T: usize>
    Engine<W, S, I, O, T>
{
    #[inline(always)]
    fn step<const FMA: bool>(shard: &mut Shard<'_>, rules: &Rules) {
        let mut terms = [[0.0; LANES]; T];
        // The compiler must not know the number of turns: it would unroll a loop of 16 turns and use no vectors.
        let turns = std::hint::black_box(LANES);
        shard.log.clear_step();
        for block in 0..shard.counters.len() {
            let input = Self::gather(shard, rules, block);
            let waits = Self::waits(shard, rules, block);
            let mut outcome = Outcome::default();
            if let Some(state) = shard.state[block * S..].first_chunk_mut::<S>() {
                let counters = &mut shard.counters[block];
                for _ in 0..rules.repeat {
                    Self::advance::<FMA>(
                        turns,
                        state,
                        counters,
                        &input,
                        rules,
                        &mut outcome,
                        &mut terms,
                    );
                }
            }
            Self::write_outcome(shard, block, &outcome);
            Self::write_observations::<FMA>(shard, block, turns);
            shard.log.note(block, outcome.ends(), waits);
        }
        for (sum, lanes) in shard.log.terms.iter_mut().zip(&terms) {
            *sum += lanes.iter().map(|v| f64::from(*v)).sum::<f64>();
        }
        let (ends, waits) =
            (std::mem::take(&mut shard.log.ends), std::mem::take(&mut shard.log.waits));
        Self::record(shard, &ends);
        match rules.autoreset {
            Autoreset::SameStep => Self::reset::<FMA>(shard, rules, &ends),
            Autoreset::NextStep => Self::reset::<FMA>(shard, rules, &waits),
            Autoreset::Disabled => {}
        }
        (shard.log.ends, shard.log.waits) = (ends, waits);
    }

    /// The lanes of a block, as bits, that begin an episode instead of a step.
    #[inline(always)]
    fn waits(shard: &Shard<'_>, rules: &Rules, block: usize) -> u32 {
        let status = &shard.counters[block].status.0;
        match rules.autoreset {
            Autoreset::NextStep => {
                (0..LANES).fold(0, |bits, i| bits | (status[i] & status::ENDED) << i)
            }
            Autoreset::SameStep | Autoreset::Disabled => 0,
        }
    }

    /// One step of the world in the running environments of a block.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // one lane of all arrays at a time
    fn advance<const FMA: bool>(
        turns: usize,
        state: &mut [Lanes<f32>; S],
        counters: &mut Counters,
        input: &[[f32; LANES]; I],
        rules: &Rules,
        outcome: &mut Outcome,
        terms: &mut [[f32; LANES]; T],
    ) {
        let (limit, last) = (rules.limit as f32, rules.limit);
        // Not by a closure, which would be compiled for the baseline of the target.
        let whole = if W::WHOLE_BLOCKS {
            let state = std::array::from_fn(|k| state[k].0);
            let runs = std::array::from_fn(|i| counters.status.0[i] == status::RUNS);
            Some(W::step_block::<FMA>(&state, input, runs, limit))
        } else {
            None
        };
        for i in 0..turns.min(LANES) {
            let old: [f32; S] = std::array::from_fn(|k| state[k].0[i]);
            let (new, paid, terminated): ([f32; S], [f32; T], bool) = match &whole {
                None => W::step::<FMA>(old, std::array::from_fn(|k| input[k][i]), limit),
                Some((states, terms, ends)) => (
                    std::array::from_fn(|k| states[k][i]),
                    std::array::from_fn(|k| terms[k][i]),
                    ends[i],
                ),
            };
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
    fn gather(shard: &Shard<'_>, rules: &Rules, block: usize) -> [[f32; LANES]; I] {
        let (given, _) = shard.inputs.as_chunks::<I>();
        let whole = given.get(block * LANES..).and_then(|given| given.first_chunk::<LANES>());
        match whole {
            Some(given) if W::SEATS == 1 || rules.opponent.is_none() => {
                std::array::from_fn(|k| std::array::from_fn(|i| given[i][k]))
            }
            _ => Self::gather_part(shard, rules, block),
        }
    }

    /// [`gather`](Self::gather) for the last block, and where a scripted player takes seat 1.
    #[inline(never)]
    fn gather_part(shard: &Shard<'_>, rules: &Rules, block: usize) -> [[f32; LANES]; I] {
        let mut input = [[0.0; LANES]; I];
        if rules.opponent.is_some() {
            Self::gather_against(shard, rules, block, &mut input);
            return input;
        }
        let (given, _) = shard.inputs.as_chunks::<I>();
        for (i, numbers) in given[block * LANES..].iter().take(LANES).enumerate() {
            (0..I).for_each(|k| input[k][i] = numbers[k]);
        }
        input
    }

    /// [`gather`](Self::gather) where a scripted player takes seat 1.
    #[allow(clippy::needless_range_loop)] // one lane of all arrays at a time
    fn gather_against(
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
            let words = rules.moves.at(time).block(rules.index(shard.first + env));
            let seen = W::observe::<false>(shard.lane(block, i), 1);
            if let Some(player) = rules.opponent {
                player(&seen, words, other);
            }
            (0..I).for_each(|k| input[k][i] = chosen[k]);
        }
    }

    /// Writes rewards and flags of a block to the caller's rows.
    #[inline(always)]
    fn write_outcome(shard: &mut Shard<'_>, block: usize, outcome: &Outcome) {
        let at = block * LANES;
        if W::SEATS == 1
            && let Some(rewards) = shard.rewards[at..].first_chunk_mut::<LANES>()
            && let Some(terminated) = shard.terminated[at..].first_chunk_mut::<LANES>()
            && let Some(truncated) = shard.truncated[at..].first_chunk_mut::<LANES>()
        {
            *rewards = outcome.rewards;
            *terminated = outcome.terminated.map(|flag| flag as u8);
            *truncated = outcome.truncated.map(|flag| flag as u8);
        } else {
            outcome.write_rows(shard, block);
        }
    }

    /// Writes the observations of a block to the caller's rows.
    #[inline(always)]
    fn write_observations<const FMA: bool>(shard: &mut Shard<'_>, block: usize, turns: usize) {
        let (rows, _) = shard.observations.as_chunks_mut::<O>();
        if W::SEATS == 1
            && shard.stack.is_empty()
            && rows.len() >= (block + 1) * LANES
            && let Some(state) = shard.state[block * S..].first_chunk::<S>()
        {
            for (i, row) in rows[block * LANES..][..turns].iter_mut().enumerate() {
                *row = W::observe::<FMA>(std::array::from_fn(|k| state[k].0[i % LANES]), 0);
            }
        } else {
            Self::write_observation_rows::<FMA>(shard, block);
        }
    }

    /// [`write_observations`](Self::write_observations) for the last block, for several seats and for stacks.
    #[inline(never)]
    fn write_observation_rows<const FMA: bool>(shard: &mut Shard<'_>, block: usize) {
        for i in 0..shard.live(block) {
            for seat in 0..shard.seats {
                let seen = W::observe::<FMA>(shard.lane(block, i), seat);
                shard.show((block * LANES + i) * shard.seats + seat, seen, false);
            }
        }
    }

    /// Records the rows and the episodes of environments whose episode ended in this step.
    #[inline(always)]
    fn record(shard: &mut Shard<'_>, ends: &[u32]) {
        for env in ends {
            let (block, i) = (*env as usize / LANES, *env as usize % LANES);
            let counters = &shard.counters[block];
            let (ret, length) = (counters.returns.0[i], counters.steps.0[i]);
            for seat in 0..if W::SEATS == 1 { 1 } else { shard.seats } {
                let row = *env as usize * shard.seats + seat;
                shard.keep_final::<O>(row);
                let terminated = shard.terminated[row] != 0;
                let ret = if seat == 0 { ret } else { -ret };
                let (env, seat) = (shard.first as u32 + env, seat as u32);
                shard.log.finish(Episode { env, seat, ret, length, terminated });
            }
        }
    }

    /// Begins the next episode in these environments of the shard, and writes their observations.
    #[inline(always)]
    fn reset<const FMA: bool>(shard: &mut Shard<'_>, rules: &Rules, envs: &[u32]) {
        for some in envs.chunks(LANES) {
            let (mut index, mut episode) = ([0u64; LANES], [0u64; LANES]);
            for (i, env) in some.iter().enumerate() {
                let env = *env as usize;
                index[i] = rules.index(shard.first + env);
                episode[i] = u64::from(shard.counters[env / LANES].begin(env % LANES));
            }
            let words = rules.starts.blocks_at(index, episode);
            let mut starts = [[0.0; LANES]; S];
            for i in 0..LANES {
                let state = W::start(std::array::from_fn(|w| words[w][i]));
                (0..S).for_each(|k| starts[k][i] = state[k]);
            }
            for (i, env) in some.iter().enumerate() {
                let state = std::array::from_fn(|k| starts[k][i]);
                Self::begin::<FMA>(shard, *env as usize, state);
            }
        }
    }

    /// Puts an environment into a start state and writes its observations.
    #[inline(always)]
    fn begin<const FMA: bool>(shard: &mut Shard<'_>, env: usize, state: [f32; S]) {
        let (block, i) = (env / LANES, env % LANES);
        if let Some(lanes) = shard.state[block * S..].first_chunk_mut::<S>() {
            (0..S).for_each(|k| lanes[k].0[i] = state[k]);
        }
        for seat in 0..shard.seats {
            let seen = W::observe::<FMA>(state, seat);
            shard.show(env * shard.seats + seat, seen, true);
        }
    }
}
