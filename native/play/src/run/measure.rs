//! Memory and time of a run without files, from which a plan estimates those of a longer one.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use sconce_tensor::memory::Meter;
use sconce_tensor::{Error, Result};

use super::report::Event;
use super::{Played, Run, Task};
use crate::learner::Taught;
use crate::options::PpoOptions;

/// Bytes that an update of a run takes, by owner, and its sizes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Weighed {
    pub environments: usize,
    /// Rows that learn.
    pub rows: usize,
    /// Steps of a rollout of all rows.
    pub steps: usize,
    /// Steps of a batch that are computed together.
    pub part: usize,
    pub num_weights: usize,
    pub remembers: bool,
    pub bytes: Bytes,
}

/// Bytes by owner, without weights, gradients and moments.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bytes {
    /// Worlds, their memories and buffers.
    pub environments: u64,
    pub opponents: u64,
    pub teacher: u64,
    pub best: u64,
    /// The policy that plays.
    pub playing: u64,
    pub rollout: u64,
    /// Passing memory of play.
    pub acting: u64,
    /// Passing memory of one copy of the weights that learns.
    pub learning: u64,
    /// Memory that this copy keeps besides its state.
    pub learner: u64,
    /// Memory that a thread keeps.
    pub scratch: u64,
    /// Passing memory of a save.
    pub checkpoints: u64,
}

/// Seconds of an update.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    pub played: f64,
    pub learned: f64,
    /// Factor on the seconds of learning if no episode ended: sequences that an end cuts are padded.
    pub uncut: f64,
}

/// Bytes that a value frees.
fn freed<T>(meter: &Meter, value: T) -> u64 {
    let before = meter.kept();
    drop(value);
    before.saturating_sub(meter.kept())
}

impl Run<'_> {
    /// Measures the memory of the second update on this thread, which must be one without the pool. Nothing is played
    /// ahead.
    ///
    /// # Errors
    /// Those of a run, and `Unavailable` in a program that does not count its memory.
    pub(crate) fn weigh(
        task: Task<'_>,
        options: &PpoOptions,
        cancel: &AtomicBool,
    ) -> Result<Weighed> {
        let taught = Meter::start()?;
        let teacher = Taught::of(options)?;
        let taught = teacher.map_or(0, |_teacher| taught.kept());

        let meter = Meter::start()?;
        let mut options = options.clone();
        options.rollout.overlap = false;
        let (options, tell) = (&options, |_| ());
        let mut run = Run::prepare(task, options, None, &tell, cancel)?;
        run.update()?;
        let acting = Meter::start()?;
        let mut played = run.play()?;
        run.value(&mut played)?;
        let acting = acting.passing();
        let learning = Meter::start()?;
        run.learn_from(&played.segments)?;
        let learning = learning.passing();
        let Played { segments, policy, .. } = played;
        let rollout = freed(&meter, segments);
        let playing = freed(&meter, policy);
        let saving = Meter::start()?;
        drop(run.snapshot()?.encode()?);
        let checkpoints = saving.peak();
        drop(saving);

        let Run { player, league, learner, best, .. } = run;
        let (rows, copies) = (player.rows(), learner.copies());
        let (num_weights, remembers) =
            (learner.stepper().policy().num_weights(), learner.remembers());
        let best = freed(&meter, best);
        let environments = freed(&meter, player);
        let opponents = freed(&meter, league);
        // Weights, gradients and two moments.
        let state = (copies * 4 * 4 * num_weights) as u64 + taught;
        let learner = freed(&meter, learner).saturating_sub(state) / copies as u64;
        let steps = options.update_steps(rows) as usize;
        Ok(Weighed {
            environments: options.world.environments,
            rows,
            steps,
            part: steps / options.ppo.minibatches.max(1) / copies,
            num_weights,
            remembers,
            bytes: Bytes {
                environments,
                opponents,
                teacher: taught,
                best,
                playing,
                rollout,
                acting,
                learning,
                learner,
                scratch: meter.kept(),
                checkpoints,
            },
        })
    }

    /// Plays and learns for at least `seconds` and `updates` updates after a first one, which does not count. Returns
    /// the mean times.
    ///
    /// # Errors
    /// Those of a run; `Cancelled`.
    pub(crate) fn time(
        task: Task<'_>,
        options: &PpoOptions,
        (seconds, updates): (f64, usize),
        cancel: &AtomicBool,
    ) -> Result<Times> {
        let share = Cell::new(0.0);
        let tell = |event: Event| {
            if let Event::Update { point, .. } = event {
                share.set(point.rollout_share);
            }
        };
        let mut run = Run::prepare(task, options, None, &tell, cancel)?;
        run.update()?;
        let (mut count, mut played, mut all) = (0, 0.0, 0.0);
        while count < updates.max(1) || all < seconds {
            if cancel.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
            let begun = Instant::now();
            run.update()?;
            let took = begun.elapsed().as_secs_f64();
            (count, played, all) = (count + 1, played + share.get() * took, all + took);
        }
        let uncut = match run.learner.remembers() {
            true => run.uncut(updates)?,
            false => 1.0,
        };
        let n = count as f64;
        Ok(Times { played: played / n, learned: (all - played) / n, uncut })
    }

    /// Median of the seconds of learning without ends of episodes over those with them.
    fn uncut(&mut self, updates: usize) -> Result<f64> {
        let mut factors = vec![];
        for _ in 0..updates.max(1) {
            let mut played = self.play()?;
            self.value(&mut played)?;
            let mut seconds = [0.0; 2];
            for seconds in &mut seconds {
                let begun = Instant::now();
                self.learn_from(&played.segments)?;
                *seconds = begun.elapsed().as_secs_f64();
                for segment in &mut played.segments {
                    segment.terminated.fill(0);
                    segment.truncated.fill(0);
                }
            }
            factors.push(seconds[1] / seconds[0]);
        }
        factors.sort_by(f64::total_cmp);
        Ok(factors[factors.len() / 2].min(1.0))
    }
}
