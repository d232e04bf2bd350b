//! A run: epochs of steps, a validation after each epoch.

use std::borrow::Cow;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use sconce_data::Permutation;
use sconce_net::{Net, Program, Storage};
use sconce_tensor::rng::Rng;
use sconce_tensor::{Error, Result};

use super::checkpoint::{self, Identity, Place, State};
use super::evaluate::{Evaluation, evaluate_some};
use super::examples::Examples;
use super::options::FitOptions;
use super::report::{Event, Failure, Report, Stopped, Validation};
use super::step::Learner;
use crate::schedule::Schedule;
use crate::stop::go_on;

/// A trained network.
#[derive(Debug)]
pub struct Fitted {
    /// The weights of the best validation; without validations the last ones.
    pub net: Net,
    /// The report.
    pub report: Report,
}

/// Trains a network. A run that is cancelled, or that meets a number that is not finite, returns the weights so far.
///
/// # Errors
/// `Mismatch` for options that do not fit the network or the examples; `OutOfMemory`; `Io` for a state that cannot be written;
/// `NotFound`, `Corrupt`, `Mismatch` and `Fixed` for one that cannot be resumed.
pub fn fit(
    net: &Net,
    examples: &Examples<'_>,
    options: &FitOptions,
    tell: &dyn Fn(Event),
    cancelled: &AtomicBool,
) -> Result<Fitted> {
    let mut run = Run::new(net, examples, options, tell, cancelled)?;
    run.begin(net)?;
    run.go()
}

/// A run in progress.
struct Run<'a> {
    examples: &'a Examples<'a>,
    options: &'a FitOptions,
    tell: &'a dyn Fn(Event),
    cancelled: &'a AtomicBool,
    learner: Learner,
    schedule: Schedule,
    split: Split,
    /// The weights that are returned, unless later ones are better.
    kept: Kept,
    /// Steps that were begun.
    begun: u64,
    losses: Vec<f64>,
    validation: Vec<Validation>,
    epochs: u64,
    /// Steps before the present epoch.
    first: usize,
    /// Steps before the last validation.
    validated: Option<u64>,
    start: Instant,
    /// Seconds before the run was resumed.
    seconds: f64,
    /// The identity of the run, if its state is saved.
    identity: Option<Identity>,
}

/// Indices of examples.
struct Split {
    training: Vec<usize>,
    validation: Vec<usize>,
}

struct Kept {
    net: Net,
    step: u64,
    /// The loss of its validation.
    loss: f64,
    /// Validations since then.
    waited: u64,
}

impl<'a> Run<'a> {
    fn new(
        net: &Net,
        examples: &'a Examples<'a>,
        options: &'a FitOptions,
        tell: &'a dyn Fn(Event),
        cancelled: &'a AtomicBool,
    ) -> Result<Self> {
        let split = Split::new(examples.count(), options);
        let batches = batches(split.training.len(), options)?;
        check_last_batch(net, split.training.len(), options)?;
        let total = options.steps.unwrap_or(options.epochs.saturating_mul(batches));
        Ok(Run {
            examples,
            options,
            tell,
            cancelled,
            learner: Learner::new(net, options)?,
            schedule: options.schedule(total),
            split,
            kept: Kept { net: net.clone(), step: 0, loss: f64::INFINITY, waited: 0 },
            begun: 0,
            losses: vec![],
            validation: vec![],
            epochs: 0,
            first: 0,
            validated: None,
            start: Instant::now(),
            seconds: 0.0,
            identity: None,
        })
    }

    /// Takes over the saved state of the run, or writes the first one.
    fn begin(&mut self, net: &Net) -> Result<()> {
        let Some(path) = &self.options.checkpoint else { return Ok(()) };
        let identity = Identity::new(net, self.options, self.examples)?;
        if self.options.resume {
            let state = checkpoint::load(path, &identity)?;
            self.identity = Some(identity);
            let what = path.display().to_string();
            return self.restore(state).map_err(|error| Error::corrupt(what, error));
        }
        if path.exists() {
            let what = path.display().to_string();
            return Err(Error::mismatch(what, "no file, or resume: true", "a file"));
        }
        self.identity = Some(identity);
        self.save()
    }

    fn restore(&mut self, state: State<'_>) -> Result<()> {
        let State { place, net, kept, kept_loss, moments, losses, validation } = state;
        self.learner = Learner::new(&net, self.options)?;
        self.learner.restore(place.updates, &moments)?;
        let Place { epochs, first, validated, kept: step, waited, seconds, .. } = place;
        self.kept = Kept { net: kept.into_owned(), step, loss: kept_loss, waited };
        (self.losses, self.validation) = (losses.into_owned(), validation.into_owned());
        (self.epochs, self.first, self.validated) = (epochs, first, validated);
        (self.begun, self.seconds) = (self.steps(), seconds);
        Ok(())
    }

    /// Writes the state, if the run has a file for it.
    fn save(&self) -> Result<()> {
        let (Some(path), Some(identity)) = (&self.options.checkpoint, &self.identity) else {
            return Ok(());
        };
        let (updates, moments) = self.learner.state()?;
        let place = Place {
            updates,
            epochs: self.epochs,
            first: self.first,
            validated: self.validated,
            kept: self.kept.step,
            waited: self.kept.waited,
            seconds: self.seconds(),
        };
        let state = State {
            place,
            net: Cow::Owned(self.learner.net()?),
            kept: Cow::Borrowed(&self.kept.net),
            kept_loss: self.kept.loss,
            moments,
            losses: Cow::Borrowed(&self.losses),
            validation: Cow::Borrowed(&self.validation),
        };
        state.save(identity, path)
    }

    fn seconds(&self) -> f64 {
        self.seconds + self.start.elapsed().as_secs_f64()
    }

    /// Runs epochs until the run is over.
    fn epochs(&mut self) -> Result<Option<Stopped>> {
        let mut ended = match self.validated == Some(self.steps()) {
            true => self.ended(),
            false => None,
        };
        while ended.is_none() {
            ended = self.epoch()?;
            if ended.is_none() && self.epochs.is_multiple_of(self.options.checkpoint_every.max(1)) {
                self.save()?;
            }
        }
        Ok(ended)
    }

    /// The reason if the run is over, after a validation.
    fn ended(&self) -> Option<Stopped> {
        if self.options.patience.is_some_and(|patience| self.kept.waited >= patience) {
            return Some(Stopped::Early);
        }
        (self.steps() >= self.schedule.total_steps).then_some(Stopped::Finished)
    }

    fn go(mut self) -> Result<Fitted> {
        let ended = self.epochs();
        let ended = match ended {
            // Before the first validation the last weights are returned.
            Err(Error::Cancelled) if self.validation.is_empty() => {
                self.keep().map(|()| Some(Stopped::Stopped))
            }
            Err(Error::Cancelled) => Ok(Some(Stopped::Stopped)),
            ended => ended,
        };
        if ended.is_ok() {
            self.save()?;
        }
        let (stopped, failure) = match ended {
            Ok(stopped) => (stopped.unwrap_or(Stopped::Finished), None),
            Err(Error::NonFinite { what, value }) => {
                let step = self.begun;
                (Stopped::Failed, Some(Failure { what, value: value.to_string(), step }))
            }
            Err(error) => return Err(error),
        };
        let report = Report {
            stopped,
            steps: self.steps(),
            epochs: self.epochs,
            seconds: self.seconds(),
            losses: self.losses,
            validation: self.validation,
            step: self.kept.step,
            failure,
        };
        Ok(Fitted { net: self.kept.net, report })
    }

    fn steps(&self) -> u64 {
        self.losses.len() as u64
    }

    /// Runs an epoch, or the rest of the run, and its validation. Returns the reason if the run is over.
    fn epoch(&mut self) -> Result<Option<Stopped>> {
        let (epoch, first) = (self.epochs + 1, self.first);
        let order = self.order();
        let done = self.losses.len().saturating_sub(first);
        for batch in order.chunks(self.options.batch_size).skip(done) {
            if self.steps() >= self.schedule.total_steps {
                break;
            }
            if self.options.drop_last && batch.len() < self.options.batch_size {
                break;
            }
            self.step(epoch, batch)?;
        }
        let own = &self.losses[first..];
        let loss = own.iter().sum::<f64>() / own.len().max(1) as f64;
        let is_whole = own.len() as u64 == batches(order.len(), self.options)?;
        self.validate(epoch, loss)?;
        if is_whole {
            (self.epochs, self.first) = (epoch, self.losses.len());
        }
        Ok(self.ended())
    }

    fn step(&mut self, epoch: u64, batch: &[usize]) -> Result<()> {
        go_on(self.cancelled)?;
        self.begun = self.steps() + 1;
        let learning_rate = self.schedule.rate(self.steps());
        let loss = self.learner.step(self.examples, batch, learning_rate)?;
        self.losses.push(loss);
        (self.tell)(Event::Step { step: self.steps(), epoch, loss, learning_rate });
        Ok(())
    }

    /// Validates the present weights and keeps them if they are the best. Without a validation they are kept.
    fn validate(&mut self, epoch: u64, loss: f64) -> Result<()> {
        let mut validation = None;
        if self.split.validation.is_empty() {
            self.keep()?;
        } else {
            let program = Program::new(&self.learner.net()?, Storage::F32)?;
            let some = &mut self.split.validation;
            let found = evaluate_some(&program, self.examples, some, self.cancelled)?;
            let Evaluation { loss, accuracy } = found;
            self.validation.push(Validation { step: self.steps(), loss, accuracy });
            self.kept.waited += 1;
            if loss < self.kept.loss {
                self.keep()?;
                self.kept.loss = loss;
            }
            validation = Some(found);
        }
        (self.tell)(Event::Epoch { epoch, step: self.steps(), loss, validation });
        self.validated = Some(self.steps());
        Ok(())
    }

    fn keep(&mut self) -> Result<()> {
        let net = self.learner.net()?;
        self.kept = Kept { net, step: self.steps(), waited: 0, ..self.kept };
        Ok(())
    }

    /// The order of the training examples in the next epoch.
    fn order(&self) -> Vec<usize> {
        let all = &self.split.training;
        if !self.options.shuffle {
            return all.clone();
        }
        let rng = Rng::new(self.options.seed, "net.shuffle", self.epochs);
        let order = Permutation::new(all.len() as u64, rng);
        (0..all.len() as u64).map(|place| all[order.get(place) as usize]).collect()
    }
}

impl Split {
    /// The first of a random order validate.
    fn new(count: usize, options: &FitOptions) -> Split {
        let share = (options.val_split * count as f64).round() as usize;
        let order = Permutation::new(count as u64, Rng::new(options.seed, "net.split", 0));
        let mut validates = vec![false; count];
        for place in 0..share.min(count) as u64 {
            validates[order.get(place) as usize] = true;
        }
        let (validation, training) = (0..count).partition(|example| validates[*example]);
        Split { training, validation }
    }
}

/// Returns an error if the last batch has one example, and a batch normalisation of vectors, which needs two.
fn check_last_batch(net: &Net, examples: usize, options: &FitOptions) -> Result<()> {
    let last = examples % options.batch_size;
    let is_one = options.batch_size == 1 || (last == 1 && !options.drop_last);
    let mut layers = net.outline().layers.iter();
    let norm = layers.find(|layer| layer.kind == "batch_norm" && layer.output.len() == 1);
    match norm.filter(|_norm| is_one) {
        Some(norm) => {
            let expected = format!("two or more for {}, or drop_last", norm.name);
            Err(Error::mismatch("examples of the last batch", expected, 1))
        }
        None => Ok(()),
    }
}

/// Steps of an epoch, at least one.
fn batches(examples: usize, options: &FitOptions) -> Result<u64> {
    let batches = match options.drop_last {
        true => examples / options.batch_size,
        false => examples.div_ceil(options.batch_size),
    };
    match batches {
        0 => {
            let expected = match options.drop_last {
                true => format!("{} or more for a batch", options.batch_size),
                false => "one or more".to_owned(),
            };
            Err(Error::mismatch("examples for training", expected, examples))
        }
        batches => Ok(batches as u64),
    }
}
