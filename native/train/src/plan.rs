//! What a run will take of memory and of time, from a few steps of a few windows.
//!
//! What stays (weights and what belongs to each of them) is counted from their number. What a step
//! takes beside, above all what its backward pass reads again, is measured: steps of two small
//! batches are made, and the rest is a line through both, as every op takes so much for a window. The
//! probe itself takes the weights with all that stays beside them, and steps of a few windows.

use std::sync::atomic::AtomicBool;
use std::time::Instant;

use sconce_data::{Batch, Corpus, LoaderOptions, Reader};
use sconce_nn::backbone::Context;
use sconce_nn::policy::{Frames, part};
use sconce_nn::{Policy, Spec};
use sconce_tensor::memory::{self, Meter};
use sconce_tensor::pool::Class;
use sconce_tensor::{Error, Precision, Result, pool};
use serde::Serialize;

use crate::bench::examples;
use crate::eval::{self, pool_of};
use crate::games::{mixed, sides};
use crate::options::{DataOptions, Mode, OptimiserOptions, TrainOptions};
use crate::source::Source;
use crate::step::{Stepper, Task};
use crate::transform::{self, Moment, Transforms};

/// Windows of the smaller step that is measured, and its frames: with fewer, shards are not full and
/// scratch still grows with the rows. The other step has four times as many windows, enough for the
/// products of many rows.
const WINDOWS: usize = 4;
const FRAMES: usize = 240;
/// Steps are timed with ever larger batches while this many seconds are not over,
const SECONDS: f64 = 0.3;
/// and while one takes no more than so many bytes.
const BYTES: u64 = 256 << 20;

/// Bytes by their owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Owners {
    pub weights: u64,
    pub gradients: u64,
    /// Of the optimiser.
    pub moments: u64,
    /// Of the weights over the updates.
    pub average: u64,
    /// What steps take beside: above all what a backward pass reads again.
    pub activations: u64,
    /// What a validation takes and gives back, which no step is beside.
    pub validation: u64,
    /// The one that is learned from, and those that are made ahead.
    pub batches: u64,
    /// Copies of which checkpoints are written while the run goes on.
    pub checkpoints: u64,
}

impl Owners {
    /// At the peak.
    pub fn total(&self) -> u64 {
        self.lasting() + self.activations.max(self.validation)
    }

    /// Without what is given back.
    pub fn lasting(&self) -> u64 {
        let state = self.weights + self.gradients + self.moments + self.average;
        state + self.batches + self.checkpoints
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// How many weights there are.
    pub num_weights: usize,
    pub batch_size: usize,
    pub window_size: usize,
    pub accumulation_steps: u64,
    /// Windows that are worked through together, of each batch.
    pub micro_batch: usize,
    pub threads: usize,
    /// What the run would compute in on this machine.
    pub precision: Precision,
    pub owners: Owners,
    /// Of all owners, at the peak.
    pub bytes: u64,
    pub memory_limit: Option<u64>,
    /// Of the corpus: files that the system reads into its cache and drops again as it likes.
    pub mapped: Option<u64>,
    /// Of one step, an update of the weights.
    pub step_seconds: f64,
    pub frames_per_second: f64,
    pub epoch_steps: Option<u64>,
    /// Of the run, where a number is given or the corpus known; their time, without validations.
    pub steps: Option<u64>,
    pub seconds: Option<f64>,
}

/// What a run of `spec` takes, on `corpus` or on one that is not known yet.
///
/// # Errors
/// `OutOfMemory` where not even one window at a time keeps within `memory_limit`; `Unavailable` in a
/// program whose memory is not counted.
pub fn plan(
    spec: &Spec,
    options: &TrainOptions,
    corpus: Option<&Corpus>,
    cancel: &AtomicBool,
) -> Result<Plan> {
    options.validate_for(spec)?;
    let _threads = pool_of(options.machine.threads)?;
    let data = corpus.map(|corpus| Data::of(corpus, spec, options)).transpose()?;
    let mut memory = Memory::measure(spec, options, cancel)?;
    let mut probe = Probe::new(spec, options, cancel)?;
    memory.validates(data.as_ref().map_or(options.may_validate(), |data| data.validates));
    let micro_batch = memory.micro_batch(options.data.batch_size, options.machine.memory_limit)?;
    let owners = memory.owners(micro_batch);
    let step_seconds = probe.step_seconds(&memory)?;
    let frames = options.data.batch_size as f64 * options.data.window_size as f64;
    let epoch_steps = data.as_ref().map(|data| data.epoch_steps);
    let steps = options.schedule.steps.or(epoch_steps.map(|steps| options.total_steps(steps)));
    Ok(Plan {
        num_weights: probe.stepper.policy().num_weights(),
        batch_size: options.data.batch_size,
        window_size: options.data.window_size,
        accumulation_steps: options.optimiser.accumulation_steps,
        micro_batch,
        threads: pool::threads(),
        precision: options.precision_here(),
        bytes: owners.total(),
        owners,
        memory_limit: options.machine.memory_limit,
        mapped: data.as_ref().map(|data| data.bytes),
        step_seconds,
        frames_per_second: frames * options.optimiser.accumulation_steps as f64 / step_seconds,
        epoch_steps,
        steps,
        seconds: steps.map(|steps| steps as f64 * step_seconds),
    })
}

/// What a plan has to know of a corpus.
struct Data {
    epoch_steps: u64,
    bytes: u64,
    validates: bool,
}

impl Data {
    fn of(corpus: &Corpus, spec: &Spec, options: &TrainOptions) -> Result<Self> {
        eval::fits(corpus.schema(), spec)?;
        let ((_, train), (_, validation)) = sides(corpus, spec, options)?;
        let name = corpus.dir().display().to_string();
        let source =
            Source::new(&name, train, mixed(spec, options, &validation)?, spec, &[], options)?;
        Ok(Data {
            epoch_steps: (source.steps_per_epoch() / options.optimiser.accumulation_steps).max(1),
            bytes: corpus.games().iter().map(|game| game.bytes).sum(),
            validates: !validation.is_empty(),
        })
    }
}

/// Refuses a training that has no room, where no limit cuts its batches: one that `policy` begins with, on a CPU,
/// with so many windows at a time. A bound tells that most trainings fit; of others a few short steps are measured.
///
/// # Errors
/// `OutOfMemory` with what the training takes at its peak, and what is available.
pub(crate) fn check_room(
    policy: &Policy,
    options: &TrainOptions,
    windows: usize,
    validates: bool,
    cancel: &AtomicBool,
) -> Result<()> {
    let (spec, time) = (policy.spec(), options.data.window_size);
    let batches = Batches::new(spec, options).of(options.data.batch_size);
    let most = policy.most_step_bytes(windows.max(eval::WINDOWS), time);
    if memory::fits(most.saturating_add(batches)) || Meter::start().is_err() {
        return Ok(());
    }
    // What is kept of a window grows with its frames, unless it is worked through in chunks.
    let short =
        if options.optimiser.truncate_bptt.is_some() { time } else { time.min(FRAMES / WINDOWS) };
    let burn_in = options.data.burn_in.min(short - 1);
    let options = TrainOptions {
        data: DataOptions { window_size: short, burn_in, ..options.clone().data },
        ..options.clone()
    };
    let mut measured = Memory::measure(spec, &options, cancel)?;
    measured.validates(validates);
    let owners = measured.owners(windows);
    let whole = |bytes: u64| (bytes as f64 * time as f64 / short as f64) as u64;
    let carries = options.saving.validation_mode == Mode::Carry;
    let validation = if carries { owners.validation } else { whole(owners.validation) };
    let owners = Owners { batches, activations: whole(owners.activations), validation, ..owners };
    memory::room(&format!("a training with steps of {windows} x {time} frames"), owners.total())
}

/// Bytes of a step by the number of its windows: a line through two that were measured.
#[derive(Debug, Clone, Copy)]
struct Line {
    windows: [usize; 2],
    bytes: [u64; 2],
}

impl Line {
    fn measure(windows: [usize; 2], mut bytes: impl FnMut(usize) -> Result<u64>) -> Result<Self> {
        Ok(Line { windows, bytes: [bytes(windows[0])?, bytes(windows[1])?] })
    }

    fn at(&self, windows: usize) -> u64 {
        let Line { windows: [few, more], bytes: [low, high] } = *self;
        let slope = match few == more {
            true => high as f64 / more.max(1) as f64,
            false => (high as f64 - low as f64) / (more as f64 - few as f64),
        };
        (high as f64 + slope * (windows as f64 - more as f64)).max(0.0) as u64
    }
}

/// What steps of a Spec take of memory, with batches of any size.
#[derive(Debug, Clone)]
pub struct Memory {
    /// Of the whole batch at a time.
    owners: Owners,
    step: Line,
    batches: Batches,
}

impl Memory {
    /// Measures it on one thread, so that their number changes nothing, and on a new one, which keeps no
    /// scratch of earlier work.
    pub(crate) fn measure(
        spec: &Spec,
        options: &TrainOptions,
        cancel: &AtomicBool,
    ) -> Result<Self> {
        apart(|| {
            let mut probe = Probe::new(spec, options, cancel)?;
            let windows = probes(options);
            let weights = 4 * probe.stepper.policy().num_weights() as u64;
            let step = Line::measure(windows, |windows| {
                probe.learn(windows)?;
                Ok(probe.bytes())
            })?;
            let moments = probe.stepper.optimiser().state()?;
            let moments = moments.iter().map(|(_, values)| 4 * values.len() as u64);
            let average = if options.optimiser.ema_decay.is_some() { weights } else { 0 };
            let state = weights + moments.sum::<u64>();
            let batches = Batches::new(probe.spec, options);
            let owners = Owners {
                weights,
                gradients: weights,
                moments: state - weights - average,
                average,
                activations: step.at(options.data.batch_size),
                validation: probe.validation(windows)?,
                batches: batches.of(options.data.batch_size),
                // The state beside its file, or beside the best policy and that one's.
                checkpoints: state + state.max(2 * weights),
            };
            Ok(Memory { owners, step, batches })
        })
    }

    /// Whether there are games to measure on.
    pub fn validates(&mut self, validates: bool) {
        if !validates {
            self.owners.validation = 0;
        }
    }

    /// Bytes by owner of a run that works through so many windows at a time.
    pub fn owners(&self, micro_batch: usize) -> Owners {
        Owners { activations: self.step.at(micro_batch), ..self.owners.clone() }
    }

    /// Bytes by owner of a run with batches of so many windows.
    pub fn of_batch(&self, batch_size: usize) -> Owners {
        Owners { batches: self.batches.of(batch_size), ..self.owners(batch_size) }
    }

    /// How many windows of a batch keep within the limit together: all, half of them, a quarter ...
    ///
    /// # Errors
    /// `OverLimit` where not even one does.
    pub fn micro_batch(&self, batch_size: usize, limit: Option<u64>) -> Result<usize> {
        halved(batch_size, limit, |windows| self.owners(windows).total())
    }

    /// A batch that keeps within the limit: of so many windows, half of them, a quarter ...
    ///
    /// # Errors
    /// `OverLimit` where not even one does.
    pub fn batch_within(&self, batch_size: usize, limit: Option<u64>) -> Result<usize> {
        halved(batch_size, limit, |windows| self.of_batch(windows).total())
    }
}

fn halved(windows: usize, limit: Option<u64>, bytes: impl Fn(usize) -> u64) -> Result<usize> {
    let Some(limit) = limit else { return Ok(windows) };
    let mut windows = windows;
    while bytes(windows) > limit {
        if windows <= 1 {
            let what = "a step of one window at a time".into();
            return Err(Error::OverLimit { what, bytes: bytes(1), limit });
        }
        windows = windows.div_ceil(2);
    }
    Ok(windows)
}

/// Batches of a run: the one that is learned from, and those that are made meanwhile.
#[derive(Debug, Clone)]
struct Batches {
    /// Of one window.
    window: u64,
    loader: LoaderOptions,
}

impl Batches {
    fn new(spec: &Spec, options: &TrainOptions) -> Self {
        let Spec { embedding, heads, .. } = spec.clone();
        let reader = Reader::new(embedding, heads, options.data.frame_delay);
        Batches { window: reader.bytes(1, options.data.window_size), loader: options.loader() }
    }

    fn of(&self, batch_size: usize) -> u64 {
        let bytes = self.window.saturating_mul(batch_size as u64);
        bytes.saturating_mul(1 + self.loader.depth(bytes) as u64)
    }
}

fn probes(options: &TrainOptions) -> [usize; 2] {
    let few = FRAMES.div_ceil(options.data.window_size).max(WINDOWS);
    [few, 4 * few].map(|windows| windows.min(options.data.batch_size))
}

/// Does work on a thread of its own and on no other.
fn apart<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        // A graph is walked and dropped recursively.
        let thread = std::thread::Builder::new().stack_size(64 << 20);
        let thread = thread.spawn_scoped(scope, Class::inherit(|| pool::serial(work)));
        let thread = thread
            .map_err(|e| Error::Unavailable { what: "a thread".into(), reason: e.to_string() })?;
        thread.join().unwrap_or_else(|payload| Err(Error::of_panic(payload)))
    })
}

/// What `work` takes and gives back.
fn passing(work: impl FnOnce() -> Result<()>) -> Result<u64> {
    let meter = Meter::start()?;
    work()?;
    Ok(meter.passing())
}

/// A training of a new policy on examples that are random but always the same.
pub(crate) struct Probe<'a> {
    spec: &'a Spec,
    options: &'a TrainOptions,
    stepper: Stepper<'a>,
    transforms: Transforms,
    steps: u64,
    /// Counts from before the first step on.
    meter: Meter,
}

impl<'a> Probe<'a> {
    pub(crate) fn new(
        spec: &'a Spec,
        options: &'a TrainOptions,
        cancel: &'a AtomicBool,
    ) -> Result<Self> {
        let bits = spec.heads.parts.iter().map(|head| head.kind.bits()).sum();
        let loss = options.loss.clone().with_press_rates(&vec![0.5; bits]);
        let config = options.optimiser()?;
        let policy = Policy::init(spec, options.machine.seed)?;
        let stepper = Stepper::imitating(
            &policy,
            &loss,
            config,
            options.optimiser.max_grad_norm,
            options.machine.seed,
        )?
        .unrolling(options.unroll())
        .averaging(options.optimiser.ema_decay)
        .in_precision(options.precision_here())
        .stopped_by(cancel);
        let transforms = Transforms::of(&transform::Setup { options, spec, companions: &[] })?;
        Ok(Probe { spec, options, stepper, transforms, steps: 0, meter: Meter::start()? })
    }

    /// The most that steps have taken so far beside the weights and what belongs to each of them.
    pub(crate) fn bytes(&self) -> u64 {
        let gradients = 4 * self.stepper.policy().num_weights() as u64;
        self.meter.peak().saturating_sub(gradients)
    }

    /// Seconds of a step of so many windows, the better of two.
    pub(crate) fn step(&mut self, windows: usize) -> Result<f64> {
        let mut once = || {
            let start = Instant::now();
            self.learn(windows)?;
            self.stepper.update(self.options.schedule.learning_rate)?;
            Ok::<_, Error>(start.elapsed().as_secs_f64())
        };
        Ok(once()?.min(once()?))
    }

    /// Gradients of a batch of so many windows.
    fn learn(&mut self, windows: usize) -> Result<()> {
        let Probe { spec, options, .. } = *self;
        let mut batch = examples(spec, windows, options.data.window_size, options.machine.seed);
        let zero = self.stepper.policy().zero_state(windows)?;
        let at = Moment { update: u64::MAX, draw: self.steps, first: 0, windows };
        self.transforms.apply(&mut batch, &self.stepper, &zero, at)?;
        self.stepper.learn(Task::new(&batch, &zero, self.steps))?;
        self.steps += 1;
        Ok(())
    }

    /// Seconds of a step of the run. Batches grow until they are the run's, or cost too much to try:
    /// then a window of the run's takes what one of the largest batch took.
    fn step_seconds(&mut self, memory: &Memory) -> Result<f64> {
        let TrainOptions {
            data: DataOptions { batch_size, .. },
            optimiser: OptimiserOptions { accumulation_steps, .. },
            ..
        } = *self.options;
        let clock = Instant::now();
        let [_, mut windows] = probes(self.options);
        let mut seconds = self.step(windows)?;
        while windows < batch_size {
            let more = (2 * windows).min(batch_size);
            let twice = 2.0 * seconds * more as f64 / windows as f64;
            if clock.elapsed().as_secs_f64() + twice > SECONDS || memory.step.at(more) > BYTES {
                break;
            }
            (windows, seconds) = (more, self.step(more)?);
        }
        Ok(seconds * batch_size as f64 / windows as f64 * accumulation_steps as f64)
    }

    /// What a validation takes: weights of its own, and passes without a graph over many windows or
    /// over a long stretch of one game.
    fn validation(&self, windows: [usize; 2]) -> Result<u64> {
        let weights = self.stepper.policy().weights().clone();
        let meter = Meter::start()?;
        let policy = Policy::from_weights(self.spec, weights)?;
        let pass = |windows: usize, time: usize| {
            self.stepper.go_on()?;
            let Batch { frames, labels, .. } =
                examples(self.spec, windows, time, self.options.machine.seed);
            forward(&policy, &frames, &labels)
        };
        let passes = match self.options.saving.validation_mode {
            Mode::Carry => passing(|| pass(1, eval::CHUNK))?,
            Mode::Window => {
                let time = self.options.data.window_size;
                let line = Line::measure(windows, |windows| {
                    pass(windows, time)?;
                    passing(|| pass(windows, time))
                })?;
                line.at(eval::WINDOWS)
            }
        };
        Ok(meter.kept() + passes)
    }
}

fn forward(policy: &Policy, frames: &Frames, labels: &[f32]) -> Result<()> {
    let zero = policy.zero_state(frames.batch)?;
    policy.forward_last(frames, Some(&last(labels, frames)), &zero, &Context::default())?;
    Ok(())
}

/// Labels of the last frame of each window.
fn last(labels: &[f32], frames: &Frames) -> Vec<f32> {
    let time = frames.time.max(1);
    part(labels, [frames.batch, time], &(0..frames.batch), &(time - 1..time))
}

#[cfg(test)]
mod tests;
