//! Memory and time of a run that learns from play, estimated from small rollouts and updates that leave no file behind.
//!
//! Memory is measured in the first update of two small runs, with a line through both for other sizes: environments
//! take the same memory each, and so do the steps of a rollout and those of a batch. Time is measured in updates of the
//! run's own size, or if these take long, in smaller ones whose steps are assumed to take as long.

use std::sync::atomic::AtomicBool;

use sconce_tensor::{Error, Result, device, pool};
use sconce_train::eval::pool_of;
use sconce_train::plan::measure::{Line, apart};
use serde::Serialize;

use crate::learner::Learner;
use crate::options::PpoOptions;
use crate::run::{Bytes, Run, Task, Times, Weighed};

/// Most steps of a rollout whose memory is measured.
const STEPS: usize = 8192;
/// Fewest environments of a run with rollouts of full length whose memory is measured.
const FEW: usize = 16;
/// Least seconds and updates of a measurement of time.
const TIMED: (f64, usize) = (1.0, 3);
/// Most seconds of an update that is timed in full.
const LONG: f64 = 1.0;

/// Bytes, grouped by their owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Owners {
    /// The weights that learn, of each copy of the policy.
    pub weights: u64,
    /// Gradients of the weights.
    pub gradients: u64,
    /// Moments of the optimiser.
    pub moments: u64,
    /// The teacher.
    pub teacher: u64,
    /// Policies of the league.
    pub opponents: u64,
    /// Environments, and the memories of the policies in them.
    pub environments: u64,
    /// The best policy, until it is written.
    pub best: u64,
    /// The policy that plays.
    pub playing: u64,
    /// The steps that are learned from.
    pub rollout: u64,
    /// Other memory of an update, mainly the activations that the backward pass of a batch reads.
    pub activations: u64,
    /// Copies of the state, which are written between two updates.
    pub checkpoints: u64,
}

impl Owners {
    /// Bytes at the peak, which is in an update or in a save.
    pub fn total(&self) -> u64 {
        let update = self.playing + self.rollout + self.activations;
        self.lasting() + update.max(self.checkpoints)
    }

    /// Bytes that stay allocated from update to update.
    pub fn lasting(&self) -> u64 {
        let learner = self.weights + self.gradients + self.moments + self.teacher;
        learner + self.opponents + self.environments + self.best
    }
}

/// Memory and time of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// Number of weights.
    pub num_weights: usize,
    /// Rows that play side by side.
    pub rows: usize,
    /// Steps of all rows in an update.
    pub update_steps: u64,
    /// Batches of an update, all passes together.
    pub batches: usize,
    /// Copies of the weights that learn side by side.
    pub copies: usize,
    /// Threads of the pool.
    pub threads: usize,
    /// Bytes by owner.
    pub owners: Owners,
    /// Bytes of all owners at the peak.
    pub bytes: u64,
    /// Seconds of an update, its rollout included.
    pub update_seconds: f64,
    /// Share of these seconds that the rollout takes.
    pub rollout_share: f64,
    /// Steps of an update over its seconds.
    pub steps_per_second: f64,
    /// Updates of the whole run.
    pub updates: u64,
    /// Steps of the whole run.
    pub steps: u64,
    /// Seconds of all updates of the run, without saves, if episodes stay as long as those of the first policy.
    pub seconds: f64,
    /// Seconds if episodes become much longer than `sequence_length`; the same for a policy without memory.
    pub least_seconds: f64,
}

/// Plans a run.
///
/// # Errors
/// Those of the run's first update; `Mismatch` for a run with live games, whose time is that of the games;
/// `Unavailable` in a program that does not count its memory.
pub fn plan(task: Task<'_>, options: &PpoOptions, cancel: &AtomicBool) -> Result<Plan> {
    check(task, options)?;
    let _threads = pool_of(options.machine.threads)?;
    let memory = Memory::measure(task, options, cancel)?;
    options.check_length(memory.rows)?;
    options.check_batches(memory.rows, memory.remembers)?;
    let owners = memory.owners;
    let Times { played, learned, uncut } = times(task, options, cancel)?;
    let least = match options.rollout.overlap {
        true => played.max(uncut * (played + learned)),
        false => played + uncut * learned,
    };
    let update_steps = options.update_steps(memory.rows);
    let (update_seconds, updates) = (played + learned, options.schedule.steps / update_steps);
    Ok(Plan {
        num_weights: memory.num_weights,
        rows: memory.rows,
        update_steps,
        batches: options.ppo.epochs * options.ppo.minibatches,
        copies: memory.copies,
        threads: pool::threads(),
        bytes: owners.total(),
        owners,
        update_seconds,
        rollout_share: played / update_seconds,
        steps_per_second: update_steps as f64 / update_seconds,
        updates,
        steps: updates * update_steps,
        seconds: updates as f64 * update_seconds,
        least_seconds: updates as f64 * least,
    })
}

/// Checks what can be checked without a rollout.
pub(crate) fn check(task: Task<'_>, options: &PpoOptions) -> Result<()> {
    options.validate()?;
    task.spec.validate()?;
    if task.inbox.is_some() {
        return Err(Error::mismatch("env", "environments", "live games, whose pace is their own"));
    }
    match device::named(&options.machine.device)?.is_cuda() {
        false => Ok(()),
        true => Err(Error::Unavailable {
            what: format!("a plan with device {}", options.machine.device),
            reason: "the memory and time of learning from play are known on a CPU only".into(),
        }),
    }
}

/// Memory of a run by owner.
pub(crate) struct Memory {
    pub(crate) owners: Owners,
    pub(crate) rows: usize,
    num_weights: usize,
    remembers: bool,
    copies: usize,
}

impl Memory {
    /// Measures small runs, each on a thread of its own.
    pub(crate) fn measure(
        task: Task<'_>,
        options: &PpoOptions,
        cancel: &AtomicBool,
    ) -> Result<Self> {
        let (whole, more) = (Size::of(options), Size::of(options).narrowed(options, STEPS));
        let weighed = |options: &PpoOptions| apart(|| Run::weigh(task, options, cancel));
        let own = more.applied(options);
        let most = weighed(&own)?;
        if more == whole {
            return Ok(Memory::through(options, &Measured { fewer: most, most, halves: None }));
        }
        let fewer = weighed(&more.narrowed(options, more.steps() / 2).applied(options))?;
        // With a single batch, its size grows with that of the rollout.
        let halves = match own.ppo.minibatches {
            1 => Some(weighed(&more.with_batches(options, 2))?),
            _ => None,
        };
        Ok(Memory::through(options, &Measured { fewer, most, halves }))
    }

    fn through(options: &PpoOptions, measured: &Measured) -> Self {
        let Weighed { environments, rows, num_weights, remembers, bytes, .. } = measured.most;
        let rows = rows * options.world.environments / environments;
        let steps = options.update_steps(rows) as usize;
        let copies = Learner::copies_of(num_weights, options, remembers);
        let part = steps / options.ppo.minibatches / copies;
        let environments = |of| measured.by_environment(of, options.world.environments);
        let threads = options.machine.threads.unwrap_or_else(pool::threads);
        // On a single thread the copies learn one after the other.
        let learning = copies.min(threads) as u64 * measured.by_batch(|b| b.learning, steps, part);
        let kept = copies as u64 * measured.by_batch(|b| b.learner, steps, part)
            + threads as u64 * bytes.scratch;
        let state = 4 * (copies * num_weights) as u64;
        let rollout = measured.by_step(|b| b.rollout, steps);
        let acting = measured.by_step(|b| b.acting, steps);
        // With an overlap the next rollout is played beside the update, and saved with its policy.
        let ahead = u64::from(options.rollout.overlap);
        let update = match options.rollout.overlap && threads > 1 {
            true => learning + acting,
            false => learning.max(acting),
        };
        let policy = 4 * num_weights as u64;
        let saved = ahead * (bytes.playing + rollout + 2 * (policy + rollout));
        // The first past self is measured with the opponents.
        let selves = bytes.playing * options.league.past_selves.saturating_sub(1) as u64;
        let owners = Owners {
            weights: state,
            gradients: state,
            moments: 2 * state,
            teacher: bytes.teacher,
            opponents: bytes.opponents + selves,
            environments: environments(|b| b.environments),
            best: bytes.best,
            playing: (1 + ahead) * bytes.playing,
            rollout: (1 + ahead) * rollout,
            activations: kept + update,
            checkpoints: environments(|b| b.checkpoints) + saved,
        };
        Memory { owners, rows, num_weights, remembers, copies }
    }
}

/// Memory of small runs: of two sizes, and of the larger one with batches half as large.
struct Measured {
    fewer: Weighed,
    most: Weighed,
    halves: Option<Weighed>,
}

/// An owner's bytes.
type Of = fn(&Bytes) -> u64;

impl Measured {
    fn by_environment(&self, of: Of, environments: usize) -> u64 {
        let two = [&self.fewer, &self.most];
        Line::through(two.map(|w| w.environments), two.map(|w| of(&w.bytes))).at(environments)
    }

    fn by_step(&self, of: Of, steps: usize) -> u64 {
        let two = [&self.fewer, &self.most];
        Line::through(two.map(|w| w.steps), two.map(|w| of(&w.bytes))).at(steps)
    }

    /// Bytes that grow with the steps of a rollout, and with those of a batch that are computed together.
    fn by_batch(&self, of: Of, steps: usize, part: usize) -> u64 {
        let Some(halves) = &self.halves else { return self.by_step(of, steps) };
        // The smaller run has a batch as large as these halves.
        let two = [&self.fewer, halves];
        let rollout = Line::through(two.map(|w| w.steps), two.map(|w| of(&w.bytes))).at(steps);
        let two = [halves, &self.most];
        let batch = Line::through(two.map(|w| w.part), two.map(|w| of(&w.bytes))).at(part);
        (rollout + batch).saturating_sub(of(&halves.bytes))
    }
}

/// Seconds of an update of the run. If it takes long, a smaller one is measured, with batches of about the same size.
pub(crate) fn times(task: Task<'_>, options: &PpoOptions, cancel: &AtomicBool) -> Result<Times> {
    let whole = Size::of(options);
    let mut size = whole.shortened(options, STEPS);
    if size != whole {
        let Times { played, learned, .. } =
            Run::time(task, &size.applied(options), (0.0, 1), cancel)?;
        let more = LONG / (played + learned) * size.steps() as f64;
        size = whole.shortened(options, (more as usize).max(STEPS));
    }
    let times = Run::time(task, &size.applied(options), TIMED, cancel)?;
    let factor = whole.steps() as f64 / size.steps() as f64;
    Ok(Times { played: factor * times.played, learned: factor * times.learned, ..times })
}

/// Environments of a run, and the steps of each in a rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Size {
    environments: usize,
    steps: usize,
}

impl Size {
    fn of(options: &PpoOptions) -> Self {
        Size { environments: options.world.environments, steps: options.rollout.rollout_steps }
    }

    fn steps(self) -> usize {
        self.environments * self.steps
    }

    /// This size, or one of about `most` steps with fewer environments, and if these are few, with shorter rollouts.
    fn narrowed(self, options: &PpoOptions, most: usize) -> Self {
        let few = FEW.min(self.environments);
        let environments = (most / self.steps).clamp(few, self.environments);
        Size { environments, ..self }.shortened(options, most)
    }

    /// This size, or one of about `most` steps with shorter rollouts, and if these are as short as a sequence, with
    /// fewer environments.
    fn shortened(self, options: &PpoOptions, most: usize) -> Self {
        if self.steps() <= most {
            return self;
        }
        let sequence = options.rollout.sequence_length.min(self.steps);
        let steps = (most / self.environments / sequence * sequence).clamp(sequence, self.steps);
        Size { steps, environments: (most / steps).clamp(1, self.environments) }
    }

    /// Options of a run of this size, with batches of about the same size, of which there are fewer.
    fn applied(self, options: &PpoOptions) -> PpoOptions {
        let share = self.steps() as f64 / Size::of(options).steps() as f64;
        self.with_batches(options, (share * options.ppo.minibatches as f64).round() as usize)
    }

    /// Options of a run of this size with this number of batches.
    fn with_batches(self, options: &PpoOptions, batches: usize) -> PpoOptions {
        let Size { environments, steps } = self;
        let mut own = options.clone();
        (own.world.environments, own.rollout.rollout_steps) = (environments, steps);
        let most = environments * steps.div_ceil(own.rollout.sequence_length);
        own.ppo.minibatches = match self == Size::of(options) {
            true => batches,
            false => batches.clamp(1, most),
        };
        own
    }
}

#[cfg(test)]
mod tests;
