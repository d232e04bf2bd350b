//! A policy that learns on one device, or on several by data parallelism.
//!
//! 1. Each device has a replica with its own weights, moments and states. Replica i of n learns from windows `i b/n ..`
//!    of each batch of b. Dropout and all other random numbers depend on a window's place in the batch.
//! 2. Replicas divide their sums by the [`Denominators`] of the whole batch. So the replicas' figures and gradients add
//!    up to those of one device with the same batch, up to rounding from the order of sums.
//! 3. Replicas work in parallel, each on its own thread, and do not wait for each other within a task. Between two
//!    tasks all of them are done, and a failure of one ends the step of all. Then the thread of the run adds the
//!    replicas' gradients.
//! 4. Each replica runs the same update with the same sum, so that weights stay bit-identical. The first replica is
//!    validated and saved.

mod carried;
mod each;
mod replica;
mod share;

use each::each;
pub(crate) use replica::{Learn, Replica};
use sconce_data::Batch;
use sconce_tensor::device::AllReduce;
use sconce_tensor::{Device, Error, Result};
use share::Share;

use crate::gradients::WeightGradient;
use crate::objective::{Denominators, Figures, Sums};
use crate::source::Loaded;
use crate::states::States;
use crate::step::{StepMetrics, Stepper, Task, add};
use crate::transform::{Moment, Transforms};

/// The same policy on one or more devices.
pub(crate) struct Replicas<'s> {
    all: Vec<Replica<'s>>,
    sum: Option<Box<dyn AllReduce>>,
    transforms: Transforms,
    learn: Learn,
    /// Whether an update succeeded on some replicas and failed on others.
    torn: bool,
}

impl<'s> Replicas<'s> {
    /// Groups these replicas. `sum` adds their gradients if there are several replicas.
    pub(crate) fn new(
        all: Vec<Replica<'s>>,
        sum: Option<Box<dyn AllReduce>>,
        transforms: Transforms,
    ) -> Self {
        let learn: Learn = Box::new(|stepper, task| stepper.learn(task));
        Replicas { all, sum, transforms, learn, torn: false }
    }

    /// Replaces [`Stepper::learn`], for tests.
    #[cfg(test)]
    pub(crate) fn learning(self, learn: Learn) -> Self {
        Replicas { learn, ..self }
    }

    /// The learner of the first replica, which is validated and saved.
    pub(crate) fn stepper(&self) -> &Stepper<'s> {
        &self.all[0].stepper
    }

    /// Number of replicas.
    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// Whether the replicas' weights differ, so that they must not be saved.
    pub(crate) fn torn(&self) -> bool {
        self.torn
    }

    /// Adds the gradient of a batch, weighted by the batch's mean weight, or by 1 if the batch is `alone` in an update.
    /// Returns the batch's figures and that weight.
    pub(crate) fn learn(
        &mut self,
        loaded: Loaded,
        update: u64,
        draw: u64,
        alone: bool,
    ) -> Result<(Figures, f64)> {
        let counts = if alone { 1.0 } else { loaded.batch.mean_weight() };
        let at = Moment { update, draw, first: 0, windows: loaded.batch.frames.batch };
        self.learn_shares(Share::all(loaded, self.count()), at, counts)
    }

    /// Runs [`learn`](Self::learn) for a batch alone in an update. Returns `None` if the whole update was launched
    /// [at once](Stepper::begin): the figures are then among the [`results`](Self::results).
    pub(crate) fn learn_at_once(
        &mut self,
        loaded: Loaded,
        update: u64,
        draw: u64,
        learning_rate: f64,
    ) -> Result<Option<(Figures, f64)>> {
        let at = Moment { update, draw, first: 0, windows: loaded.batch.frames.batch };
        let mut shares = Share::all(loaded, self.count());
        if let ([replica], [share]) = (&mut self.all[..], &mut shares[..]) {
            replica.begin(share, &self.transforms, at)?;
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
    ) -> Result<(Figures, f64)> {
        let denominators = self.denominators(&mut shares, at)?;
        let (learn, transforms) = (&self.learn, &self.transforms);
        let learned = each(&mut self.all, &mut shares, |replica, share| {
            replica.begin(share, transforms, at)?;
            replica.learn(learn, share, at.draw, counts, denominators.as_deref())
        });
        let mut figures = Figures::default();
        for part in learned.into_iter().collect::<Result<Vec<_>>>()? {
            figures.add(&part, 1.0);
        }
        Ok((figures, counts))
    }

    /// The figures of updates launched at once since the last call.
    pub(crate) fn results(&mut self) -> Result<Vec<Result<StepMetrics>>> {
        self.all[0].stepper.results()
    }

    pub(crate) fn devices(&self) -> impl Iterator<Item = &Device> {
        self.all.iter().map(|replica| replica.stepper.policy().device())
    }

    /// Denominators of a batch that several replicas share. `None` for a single replica, which sees the whole batch,
    /// and for a batch whose frames all have weight 0.
    fn denominators(
        &mut self,
        shares: &mut [Share],
        at: Moment,
    ) -> Result<Option<Vec<Denominators>>> {
        let counts = |share: &Share| share.batch.weights.iter().any(|weight| *weight != 0.0);
        if self.count() == 1 || !shares.iter().any(counts) {
            return Ok(None);
        }
        let mut first = None::<Vec<Sums>>;
        if self.stepper().objectives().two_passes() {
            let transforms = &self.transforms;
            let sums = each(&mut self.all, shares, |replica, share| {
                replica.begin(share, transforms, at)?;
                let task = Task::new(&share.batch, &share.states()?.learner, at.draw);
                replica.stepper.first_pass(Task { first: share.first, ..task })
            });
            for sums in sums {
                match &mut first {
                    Some(first) => add(first, &sums?),
                    None => first = Some(sums?),
                }
            }
        }
        let whole = Batch::columns(shares.iter().map(|share| &share.batch));
        self.stepper().objectives().denominators(&whole, first.as_deref()).map(Some)
    }

    /// Sum of frame weights accumulated since the last update.
    pub(crate) fn learned(&self) -> f64 {
        self.stepper().learned()
    }

    /// Sets the share of the weight transforms that anneal, on all replicas.
    pub(crate) fn anneal(&mut self, share: f64) -> Result<()> {
        self.all.iter_mut().try_for_each(|replica| replica.stepper.anneal(share))
    }

    /// Drops all gradients: the next batch is the first of an update.
    pub(crate) fn forget(&mut self) {
        self.all.iter_mut().for_each(|replica| replica.stepper.forget());
    }

    pub(crate) fn set_micro_batch(&mut self, windows: usize) {
        self.all.iter_mut().for_each(|replica| replica.stepper.set_micro_batch(windows));
    }

    /// Updates all replicas by the sum of their gradients. Returns the norm of the mean gradient and, with `looks`, the
    /// first replica's statistics of each weight.
    pub(crate) fn update(
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

    /// Replaces the gradients of each replica by their sum.
    fn add_up(&mut self) -> Result<()> {
        let Some(sum) = self.sum.as_ref().filter(|_| self.all[0].stepper.learned() > 0.0) else {
            return Ok(());
        };
        let mut none = vec![(); self.all.len()];
        let parts = each(&mut self.all, &mut none, |replica, ()| replica.gradient());
        let sums = sum.sum(&parts.into_iter().collect::<Result<Vec<_>>>()?)?;
        self.all.iter().zip(&sums).try_for_each(|(replica, sum)| replica.set_gradient(sum))
    }

    /// Compares the weights of all replicas.
    ///
    /// # Errors
    /// `Mismatch` if the weights of two replicas differ.
    pub(crate) fn check(&mut self) -> Result<()> {
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

    /// States of the tracks of all replicas, for [`carry`](Self::carry) to restore.
    pub(crate) fn carried(&self) -> Vec<Option<States>> {
        self.all.iter().map(|replica| replica.carried.clone()).collect()
    }

    pub(crate) fn carry(&mut self, before: Vec<Option<States>>) {
        for (replica, before) in self.all.iter_mut().zip(before) {
            replica.carried = before;
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
