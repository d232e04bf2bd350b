//! A search for the batch size with the most frames a second within a memory limit.

use std::sync::atomic::AtomicBool;

use sconce_nn::Spec;
use sconce_tensor::{Precision, Result, pool};
use serde::{Deserialize, Serialize};

use crate::eval::pool_of;
use crate::options::{DataOptions, MAX_FRAMES, TrainOptions, at_least};
use crate::plan::{Memory, Owners, Probe};
use crate::stop::go_on;

/// Maximum of the option `max`, which is the largest `batch_size` of a run.
const MAX_BATCH: f64 = 65_536.0;
/// Minimum speedup for which a doubled size is worth its memory.
const GAIN: f64 = 1.03;
/// Sizes in a row without such a speedup after which the search ends. A single one may be slow by other load.
const PATIENCE: usize = 2;

/// Options of the search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TuneOptions {
    /// Windows of the first batch.
    pub initial: usize,
    /// Windows of the largest batch.
    pub max: usize,
    /// Share of the memory limit that a batch may use.
    pub backoff: f64,
}

impl Default for TuneOptions {
    fn default() -> Self {
        TuneOptions { initial: 32, max: 4096, backoff: 0.8 }
    }
}

/// A measurement of one batch size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measurement {
    /// Windows in the batch.
    pub batch_size: usize,
    /// Seconds of a step.
    pub step_seconds: f64,
    /// Frames of the batch divided by the seconds of a step.
    pub frames_per_second: f64,
    /// Bytes of the whole run at its peak, with the measured activations of a step.
    pub bytes: u64,
}

/// The reason why no larger size was tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Twice the size exceeds the memory limit.
    Memory,
    /// The last sizes were hardly faster than the best before them.
    Throughput,
    /// Twice the size exceeds `max`.
    Max,
}

/// Result of the search.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Tuning {
    /// Measurements in the order of batch sizes.
    pub rows: Vec<Measurement>,
    /// Batch size with the most frames a second.
    pub batch_size: usize,
    /// The reason why no larger batch was tried.
    pub stopped: Reason,
    /// Frames in a window.
    pub window_size: usize,
    /// Threads of the pool.
    pub threads: usize,
    /// Precision of the steps.
    pub precision: Precision,
    /// The limit that the options set, in bytes.
    pub memory_limit: Option<u64>,
}

/// Measures steps while the batch size doubles. The first batch is smaller than `initial` if that would exceed the
/// limit. The memory of a batch is planned before the batch is tried.
///
/// # Errors
/// `OverLimit` if a batch of one window already exceeds the limit.
pub fn tune(
    spec: &Spec,
    options: &TrainOptions,
    tuning: &TuneOptions,
    cancel: &AtomicBool,
) -> Result<Tuning> {
    at_least("initial", tuning.initial as f64, 1.0, tuning.max as f64)?;
    at_least("max", tuning.max as f64, 1.0, MAX_BATCH)?;
    at_least("backoff", tuning.backoff, 0.01, 1.0)?;
    let first = TrainOptions {
        data: DataOptions { batch_size: tuning.initial, ..options.clone().data },
        ..options.clone()
    };
    first.validate()?;
    let _threads = pool_of(options.machine.threads)?;
    let room = options.machine.memory_limit.map(|limit| (limit as f64 * tuning.backoff) as u64);
    let mut memory = Memory::measure(spec, &first, cancel)?;
    let mut probe = Probe::new(spec, &first, cancel)?;
    memory.validates(options.may_validate());
    let fits = |batch| room.is_none_or(|room| memory.of_batch(batch).total() <= room);

    // A step of a run has at most `MAX_FRAMES` frames.
    let most = tuning.max.min(MAX_FRAMES / options.data.window_size.max(1));
    let first = memory.batch_within(tuning.initial, room)?;
    let measure = |batch| {
        go_on(cancel)?;
        measured(&mut probe, &memory, batch, options)
    };
    let (rows, stopped) =
        doubled(first, most, |batch| Ok(fits(batch)), measure, |row| row.frames_per_second)?;
    let best = rows.iter().max_by(|a, b| a.frames_per_second.total_cmp(&b.frames_per_second));
    Ok(Tuning {
        batch_size: best.map_or(first, |row| row.batch_size),
        rows,
        stopped,
        window_size: options.data.window_size,
        threads: pool::threads(),
        precision: options.precision_here(),
        memory_limit: options.machine.memory_limit,
    })
}

/// Measures sizes, from `first` to at most `most`, while the size doubles, until a doubled one does not fit or two in a row
/// were hardly faster than the best before them. `speed` is that of a measurement.
///
/// # Errors
/// Those of `fits` and `measure`.
pub fn doubled<R>(
    first: usize,
    most: usize,
    mut fits: impl FnMut(usize) -> Result<bool>,
    mut measure: impl FnMut(usize) -> Result<R>,
    speed: impl Fn(&R) -> f64,
) -> Result<(Vec<R>, Reason)> {
    let (mut size, mut rows) = (first, vec![]);
    let (mut best, mut in_vain) = (0.0_f64, 0);
    loop {
        let row = measure(size)?;
        in_vain = if speed(&row) > GAIN * best { 0 } else { in_vain + 1 };
        best = best.max(speed(&row));
        rows.push(row);
        match 2 * size {
            _ if in_vain == PATIENCE => return Ok((rows, Reason::Throughput)),
            next if next > most => return Ok((rows, Reason::Max)),
            next if !fits(next)? => return Ok((rows, Reason::Memory)),
            next => size = next,
        }
    }
}

fn measured(
    probe: &mut Probe,
    memory: &Memory,
    batch: usize,
    options: &TrainOptions,
) -> Result<Measurement> {
    let step_seconds = probe.step(batch)?;
    let owners = Owners { activations: probe.bytes(), ..memory.of_batch(batch) };
    let frames = (batch * options.data.window_size) as f64;
    Ok(Measurement {
        batch_size: batch,
        step_seconds,
        frames_per_second: frames / step_seconds,
        bytes: owners.total(),
    })
}
