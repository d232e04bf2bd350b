//! A training run, from a corpus to a checkpoint and a report.
//!
//! Everything random is a function of seed and step, so a run that goes on from `last.safetensors`
//! does what the uninterrupted one would have done.

mod folder;
mod progress;
mod resume;
mod room;
mod saver;

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use candle_core::Device;
use sconce_core::checkpoint::{Optimiser, Snapshot};
use sconce_core::device::{self, Caching, Devices};
use sconce_core::{Error, Policy, Result, Spec, fs, pool};
use sconce_data::{Corpus, View};
use serde_json::{Value, json};

use self::folder::{Folder, Keep, Kind, MAX_REPORT};
use self::progress::Progress;
pub use self::resume::Record;
use self::resume::resumable;
use self::room::Room;
use self::saver::{Disk, Draft, Finished, Save, Saver};
use crate::baselines::Counts;
use crate::eval::{self, fits, pool_of};
use crate::games::{digest, first_policy, sides};
use crate::gradients::{GradientReport, WeightGradient};
use crate::metrics::Report;
use crate::options::{Mode, TrainOptions};
use crate::plan::check_room;
use crate::replicas::{Replica, Replicas};
use crate::report::{
    BaselineReport, Event, HeadLoss, HeadNll, Pace, Point, RunReport, Side, Stopped,
};
use crate::schedule::Schedule;
use crate::scheduled::Scheduled;
use crate::source::Source;
use crate::step::{Losses, MOST_PENDING, StepMetrics, Stepper};
use crate::teacher::Teacher;

/// The report that a run left in its folder.
pub fn read_report(out: &Path) -> Result<RunReport> {
    let path = Folder::new(out).report();
    let text = fs::read(&path, MAX_REPORT)?;
    let again = "going on with the run (resume: true) writes it anew";
    let reason = |e| format!("cut short or damaged ({e}); {again}");
    let report: RunReport = serde_json::from_slice(&text)
        .map_err(|e| Error::corrupt(path.display().to_string(), reason(e)))?;
    report.spec.validate()?;
    Ok(report)
}

/// What the gradients looked like whenever a run was asked to look, from its folder.
pub fn read_gradients(out: &Path) -> Result<Vec<GradientReport>> {
    Folder::new(out).read_gradients()
}

/// Trains a policy of `spec` on `corpus`, with all its files in `out`.
///
/// # Errors
/// `Unsaved` with the report where states were to be written and none was. `Cancelled` where `cancel` is set before
/// the first step: nothing was learned.
pub fn run(
    corpus: &Corpus,
    spec: &Spec,
    options: &TrainOptions,
    out: &Path,
    events: &dyn Fn(Event),
    cancel: &AtomicBool,
) -> Result<RunReport> {
    let disk = |file: &mut File, bytes: &[u8]| file.write_all(bytes);
    let machine = Machine { disk: Arc::new(disk), devices: TrainOptions::open_devices };
    run_on(machine, corpus, spec, options, out, events, cancel)
}

/// Windows that an error lists of a step that diverged. A step of many batches learns from more than a message holds.
const MOST_WINDOWS: usize = 1 << 12;

/// What a run is on.
struct Machine {
    disk: Disk,
    devices: fn(&TrainOptions) -> Result<Devices>,
}

fn run_on(
    machine: Machine,
    corpus: &Corpus,
    spec: &Spec,
    options: &TrainOptions,
    out: &Path,
    events: &dyn Fn(Event),
    cancel: &AtomicBool,
) -> Result<RunReport> {
    options.validate()?;
    spec.validate()?;
    fits(corpus.schema(), spec)?;
    let folder = Folder::new(out);
    // Dropped after the run, which waits for its last write.
    let _lock = folder.lock()?;
    let _threads = pool_of(options.threads)?;
    let mut run = Run::prepare(machine, corpus, spec, options, folder, events, cancel)?;
    match run.train() {
        Ok(stopped) => run.finish(stopped),
        Err(error) => {
            // A step fails before it changes a weight: these are the weights of the last whole one.
            // The first error is the one to tell.
            if run.progress.step > 0 && !run.replicas.torn() {
                let _ = run.save(None);
            }
            run.saver.finish(events);
            Err(error)
        }
    }
}

struct Run<'a> {
    /// With the lengths of the schedule that a resumed run had.
    options: TrainOptions,
    folder: Folder,
    saver: Saver,
    /// The step of the last save, and when that was.
    saved: (u64, Instant),
    events: &'a dyn Fn(Event),
    cancel: &'a AtomicBool,
    replicas: Replicas<'a>,
    room: Room,
    schedule: Schedule,
    source: Source,
    counts: Counts,
    train: Side,
    validation: (Side, Vec<View>),
    epoch_steps: u64,
    progress: Progress,
    waiting: Vec<Waiting>,
    /// Until all of the above has left the card.
    _caching: Vec<Caching>,
}

/// What was learned from a batch: its losses and how much it counts, unless these wait on a card, and its frames.
struct FromBatch {
    part: Option<(Losses, f64)>,
    frames: usize,
}

/// A step whose figures wait on a card.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    step: u64,
    learning_rate: f64,
    pace: Pace,
    seconds: f64,
}

impl<'a> Run<'a> {
    fn prepare(
        machine: Machine,
        corpus: &Corpus,
        spec: &Spec,
        options: &TrainOptions,
        folder: Folder,
        events: &'a dyn Fn(Event),
        cancel: &'a AtomicBool,
    ) -> Result<Self> {
        let mut saver = Saver::start(folder.clone(), machine.disk)?;
        let ((train, train_views), (validation, validation_views)) = sides(corpus, spec, options)?;
        let Devices { all: devices, sum } = (machine.devices)(options)?;
        let counts = eval::count(&train_views, &spec.heads, options.frame_delay, cancel)?;
        let loss = options.loss.clone().with_press_rates(&counts.press_rates());
        let train = Side::new(train, &train_views, options.frame_delay);
        let validation = Side::new(validation, &validation_views, options.frame_delay);
        let validation = (validation, validation_views);
        let digest = digest(&train_views, &validation.1);
        let first = first_policy(spec, options, &train_views, cancel)?;
        let teacher = Teacher::of(options, spec, &devices[0])?;
        let name = corpus.dir().display().to_string();
        let taught = teacher.as_ref().map(|teacher| teacher.spec().clone());
        let source = Source::new(&name, train_views, spec, taught.as_ref(), options)?;
        let epoch_steps = (source.steps_per_epoch() / options.accumulation_steps).max(1);
        let known = teacher.as_ref().map(Teacher::digest);
        let found = resumable(&folder, spec, options, (&digest, known), epoch_steps)?;
        let (policy, mut progress, moments) = match found {
            Some((policy, progress, moments)) => (policy, progress, Some(moments)),
            None => {
                options.schedule(options.total_steps(epoch_steps)).check()?;
                (first, Progress::new(options, digest, known.map(String::from)), None)
            }
        };
        let options = progress.options.clone();
        let scheduled = Scheduled::of(&options, spec, taught.as_ref())?;
        options.check_steps(epoch_steps)?;
        let steps = options.total_steps(epoch_steps);
        let schedule = progress.schedule(steps);
        progress.warmup_steps = Some(schedule.warmup_steps);
        if let Err(error) = Record::new(corpus.dir(), spec, progress.said()).write(&folder) {
            saver.fail(progress.step, folder.record(), &error, events);
        }
        let validates = !validation.1.is_empty();
        let share = options.batch_size / devices.len();
        let room = Room::plan(spec, &options, share, validates, progress.micro_batch, cancel)?;
        if room.is_unlimited() && devices.iter().all(Device::is_cpu) {
            check_room(&policy, &options, room.windows(), validates, cancel)?;
        }
        let config = options.optimiser()?;
        let replica = |device| {
            let policy = policy.copy_on(device)?;
            let mut stepper =
                Stepper::new(&policy, &loss, config, options.max_grad_norm, options.seed)?
                    .unrolling(options.unroll())
                    .averaging(options.ema_decay)
                    .in_precision(progress.precision)
                    .stopped_by(cancel);
            if let Some(moments) = &moments {
                stepper.load_moments(progress.updates, moments)?;
                stepper.load_loss_scale(progress.loss_scale);
            }
            let teacher = teacher.as_ref().map(|teacher| teacher.copy_on(device)).transpose()?;
            Ok(Replica::new(stepper, teacher))
        };
        let replicas = devices.iter().map(replica).collect::<Result<_>>()?;
        let mut replicas = Replicas::new(replicas, sum, scheduled);
        if let Some(moments) = moments {
            if options.unroll == Mode::Carry && progress.step > 0 {
                replicas.load(&moments, options.batch_size)?;
            }
            events(Event::Resumed { step: progress.step });
        }
        folder.cut_gradients(progress.step)?;
        replicas.set_micro_batch(room.windows());
        events(Event::Start {
            steps,
            epoch_steps,
            weights: replicas.stepper().policy().num_weights(),
            train_games: train.games,
            train_frames: train.frames,
            validation_games: validation.0.games,
            validation_frames: validation.0.frames,
            threads: pool::threads(),
            skipped_views: source.short_views(),
            precision: progress.precision,
        });
        let (asked, used) = (options.precision, progress.precision);
        if asked != used {
            events(Event::Precision { asked, used });
        }
        room.told(progress.step).map(events);
        Ok(Run {
            replicas,
            room,
            schedule,
            options,
            folder,
            saver,
            saved: (progress.step, Instant::now()),
            events,
            cancel,
            source,
            counts,
            train,
            validation,
            epoch_steps,
            progress,
            waiting: vec![],
            _caching: devices.iter().map(Caching::on).collect(),
        })
    }

    fn train(&mut self) -> Result<Stopped> {
        let clock = Instant::now();
        let before = self.progress.seconds;
        loop {
            if self.must_settle() {
                self.settle()?;
            }
            if self.cancel.load(Ordering::Relaxed) {
                self.save(None)?;
                return Ok(Stopped::Stopped);
            }
            if self.validation_is_due() {
                // Asked to stop amid a validation, the next round sees it too.
                self.validate()?;
                continue;
            }
            self.end_epoch();
            if self.saver.ready(self.events) && self.save_is_due() {
                self.save(None)?;
            }
            if self.options.patience.is_some_and(|p| self.progress.without_better >= p) {
                return Ok(Stopped::Early);
            }
            if self.progress.step >= self.schedule.total_steps {
                return Ok(Stopped::Finished);
            }
            if self.spent() >= 1.0 {
                return Ok(Stopped::Budget);
            }
            let start = Instant::now();
            let learning_rate = self.learning_rate();
            let waited = self.source.flow().data_wait_seconds;
            let (stepped, frames) = match self.step(learning_rate) {
                // Asked to stop while it waited for data.
                Err(Error::Cancelled) => continue,
                step => step?,
            };
            self.progress.seconds = before + clock.elapsed().as_secs_f64();
            let pace = Pace {
                frames: frames as u64,
                seconds: start.elapsed().as_secs_f64(),
                // A step that was made again has a loader of its own.
                data_wait: (self.source.flow().data_wait_seconds - waited).max(0.0),
            };
            self.count(stepped, learning_rate, pace);
        }
    }

    /// Counts a step, and tells it unless its figures wait on a card.
    fn count(&mut self, stepped: Option<StepMetrics>, learning_rate: f64, pace: Pace) {
        self.progress.step += 1;
        let (step, seconds) = (self.progress.step, self.progress.seconds);
        let made = Waiting { step, learning_rate, pace, seconds };
        match stepped {
            Some(stepped) => self.account(stepped, made),
            // It has only been begun.
            None => self.waiting.push(made),
        }
    }

    /// Whether figures that wait on a card are needed now: for what the curve notes, or what the next round may do.
    fn must_settle(&self) -> bool {
        let step = self.progress.step;
        !self.waiting.is_empty()
            && (self.waiting.len() == MOST_PENDING
                || self.notes_step(step)
                || self.validation_is_due()
                || self.save_is_due()
                || step.is_multiple_of(self.epoch_steps.max(1))
                || step >= self.schedule.total_steps
                || self.spent() >= 1.0
                || self.cancel.load(Ordering::Relaxed))
    }

    /// Accounts for the steps whose figures wait on a card. Of one that went wrong nothing changed.
    fn settle(&mut self) -> Result<()> {
        let (waiting, began) = (std::mem::take(&mut self.waiting), Instant::now());
        let results = self.replicas.results()?;
        // They took together what the card was waited for.
        let waited = began.elapsed().as_secs_f64() / waiting.len().max(1) as f64;
        for (stepped, mut made) in results.into_iter().zip(waiting) {
            let first = made.step - 1;
            let stepped = stepped.map_err(|error| self.diverged(error, made.step, first, 1))?;
            made.pace.seconds += waited;
            self.account(stepped, made);
        }
        Ok(())
    }

    /// Whether a step is on the curve: every tenth of a validation's stretch.
    fn notes_step(&self, step: u64) -> bool {
        step.is_multiple_of((self.validate_every() / 10).max(1))
    }

    /// At the end of every stretch of `validate_every` steps and of the run; not twice at one step.
    fn validation_is_due(&self) -> bool {
        let step = self.progress.step;
        let over = step >= self.schedule.total_steps || self.spent() >= 1.0;
        step != self.progress.validated && (over || step.is_multiple_of(self.validate_every()))
    }

    /// Where a save by the clock or by steps falls into another one's time, it is made after it.
    fn save_is_due(&self) -> bool {
        let (step, (saved, at)) = (self.progress.step, self.saved);
        let by_step = self.options.save_every.is_some_and(|every| step / every > saved / every);
        let by_clock = |minutes| step > saved && at.elapsed().as_secs_f64() >= 60.0 * minutes;
        by_step || self.options.save_minutes.is_some_and(by_clock)
    }

    fn validate_every(&self) -> u64 {
        self.options.validate_every.unwrap_or(self.epoch_steps).max(1)
    }

    /// Tells a step, and puts it on the curve where that is due.
    fn account(&mut self, stepped: StepMetrics, made: Waiting) {
        let Waiting { step, learning_rate, pace, seconds } = made;
        self.progress.pace.add(pace);
        if stepped.learned {
            self.progress.recent_losses.add(&stepped.losses);
            self.progress.epoch_losses.add(&stepped.losses);
        }
        if self.notes_step(step) && !self.validation_is_due() {
            self.note(learning_rate, None, vec![]);
        }
        (self.events)(Event::Step {
            step,
            steps: self.schedule.total_steps,
            epoch: step / self.epoch_steps.max(1),
            loss: stepped.losses.total,
            learning_rate,
            grad_norm: Some(stepped.grad_norm).filter(|norm| norm.is_finite()),
            frames_per_second: pace.frames_per_second(),
            step_seconds: pace.seconds,
            data_wait: pace.data_wait,
            heads: self.by_head(stepped.losses.heads),
            teacher_kl: stepped.losses.teacher_kl,
            seconds,
        });
        self.report_overflow(stepped.grad_norm);
        self.report_gradients(stepped.gradients);
    }

    /// Tells of a step that was skipped.
    fn report_overflow(&self, grad_norm: f64) {
        if let (false, Some(scale)) = (grad_norm.is_finite(), self.replicas.stepper().loss_scale())
        {
            let (step, skipped_updates) = (self.progress.step, scale.skipped());
            (self.events)(Event::Overflow { step, loss_scale: scale.factor(), skipped_updates });
        }
    }

    /// Losses with the names of their heads.
    fn by_head(&self, losses: Vec<f64>) -> Vec<HeadLoss> {
        let names = self
            .replicas
            .stepper()
            .policy()
            .spec()
            .heads
            .parts
            .iter()
            .map(|head| head.name.clone());
        names.zip(losses).map(|(name, loss)| HeadLoss { name, loss }).collect()
    }

    /// Notes and tells what was seen of the gradients, if anybody looked.
    fn report_gradients(&mut self, weights: Vec<WeightGradient>) {
        if weights.is_empty() {
            return;
        }
        let report = GradientReport { step: self.progress.step, weights };
        if let Err(error) = self.folder.add_gradients(&report) {
            self.saver.fail(report.step, self.folder.gradients(), &error, self.events);
        }
        (self.events)(Event::Gradients { step: report.step, weights: report.weights });
    }

    /// Tells of an epoch that is over.
    fn end_epoch(&mut self) {
        let (step, epoch_steps) = (self.progress.step, self.epoch_steps.max(1));
        if !step.is_multiple_of(epoch_steps) {
            return;
        }
        let Some(losses) = self.progress.epoch_losses.take() else { return };
        (self.events)(Event::Epoch {
            step,
            epoch: step / epoch_steps,
            avg_loss: losses.total,
            val_loss: self.progress.history.iter().rev().find_map(|point| point.nll),
            heads: self.by_head(losses.heads),
            teacher_kl: losses.teacher_kl,
            seconds: self.progress.seconds,
        });
    }

    /// Share of `max_minutes` that is gone.
    fn spent(&self) -> f64 {
        self.options.max_minutes.map_or(0.0, |minutes| self.progress.seconds / (60.0 * minutes))
    }

    /// The step's figures, unless they wait on a card, and the frames it went through. One that fails leaves all as it was; one that
    /// has too little memory is made again, with half as many windows at a time.
    fn step(&mut self, learning_rate: f64) -> Result<(Option<StepMetrics>, usize)> {
        loop {
            let before = self.replicas.carried();
            let error = match self.update(learning_rate) {
                Ok(stepped) => return Ok(stepped),
                Err(error) => error,
            };
            self.replicas.carry(before);
            self.replicas.forget();
            if self.replicas.torn() {
                return Err(error);
            }
            let Some(told) = self.room.halve(&error, self.progress.step) else { return Err(error) };
            self.replicas.set_micro_batch(self.room.windows());
            // What the halves take is not what was freed of the whole.
            for device in self.replicas.devices() {
                device::shrink(device);
            }
            (self.events)(told);
        }
    }

    fn update(&mut self, learning_rate: f64) -> Result<(Option<StepMetrics>, usize)> {
        let parts = self.options.accumulation_steps;
        let step = self.progress.step + 1;
        let looks = self.options.gradient_report.is_some_and(|every| step.is_multiple_of(every));
        let at_once = (parts == 1 && !looks).then_some(learning_rate);
        if at_once.is_none() {
            self.settle()?;
        }
        let (mut sum, mut frames) = (Losses::default(), 0);
        for draw in self.progress.step * parts..(self.progress.step + 1) * parts {
            let learned = self.learn(draw, at_once).map_err(|e| self.diverged(e, step, draw, 1))?;
            frames += learned.frames;
            let Some((part, share)) = learned.part else { return Ok((None, frames)) };
            sum.add(&part, share);
            // In their order.
            self.settle()?;
        }
        let (first, shares) = (self.progress.step * parts, self.replicas.learned());
        let updated = self.replicas.update(learning_rate, looks);
        let (grad_norm, gradients) = updated.map_err(|e| self.diverged(e, step, first, parts))?;
        let learned = shares > 0.0;
        let losses = if learned { sum.over(shares) } else { Losses::default() };
        Ok((Some(StepMetrics { losses, grad_norm, learned, gradients }), frames))
    }

    /// Adds to a number that is not finite where the step had it from: the batches from `first` on, of which the
    /// first [`MOST_WINDOWS`] windows are listed.
    fn diverged(&self, error: Error, step: u64, first: u64, batches: u64) -> Error {
        let Error::NonFinite { what, value } = error else { return error };
        let windows =
            (first..first.saturating_add(batches)).flat_map(|draw| self.source.windows(draw));
        let windows = windows.take(MOST_WINDOWS).collect();
        Error::Diverged { what, value, step, batch: first, windows }
    }

    /// Learns from batch `draw`; `at_once` is the learning rate of a whole update, where that may be made at once.
    fn learn(&mut self, draw: u64, at_once: Option<f64>) -> Result<FromBatch> {
        let loaded = self.source.draw(draw, self.cancel)?;
        let (frames, update) = (loaded.frames, self.progress.step);
        let alone = self.options.accumulation_steps == 1;
        let learn = || match at_once {
            Some(rate) => self.replicas.learn_at_once(loaded, update, draw, rate),
            None => self.replicas.learn(loaded, update, draw, alone).map(Some),
        };
        Ok(FromBatch { part: self.room.watch(learn)?, frames })
    }

    fn learning_rate(&self) -> f64 {
        let step = self.progress.step;
        if step < self.schedule.warmup_steps {
            // The first update of a warm-up should not be lost on a rate of 0.
            return self.schedule.rate(step + 1);
        }
        let by_clock = self.spent() * self.schedule.total_steps as f64;
        self.schedule.rate(step.max(by_clock as u64))
    }

    fn validate(&mut self) -> Result<()> {
        let began = Instant::now();
        self.replicas.check()?;
        let policy = self.replicas.stepper().averaged()?;
        let (nll, changed, accuracy, by_head) = match self.validation.1.is_empty() {
            true => (None, None, 0.0, vec![]),
            false => {
                let options = self.options.eval(self.options.validation_stride);
                let report = match eval::score(
                    &policy,
                    &self.validation.1,
                    &options,
                    &|_, _| (),
                    self.cancel,
                ) {
                    Err(Error::Cancelled) => return Ok(()),
                    other => other?,
                };
                let heads = report.heads.len().max(1) as f64;
                let accuracy = report.heads.iter().map(|h| h.accuracy).sum::<f64>() / heads;
                let by_head: Vec<HeadNll> = report
                    .heads
                    .into_iter()
                    .map(|h| HeadNll { name: h.name, nll: h.nll })
                    .collect();
                (Some(report.nll), report.nll_changed, accuracy, by_head)
            }
        };
        let (step, learning_rate) = (self.progress.step, self.learning_rate());
        let best = self.progress.rate(nll, self.options.min_delta);
        self.note(learning_rate, nll, by_head.clone());
        let draft = self.draft(&policy, nll, best)?;
        self.save(draft)?;
        if let Some(nll) = nll {
            (self.events)(Event::Validation {
                step,
                epoch: step / self.epoch_steps.max(1),
                nll,
                nll_changed: changed,
                accuracy,
                heads: by_head,
                best,
                seconds: began.elapsed().as_secs_f64(),
            });
        }
        Ok(())
    }

    /// A point of the learning curve.
    fn note(&mut self, learning_rate: f64, nll: Option<f64>, heads: Vec<HeadNll>) {
        let losses = self.progress.recent_losses.take();
        let pace = losses.is_some().then(|| std::mem::take(&mut self.progress.pace));
        self.progress.history.push(Point {
            step: self.progress.step,
            loss: losses.as_ref().map(|losses| losses.total),
            teacher_kl: losses.as_ref().and_then(|losses| losses.teacher_kl),
            losses: losses.map_or(vec![], |losses| self.by_head(losses.heads)),
            learning_rate,
            frames_per_second: pace.map(|pace| pace.frames_per_second()),
            data_wait: pace.map(|pace| pace.waiting()),
            nll,
            heads,
            seconds: self.progress.seconds,
        });
    }

    /// The file of a policy that was validated, unless it is neither the best nor among those to keep.
    fn draft(&mut self, policy: &Policy, nll: Option<f64>, best: bool) -> Result<Option<Draft>> {
        let kept = self.progress.keep(nll, self.options.keep_best);
        let step = self.progress.step;
        let numbered = self.folder.numbered(Kind::Best, step);
        let (path, numbered) = match (best, kept) {
            (false, false) => return Ok(None),
            (false, true) => (numbered, None),
            (true, kept) => (self.folder.file(Kind::Best), kept.then_some(numbered)),
        };
        let snapshot = policy.snapshot(self.notes(nll), Optimiser::new())?;
        Ok(Some(Draft { snapshot, path, numbered }))
    }

    /// What playing and scoring need to know of a policy of this step.
    fn notes(&self, nll: Option<f64>) -> Value {
        let TrainOptions { frame_delay, frame_delay_max, window_size, .. } = self.options;
        json!({
            "step": self.progress.step, "nll": nll, "frame_delay": frame_delay,
            "frame_delay_max": frame_delay_max, "window_size": window_size,
            "precision": self.progress.precision,
        })
    }

    /// Has a policy and the state written from copies of them, while the run goes on.
    fn save(&mut self, policy: Option<Draft>) -> Result<()> {
        // One copy of the state at a time.
        self.saver.wait(self.events);
        let step = self.progress.step;
        self.saved = (step, Instant::now());
        let TrainOptions { keep_last, .. } = self.options;
        let path = self.folder.file(Kind::Last);
        let snapshot = match self.snapshot() {
            // The run goes on, and the next save may have room.
            Err(error @ Error::OutOfMemory { .. }) => {
                self.saver.fail(step, path, &error, self.events);
                return Ok(());
            }
            snapshot => snapshot?,
        };
        let state = Draft {
            snapshot,
            path,
            numbered: (keep_last > 0).then(|| self.folder.numbered(Kind::Last, step)),
        };
        let best = self.progress.kept.iter().map(|(step, _)| *step).collect();
        let keep = Keep { last: keep_last, best };
        self.saver.save(Save { step, policy, state, keep }, self.events);
        Ok(())
    }

    /// All that a run goes on from.
    fn snapshot(&mut self) -> Result<Snapshot> {
        self.progress.updates = self.replicas.stepper().optimiser().updates();
        self.progress.micro_batch = Some(self.room.windows());
        self.progress.loss_scale = self.replicas.stepper().loss_scale();
        let run =
            serde_json::to_value(&self.progress).map_err(|e| Error::corrupt("progress", e))?;
        let moments = self.replicas.stepper().optimiser().state()?.into_iter();
        let mut moments: Optimiser = moments.map(|(n, v)| (n, v.into_owned())).collect();
        self.replicas.save(&mut moments)?;
        Ok(self.replicas.stepper().policy().snapshot(self.notes(None), moments)?.of_run(run))
    }

    fn finish(mut self, mut stopped: Stopped) -> Result<RunReport> {
        let Finished { saves, unwritten, lost } = self.saver.finish(self.events);
        let (mut policy, mut baselines) = (None, vec![]);
        if stopped != Stopped::Stopped && self.options.evaluate && !self.validation.1.is_empty() {
            match self.scores(unwritten) {
                Ok((report, others)) => (policy, baselines) = (Some(report), others),
                Err(Error::Cancelled) => stopped = Stopped::Stopped,
                Err(error) => return Err(error),
            }
        }
        let mut report = RunReport {
            stopped,
            steps: self.progress.step,
            best_step: self.progress.best_step,
            seconds: self.progress.seconds,
            weights: self.replicas.stepper().policy().num_weights(),
            micro_batch: Some(self.room.windows()),
            precision: self.progress.precision,
            skipped_updates: self
                .replicas
                .stepper()
                .loss_scale()
                .map_or(0, |scale| scale.skipped()),
            spec: self.replicas.stepper().policy().spec().clone(),
            options: self.options,
            loader: self.source.flow(),
            saves,
            policy,
            baselines,
            history: self.progress.history,
            train: self.train,
            validation: self.validation.0,
        };
        if let Err(error) = self.folder.write_report(&report) {
            (self.events)(report.saves.fail(report.steps, self.folder.report(), &error));
        }
        match lost {
            None => Ok(report),
            Some((path, reason)) => {
                // By its text, which has a number's digits as a person wrote them.
                let text = serde_json::to_string(&report);
                let report = text.and_then(|text| serde_json::from_str(&text));
                let report = report.map_err(|e| Error::corrupt("report", e))?;
                Err(Error::Unsaved { path, reason, report: Box::new(report) })
            }
        }
    }

    /// The best policy, which no file may have, and the baselines on every frame of the validation games.
    fn scores(&self, unwritten: Option<Snapshot>) -> Result<(Report, Vec<BaselineReport>)> {
        let options = self.options.eval(1);
        let views = &self.validation.1;
        let best = match unwritten.map(Snapshot::into_weights) {
            Some(parts) => parts.and_then(|(manifest, w)| Policy::from_checkpoint(manifest, w))?,
            None => Policy::load(&self.folder.file(Kind::Best))?,
        };
        let best = best.on(self.replicas.stepper().policy().device())?;
        let progress = |done, total| (self.events)(Event::Evaluating { done, total });
        let report = eval::score(&best, views, &options, &progress, self.cancel)?;
        let spec = self.replicas.stepper().policy().spec();
        let baselines = eval::score_baselines(&self.counts, spec, views, &options, self.cancel)?;
        Ok((report, baselines))
    }
}

#[cfg(test)]
mod tests;
