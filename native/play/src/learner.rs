//! A policy that learns from segments: passes over their frames in batches, each with an update of the weights.

use sconce_nn::Policy;
use sconce_tensor::Result;
use sconce_tensor::rng::Rng;
use sconce_train::objective::{Figures, Objective, Objectives};
use sconce_train::step::{Stepper, Task};
use sconce_train::weights::WeightTransforms;

use crate::objective::{Clipped, Scheduled};
use crate::options::PpoOptions;
use crate::segment::{Gather, Segment, Sequence, frames, sequences};

/// A policy that learns from segments.
pub struct Learner {
    stepper: Stepper<'static>,
    terms: Scheduled,
    options: PpoOptions,
    /// Whether the policy has a memory.
    remembers: bool,
    /// Whether an update has failed after it had changed weights.
    torn: bool,
}

/// The result of an update.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Updated {
    /// Mean figures over the batches.
    pub figures: Figures,
    /// Mean norm of the gradients before they are shortened.
    pub grad_norm: f64,
    /// Number of batches that changed the weights.
    pub batches: usize,
    /// Whether the divergence from the weights before ended the update.
    pub stopped: bool,
    /// Share of the variance of the targets that the values explained before the update.
    pub explained_variance: f64,
}

impl Learner {
    /// A learner that trains a copy of `policy`.
    ///
    /// # Errors
    /// `Mismatch` for heads without a value.
    pub fn new(policy: &Policy, options: &PpoOptions) -> Result<Self> {
        let clipped = Clipped::new(&policy.spec().heads, options.terms(0.0))?;
        let terms = clipped.scheduled();
        let all: Vec<Box<dyn Objective>> = vec![Box::new(clipped)];
        let stepper = Stepper::new(
            policy,
            Objectives::new(all),
            WeightTransforms::default(),
            options.adam(),
            options.optimiser.max_grad_norm,
            options.machine.seed,
        )?;
        Ok(Learner {
            stepper,
            terms,
            options: options.clone(),
            remembers: !policy.zero_state(1)?.0.is_empty(),
            torn: false,
        })
    }

    /// The policy that learns, its optimiser and its state.
    pub fn stepper(&self) -> &Stepper<'static> {
        &self.stepper
    }

    /// The policy that learns, its optimiser and its state, to restore an earlier one.
    pub fn stepper_mut(&mut self) -> &mut Stepper<'static> {
        &mut self.stepper
    }

    /// Whether an update has failed after it had changed weights: they are those of no whole update.
    pub fn is_torn(&self) -> bool {
        self.torn
    }

    /// Learns from segments whose [returns](Segment::estimate) are known. `update` numbers the updates of a run and
    /// chooses the order of frames; `done` is the share of the run that has passed.
    ///
    /// # Errors
    /// `NonFinite` for a loss or a gradient that is not finite.
    pub fn learn(&mut self, segments: &[Segment], update: u64, done: f64) -> Result<Updated> {
        self.terms.set(self.options.terms(done));
        let all = if self.remembers { sequences(segments) } else { frames(segments) };
        let (seed, epochs) = (self.options.machine.seed, self.options.ppo.epochs);
        let orders = (0..epochs as u64).map(|epoch| {
            let rng = Rng::new(seed, "play.shuffle", update * epochs as u64 + epoch);
            shuffled(&all, rng)
        });
        self.learn_in_order(segments, orders, update, done)
    }

    /// [`learn`](Self::learn) with given orders of the sequences, one for each pass.
    pub fn learn_in_order(
        &mut self,
        segments: &[Segment],
        orders: impl Iterator<Item = Vec<Sequence>>,
        update: u64,
        done: f64,
    ) -> Result<Updated> {
        let zero = self.stepper.policy().zero_state(1)?;
        let gather = Gather::new(self.stepper.policy().spec(), segments, &zero)?;
        let rate = self.options.learning_rate(done);
        let parts = self.options.ppo.minibatches;
        let mut updated = Updated { explained_variance: explained(segments), ..Updated::default() };
        self.torn = true;
        'update: for (epoch, order) in orders.enumerate() {
            for (i, part) in cut(&order, parts).enumerate() {
                let (batch, state) = gather.batch(part)?;
                let draw = (update * self.options.ppo.epochs as u64 + epoch as u64) * parts as u64
                    + i as u64;
                let learned = self.stepper.learn(Task::new(&batch, &state, draw))?;
                if self.is_far(&learned.figures) {
                    self.stepper.forget();
                    updated.stopped = true;
                    break 'update;
                }
                updated.grad_norm += self.stepper.update(rate)?;
                updated.figures.add(&learned.figures, 1.0);
                updated.batches += 1;
            }
        }
        self.torn = false;
        let batches = updated.batches.max(1) as f64;
        updated.grad_norm /= batches;
        updated.figures = updated.figures.over(batches);
        Ok(updated)
    }

    /// Whether the weights have moved so far from those before the update that it must stop.
    fn is_far(&self, figures: &Figures) -> bool {
        let kl = figures.named.get("approx_kl");
        kl.zip(self.options.ppo.target_kl).is_some_and(|(kl, target)| *kl > 1.5 * target)
    }
}

/// `order` in `parts` consecutive parts of nearly equal length; none is empty.
fn cut(order: &[Sequence], parts: usize) -> impl Iterator<Item = &[Sequence]> {
    let n = order.len();
    let bounds = move |i: usize| i * n / parts..(i + 1) * n / parts;
    (0..parts).map(move |i| &order[bounds(i)]).filter(|part| !part.is_empty())
}

/// A random order (Fisher and Yates, by Durstenfeld 1964).
fn shuffled(all: &[Sequence], rng: Rng) -> Vec<Sequence> {
    let mut order = all.to_vec();
    let words = (0..).flat_map(|index| rng.block(index));
    for (i, word) in (1..order.len()).rev().zip(words) {
        // The bias of this multiplication is below 2^-32 of the length.
        order.swap(i, ((u64::from(word) * (i as u64 + 1)) >> 32) as usize);
    }
    order
}

/// Share of the variance of the targets that the values explain.
fn explained(segments: &[Segment]) -> f64 {
    let pairs = || {
        let own = |s: &'_ Segment| s.returns.targets.len();
        segments.iter().flat_map(move |s| {
            (0..own(s)).map(move |i| (f64::from(s.returns.targets[i]), f64::from(s.values[i])))
        })
    };
    let variance = |numbers: &dyn Fn((f64, f64)) -> f64| {
        let n = pairs().count() as f64;
        let mean = pairs().map(numbers).sum::<f64>() / n;
        pairs().map(|pair| (numbers(pair) - mean).powi(2)).sum::<f64>() / n
    };
    let (all, rest) =
        (variance(&|(target, _)| target), variance(&|(target, value)| target - value));
    if all > 0.0 { 1.0 - rest / all } else { 0.0 }
}
