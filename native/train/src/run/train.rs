//! The steps of a run, from batch to batch.

use std::sync::atomic::Ordering;
use std::time::Instant;

use sconce_tensor::trace::{self, Kind};
use sconce_tensor::{Error, Result, device};

use super::state::Run;
use crate::objective::Figures;
use crate::report::{Pace, Stopped};
use crate::step::StepMetrics;

/// Maximum number of windows that the error of a diverged step lists; a step may have more than fit into a message.
pub(super) const MOST_WINDOWS: usize = 1 << 12;

/// Result of a batch: its figures and weight, unless these wait on a card, and its number of frames.
struct FromBatch {
    part: Option<(Figures, f64)>,
    frames: usize,
}

impl Run<'_> {
    pub(super) fn train(&mut self) -> Result<Stopped> {
        let clock = Instant::now();
        let before = self.progress.seconds;
        loop {
            if self.must_settle() {
                self.settle()?;
            }
            self.anneal()?;
            if self.cancel.load(Ordering::Relaxed) {
                self.save(None)?;
                return Ok(Stopped::Stopped);
            }
            if self.validation_is_due() {
                // If the validation was cancelled, the next round of the loop ends the run.
                self.validate()?;
                continue;
            }
            self.end_epoch();
            if self.saver.ready(self.events) && self.save_is_due() {
                self.save(None)?;
            }
            if self.options.schedule.patience.is_some_and(|p| self.progress.without_better >= p) {
                return Ok(Stopped::Early);
            }
            if self.progress.step >= self.schedule.total_steps {
                return Ok(Stopped::Finished);
            }
            if self.spent() >= 1.0 {
                return Ok(Stopped::Budget);
            }
            if self.ask_is_due() && self.ask()? {
                self.save(None)?;
                return Ok(Stopped::Stopped);
            }
            let start = Instant::now();
            let learning_rate = self.learning_rate();
            let waited = self.source.flow().data_wait_seconds;
            let (stepped, frames) = match self.step(learning_rate) {
                // The wait for data was cancelled; the next round of the loop ends the run.
                Err(Error::Cancelled) => continue,
                step => step?,
            };
            self.progress.seconds = before + clock.elapsed().as_secs_f64();
            let pace = Pace {
                frames: frames as u64,
                seconds: start.elapsed().as_secs_f64(),
                // The difference may be negative: a repeated step has a new loader, which counts from 0.
                data_wait: (self.source.flow().data_wait_seconds - waited).max(0.0),
            };
            self.count(stepped, learning_rate, pace);
        }
    }

    /// Runs a step. Returns its figures, unless they wait on a card, and its number of frames. A step that fails
    /// changes nothing; a step that runs out of memory is repeated with fewer windows at a time.
    pub(super) fn step(&mut self, learning_rate: f64) -> Result<(Option<StepMetrics>, usize)> {
        loop {
            let before = self.replicas.carried();
            let error = match self.update(learning_rate) {
                Ok(stepped) => {
                    self.grow();
                    return Ok(stepped);
                }
                Err(error) => error,
            };
            self.replicas.carry(before);
            self.replicas.forget();
            if self.replicas.torn() {
                return Err(error);
            }
            let Some(told) = self.room.halve(&error, self.progress.step) else { return Err(error) };
            self.resize();
            (self.events)(told);
        }
    }

    /// Lets the micro-batch grow after a good step, if the run allows it.
    fn grow(&mut self) {
        if let Some(grown) = self.room.went_well(self.progress.step + 1) {
            self.resize();
            (self.events)(grown);
        }
    }

    /// Computes as many windows together as there is room for.
    fn resize(&mut self) {
        self.replicas.set_micro_batch(self.room.windows());
        // Cached blocks are freed, because other micro-batches need blocks of other sizes.
        for device in self.replicas.devices() {
            device::shrink(device);
        }
    }

    fn update(&mut self, learning_rate: f64) -> Result<(Option<StepMetrics>, usize)> {
        let _span = trace::span(Kind::Step, "training step");
        let parts = self.options.optimiser.accumulation_steps;
        let step = self.progress.step + 1;
        let looks =
            self.options.saving.gradient_report.is_some_and(|every| step.is_multiple_of(every));
        let at_once = (parts == 1 && !looks).then_some(learning_rate);
        if at_once.is_none() {
            self.settle()?;
        }
        let (mut sum, mut frames) = (Figures::default(), 0);
        for draw in self.progress.step * parts..(self.progress.step + 1) * parts {
            let learned = self.learn(draw, at_once).map_err(|e| self.diverged(e, step, draw, 1))?;
            frames += learned.frames;
            let Some((part, share)) = learned.part else { return Ok((None, frames)) };
            sum.add(&part, share);
            // Earlier steps must be reported first.
            self.settle()?;
        }
        let (first, shares) = (self.progress.step * parts, self.replicas.learned());
        let updated = self.replicas.update(learning_rate, looks);
        let (grad_norm, gradients) = updated.map_err(|e| self.diverged(e, step, first, parts))?;
        let learned = shares > 0.0;
        let figures = if learned { sum.over(shares) } else { Figures::default() };
        Ok((Some(StepMetrics { figures, grad_norm, learned, gradients }), frames))
    }

    /// Adds the batches of the step, starting at batch `first`, to the error of a value that is not finite. The error
    /// lists the first [`MOST_WINDOWS`] windows of these batches.
    pub(super) fn diverged(&self, error: Error, step: u64, first: u64, batches: u64) -> Error {
        let Error::NonFinite { what, value } = error else { return error };
        let windows =
            (first..first.saturating_add(batches)).flat_map(|draw| self.source.windows(draw));
        let windows = windows.take(MOST_WINDOWS).collect();
        Error::Diverged { what, value, step, batch: first, windows }
    }

    /// Learns from batch `draw`. `at_once` is the learning rate, given if the whole update may be launched at once.
    fn learn(&mut self, draw: u64, at_once: Option<f64>) -> Result<FromBatch> {
        let loaded = {
            let _span = trace::span(Kind::Step, "draw a batch");
            self.source.draw(draw, self.cancel)?
        };
        let (frames, update) = (loaded.frames, self.progress.step);
        let alone = self.options.optimiser.accumulation_steps == 1;
        let learn = || match at_once {
            Some(rate) => self.replicas.learn_at_once(loaded, update, draw, rate),
            None => self.replicas.learn(loaded, update, draw, alone).map(Some),
        };
        Ok(FromBatch { part: self.room.watch(learn)?, frames })
    }

    /// Moves quantised weights on toward their grid, and removes weights that are pruned. The patience of the run begins
    /// when that is done.
    fn anneal(&mut self) -> Result<()> {
        let steps = self.progress.step as f64 / self.schedule.total_steps.max(1) as f64;
        let Some(annealed) = self.options.annealed(steps.max(self.spent())) else { return Ok(()) };
        if self.progress.annealed < 1.0 {
            self.progress.without_better = 0;
        }
        self.progress.annealed = self.progress.annealed.max(annealed);
        self.replicas.anneal(self.progress.annealed)
    }

    pub(super) fn learning_rate(&self) -> f64 {
        if let Some(rate) = self.progress.learning_rate {
            return rate;
        }
        let step = self.progress.step;
        if step < self.schedule.warmup_steps {
            // A warm-up starts at the rate of step 1, because an update at rate 0 would be wasted.
            return self.schedule.rate(step + 1);
        }
        let by_clock = self.spent() * self.schedule.total_steps as f64;
        self.schedule.rate(step.max(by_clock as u64))
    }

    /// Share of `max_minutes` that has passed.
    pub(super) fn spent(&self) -> f64 {
        self.options
            .schedule
            .max_minutes
            .map_or(0.0, |minutes| self.progress.seconds / (60.0 * minutes))
    }
}
