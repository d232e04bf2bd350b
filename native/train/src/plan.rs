//! Memory and time of a run, estimated from a few steps of a few windows.
//!
//! Memory that stays allocated (weights, gradients, moments, averages) is counted from the number of weights. Other
//! memory of a step, above all the activations that its backward pass reads, is measured: in steps of two small
//! batches, with a line through both for other sizes, because every op takes the same memory for each window. The
//! measurement itself takes the memory that stays allocated, and the memory of steps of a few windows.

mod batches;
pub mod measure;

use std::sync::atomic::AtomicBool;
use std::time::Instant;

use sconce_data::{Batch, Corpus, Seen};
use sconce_nn::backbone::Context;
use sconce_nn::policy::{Frames, part};
use sconce_nn::{Policy, Spec};
use sconce_tensor::memory::{self, Meter};
use sconce_tensor::{Device, Error, Precision, Result, pool};
use serde::Serialize;

use crate::bench::examples;
use crate::eval::{self, pool_of};
use crate::games::{mixed, sides};
use crate::objective::imitation::Imitation;
use crate::objective::{Companion, Objective, Objectives, Setup, teacher};
use crate::options::{DataOptions, Mode, OptimiserOptions, TrainOptions};
use crate::source::{Source, others};
use crate::step::{Stepper, Task};
use crate::transform::{self, Moment, Transforms};
use crate::weights::{self, WeightTransforms};
use batches::Batches;
use measure::{Line, apart, halved, passing};

/// Minimum number of windows in the smaller measured step. The larger step has four times as many windows, enough for
/// matrix products of many rows.
const WINDOWS: usize = 4;
/// Minimum number of frames in the smaller measured step. With fewer, shards are not full and scratch grows with the
/// rows.
const FRAMES: usize = 240;
/// Maximum seconds spent on timing; a batch that would exceed them is not timed.
const SECONDS: f64 = 0.3;
/// Bytes of a step above which no larger batch is timed.
const BYTES: u64 = 256 << 20;
/// The smallest work of a step.
const ONE: &str = "a step of one window at a time";

/// Bytes, grouped by their owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Owners {
    /// The weights, twice if they are quantised or pruned, and the learned steps of their grids.
    pub weights: u64,
    /// Gradients of the weights and of the learned steps.
    pub gradients: u64,
    /// Moments of the optimiser.
    pub moments: u64,
    /// Average of the weights over the updates.
    pub average: u64,
    /// The teachers.
    pub teacher: u64,
    /// Other memory of a step, mainly the activations that its backward pass reads.
    pub activations: u64,
    /// Memory of a validation, which never runs beside a step.
    pub validation: u64,
    /// The batch of a step, and batches that are prepared ahead.
    pub batches: u64,
    /// Copies of the state, which are written to checkpoints while the run continues.
    pub checkpoints: u64,
}

impl Owners {
    /// Bytes at the peak.
    pub fn total(&self) -> u64 {
        self.lasting() + self.activations.max(self.validation)
    }

    /// Bytes that stay allocated from step to step.
    pub fn lasting(&self) -> u64 {
        let state = self.weights + self.gradients + self.moments + self.average;
        state + self.teacher + self.batches + self.checkpoints
    }
}

/// Memory and time of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// Number of weights.
    pub num_weights: usize,
    /// Windows in a batch.
    pub batch_size: usize,
    /// Frames in a window.
    pub window_size: usize,
    /// Batches whose gradients one step accumulates.
    pub accumulation_steps: u64,
    /// Windows of a batch that are computed together.
    pub micro_batch: usize,
    /// Threads of the pool.
    pub threads: usize,
    /// Precision of the run on the machine that plans.
    pub precision: Precision,
    /// Bytes by owner.
    pub owners: Owners,
    /// Bytes of all owners at the peak.
    pub bytes: u64,
    /// The limit that the options set, in bytes.
    pub memory_limit: Option<u64>,
    /// Bytes of the corpus, whose files the system caches and evicts by itself; `None` without a corpus.
    pub mapped: Option<u64>,
    /// Seconds of one step, which is one update of the weights.
    pub step_seconds: f64,
    /// Frames of a step divided by its seconds.
    pub frames_per_second: f64,
    /// Steps of an epoch; `None` without a corpus.
    pub epoch_steps: Option<u64>,
    /// Steps of the run; `None` if the options give no number and there is no corpus.
    pub steps: Option<u64>,
    /// Seconds of all steps of the run, without validations.
    pub seconds: Option<f64>,
}

/// Plans a run of `spec`, on `corpus` or, without one, on a corpus that is not known yet.
///
/// # Errors
/// `OutOfMemory` if one window at a time already exceeds `memory_limit`; `Unavailable` in a program that does not
/// count its memory.
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

/// Figures of a corpus that a plan needs.
struct Data {
    epoch_steps: u64,
    bytes: u64,
    validates: bool,
}

impl Data {
    fn of(corpus: &Corpus, spec: &Spec, options: &TrainOptions) -> Result<Self> {
        eval::fits(corpus.schema(), spec)?;
        let (train, validation) = sides(corpus, spec, options)?;
        let name = corpus.dir().display().to_string();
        let mixed = mixed(spec, options, &validation.views)?;
        let source = Source::new(&name, train.views, mixed, spec, &[], options)?;
        Ok(Data {
            epoch_steps: (source.steps_per_epoch() / options.optimiser.accumulation_steps).max(1),
            bytes: corpus.games().iter().map(|game| game.bytes).sum(),
            validates: !validation.views.is_empty(),
        })
    }
}

/// Refuses a run that needs more memory than is available, if it is on a CPU and no limit cuts its batches. The run
/// starts with `policy`, has these companions and computes `windows` windows at a time. A quick bound shows that most
/// runs fit; for other runs a few short steps are measured.
///
/// # Errors
/// `OutOfMemory` with the bytes of the run at its peak, and the bytes available.
pub(crate) fn check_room(
    policy: &Policy,
    companions: &[&Companion],
    options: &TrainOptions,
    windows: usize,
    validates: bool,
    cancel: &AtomicBool,
) -> Result<()> {
    let (spec, time) = (policy.spec(), options.data.window_size);
    let embeddings: Vec<_> = companions.iter().map(|own| &own.spec().embedding).collect();
    let batches = Batches::new(spec, &embeddings, options).of(options.data.batch_size);
    let policies = companions.iter().map(|own| own.policy()).chain([policy]);
    let bytes = policies.map(|policy| policy.most_step_bytes(windows.max(eval::WINDOWS), time));
    let most = bytes.fold(0u64, u64::saturating_add);
    if memory::fits(most.saturating_add(batches)) || Meter::start().is_err() {
        return Ok(());
    }
    // Activations grow with the frames of a window, unless the window is cut into chunks.
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
    memory::room(&format!("a run with steps of {windows} x {time} frames"), owners.total())
}

/// Memory of steps of a Spec, with batches of any size.
#[derive(Debug, Clone)]
pub struct Memory {
    /// Bytes by owner, if whole batches are computed at a time.
    owners: Owners,
    step: Line,
    batches: Batches,
}

impl Memory {
    /// Measures steps on a single thread, so that the number of threads does not matter, and on a new thread, which
    /// holds no scratch of earlier work.
    pub(crate) fn measure(
        spec: &Spec,
        options: &TrainOptions,
        cancel: &AtomicBool,
    ) -> Result<Self> {
        apart(|| {
            let mut probe = Probe::new(spec, options, cancel)?;
            let windows = probes(options);
            let weights = 4 * probe.stepper.policy().num_weights() as u64;
            let steps = 4 * probe.stepper.num_steps() as u64;
            let step = Line::measure(windows, |windows| {
                probe.learn(windows)?;
                Ok(probe.bytes())
            })?;
            let moments = probe.stepper.optimiser().state()?;
            let moments = moments.iter().map(|(_, values)| 4 * values.len() as u64);
            let learned = weights + steps;
            let average = if options.optimiser.ema_decay.is_some() { learned } else { 0 };
            let state = learned + moments.sum::<u64>();
            let embeddings: Vec<_> = probe.companions().map(|own| &own.spec().embedding).collect();
            let batches = Batches::new(probe.spec, &embeddings, options);
            // Quantised and pruned weights are kept twice: as they learn, and as forward passes read them.
            let own = &options.optimiser;
            let shown = if own.quantise.is_some() || own.prune.is_some() { weights } else { 0 };
            let owners = Owners {
                weights: learned + shown,
                gradients: learned,
                moments: state - learned - average,
                average,
                teacher: probe.teacher,
                activations: step.at(options.data.batch_size),
                validation: probe.validation(windows)?,
                batches: batches.of(options.data.batch_size),
                // A copy of the state and the bytes of its file, or a copy of the state, a copy of the best policy and
                // the bytes of the policy's file.
                checkpoints: state + state.max(2 * learned),
            };
            Ok(Memory { owners, step, batches })
        })
    }

    /// Sets whether the run has validation games.
    pub fn validates(&mut self, validates: bool) {
        if !validates {
            self.owners.validation = 0;
        }
    }

    /// Bytes by owner of a run that computes `micro_batch` windows at a time.
    pub fn owners(&self, micro_batch: usize) -> Owners {
        Owners { activations: self.step.at(micro_batch), ..self.owners.clone() }
    }

    /// Bytes by owner of a run with `batch_size` windows in a batch.
    pub fn of_batch(&self, batch_size: usize) -> Owners {
        Owners { batches: self.batches.of(batch_size), ..self.owners(batch_size) }
    }

    /// Returns how many windows of a batch fit the limit together: all of them, half, a quarter ...
    ///
    /// # Errors
    /// `OverLimit` if one window already exceeds it.
    pub fn micro_batch(&self, batch_size: usize, limit: Option<u64>) -> Result<usize> {
        halved(ONE, batch_size, limit, |windows| Ok(self.owners(windows).total()))
    }

    /// Returns the number of windows of a batch that fits the limit: `batch_size`, half of it, a quarter ...
    ///
    /// # Errors
    /// `OverLimit` if one window already exceeds it.
    pub fn batch_within(&self, batch_size: usize, limit: Option<u64>) -> Result<usize> {
        halved(ONE, batch_size, limit, |windows| Ok(self.of_batch(windows).total()))
    }
}

fn probes(options: &TrainOptions) -> [usize; 2] {
    let few = FRAMES.div_ceil(options.data.window_size).max(WINDOWS);
    [few, 4 * few].map(|windows| windows.min(options.data.batch_size))
}

/// A training run of a new policy on random examples, the same in every measurement.
pub(crate) struct Probe<'a> {
    spec: &'a Spec,
    options: &'a TrainOptions,
    stepper: Stepper<'a>,
    transforms: Transforms,
    /// Bytes of the teachers.
    teacher: u64,
    steps: u64,
    /// Counts memory, starting before the first step.
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
        let learns = |name: &str| !weights::is_frozen(options, name);
        let pruned = options.pruning().map(|own| own.transform(policy.weights(), learns));
        let quantised = options.quantisation().map(|own| own.transform(policy.weights(), learns));
        let own = [pruned.transpose()?, quantised.transpose()?];
        let mut objectives: Vec<Box<dyn Objective>> =
            vec![Box::new(Imitation::new(&spec.heads, &loss)?)];
        let meter = Meter::start()?;
        let device = &Device::Cpu;
        objectives.extend(teacher::of(&Setup {
            options,
            spec,
            press_rates: &[],
            device,
            prior: None,
        })?);
        let teacher = meter.kept();
        let stepper = Stepper::new(
            &policy,
            Objectives::new(objectives),
            WeightTransforms::new(own.into_iter().flatten().collect()),
            config,
            options.optimiser.max_grad_norm,
            options.machine.seed,
        )?
        .unrolling(options.unroll())
        .averaging(options.optimiser.ema_decay)
        .in_precision(options.precision_here())
        .stopped_by(cancel);
        let specs: Vec<_> = stepper.objectives().companions().map(Companion::spec).collect();
        let transforms = Transforms::of(&transform::Setup { options, spec, companions: &specs })?;
        let meter = Meter::start()?;
        let mut probe = Probe { spec, options, stepper, transforms, teacher, steps: 0, meter };
        // Allocates all gradients. Otherwise a first step could reach its peak before they exist, and would seem to take
        // less memory than later steps.
        probe.learn(1)?;
        Ok(probe)
    }

    /// The frozen policies whose outputs the steps read.
    fn companions(&self) -> impl Iterator<Item = &Companion> {
        self.stepper.objectives().companions()
    }

    /// Random frames as the companions read them.
    fn seen(&self, windows: usize) -> Seen {
        let embeddings: Vec<_> = self.companions().map(|own| &own.spec().embedding).collect();
        let (others, by) = others(&self.spec.embedding, &embeddings);
        let frames = others.into_iter().map(|embedding| {
            let spec = Spec { embedding: embedding.clone(), ..self.spec.clone() };
            let TrainOptions { data, machine, .. } = self.options;
            examples(&spec, windows, data.window_size, machine.seed).frames
        });
        Seen { frames: frames.collect(), by }
    }

    /// Peak bytes of all steps so far, without weights, gradients and moments. All gradients exist at the peak.
    pub(crate) fn bytes(&self) -> u64 {
        let gradients = 4 * self.stepper.policy().num_weights() as u64;
        self.meter.peak().saturating_sub(gradients)
    }

    /// Runs two steps of `windows` windows and returns the seconds of the faster one.
    pub(crate) fn step(&mut self, windows: usize) -> Result<f64> {
        let mut once = || {
            let start = Instant::now();
            self.learn(windows)?;
            self.stepper.update(self.options.schedule.learning_rate)?;
            Ok::<_, Error>(start.elapsed().as_secs_f64())
        };
        Ok(once()?.min(once()?))
    }

    /// Computes the gradients of a batch of `windows` windows.
    fn learn(&mut self, windows: usize) -> Result<()> {
        let Probe { spec, options, .. } = *self;
        let mut batch = examples(spec, windows, options.data.window_size, options.machine.seed);
        batch.seen = self.seen(windows);
        let zero = self.stepper.policy().zero_state(windows)?;
        let at = Moment { update: u64::MAX, draw: self.steps, first: 0, windows };
        self.transforms.apply(&mut batch, &self.stepper, &zero, at)?;
        self.stepper.learn(Task::new(&batch, &zero, self.steps))?;
        self.steps += 1;
        Ok(())
    }

    /// Seconds of a step of the run. Batches grow up to the run's batch size, or until they cost too much to try. A
    /// window of the run is then assumed to take as long as a window of the largest batch that was tried.
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

    /// Bytes of a validation: its own weights, and passes without a graph over many windows or over a long stretch of
    /// one game.
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
