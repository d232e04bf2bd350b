//! A range of environments that one thread steps, and the memory of all environments.

use sconce_tensor::simd::LANES;

use super::Episode;

/// Maximum number of reward terms of a world.
pub(crate) const MAX_TERMS: usize = 5;
/// Blocks of a shard. The borders of shards depend on nothing else, so results do not depend on the threads.
pub(crate) const BLOCKS: usize = 64;
/// Environments of a shard.
pub(crate) const ENVS: usize = BLOCKS * LANES;
/// Episodes that a shard keeps until the caller takes them.
const MAX_EPISODES: usize = 16_384;

/// One number of each environment of a block.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Lanes<T>(pub(crate) [T; LANES]);

/// Values of [`Counters::status`].
pub(crate) mod status {
    /// The episode runs.
    pub(crate) const RUNS: u32 = 0;
    /// The episode has ended, and the environment was not reset.
    pub(crate) const ENDED: u32 = 1;
    /// The lane has no environment.
    pub(crate) const EMPTY: u32 = 2;
}

/// The counters of a block of environments.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counters {
    /// Steps of the episode.
    pub(crate) steps: Lanes<u32>,
    /// One of [`status`].
    pub(crate) status: Lanes<u32>,
    /// Sum of the rewards of seat 0 in the episode.
    pub(crate) returns: Lanes<f32>,
    /// Episodes begun since the last reset with a seed.
    pub(crate) episodes: Lanes<u32>,
}

impl Counters {
    /// Counters of a block of which the first `live` lanes have an environment.
    pub(crate) fn new(live: usize) -> Self {
        let status = |i| if i < live { status::ENDED } else { status::EMPTY };
        Counters {
            steps: Lanes([0; LANES]),
            status: Lanes(std::array::from_fn(status)),
            returns: Lanes([0.0; LANES]),
            episodes: Lanes([0; LANES]),
        }
    }

    /// Begins an episode in lane `i`. Returns the number of the episode.
    pub(crate) fn begin(&mut self, i: usize) -> u32 {
        let episode = self.episodes.0[i];
        (self.steps.0[i], self.status.0[i], self.returns.0[i]) = (0, status::RUNS, 0.0);
        self.episodes.0[i] = episode.wrapping_add(1);
        episode
    }
}

/// Events of a shard, in the order of its environments.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// Rows whose episode ended in the last step.
    pub(crate) ended: Vec<u32>,
    /// The last observations of these rows.
    pub(crate) finals: Vec<f32>,
    /// Environments of the shard whose episode ended in the last step.
    pub(crate) ends: Vec<u32>,
    /// Environments of the shard that began an episode instead of the last step.
    pub(crate) waits: Vec<u32>,
    /// Episodes that the caller has not taken.
    pub(crate) episodes: Vec<Episode>,
    /// Sums of the reward terms that the caller has not taken.
    pub(crate) terms: [f64; MAX_TERMS],
}

impl Log {
    /// Forgets the events of the last step.
    pub(crate) fn clear_step(&mut self) {
        self.ended.clear();
        self.finals.clear();
        self.ends.clear();
        self.waits.clear();
    }

    /// Notes environments of a block, given as bits.
    #[inline(always)]
    pub(crate) fn note(&mut self, block: usize, ends: u32, waits: u32) {
        let first = (block * LANES) as u32;
        for (list, mut bits) in [(&mut self.ends, ends), (&mut self.waits, waits)] {
            while bits != 0 {
                list.push(first + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }

    /// Moves the episodes of the shard that begins at environment `first` to `take`, in order of environment, then of
    /// time.
    pub(crate) fn take_episodes(&mut self, first: usize, take: &mut Vec<Episode>) {
        let Some(filler) = self.episodes.first().copied() else { return };
        // A counting sort: `place[e]` is where the next episode of environment `e` goes.
        let mut place = vec![take.len(); ENVS + 1];
        for episode in &self.episodes {
            place[episode.env as usize - first + 1] += 1;
        }
        let before = take.len();
        for e in 1..=ENVS {
            place[e] += place[e - 1] - before;
        }
        take.resize(before + self.episodes.len(), filler);
        for episode in self.episodes.drain(..) {
            let place = &mut place[episode.env as usize - first];
            take[*place] = episode;
            *place += 1;
        }
    }

    /// Keeps an episode if there is space.
    #[inline(always)]
    pub(crate) fn finish(&mut self, episode: Episode) {
        if self.episodes.len() < MAX_EPISODES {
            self.episodes.push(episode);
        }
    }
}

/// A range of environments with its part of all buffers.
pub(crate) struct Shard<'a> {
    /// The first environment.
    pub(crate) first: usize,
    /// Rows per environment.
    pub(crate) seats: usize,
    /// Numbers of a row of `observations`.
    pub(crate) width: usize,
    /// `[blocks, state]`.
    pub(crate) state: &'a mut [Lanes<f32>],
    /// `[blocks]`.
    pub(crate) counters: &'a mut [Counters],
    /// `[rows, width]` if observations are stacked, otherwise empty.
    pub(crate) stack: &'a mut [f32],
    /// `[rows, labels]`; empty in a reset.
    pub(crate) inputs: &'a [f32],
    /// `[rows, width]`.
    pub(crate) observations: &'a mut [f32],
    /// `[rows]`; empty in a reset.
    pub(crate) rewards: &'a mut [f32],
    /// `[rows]`; empty in a reset.
    pub(crate) terminated: &'a mut [u8],
    /// `[rows]`; empty in a reset.
    pub(crate) truncated: &'a mut [u8],
    /// Events.
    pub(crate) log: &'a mut Log,
}

impl Shard<'_> {
    /// Number of environments.
    pub(crate) fn envs(&self) -> usize {
        self.observations.len() / (self.width * self.seats)
    }

    /// Number of environments of a block.
    #[inline(always)]
    pub(crate) fn live(&self, block: usize) -> usize {
        (self.envs() - block * LANES).min(LANES)
    }

    /// The state of lane `i` of a block.
    #[inline(always)]
    pub(crate) fn lane<const S: usize>(&self, block: usize, i: usize) -> [f32; S] {
        std::array::from_fn(|k| self.state[block * S + k].0[i])
    }

    /// Writes an observation to a row, through the stack if there is one. The first observation of an episode fills the
    /// stack.
    #[inline(always)]
    pub(crate) fn show<const O: usize>(&mut self, row: usize, seen: [f32; O], first: bool) {
        if self.stack.is_empty() {
            let (rows, _) = self.observations.as_chunks_mut::<O>();
            rows[row] = seen;
            return;
        }
        let stack = &mut self.stack[row * self.width..][..self.width];
        push(stack, &seen, first);
        self.observations[row * self.width..][..self.width].copy_from_slice(stack);
    }

    /// Appends a row to the rows that ended and its observation to the final ones.
    #[inline(always)]
    pub(crate) fn keep_final<const O: usize>(&mut self, row: usize) {
        self.log.ended.push((self.first * self.seats + row) as u32);
        if self.width == O {
            let (rows, _) = self.observations.as_chunks::<O>();
            self.log.finals.extend_from_slice(&rows[row]);
        } else {
            self.log.finals.extend_from_slice(&self.observations[row * self.width..][..self.width]);
        }
    }
}

/// Appends an observation to a stack, oldest first. With `fill` the stack becomes copies of it.
pub(crate) fn push(stack: &mut [f32], seen: &[f32], fill: bool) {
    if fill {
        stack.chunks_exact_mut(seen.len()).for_each(|slot| slot.copy_from_slice(seen));
        return;
    }
    stack.copy_within(seen.len().., 0);
    let last = stack.len() - seen.len();
    stack[last..].copy_from_slice(seen);
}

/// The memory of all environments.
pub(crate) struct Memory<'a> {
    pub(crate) state: &'a mut [Lanes<f32>],
    pub(crate) counters: &'a mut [Counters],
    pub(crate) stack: &'a mut [f32],
    pub(crate) logs: &'a mut [Log],
}

/// The buffers of a call, for all rows. A reset has observations only.
#[derive(Default)]
pub(crate) struct Buffers<'a> {
    pub(crate) inputs: &'a [f32],
    /// Numbers of an input.
    pub(crate) labels: usize,
    pub(crate) observations: &'a mut [f32],
    pub(crate) rewards: &'a mut [f32],
    pub(crate) terminated: &'a mut [u8],
    pub(crate) truncated: &'a mut [u8],
}

impl<'a> Buffers<'a> {
    /// The buffers of a reset.
    pub(crate) fn only(observations: &'a mut [f32]) -> Self {
        Buffers { observations, ..Buffers::default() }
    }
}

/// Cuts memory and buffers of `count` environments into shards. `width` is the width of an observation.
pub(crate) fn cut<'a>(
    mut memory: Memory<'a>,
    mut buffers: Buffers<'a>,
    seats: usize,
    width: usize,
    count: usize,
) -> Vec<Shard<'a>> {
    let sizes = memory.state.len() / memory.counters.len().max(1);
    let mut shards = Vec::with_capacity(memory.logs.len());
    let logs = std::mem::take(&mut memory.logs);
    for (i, log) in logs.iter_mut().enumerate() {
        let first = i * ENVS;
        let rows = (count - first).min(ENVS) * seats;
        shards.push(Shard {
            first,
            seats,
            width,
            state: head_mut(&mut memory.state, BLOCKS * sizes),
            counters: head_mut(&mut memory.counters, BLOCKS),
            stack: head_mut(&mut memory.stack, rows * width),
            inputs: head(&mut buffers.inputs, rows * buffers.labels),
            observations: head_mut(&mut buffers.observations, rows * width),
            rewards: head_mut(&mut buffers.rewards, rows),
            terminated: head_mut(&mut buffers.terminated, rows),
            truncated: head_mut(&mut buffers.truncated, rows),
            log,
        });
    }
    shards
}

/// Splits at most `n` values off the front of `rest`.
fn head_mut<'a, T>(rest: &mut &'a mut [T], n: usize) -> &'a mut [T] {
    let n = n.min(rest.len());
    let (head, tail) = std::mem::take(rest).split_at_mut(n);
    *rest = tail;
    head
}

/// [`head_mut`] for a shared slice.
fn head<'a, T>(rest: &mut &'a [T], n: usize) -> &'a [T] {
    let (head, tail) = rest.split_at(n.min(rest.len()));
    *rest = tail;
    head
}
