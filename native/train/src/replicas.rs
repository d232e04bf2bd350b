//! A policy that learns on one device or on several: there by data parallelism.
//!
//! 1. Each device has a replica, which is weights, moments and states of its own, and learns from windows
//!    `i b/n ..` of each batch of b. Dropout and all else that is drawn belongs to a window's place in the batch.
//! 2. Replicas weigh what they learn by the [`Denominators`] of the whole batch. So their losses and gradients add
//!    up to those of one device with the same batch, up to the order of sums.
//! 3. They work side by side, each on a thread of its own, and none waits for another: between two pieces of
//!    work all of them are done, and what one of them could not do ends the step for all. Then their gradients
//!    are added, by the one thread of the run.
//! 4. Each makes the same update by the same sum, so that weights stay the same to the bit. The first replica
//!    is the one that is measured and saved.

use std::io;
use std::ops::Range;
use std::thread::{self, ScopedJoinHandle};

use candle_core::{Device, Tensor};
use sconce_core::backbone::State;
use sconce_core::checkpoint::Optimiser;
use sconce_core::device::{self, AllReduce};
use sconce_core::digest::sha256;
use sconce_core::ops::tensor;
use sconce_core::policy::{Frames, part};
use sconce_core::pool::Class;
use sconce_core::weights::Weights;
use sconce_core::{Error, Result};

use crate::eval;
use crate::gradients::WeightGradient;
use crate::lesson::{Lesson, States};
use crate::loss::{Denominators, Sums};
use crate::scheduled::{Moment, Reading, Scheduled};
use crate::source::Loaded;
use crate::step::{Among, Examples, Learned, Losses, StepMetrics, Stepper, mean_weight};
use crate::teacher::Teacher;

/// Stepper, examples, state before them, draw, share, lesson and place: what [`Stepper::learn_among`] gives.
pub type Learn = Box<
    dyn Fn(
            &mut Stepper<'_>,
            Examples<'_>,
            &State,
            u64,
            f64,
            Option<Lesson<'_>>,
            Option<Among<'_>>,
        ) -> Result<Learned>
        + Send
        + Sync,
>;

/// The same policy on one or more devices.
pub struct Replicas<'s> {
    all: Vec<Replica<'s>>,
    sum: Option<Box<dyn AllReduce>>,
    scheduled: Option<Scheduled>,
    /// Adds the gradient of examples, as [`Stepper::learn_among`] does.
    learn: Learn,
    /// Whether an update was made by some and not by others.
    torn: bool,
}

/// All that learns on one device.
pub struct Replica<'s> {
    stepper: Stepper<'s>,
    teacher: Option<Teacher>,
    /// Where its lanes are after the last batch.
    carried: Option<States>,
}

/// What a replica has of a batch.
struct Share {
    /// Its first window.
    first: usize,
    frames: Frames,
    /// As the teacher reads them, if it does so in another way.
    seen: Option<Frames>,
    labels: Vec<u16>,
    weights: Vec<f32>,
    fresh: Vec<bool>,
    /// Before the windows, once a replica has begun with them.
    states: Option<States>,
}

impl<'s> Replica<'s> {
    pub fn new(stepper: Stepper<'s>, teacher: Option<Teacher>) -> Self {
        Replica { stepper, teacher, carried: None }
    }

    fn weights(&self) -> &Weights {
        self.stepper.policy().weights()
    }

    fn zero(&self, windows: usize) -> Result<States> {
        States::zero(self.stepper.policy(), self.teacher.as_ref(), windows)
    }

    /// Finds the states before its windows, and puts inputs of its own in the place of recorded ones.
    fn begin(&self, share: &mut Share, scheduled: Option<&Scheduled>, at: Moment) -> Result<()> {
        if share.states.is_some() {
            return Ok(());
        }
        let zero = self.zero(share.frames.batch)?;
        let states = match &self.carried {
            Some(carried) if !share.fresh.is_empty() => carried.renewed(&zero, &share.fresh)?,
            _ => zero,
        };
        if let Some(scheduled) = scheduled {
            let reading = Reading::of(self.teacher.as_ref(), share.seen.as_mut());
            let (at, frames) = (Moment { first: share.first, ..at }, &mut share.frames);
            scheduled.replace(&self.stepper, frames, reading, &states.learner, at)?;
        }
        share.states = Some(states);
        Ok(())
    }

    /// Begins the whole update of a batch, if it can be made at once: whether it was.
    fn begin_update(&mut self, share: &Share, draw: u64, learning_rate: f64) -> Result<bool> {
        let Replica { stepper, teacher, carried } = self;
        let (x, states) = (share.examples(), share.states()?);
        if teacher.is_some() || !stepper.records(x) {
            return Ok(false);
        }
        if let Some(learner) = stepper.begin(x, &states.learner, draw, learning_rate)? {
            *carried = Some(States { learner, teacher: None });
        }
        Ok(true)
    }

    fn learn(
        &mut self,
        learn: &Learn,
        share: &Share,
        draw: u64,
        counts: f64,
        denominators: Option<&Denominators>,
    ) -> Result<Losses> {
        let Replica { stepper, teacher, carried } = self;
        let states = share.states()?;
        let lesson = Lesson::of(teacher.as_ref(), &share.frames, share.seen.as_ref(), states);
        let among = denominators.map(|denominators| Among { first: share.first, denominators });
        let x = share.examples();
        let (losses, learner, teacher) =
            learn(stepper, x, &states.learner, draw, counts, lesson, among)?;
        if let Some(learner) = learner {
            *carried = Some(States { learner, teacher }.hand_on()?);
        }
        Ok(losses)
    }

    /// Norm and looks of an update, see [`Stepper::update_observed`].
    fn update(&mut self, learning_rate: f64, looks: bool) -> Result<(f64, Vec<WeightGradient>)> {
        match looks {
            true => self.stepper.update_observed(learning_rate),
            false => Ok((self.stepper.update(learning_rate)?, vec![])),
        }
    }

    /// The gradients of all weights, one after the other: `[num_weights]`, beside them.
    fn gradient(&self) -> Result<Tensor> {
        let all = self.weights().values().map(|weight| weight.flat_gradient());
        Ok(Tensor::cat(&all.collect::<Result<Vec<_>>>()?, 0)?)
    }

    /// The reverse of [`gradient`](Self::gradient).
    fn set_gradient(&self, all: &Tensor) -> Result<()> {
        let mut from = 0;
        for weight in self.weights().values() {
            let count = weight.elem_count();
            weight.set_gradient(&all.narrow(0, from, count)?)?;
            from += count;
        }
        Ok(())
    }

    fn digest(&self) -> Result<String> {
        let bytes = |weight: &Tensor| -> Result<Vec<u8>> {
            Ok(tensor::to_vec(weight)?.into_iter().flat_map(f32::to_le_bytes).collect())
        };
        let all = self.weights().values().map(|weight| bytes(weight));
        Ok(sha256(all.collect::<Result<Vec<_>>>()?))
    }
}

impl Share {
    /// A batch in as many parts of as many windows each.
    fn all(loaded: Loaded, parts: usize) -> Vec<Share> {
        let Loaded { mut batch, mut seen, fresh, .. } = loaded;
        let whole = Share {
            first: 0,
            frames: eval::frames(&mut batch),
            seen: seen.as_mut().map(eval::frames),
            labels: batch.labels,
            weights: batch.weights,
            fresh,
            states: None,
        };
        if parts == 1 {
            return vec![whole];
        }
        let each = whole.frames.batch / parts;
        (0..parts).map(|i| whole.part(i * each..(i + 1) * each)).collect()
    }

    fn part(&self, rows: Range<usize>) -> Share {
        let (shape, all) = ([self.frames.batch, self.frames.time], 0..self.frames.time);
        Share {
            first: rows.start,
            frames: self.frames.part(&rows, &all),
            seen: self.seen.as_ref().map(|seen| seen.part(&rows, &all)),
            labels: part(&self.labels, shape, &rows, &all),
            weights: part(&self.weights, shape, &rows, &all),
            fresh: self.fresh.get(rows).unwrap_or_default().to_vec(),
            states: None,
        }
    }

    fn examples(&self) -> Examples<'_> {
        Examples { frames: &self.frames, labels: &self.labels, weights: &self.weights }
    }

    fn states(&self) -> Result<&States> {
        self.states.as_ref().ok_or_else(|| Error::not_found("states before a batch"))
    }
}

impl<'s> Replicas<'s> {
    /// Those of devices whose gradients `sum` adds up, if they are several.
    pub fn new(
        all: Vec<Replica<'s>>,
        sum: Option<Box<dyn AllReduce>>,
        scheduled: Option<Scheduled>,
    ) -> Self {
        let learn: Learn = Box::new(|stepper, x, state, draw, share, lesson, among| {
            stepper.learn_among(x, state, draw, share, lesson, among)
        });
        Replicas { all, sum, scheduled, learn, torn: false }
    }

    /// Learns in another way than [`Stepper::learn_among`].
    #[cfg(test)]
    pub fn learning(self, learn: Learn) -> Self {
        Replicas { learn, ..self }
    }

    /// The one that is measured and saved.
    pub fn stepper(&self) -> &Stepper<'s> {
        &self.all[0].stepper
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// Whether they are no longer one policy, so that nothing is to be kept of them.
    pub fn torn(&self) -> bool {
        self.torn
    }

    /// Adds the gradient of a batch, which counts for its mean weight, or for 1 where it is `alone`: its losses,
    /// and what it counts for.
    pub fn learn(
        &mut self,
        loaded: Loaded,
        update: u64,
        draw: u64,
        alone: bool,
    ) -> Result<(Losses, f64)> {
        let counts = if alone { 1.0 } else { mean_weight(&loaded.batch.weights) };
        let at = Moment { update, draw, first: 0, windows: loaded.batch.batch };
        let shares = Share::all(loaded, self.count());
        self.learn_shares(shares, at, counts)
    }

    /// As [`learn`](Self::learn) of a batch alone, or nothing where the whole update was made
    /// [at once](Stepper::begin), at a learning rate: then its losses are among the [`results`](Self::results).
    pub fn learn_at_once(
        &mut self,
        loaded: Loaded,
        update: u64,
        draw: u64,
        learning_rate: f64,
    ) -> Result<Option<(Losses, f64)>> {
        let at = Moment { update, draw, first: 0, windows: loaded.batch.batch };
        let mut shares = Share::all(loaded, self.count());
        if let ([replica], [share]) = (&mut self.all[..], &mut shares[..]) {
            replica.begin(share, self.scheduled.as_ref(), at)?;
            if replica.begin_update(share, draw, learning_rate)? {
                return Ok(None);
            }
        }
        self.learn_shares(shares, at, 1.0).map(Some)
    }

    fn learn_shares(
        &mut self,
        mut shares: Vec<Share>,
        at: Moment,
        counts: f64,
    ) -> Result<(Losses, f64)> {
        let denominators = self.denominators(&mut shares, at)?;
        let (learn, scheduled) = (&self.learn, self.scheduled.as_ref());
        let learned = each(&mut self.all, &mut shares, |replica, share| {
            replica.begin(share, scheduled, at)?;
            replica.learn(learn, share, at.draw, counts, denominators.as_ref())
        });
        let mut losses = Losses::default();
        for part in learned.into_iter().collect::<Result<Vec<_>>>()? {
            losses.add(&part, 1.0);
        }
        Ok((losses, counts))
    }

    /// The figures of the updates that were made at once since they were asked for last.
    pub fn results(&mut self) -> Result<Vec<Result<StepMetrics>>> {
        self.all[0].stepper.results()
    }

    pub fn devices(&self) -> impl Iterator<Item = &Device> {
        self.all.iter().map(|replica| replica.stepper.policy().device())
    }

    /// Those of a batch that several have a share of; one sees the whole batch itself. Of a batch that does not
    /// count at all there are none.
    fn denominators(&mut self, shares: &mut [Share], at: Moment) -> Result<Option<Denominators>> {
        let weights = shares.iter().flat_map(|share| &share.weights).copied().collect::<Vec<_>>();
        if self.count() == 1 || weights.iter().all(|weight| *weight == 0.0) {
            return Ok(None);
        }
        let objective = self.stepper().objective().clone();
        let mut heads = None::<Sums>;
        if objective.normalises() {
            let scheduled = self.scheduled.as_ref();
            let sums = each(&mut self.all, shares, |replica, share| {
                replica.begin(share, scheduled, at)?;
                let state = &share.states()?.learner;
                replica.stepper.head_sums(share.examples(), state, at.draw, share.first)
            });
            for sums in sums {
                match &mut heads {
                    Some(heads) => heads.add(&sums?),
                    None => heads = Some(sums?),
                }
            }
        }
        objective.denominators(weights.len(), Some(&weights), heads.as_ref()).map(Some)
    }

    /// How much of what was learned waits for an update.
    pub fn learned(&self) -> f64 {
        self.stepper().learned()
    }

    /// The next batch is the first of an update.
    pub fn forget(&mut self) {
        self.all.iter_mut().for_each(|replica| replica.stepper.forget());
    }

    pub fn set_micro_batch(&mut self, windows: usize) {
        self.all.iter_mut().for_each(|replica| replica.stepper.set_micro_batch(windows));
    }

    /// Updates all by what they learned together: the norm of that, and what the first saw of it where it `looks`.
    pub fn update(
        &mut self,
        learning_rate: f64,
        looks: bool,
    ) -> Result<(f64, Vec<WeightGradient>)> {
        self.add_up()?;
        let mut looks: Vec<bool> = (0..self.count()).map(|i| looks && i == 0).collect();
        let updated =
            each(&mut self.all, &mut looks, |replica, looks| replica.update(learning_rate, *looks));
        self.torn |= updated.iter().any(Result::is_ok) && updated.iter().any(Result::is_err);
        let mut updated = updated.into_iter().collect::<Result<Vec<_>>>()?;
        Ok(updated.swap_remove(0))
    }

    /// Gives all of them the sum of their gradients.
    fn add_up(&mut self) -> Result<()> {
        let Some(sum) = self.sum.as_ref().filter(|_| self.all[0].stepper.learned() > 0.0) else {
            return Ok(());
        };
        let mut none = vec![(); self.all.len()];
        let parts = each(&mut self.all, &mut none, |replica, ()| replica.gradient());
        let sums = sum.sum(&parts.into_iter().collect::<Result<Vec<_>>>()?)?;
        self.all.iter().zip(&sums).try_for_each(|(replica, sum)| replica.set_gradient(sum))
    }

    /// # Errors
    /// `Mismatch` if weights are no longer the same in all.
    pub fn check(&mut self) -> Result<()> {
        if self.count() == 1 {
            return Ok(());
        }
        let mut none = vec![(); self.count()];
        let digests = each(&mut self.all, &mut none, |replica, ()| replica.digest());
        let digests = digests.into_iter().collect::<Result<Vec<_>>>()?;
        let Some(other) = digests.iter().position(|digest| *digest != digests[0]) else {
            return Ok(());
        };
        self.torn = true;
        let device = |i: usize| format!("device {i} of the run");
        Err(Error::mismatch(
            format!("weights on {}", device(other)),
            format!("those on {}", device(0)),
            "others",
        ))
    }

    /// Where the lanes of all are, to [go back](Self::carry) to.
    pub fn carried(&self) -> Vec<Option<States>> {
        self.all.iter().map(|replica| replica.carried.clone()).collect()
    }

    pub fn carry(&mut self, before: Vec<Option<States>>) {
        for (replica, before) in self.all.iter_mut().zip(before) {
            replica.carried = before;
        }
    }

    /// Adds what a resumed run has to know of the lanes: the states come from weights that are no more.
    pub fn save(&self, numbers: &mut Optimiser) -> Result<()> {
        let carried = self.all.iter().filter_map(|replica| replica.carried.as_ref());
        let teachers = carried.clone().filter_map(|states| states.teacher.as_ref());
        let learners = carried.map(|states| &states.learner);
        save(numbers, LEARNER, learners)?;
        save(numbers, TEACHER, teachers)
    }

    /// Goes on where lanes of so many windows were [saved](Self::save).
    pub fn load(&mut self, numbers: &Optimiser, windows: usize) -> Result<()> {
        let zero = self.all[0].zero(windows)?;
        let each = windows / self.count();
        let learner = saved(numbers, LEARNER, zero.learner)?;
        let teacher = zero.teacher.map(|zero| saved(numbers, TEACHER, zero)).transpose()?;
        for (i, replica) in self.all.iter_mut().enumerate() {
            let rows = i * each..(i + 1) * each;
            let zero = replica.zero(each)?;
            let own = |all: &State, zero: &State| zero.with_values(&all.rows(&rows)?.to_vec()?);
            let teacher = teacher.as_ref().zip(zero.teacher.as_ref());
            let teacher = teacher.map(|(all, zero)| own(all, zero)).transpose()?;
            replica.carried = Some(States { learner: own(&learner, &zero.learner)?, teacher });
        }
        Ok(())
    }
}

/// Names of the lanes' states beside the moments.
const LEARNER: &str = "carried";
const TEACHER: &str = "carried.teacher";

fn save<'a>(
    numbers: &mut Optimiser,
    name: &str,
    parts: impl Iterator<Item = &'a State>,
) -> Result<()> {
    let here = parts.map(|part| {
        let part = part.0.iter().map(|part| part.contiguous()?.to_device(&Device::Cpu));
        Ok(State(part.collect::<candle_core::Result<_>>()?))
    });
    let all = State::joined(&here.collect::<Result<Vec<_>>>()?)?;
    if !all.0.is_empty() {
        numbers.insert(name.into(), all.to_vec()?);
    }
    Ok(())
}

/// A state of the shapes of `zero`.
fn saved(numbers: &Optimiser, name: &str, zero: State) -> Result<State> {
    match numbers.get(name) {
        Some(saved) => zero.with_values(saved),
        None if zero.0.is_empty() => Ok(zero),
        None => Err(Error::not_found("states of the lanes")),
    }
}

/// A graph is walked and dropped recursively.
const STACK_BYTES: usize = 64 << 20;

/// What `work` gives of each replica and what is its own, side by side, in their order. All are done when it
/// returns.
fn each<T: Send, U: Send>(
    all: &mut [Replica],
    own: &mut [U],
    work: impl Fn(&mut Replica, &mut U) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    let work = &|replica: &mut Replica, own: &mut U| {
        device::attach(replica.stepper.policy().device());
        work(replica, own)
    };
    thread::scope(|scope| {
        let mut pairs = all.iter_mut().zip(own);
        let first = pairs.next();
        let others: Vec<_> = pairs
            .map(|(replica, own)| {
                let thread = thread::Builder::new().stack_size(STACK_BYTES);
                thread.spawn_scoped(scope, Class::inherit(move || work(replica, own)))
            })
            .collect();
        let first = first.map(|(replica, own)| work(replica, own));
        first.into_iter().chain(others.into_iter().map(outcome)).collect()
    })
}

fn outcome<T>(thread: io::Result<ScopedJoinHandle<'_, Result<T>>>) -> Result<T> {
    let thread = thread
        .map_err(|e| Error::Unavailable { what: "a thread".into(), reason: e.to_string() })?;
    thread.join().unwrap_or_else(|payload| Err(Error::of_panic(payload)))
}

#[cfg(test)]
pub(crate) mod tests;
