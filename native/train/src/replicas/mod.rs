//! A policy that learns on one device or on several: there by data parallelism.
//!
//! 1. Each device has a replica, which is weights, moments and states of its own, and learns from windows
//!    `i b/n ..` of each batch of b. Dropout and all else that is drawn belongs to a window's place in the batch.
//! 2. Replicas weigh what they learn by the [`Denominators`] of the whole batch. So their figures and gradients add
//!    up to those of one device with the same batch, up to the order of sums.
//! 3. They work side by side, each on a thread of its own, and none waits for another: between two pieces of
//!    work all of them are done, and what one of them could not do ends the step for all. Then their gradients
//!    are added, by the one thread of the run.
//! 4. Each makes the same update by the same sum, so that weights stay the same to the bit. The first replica
//!    is the one that is measured and saved.

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
    /// Whether an update was made by some and not by others.
    torn: bool,
}

impl<'s> Replicas<'s> {
    /// Those of devices whose gradients `sum` adds up, if they are several.
    pub(crate) fn new(
        all: Vec<Replica<'s>>,
        sum: Option<Box<dyn AllReduce>>,
        transforms: Transforms,
    ) -> Self {
        let learn: Learn = Box::new(|stepper, task| stepper.learn(task));
        Replicas { all, sum, transforms, learn, torn: false }
    }

    /// Learns in another way than [`Stepper::learn`].
    #[cfg(test)]
    pub(crate) fn learning(self, learn: Learn) -> Self {
        Replicas { learn, ..self }
    }

    /// The one that is measured and saved.
    pub(crate) fn stepper(&self) -> &Stepper<'s> {
        &self.all[0].stepper
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// Whether they are no longer one policy, so that nothing is to be kept of them.
    pub(crate) fn torn(&self) -> bool {
        self.torn
    }

    /// Adds the gradient of a batch, which counts for its mean weight, or for 1 where it is `alone`: its figures,
    /// and what it counts for.
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

    /// As [`learn`](Self::learn) of a batch alone, or nothing where the whole update was made
    /// [at once](Stepper::begin), at a learning rate: then its figures are among the [`results`](Self::results).
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

    /// The figures of the updates that were made at once since they were asked for last.
    pub(crate) fn results(&mut self) -> Result<Vec<Result<StepMetrics>>> {
        self.all[0].stepper.results()
    }

    pub(crate) fn devices(&self) -> impl Iterator<Item = &Device> {
        self.all.iter().map(|replica| replica.stepper.policy().device())
    }

    /// Those of a batch that several have a share of; one sees the whole batch itself. Of a batch that does not
    /// count at all there are none.
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

    /// How much of what was learned waits for an update.
    pub(crate) fn learned(&self) -> f64 {
        self.stepper().learned()
    }

    /// The next batch is the first of an update.
    pub(crate) fn forget(&mut self) {
        self.all.iter_mut().for_each(|replica| replica.stepper.forget());
    }

    pub(crate) fn set_micro_batch(&mut self, windows: usize) {
        self.all.iter_mut().for_each(|replica| replica.stepper.set_micro_batch(windows));
    }

    /// Updates all by what they learned together: the norm of that, and what the first saw of it where it `looks`.
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

    /// Where the tracks of all are, to [go back](Self::carry) to.
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
