//! A training run, from a corpus to a checkpoint and a report.
//!
//! Everything random is a function of seed and step, so a run that goes on from `last.safetensors`
//! does what the uninterrupted one would have done.

use std::collections::{BTreeSet, HashSet};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use sconce_core::checkpoint::{self, Manifest, Optimiser};
use sconce_core::ops::tensor;
use sconce_core::{Error, Policy, Result, Spec, fs, pool};
use sconce_data::{Batch, Corpus, Holdout, View, select};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::baselines::{Baseline, BaselineKind, Counts};
use crate::eval::{self, fits, pool_of};
use crate::metrics::Report;
use crate::options::TrainOptions;
use crate::report::{BaselineReport, Event, HeadNll, Pace, Point, RunReport, Side, Stopped};
use crate::schedule::Schedule;
use crate::source::{Loaded, Source};
use crate::step::{Examples, Stepped, Stepper};

/// What `last.safetensors` notes beside weights and moments.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Progress {
    step: u64,
    updates: u64,
    seconds: f64,
    best_nll: Option<f64>,
    best_step: Option<u64>,
    without_better: u64,
    /// The step of the last validation.
    validated: u64,
    /// Sum and number of training losses since the last point of the history.
    recent: (f64, u64),
    #[serde(default)]
    pace: Pace,
    /// Sum and number of training losses of this epoch.
    #[serde(default)]
    epoch: (f64, u64),
    history: Vec<Point>,
    options: TrainOptions,
    /// Of the games of both sides.
    digest: String,
}

/// Where a run keeps its files.
struct Folder<'a>(&'a Path);

impl Folder<'_> {
    fn best(&self) -> PathBuf {
        self.0.join("best.safetensors")
    }

    fn last(&self) -> PathBuf {
        self.0.join("last.safetensors")
    }

    /// Makes the folder and takes its lock: one run at a time.
    fn lock(&self) -> Result<File> {
        std::fs::create_dir_all(self.0).map_err(Error::io(self.0))?;
        let lock = fs::lock(self.0, "lock")?;
        // What a killed run had not finished writing.
        fs::clear_partials(self.0)?;
        Ok(lock)
    }

    fn report(&self) -> PathBuf {
        self.0.join("report.json")
    }

    fn write_report(&self, report: &RunReport) -> Result<()> {
        let text = serde_json::to_vec_pretty(report).map_err(|e| Error::corrupt("report", e))?;
        fs::write_atomic(&self.report(), |file| file.write_all(&text))
    }
}

/// The report that a run left in its folder.
pub fn read_report(out: &Path) -> Result<RunReport> {
    let path = Folder(out).report();
    let text = std::fs::read(&path).map_err(Error::io(&path))?;
    serde_json::from_slice(&text).map_err(|e| Error::corrupt(path.display().to_string(), e))
}

/// Trains a policy of `spec` on `corpus`, with all its files in `out`.
pub fn run(
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
    let folder = Folder(out);
    let _lock = folder.lock()?;
    let _threads = pool_of(options.threads)?;
    let mut run = Run::prepare(corpus, spec, options, folder, events, cancel)?;
    match run.train() {
        Ok(stopped) => run.finish(stopped),
        Err(error) => {
            // A step fails before it changes a weight: these are the weights of the last whole one.
            // The first error is the one to tell.
            if run.progress.step > 0 {
                let _ = run.save_last();
            }
            Err(error)
        }
    }
}

struct Run<'a> {
    options: &'a TrainOptions,
    folder: Folder<'a>,
    events: &'a dyn Fn(Event),
    cancel: &'a AtomicBool,
    stepper: Stepper,
    schedule: Schedule,
    source: Source,
    counts: Counts,
    train: Side,
    validation: (Side, Vec<View>),
    epoch_steps: u64,
    progress: Progress,
}

impl<'a> Run<'a> {
    fn prepare(
        corpus: &Corpus,
        spec: &Spec,
        options: &'a TrainOptions,
        folder: Folder<'a>,
        events: &'a dyn Fn(Event),
        cancel: &'a AtomicBool,
    ) -> Result<Self> {
        let ((train, train_views), (validation, validation_views)) = sides(corpus, spec, options)?;
        let counts = eval::count(&train_views, &spec.heads, options.frame_delay)?;
        let loss = options.loss.clone().with_press_rates(&counts.press_rates());
        let side = |games: usize, views: &[View]| Side {
            games,
            frames: views.iter().map(|v| v.len(options.frame_delay)).sum(),
        };
        let train = side(train, &train_views);
        let validation = (side(validation, &validation_views), validation_views);
        let digest = digest(&train_views, &validation.1);
        let first = first_policy(spec, options, &train_views)?;
        let name = corpus.dir().display().to_string();
        let mut source = Source::new(name, train_views, spec, options)?;
        let epoch_steps = (source.steps_per_epoch() / options.accumulation_steps).max(1);
        let steps = options.steps.unwrap_or(options.epochs * epoch_steps);

        let (policy, progress, moments) = match resumable(&folder, spec, options, &digest)? {
            Some(found) => found,
            None => (first, Progress::new(options, digest), None),
        };
        let config = options.optimiser()?;
        let mut stepper =
            Stepper::new(&policy, &loss, config, options.max_grad_norm, options.seed)?
                .unrolling(options.unroll())
                .averaging(options.ema_decay);
        if let Some(moments) = moments {
            stepper.load_moments(progress.updates, &moments)?;
            let zero = policy.zero_state(options.batch_size)?;
            source.load(&moments, zero, progress.step)?;
            events(Event::Resumed { step: progress.step });
        }
        events(Event::Start {
            steps,
            epoch_steps,
            weights: stepper.policy().num_weights(),
            train_games: train.games,
            train_frames: train.frames,
            validation_games: validation.0.games,
            validation_frames: validation.0.frames,
            threads: pool::threads(),
            skipped_views: source.short_views(),
        });
        Ok(Run {
            schedule: options.schedule(steps),
            options,
            folder,
            events,
            cancel,
            stepper,
            source,
            counts,
            train,
            validation,
            epoch_steps,
            progress,
        })
    }

    fn train(&mut self) -> Result<Stopped> {
        let clock = Instant::now();
        let before = self.progress.seconds;
        loop {
            if self.cancel.load(Ordering::Relaxed) {
                self.save_last()?;
                return Ok(Stopped::Stopped);
            }
            if self.validation_is_due() {
                // Asked to stop amid a validation, the next round sees it too.
                self.validate()?;
                continue;
            }
            self.end_epoch();
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
                data_wait: self.source.flow().data_wait_seconds - waited,
            };
            self.account(stepped, learning_rate, pace);
        }
    }

    /// At the end of every stretch of `validate_every` steps and of the run; not twice at one step.
    fn validation_is_due(&self) -> bool {
        let step = self.progress.step;
        let over = step >= self.schedule.total_steps || self.spent() >= 1.0;
        step != self.progress.validated && (over || step.is_multiple_of(self.validate_every()))
    }

    fn validate_every(&self) -> u64 {
        self.options.validate_every.unwrap_or(self.epoch_steps).max(1)
    }

    /// Counts a step, tells it, and puts every tenth of a validation's stretch on the curve.
    fn account(&mut self, stepped: Stepped, learning_rate: f64, pace: Pace) {
        self.progress.step += 1;
        for (sum, count) in [&mut self.progress.recent, &mut self.progress.epoch] {
            *sum += stepped.loss;
            *count += 1;
        }
        self.progress.pace.add(pace);
        let step = self.progress.step;
        if step.is_multiple_of((self.validate_every() / 10).max(1)) && !self.validation_is_due() {
            self.note(learning_rate, None, vec![]);
        }
        (self.events)(Event::Step {
            step,
            steps: self.schedule.total_steps,
            epoch: step / self.epoch_steps.max(1),
            loss: stepped.loss,
            learning_rate,
            grad_norm: stepped.grad_norm,
            frames_per_second: pace.frames_per_second(),
            step_seconds: pace.seconds,
            data_wait: pace.data_wait,
            seconds: self.progress.seconds,
        });
    }

    /// Tells of an epoch that is over.
    fn end_epoch(&mut self) {
        let (sum, count) = self.progress.epoch;
        let (step, epoch_steps) = (self.progress.step, self.epoch_steps.max(1));
        if count == 0 || !step.is_multiple_of(epoch_steps) {
            return;
        }
        self.progress.epoch = (0.0, 0);
        (self.events)(Event::Epoch {
            step,
            epoch: step / epoch_steps,
            avg_loss: sum / count as f64,
            val_loss: self.progress.history.iter().rev().find_map(|point| point.nll),
            seconds: self.progress.seconds,
        });
    }

    /// Share of `max_minutes` that is gone.
    fn spent(&self) -> f64 {
        self.options.max_minutes.map_or(0.0, |minutes| self.progress.seconds / (60.0 * minutes))
    }

    /// The step's figures and the frames it went through. One that fails leaves all as it was.
    fn step(&mut self, learning_rate: f64) -> Result<(Stepped, usize)> {
        let before = self.source.carried();
        let stepped = self.update(learning_rate);
        if stepped.is_err() {
            self.source.carry(before);
            self.stepper.forget();
        }
        stepped
    }

    fn update(&mut self, learning_rate: f64) -> Result<(Stepped, usize)> {
        let parts = self.options.accumulation_steps;
        let (mut loss, mut shares, mut frames) = (0.0, 0.0, 0);
        for draw in (self.progress.step * parts..).take(parts as usize) {
            let (part, share, count) = self.learn(draw)?;
            loss += share * part;
            shares += share;
            frames += count;
        }
        let grad_norm = self.stepper.update(learning_rate)?;
        Ok((Stepped { loss: loss / shares, grad_norm }, frames))
    }

    /// Learns from batch `draw`: its loss, how much it counts and its frames.
    fn learn(&mut self, draw: u64) -> Result<(f64, f64, usize)> {
        let zero = self.stepper.policy().zero_state(self.options.batch_size)?;
        let Loaded { mut batch, state, frames: count } =
            self.source.draw(draw, zero, self.cancel)?;
        let frames = eval::frames(&mut batch);
        let Batch { labels, weights, .. } = &batch;
        let examples = Examples { frames: &frames, labels, weights };
        let alone = self.options.accumulation_steps == 1;
        let share = if alone { 1.0 } else { examples.mean_weight() };
        let (loss, after) = self.stepper.learn(examples, &state, draw, share)?;
        self.source.hand_on(&after)?;
        Ok((loss, share, count))
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
        let policy = self.stepper.averaged()?;
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
        let best = match (nll, self.progress.best_nll) {
            (Some(nll), Some(best)) => nll < best - self.options.min_delta,
            _ => true,
        };
        let step = self.progress.step;
        self.progress.validated = step;
        self.note(self.learning_rate(), nll, by_head.clone());
        if best {
            (self.progress.best_nll, self.progress.best_step, self.progress.without_better) =
                (nll, Some(step), 0);
            let notes = serde_json::json!({ "step": step, "nll": nll, "frame_delay": self.options.frame_delay, "window_size": self.options.window_size });
            policy.save(&self.folder.best(), notes)?;
        } else {
            self.progress.without_better += 1;
        }
        self.save_last()?;
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
        let (sum, count) = std::mem::take(&mut self.progress.recent);
        let pace = std::mem::take(&mut self.progress.pace);
        self.progress.history.push(Point {
            step: self.progress.step,
            loss: (count > 0).then(|| sum / count as f64),
            learning_rate,
            frames_per_second: (count > 0).then(|| pace.frames_per_second()),
            data_wait: (count > 0).then(|| pace.waiting()),
            nll,
            heads,
            seconds: self.progress.seconds,
        });
    }

    fn save_last(&mut self) -> Result<()> {
        self.progress.updates = self.stepper.optimiser().updates();
        let notes =
            serde_json::to_value(&self.progress).map_err(|e| Error::corrupt("progress", e))?;
        let mut moments: Optimiser =
            self.stepper.optimiser().state().map(|(n, v)| (n, v.to_vec())).collect();
        self.source.save(&mut moments)?;
        let manifest = Manifest::new(self.stepper.policy().spec().clone(), notes);
        let path = self.folder.last();
        checkpoint::save(&path, &manifest, self.stepper.policy().weights(), &moments)?;
        (self.events)(Event::Checkpoint { path, step: self.progress.step });
        Ok(())
    }

    fn finish(self, mut stopped: Stopped) -> Result<RunReport> {
        let (mut policy, mut baselines) = (None, vec![]);
        if stopped != Stopped::Stopped && self.options.evaluate && !self.validation.1.is_empty() {
            match self.scores() {
                Ok((report, others)) => (policy, baselines) = (Some(report), others),
                Err(Error::Cancelled) => stopped = Stopped::Stopped,
                Err(error) => return Err(error),
            }
        }
        let report = RunReport {
            stopped,
            steps: self.progress.step,
            best_step: self.progress.best_step,
            seconds: self.progress.seconds,
            weights: self.stepper.policy().num_weights(),
            spec: self.stepper.policy().spec().clone(),
            options: self.options.clone(),
            loader: self.source.flow(),
            policy,
            baselines,
            history: self.progress.history,
            train: self.train,
            validation: self.validation.0,
        };
        self.folder.write_report(&report)?;
        Ok(report)
    }

    /// The best policy and the baselines, on every frame of the validation games.
    fn scores(&self) -> Result<(Report, Vec<BaselineReport>)> {
        let options = self.options.eval(1);
        let views = &self.validation.1;
        let best = Policy::load(&self.folder.best())?;
        let progress = |done, total| (self.events)(Event::Evaluating { done, total });
        let report = eval::score(&best, views, &options, &progress, self.cancel)?;
        let spec = self.stepper.policy().spec();
        Ok((report, eval::score_baselines(&self.counts, spec, views, &options)?))
    }
}

impl Progress {
    fn new(options: &TrainOptions, digest: String) -> Self {
        Progress {
            step: 0,
            updates: 0,
            seconds: 0.0,
            best_nll: None,
            best_step: None,
            without_better: 0,
            validated: 0,
            recent: (0.0, 0),
            pace: Pace::default(),
            epoch: (0.0, 0),
            history: vec![],
            options: options.clone(),
            digest,
        }
    }
}

/// A number of games, and their views.
type Games = (usize, Vec<View>);

/// What is trained on and what is measured on, split by game.
fn sides(corpus: &Corpus, spec: &Spec, options: &TrainOptions) -> Result<(Games, Games)> {
    let some = |corpus: &Corpus, games: &[usize]| -> Result<Games> {
        let views = select(corpus.views(games)?, &options.characters, &options.players)?;
        Ok((views.iter().map(View::game).collect::<HashSet<_>>().len(), views))
    };
    let all = |corpus: &Corpus| some(corpus, &(0..corpus.games().len()).collect::<Vec<_>>());
    if let Some(dir) = &options.validation {
        let validation = Corpus::open(dir)?;
        fits(validation.schema(), spec)?;
        let known: HashSet<_> = corpus.games().iter().map(|g| &g.digest).collect();
        if let Some(game) = validation.games().iter().find(|g| known.contains(&g.digest)) {
            let expected = "games that are not trained on";
            return Err(Error::mismatch("validation corpus", expected, &game.source));
        }
        return Ok((all(corpus)?, all(&validation)?));
    }
    if options.val_split == 0.0 {
        return Ok((all(corpus)?, (0, vec![])));
    }
    let (train, validation) = corpus.split(&Holdout::Fraction(options.val_split), options.seed)?;
    Ok((some(corpus, &train)?, some(corpus, &validation)?))
}

/// One digest of the games of both sides, by which a resumed run knows its data again.
fn digest(train: &[View], validation: &[View]) -> String {
    let mut hash = Sha256::new();
    for views in [train, validation] {
        let games: BTreeSet<_> = views.iter().map(|v| v.info().digest.as_str()).collect();
        games.iter().for_each(|digest| hash.update(digest.as_bytes()));
        hash.update(b"/");
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn first_policy(spec: &Spec, options: &TrainOptions, train: &[View]) -> Result<Policy> {
    let policy = Policy::init(spec, options.seed)?;
    if !(spec.heads.prior && options.fit_prior) {
        return Ok(policy);
    }
    let counts = eval::count_answers(train, &spec.heads, options.frame_delay)?;
    let mut weights = policy.weights().clone();
    for table in Baseline::fit(BaselineKind::Pairs, &counts).tables() {
        let name = format!("heads.prior.{}", table.head);
        let fitted = tensor::tensor(table.values.clone(), (table.rows, table.columns))?;
        if weights.insert(name.clone(), fitted.into()).is_none() {
            return Err(Error::not_found(format!("weight {name}")));
        }
    }
    Policy::from_weights(spec, weights)
}

type Resumed = (Policy, Progress, Option<Optimiser>);

/// What an earlier run left in the folder, if it may be gone on with.
fn resumable(
    folder: &Folder<'_>,
    spec: &Spec,
    options: &TrainOptions,
    digest: &str,
) -> Result<Option<Resumed>> {
    let path = folder.last();
    match (path.exists(), options.resume) {
        (false, _) => return Ok(None),
        (true, false) => {
            let expected = "an empty folder, or resume: true";
            return Err(Error::mismatch(
                folder.0.display().to_string(),
                expected,
                "an earlier run",
            ));
        }
        (true, true) => {}
    }
    let file = checkpoint::load(&path)?;
    let what = path.display().to_string();
    let progress: Progress = serde_json::from_value(file.manifest.notes.clone())
        .map_err(|e| Error::corrupt(&what, e))?;
    if file.manifest.spec != *spec {
        return Err(Error::mismatch(format!("spec of {what}"), "that of this run", "another"));
    }
    if progress.digest != digest {
        return Err(Error::mismatch(format!("games of {what}"), "those of this run", "others"));
    }
    // How it is computed and until when may change; what is computed may not.
    let comparable = |o: &TrainOptions| TrainOptions {
        resume: false,
        threads: None,
        max_minutes: None,
        evaluate: false,
        gradient_checkpoint: false,
        checkpoint_every: 1,
        // Said or not, it is the same number.
        weight_decay: o.optimiser().ok().map(|config| config.weight_decay),
        prefetch: 0,
        loader_threads: 1,
        loader_deadline_ms: 1,
        ..o.clone()
    };
    let (before, now) = (comparable(&progress.options), comparable(options));
    if let Some((name, before, now)) = first_difference(&before, &now) {
        return Err(Error::mismatch(format!("{name} of a resumed run"), before, now));
    }
    let policy = Policy::from_checkpoint(file.manifest, file.weights)?;
    Ok(Some((policy, progress, Some(file.optimiser))))
}

/// The first option in which two runs differ, and both its values.
fn first_difference(before: &TrainOptions, now: &TrainOptions) -> Option<(String, Value, Value)> {
    let fields = |o| serde_json::to_value(o).unwrap_or_default();
    let (before, now) = (fields(before), fields(now));
    let differs = |(name, value): (&String, &Value)| {
        (now.get(name) != Some(value))
            .then(|| (name.clone(), value.clone(), now.get(name).cloned().unwrap_or_default()))
    };
    before.as_object()?.iter().find_map(differs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Mode;
    use sconce_core::backbone::State;
    use sconce_core::spec::{
        Backbone, Embedding, Head, HeadKind, Heads, HeadsKind, RecurrentConfig,
    };
    use sconce_data::{Schema, VectorGame};

    fn spec() -> Spec {
        let config = RecurrentConfig {
            hidden_size: 4,
            num_layers: 1,
            layer_norm: false,
            input_norm: false,
            dropout: 0.0,
            input_dropout: 0.0,
        };
        let to = Head { name: "to".into(), kind: HeadKind::Categorical(2), hidden_size: 4 };
        let kind = HeadsKind::Independent;
        let heads = Heads { kind, parts: vec![to], stream_size: 4, prior: false };
        Spec { embedding: Embedding::Vector(1), backbone: Backbone::Gru(config), heads }
    }

    #[test]
    fn a_step_that_fails_at_its_end_leaves_the_carried_states_as_they_were() {
        let dir = tempfile::tempdir().unwrap();
        let spec = spec();
        let game = |i: u16| VectorGame { x: vec![f32::from(i); 30], labels: vec![i % 2; 30] };
        let games: Vec<VectorGame> = (0..4).map(game).collect();
        let corpus = dir.path().join("corpus");
        let corpus = Corpus::build(&Schema::vector(1, &spec.heads), &games, &corpus).unwrap();
        let options = TrainOptions {
            unroll: Mode::Carry,
            batch_size: 2,
            window_size: 5,
            accumulation_steps: 2,
            val_split: 0.0,
            ..TrainOptions::default()
        };
        let cancel = AtomicBool::new(false);
        let folder = Folder(dir.path());
        let mut run = Run::prepare(&corpus, &spec, &options, folder, &|_| (), &cancel).unwrap();
        run.step(1e-3).unwrap();
        let numbers = |state: Option<State>| state.unwrap().to_vec().unwrap();
        let before = numbers(run.source.carried());

        // Nothing finite is left of gradients that this one is added to.
        let zero = run.stepper.policy().zero_state(2).unwrap();
        let Loaded { mut batch, .. } = run.source.draw(0, zero.clone(), &cancel).unwrap();
        let frames = eval::frames(&mut batch);
        let Batch { labels, weights, .. } = &batch;
        let examples = Examples { frames: &frames, labels, weights };
        run.stepper.learn(examples, &zero, 0, f64::MAX).unwrap();
        assert!(matches!(run.step(1e-3), Err(Error::NonFinite { .. })));
        assert_eq!(numbers(run.source.carried()), before);
        run.step(1e-3).unwrap();
        assert_ne!(numbers(run.source.carried()), before);
    }
}
