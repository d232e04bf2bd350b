//! A policy that learns from segments: passes over their frames in batches, each with an update of the weights.
//!
//! A large batch for a small policy is cut in two, and each half learns on a thread of its own with a copy of the
//! weights: the layers are too small to share their work among threads. Both copies take the same update, by the sum of
//! both gradients. The cut depends on the sizes alone, so results do not depend on the number of threads.

mod card;

use std::path::PathBuf;
use std::sync::Arc;

use sconce_nn::Policy;
use sconce_nn::checkpoint::Optimiser;
use sconce_nn::head::Direction;
use sconce_nn::spec::Heads;
use sconce_ops::weights::Weight;
use sconce_tensor::Result;
use sconce_tensor::digest::of_file;
use sconce_tensor::rng::Rng;
use sconce_tensor::simd::add_assign;
use sconce_tensor::trace::{self, Kind};
use sconce_train::objective::teacher::{Factor, Lesson, Teacher, digests, named};
use sconce_train::objective::{Companion, Denominators, Figures, Objective, Objectives};
use sconce_train::step::{Stepper, Task};
use sconce_train::weights::WeightTransforms;

use crate::objective::{CardLoss, Clipped};
use crate::options::PpoOptions;
use crate::segment::{Gather, Gathered, Segment, Sequence, frames, sequences};
use crate::side_by_side::side_by_side;

/// The most weights of a policy that is copied. The layers of a larger one share their work among threads.
const SMALL: usize = 1 << 20;
/// The fewest frames of a batch that is cut in two.
const LARGE: usize = 256;

/// A policy that learns from segments.
pub struct Learner {
    /// One, or two with the same weights.
    steppers: Vec<Stepper<'static>>,
    clipped: Clipped,
    /// The loss on the card of the policy, if it is on one.
    card: Option<CardLoss>,
    teacher: Option<Taught>,
    options: PpoOptions,
    /// Whether the policy or a teacher has a memory.
    remembers: bool,
}

/// Policies that the learner follows.
#[derive(Clone)]
pub struct Taught {
    tutors: Vec<Tutor>,
    factor: Factor,
    temperature: f64,
}

/// A policy that the learner follows.
#[derive(Clone)]
pub struct Tutor {
    /// The policy.
    pub policy: Arc<Policy>,
    /// Its name in errors.
    pub name: String,
    /// Digest of its file.
    digest: String,
}

impl Tutor {
    /// A policy, its name in errors, and the digest of its file.
    pub(crate) fn new(policy: Arc<Policy>, name: String, digest: String) -> Self {
        Tutor { policy, name, digest }
    }
}

impl Taught {
    /// The teachers that the options of a run name, if they name some.
    ///
    /// # Errors
    /// Those of reading a policy.
    pub fn of(options: &PpoOptions) -> Result<Option<Self>> {
        let Some(teachers) = &options.weights.teacher else { return Ok(None) };
        let tutor = |path: &PathBuf| {
            let policy = Arc::new(Policy::load(path)?);
            Ok(Tutor::new(policy, named(path), of_file(path)?))
        };
        let tutors = teachers.paths().iter().map(tutor).collect::<Result<_>>()?;
        let factor = Factor::new(options.teacher_weight(0.0));
        Ok(Some(Taught { tutors, factor, temperature: options.weights.teacher_temperature }))
    }

    /// The teachers.
    pub fn tutors(&self) -> &[Tutor] {
        &self.tutors
    }

    /// Digests of their files.
    pub(crate) fn digest(&self) -> Option<String> {
        digests(self.tutors.iter().map(|tutor| tutor.digest.as_str()))
    }

    fn objective(&self, heads: &Heads) -> Result<Teacher> {
        let companion = |Tutor { policy, name, digest }: &Tutor| {
            Ok(Companion::new(policy.copy_on(policy.device())?, name.clone(), digest.clone()))
        };
        let companions = self.tutors.iter().map(companion).collect::<Result<_>>()?;
        let (weight, temperature) = (self.factor.clone(), self.temperature);
        let lesson = Lesson { direction: Direction::Reverse, temperature, weight };
        Teacher::new(companions, heads, lesson)
    }
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
    /// `Mismatch` for heads without a value; `Unavailable` for heads without kernels, on a card.
    pub fn new(policy: &Policy, options: &PpoOptions, teacher: Option<Taught>) -> Result<Self> {
        let clipped = Clipped::new(&policy.spec().heads, options.terms(0.0))?;
        let (pruning, quantisation) = (options.pruning(), options.quantisation());
        let stepper = || {
            let pruned = pruning.map(|own| own.transform(policy.weights(), |_| true));
            let quantised = quantisation.map(|own| own.transform(policy.weights(), |_| true));
            let own = [pruned.transpose()?, quantised.transpose()?];
            let transforms = WeightTransforms::new(own.into_iter().flatten().collect());
            let mut all: Vec<Box<dyn Objective>> = vec![clipped.copy_on(policy.device())?];
            if let Some(teacher) = &teacher {
                all.push(Box::new(teacher.objective(&policy.spec().heads)?));
            }
            Stepper::new(
                policy,
                Objectives::new(all),
                transforms,
                options.adam(),
                options.optimiser.max_grad_norm,
                options.machine.seed,
            )
        };
        let mut remembers = !policy.zero_state(1)?.0.is_empty();
        for tutor in teacher.iter().flat_map(Taught::tutors) {
            remembers |= !tutor.policy.zero_state(1)?.0.is_empty();
        }
        let on_card = policy.device().is_cuda();
        let copies = match on_card {
            true => 1,
            false => Learner::copies_of(policy.num_weights(), options, remembers),
        };
        let card = on_card.then(|| CardLoss::new(&policy.spec().heads, policy.device()));
        let steppers = (0..copies).map(|_| stepper()).collect::<Result<_>>()?;
        let (card, options) = (card.transpose()?, options.clone());
        Ok(Learner { steppers, clipped, card, teacher, options, remembers })
    }

    /// Number of copies of a policy with this many weights that learn side by side on a CPU.
    pub(crate) fn copies_of(num_weights: usize, options: &PpoOptions, remembers: bool) -> usize {
        let cut = num_weights <= SMALL && options.batch_frames(remembers) >= LARGE;
        if cut { 2 } else { 1 }
    }

    /// Number of copies of the policy that learn side by side.
    pub(crate) fn copies(&self) -> usize {
        self.steppers.len()
    }

    /// The policy that learns, its optimiser and its state.
    pub fn stepper(&self) -> &Stepper<'static> {
        &self.steppers[0]
    }

    /// The teachers.
    pub(crate) fn teachers(&self) -> Vec<&Policy> {
        self.teacher.iter().flat_map(Taught::tutors).map(|tutor| &*tutor.policy).collect()
    }

    /// Whether the policy or a teacher has a memory, so that it learns from whole sequences.
    pub fn remembers(&self) -> bool {
        self.remembers
    }

    /// Sets the share of the quantisation in the weights that play and learn.
    pub(crate) fn anneal(&mut self, share: f64) -> Result<()> {
        self.steppers.iter_mut().try_for_each(|stepper| stepper.anneal(share))
    }

    /// Restores the moments of an earlier run after `updates` updates.
    pub fn load_moments(&mut self, updates: u64, moments: &Optimiser) -> Result<()> {
        self.steppers.iter_mut().try_for_each(|stepper| stepper.load_moments(updates, moments))
    }

    /// Learns from segments whose [returns](Segment::estimate) are known. `update` numbers the updates of a run and
    /// chooses the order of frames; `done` is the share of the run that has passed.
    ///
    /// # Errors
    /// `NonFinite` for a loss or a gradient that is not finite.
    pub fn learn(&mut self, segments: &[Segment], update: u64, done: f64) -> Result<Updated> {
        let _span = trace::span(Kind::Step, "learn from a rollout");
        self.clipped.set(self.options.terms(done));
        if let Some(teacher) = &self.teacher {
            teacher.factor.set(self.options.teacher_weight(done));
        }
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
        let policy = self.stepper().policy();
        let teachers = self.teachers().into_iter().map(|teacher| teacher.zero_state(1));
        let teachers = teachers.collect::<Result<Vec<_>>>()?;
        let zero = policy.zero_state(1)?;
        let gather = Gather::new(policy.spec(), segments, &zero, &teachers)?;
        let rate = self.options.learning_rate(done);
        let (epochs, parts) = (self.options.ppo.epochs as u64, self.options.ppo.minibatches);
        let mut updated = Updated { explained_variance: explained(segments), ..Updated::default() };
        'update: for (epoch, order) in orders.enumerate() {
            for (i, part) in cut(&order, parts).enumerate() {
                let draw = (update * epochs + epoch as u64) * parts as u64 + i as u64;
                let figures = self.learn_batch(&gather, part, draw)?;
                if is_far(&self.options, &figures) {
                    self.steppers.iter_mut().for_each(Stepper::forget);
                    updated.stopped = true;
                    break 'update;
                }
                updated.grad_norm += self.step(rate)?;
                updated.figures.add(&figures, 1.0);
                updated.batches += 1;
            }
        }
        let batches = updated.batches.max(1) as f64;
        updated.grad_norm /= batches;
        updated.figures = updated.figures.over(batches);
        Ok(updated)
    }

    /// Computes the gradient of a batch, in every stepper.
    fn learn_batch(
        &mut self,
        gather: &Gather<'_>,
        batch: &[Sequence],
        draw: u64,
    ) -> Result<Figures> {
        let columns = gather.advantages(batch);
        let mut whole = vec![self.clipped.denominators(&columns, None)?];
        if self.teacher.is_some() {
            whole.push(Denominators::of(&columns.weights)?);
        }
        let (parts, mut first) = (cut(batch, self.steppers.len()), 0);
        let parts = parts.zip(&mut self.steppers).map(|(part, stepper)| {
            first += part.len();
            (part, first - part.len(), stepper)
        });
        let learned = side_by_side("a part of a batch", parts, |(part, first, stepper)| {
            let Gathered { batch, state, companions } = gather.batch(part)?;
            let (companions, denominators) = (&companions[..], Some(&whole[..]));
            let task = Task { first, denominators, companions, ..Task::new(&batch, &state, draw) };
            stepper.learn(task)
        })?;
        let mut figures = Figures::default();
        learned.iter().for_each(|learned| figures.add(&learned.figures, 1.0));
        self.share_gradients();
        Ok(figures)
    }

    /// Adds up the gradients of all steppers, for all steppers.
    fn share_gradients(&self) {
        let [first, others @ ..] = &self.steppers[..] else { return };
        for other in others {
            for (sum, own) in values(first).zip(values(other)) {
                own.gradient(|own| sum.accumulate(|sum, _| add_assign(sum, own)));
            }
        }
        for other in others {
            for (sum, own) in values(first).zip(values(other)) {
                sum.gradient(|sum| own.gradient(|own| own.copy_from_slice(sum)));
            }
        }
    }

    /// Updates the weights of every stepper by the same gradient; returns its norm.
    fn step(&mut self, rate: f64) -> Result<f64> {
        let norms = side_by_side("a copy of the weights", &mut self.steppers, |s| s.update(rate))?;
        Ok(norms.first().copied().unwrap_or(0.0))
    }
}

/// Whether the weights have moved so far from those before the update that it must stop.
fn is_far(options: &PpoOptions, figures: &Figures) -> bool {
    let kl = figures.named.get("approx_kl");
    kl.zip(options.ppo.target_kl).is_some_and(|(kl, target)| *kl > 1.5 * target)
}

fn values<'a>(stepper: &'a Stepper<'static>) -> impl Iterator<Item = &'a Weight> {
    stepper.policy().weights().values()
}

/// `order` in `parts` consecutive parts of nearly equal length; none is empty.
fn cut<T>(order: &[T], parts: usize) -> impl Iterator<Item = &[T]> {
    let n = order.len();
    let bounds = move |i: usize| i * n / parts..(i + 1) * n / parts;
    (0..parts).map(move |i| &order[bounds(i)]).filter(|part| !part.is_empty())
}

/// A random order (Fisher and Yates, by Durstenfeld 1964).
fn shuffled<T: Clone>(all: &[T], rng: Rng) -> Vec<T> {
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
