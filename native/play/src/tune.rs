//! A search for the number of environments with the most steps a second within a memory limit.

use std::sync::atomic::AtomicBool;

use sconce_tensor::{Error, Result, pool};
use sconce_train::eval::pool_of;
use sconce_train::plan::measure::halved;
use sconce_train::tune::{Reason, doubled};
use serde::{Deserialize, Serialize};

use crate::options::PpoOptions;
use crate::plan::{Memory, check, times};
use crate::run::{Task, Times};

/// Maximum of the option `max`, which is the largest number of environments of a run.
const MAX: usize = 65_536;

/// Options of the search. The first number of environments is that of the run's options.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TuneOptions {
    /// Largest number of environments.
    pub max: usize,
    /// Bytes that a run may take; `None` for no limit.
    pub memory_limit: Option<u64>,
    /// Share of the memory limit that a run may use.
    pub backoff: f64,
}

impl Default for TuneOptions {
    fn default() -> Self {
        TuneOptions { max: 4096, memory_limit: None, backoff: 0.8 }
    }
}

/// A measurement of one number of environments.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measurement {
    /// Number of environments.
    pub environments: usize,
    /// Steps of an update.
    pub update_steps: u64,
    /// Seconds of an update.
    pub update_seconds: f64,
    /// Share of these seconds that the rollout takes.
    pub rollout_share: f64,
    /// Steps of an update over its seconds.
    pub steps_per_second: f64,
    /// Bytes of the whole run at its peak.
    pub bytes: u64,
}

/// Result of the search.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Tuning {
    /// Measurements in the order of their numbers.
    pub rows: Vec<Measurement>,
    /// Number of environments with the most steps a second.
    pub environments: usize,
    /// The reason why no larger number was tried.
    pub stopped: Reason,
    /// Steps of each environment in a rollout.
    pub rollout_steps: usize,
    /// Batches of a pass.
    pub minibatches: usize,
    /// Threads of the pool.
    pub threads: usize,
    /// The given limit in bytes.
    pub memory_limit: Option<u64>,
}

/// Measures updates while the number of environments doubles. The first number is smaller than that of the options if
/// that would exceed the limit. The memory of a number is planned before the number is tried.
///
/// # Errors
/// `OverLimit` if a single environment already exceeds the limit, and those of a [plan](crate::plan::plan).
pub fn tune(
    task: Task<'_>,
    options: &PpoOptions,
    tuning: &TuneOptions,
    cancel: &AtomicBool,
) -> Result<Tuning> {
    let first = options.world.environments;
    check(task, options)?;
    for (name, value, [min, max]) in [
        ("max", tuning.max as f64, [first as f64, MAX as f64]),
        ("backoff", tuning.backoff, [0.01, 1.0]),
    ] {
        if !(min..=max).contains(&value) {
            return Err(Error::out_of_range(name, value, min, max));
        }
    }
    let _threads = pool_of(options.machine.threads)?;
    let with = |environments: usize| {
        let mut own = options.clone();
        own.world.environments = environments;
        own
    };
    let bytes = |environments| {
        let memory = Memory::measure(task, &with(environments), cancel)?;
        Ok::<_, Error>(memory.owners.total())
    };
    let room = tuning.memory_limit.map(|limit| (limit as f64 * tuning.backoff) as u64);
    let fits = |environments| room.map_or(Ok(true), |room| Ok(bytes(environments)? <= room));
    let measure = |environments| {
        let own = with(environments);
        let memory = Memory::measure(task, &own, cancel)?;
        own.check_length(memory.rows)?;
        let Times { played, learned, .. } = times(task, &own, cancel)?;
        let (update_steps, seconds) = (own.update_steps(memory.rows), played + learned);
        Ok(Measurement {
            environments,
            update_steps,
            update_seconds: seconds,
            rollout_share: played / seconds,
            steps_per_second: update_steps as f64 / seconds,
            bytes: memory.owners.total(),
        })
    };
    let mut larger = None;
    let first = halved("a run with one environment", first, room, |environments| {
        match (bytes(environments), larger) {
            // A run with fewer environments has too few sequences for its batches.
            (Err(Error::OutOfRange { .. }), Some((more, bytes))) => {
                let (what, limit) = (format!("a run with {more} environments"), room.unwrap_or(0));
                Err(Error::OverLimit { what, bytes, limit })
            }
            (bytes, _) => bytes.inspect(|bytes| larger = Some((environments, *bytes))),
        }
    })?;
    // A run has at least one update, and a rollout a largest number of steps.
    let seats = sconce_env::spec(&task.world(options))?.seats;
    let most = tuning.max.min(options.most_environments(seats));
    let (rows, stopped) = doubled(first, most, fits, measure, |row| row.steps_per_second)?;
    let best = rows.iter().max_by(|a, b| a.steps_per_second.total_cmp(&b.steps_per_second));
    Ok(Tuning {
        environments: best.map_or(first, |row| row.environments),
        rows,
        stopped,
        rollout_steps: options.rollout.rollout_steps,
        minibatches: options.ppo.minibatches,
        threads: pool::threads(),
        memory_limit: tuning.memory_limit,
    })
}
