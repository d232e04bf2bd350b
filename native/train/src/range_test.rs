//! The learning rate by a range test (Smith 2017, "Cyclical learning rates for training neural networks", section 3.3):
//! the learning rate grows by the same factor in each step, until the loss diverges.

use std::sync::atomic::AtomicBool;

use sconce_data::Corpus;
use sconce_nn::{Policy, Spec};
use sconce_tensor::{Error, Kind, Precision, Result, pool};
use serde::{Deserialize, Serialize};

use crate::eval::{self, pool_of};
use crate::games::{first_policy, mixed, prior, sides};
use crate::objective::{self, Companion, Objectives};
use crate::options::{TrainOptions, at_least};
use crate::plan::check_room;
use crate::replicas::{Replica, Replicas};
use crate::source::Source;
use crate::step::Stepper;
use crate::transform::{self, Transforms};
use crate::weights::{self, WeightTransforms};

/// Decay rate of the running mean of the loss, which is corrected for its initial bias.
const KEEP: f64 = 0.98;
/// The loss has diverged if its running mean is this many times the lowest running mean.
const AWAY: f64 = 4.0;
/// Share of the first steps that give no suggestion, because the running mean covers few steps.
const YOUNG: f64 = 0.1;
/// Number of the last points, where the loss may diverge, that give no suggestion.
const LAST: usize = 5;

/// Largest learning rate, the same as in a run.
const MAX_RATE: f64 = 1000.0;
/// Largest number of rates in a test.
const MAX_RATES: f64 = 1_000_000.0;

/// Options of a range test.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RangeOptions {
    /// First learning rate.
    pub start_lr: f64,
    /// Last learning rate.
    pub end_lr: f64,
    /// Number of steps, each with its own rate.
    pub num_it: usize,
}

impl Default for RangeOptions {
    fn default() -> Self {
        RangeOptions { start_lr: 1e-7, end_lr: 10.0, num_it: 100 }
    }
}

impl RangeOptions {
    fn validate(&self) -> Result<()> {
        at_least("start_lr", self.start_lr, f64::MIN_POSITIVE, self.end_lr)?;
        at_least("end_lr", self.end_lr, self.start_lr, MAX_RATE)?;
        at_least("num_it", self.num_it as f64, 2.0, MAX_RATES)
    }

    fn rate(&self, step: usize) -> f64 {
        let share = step as f64 / (self.num_it - 1) as f64;
        self.start_lr * (self.end_lr / self.start_lr).powf(share)
    }
}

/// A step of a range test.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RangePoint {
    /// Learning rate of the step.
    pub learning_rate: f64,
    /// Loss of the step's batches before the update.
    pub loss: f64,
    /// Running mean of the loss.
    pub smoothed: f64,
}

/// Result of a range test.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RangeTest {
    /// The steps in order.
    pub points: Vec<RangePoint>,
    /// Rate at which the smoothed loss falls most steeply, before its minimum.
    pub steepest: Option<f64>,
    /// A tenth of the rate at which the smoothed loss is lowest.
    pub minimum: Option<f64>,
    /// Whether the loss diverged before the test reached the last rate.
    pub diverged: bool,
    /// Threads of the pool.
    pub threads: usize,
    /// Precision of the steps.
    pub precision: Precision,
}

/// Runs a range test on the training games of `corpus` with a copy of `policy`, or with a new one. Writes no file.
pub fn range_test(
    spec: &Spec,
    policy: Option<&Policy>,
    corpus: &Corpus,
    options: &TrainOptions,
    range: &RangeOptions,
    cancel: &AtomicBool,
) -> Result<RangeTest> {
    options.validate_for(spec)?;
    range.validate()?;
    eval::fits(corpus.schema(), spec)?;
    let _threads = pool_of(options.machine.threads)?;
    let mut learner = Learner::new(spec, policy, corpus, options, cancel)?;
    let (mut points, mut diverged) = (Vec::with_capacity(range.num_it), false);
    let mut mean = 0.0;
    let mut best = f64::INFINITY;
    for step in 0..range.num_it {
        let learning_rate = range.rate(step);
        let loss = match learner.step(step as u64, learning_rate) {
            // An error of the first step is not caused by its rate, so it is returned.
            Err(error) if step > 0 && error.kind() == Kind::NonFinite => {
                diverged = true;
                break;
            }
            loss => match loss? {
                Some(loss) => loss,
                None => continue,
            },
        };
        mean = KEEP * mean + (1.0 - KEEP) * loss;
        let smoothed = mean / (1.0 - KEEP.powi(points.len() as i32 + 1));
        points.push(RangePoint { learning_rate, loss, smoothed });
        best = best.min(smoothed);
        // The loss of a density may cross 0, where a distance relative to `best` alone is too small.
        let first = points.first().map_or(best, |point: &RangePoint| point.smoothed);
        diverged = smoothed - best > (AWAY - 1.0) * best.abs().max(first - best);
        if diverged {
            break;
        }
    }
    let (steepest, minimum) = suggestions(&points, range.num_it);
    let (threads, precision) = (pool::threads(), options.precision_here());
    Ok(RangeTest { points, steepest, minimum, diverged, threads, precision })
}

fn suggestions(points: &[RangePoint], steps: usize) -> (Option<f64>, Option<f64>) {
    let young = (YOUNG * steps as f64) as usize;
    let end = points.len().saturating_sub(LAST);
    let points = points.get(young..end).unwrap_or_default();
    let smoothed = |i: &usize| points[*i].smoothed;
    let lowest = (0..points.len()).min_by(|a, b| smoothed(a).total_cmp(&smoothed(b)));
    // A loss that is lowest at its first point never falls.
    let Some(lowest) = lowest.filter(|i| *i > 0) else { return (None, None) };
    // The logarithms of neighbouring rates differ by a constant, so differences of losses are slopes.
    let fall = |i: &usize| smoothed(&(i + 1)) - smoothed(i);
    let steepest = (0..lowest).min_by(|a, b| fall(a).total_cmp(&fall(b)));
    let rate = |i: usize| points[i].learning_rate;
    (steepest.map(rate), Some(rate(lowest) / 10.0))
}

/// A training run that writes nothing.
struct Learner<'a> {
    options: &'a TrainOptions,
    replicas: Replicas<'a>,
    source: Source,
    cancel: &'a AtomicBool,
}

impl<'a> Learner<'a> {
    fn new(
        spec: &Spec,
        policy: Option<&Policy>,
        corpus: &Corpus,
        options: &'a TrainOptions,
        cancel: &'a AtomicBool,
    ) -> Result<Self> {
        let (train, validation) = sides(corpus, spec, options)?;
        let views = train.views;
        let counts = eval::count(&views, &spec.heads, options.data.frame_delay, cancel)?;
        let new;
        let policy = match policy {
            Some(given) => given,
            None => {
                let first = first_policy(spec, options, &views, cancel)?;
                new = first.policy.on(&options.open_device()?)?;
                &new
            }
        };
        let config = options.optimiser()?;
        let (press_rates, device) = (counts.press_rates(), policy.device());
        let prior = prior(spec, options, &views, cancel)?;
        let (press_rates, prior) = (press_rates.as_slice(), prior.as_ref());
        let objectives = objective::Setup { options, spec, press_rates, device, prior };
        let objectives = Objectives::of(&objectives)?;
        let companions: Vec<&Companion> = objectives.companions().collect();
        if options.machine.memory_limit.is_none() && policy.device().is_cpu() {
            let windows = options.data.batch_size;
            check_room(policy, &companions, options, windows, false, cancel)?;
        }
        let specs: Vec<&Spec> = companions.iter().map(|own| own.spec()).collect();
        let transforms = Transforms::of(&transform::Setup { options, spec, companions: &specs })?;
        let embeddings: Vec<_> = specs.iter().map(|spec| &spec.embedding).collect();
        let name = corpus.dir().display().to_string();
        let source = Source::new(
            &name,
            views,
            mixed(spec, options, &validation.views)?,
            spec,
            &embeddings,
            options,
        )?;
        let weights = weights::Setup { options, weights: policy.weights() };
        let stepper = Stepper::new(
            policy,
            objectives,
            WeightTransforms::of(&weights)?,
            config,
            options.optimiser.max_grad_norm,
            options.machine.seed,
        )?
        .unrolling(options.unroll())
        .in_precision(options.precision_here())
        .stopped_by(cancel);
        let replicas = Replicas::new(vec![Replica::new(stepper)], None, transforms);
        Ok(Learner { options, replicas, source, cancel })
    }

    /// Runs a step. Returns the loss of its batches before the update; `None` if no frame has a weight above 0.
    fn step(&mut self, step: u64, learning_rate: f64) -> Result<Option<f64>> {
        let parts = self.options.optimiser.accumulation_steps;
        let (mut loss, mut shares) = (0.0, 0.0);
        for draw in step * parts..(step + 1) * parts {
            let loaded = self.source.draw(draw, self.cancel)?;
            let (part, share) = self.replicas.learn(loaded, step, draw, false)?;
            loss += share * part.total;
            shares += share;
        }
        self.replicas.update(learning_rate, false)?;
        match loss.is_finite() {
            true => Ok((shares > 0.0).then(|| loss / shares)),
            false => Err(Error::NonFinite { what: "loss".into(), value: loss }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(learning_rate: f64, smoothed: f64) -> RangePoint {
        RangePoint { learning_rate, loss: smoothed, smoothed }
    }

    #[test]
    fn rates_grow_by_one_factor_from_the_first_to_the_last() {
        let range = RangeOptions { start_lr: 1e-4, end_lr: 1.0, num_it: 5 };
        for (step, want) in [1e-4, 1e-3, 1e-2, 1e-1, 1.0].into_iter().enumerate() {
            assert!((range.rate(step) / want - 1.0).abs() < 1e-12);
        }
        let backwards = RangeOptions { start_lr: 1.0, end_lr: 0.1, num_it: 5 };
        assert!(
            backwards.validate().unwrap_err().to_string().starts_with("start_lr: 1 is outside")
        );
    }

    #[test]
    fn the_steepest_fall_and_a_tenth_of_the_lowest_are_suggested_but_not_of_the_ends() {
        let falling = [9.0, 5.0, 4.9, 4.7, 4.0, 3.8, 3.7, 3.9, 9.0, 9.0, 9.0, 9.0, 0.0];
        let points: Vec<_> = (0..).zip(falling).map(|(i, y)| point(10f64.powi(i), y)).collect();
        assert_eq!(suggestions(&points, 10), (Some(1e3), Some(1e5)));
        assert_eq!(suggestions(&points[..5], 10), (None, None));
        let rising: Vec<_> = (0..20).map(|i| point(f64::from(i), f64::from(i))).collect();
        assert_eq!(suggestions(&rising, 20), (None, None));
    }
}
