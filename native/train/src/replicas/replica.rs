//! A replica: the learner of one device.

use sconce_ops::weights::Weights;
use sconce_tensor::digest::sha256;
use sconce_tensor::{Result, Tensor, tensor};

use super::share::Share;
use crate::gradients::WeightGradient;
use crate::objective::{Denominators, Figures};
use crate::states::States;
use crate::step::{Learned, Stepper, Task};
use crate::transform::{Moment, Transforms};

/// A function that replaces [`Stepper::learn`].
pub(crate) type Learn = Box<dyn Fn(&mut Stepper<'_>, Task<'_>) -> Result<Learned> + Send + Sync>;

/// The learner of one device, and the states of its tracks.
pub(crate) struct Replica<'s> {
    pub(super) stepper: Stepper<'s>,
    /// States of the replica's tracks after the last batch.
    pub(super) carried: Option<States>,
}

impl<'s> Replica<'s> {
    pub(crate) fn new(stepper: Stepper<'s>) -> Self {
        Replica { stepper, carried: None }
    }

    pub(super) fn weights(&self) -> &Weights {
        self.stepper.policy().weights()
    }

    pub(super) fn zero(&self, windows: usize) -> Result<States> {
        States::zero(self.stepper.policy(), self.stepper.objectives(), windows)
    }

    /// Finds the states before the windows of a share, and applies the transforms to the share's batch.
    pub(super) fn begin(
        &self,
        share: &mut Share,
        transforms: &Transforms,
        at: Moment,
    ) -> Result<()> {
        if share.states.is_some() {
            return Ok(());
        }
        let zero = self.zero(share.batch.frames.batch)?;
        let states = match &self.carried {
            Some(carried) if !share.fresh.is_empty() => carried.renewed(&zero, &share.fresh)?,
            _ => zero,
        };
        let at = Moment { first: share.first, ..at };
        transforms.apply(&mut share.batch, &self.stepper, &states.learner, at)?;
        share.states = Some(states);
        Ok(())
    }

    /// Launches the whole update of a batch at once, if that is possible. Returns whether it was launched.
    pub(super) fn begin_update(
        &mut self,
        share: &Share,
        draw: u64,
        learning_rate: f64,
    ) -> Result<bool> {
        let Replica { stepper, carried } = self;
        let (batch, states) = (&share.batch, share.states()?);
        if !stepper.records(batch) {
            return Ok(false);
        }
        if let Some(learner) = stepper.begin(batch, &states.learner, draw, learning_rate)? {
            *carried = Some(States { learner, companions: vec![] });
        }
        Ok(true)
    }

    pub(super) fn learn(
        &mut self,
        learn: &Learn,
        share: &Share,
        draw: u64,
        counts: f64,
        denominators: Option<&[Denominators]>,
    ) -> Result<Figures> {
        let Replica { stepper, carried } = self;
        let states = share.states()?;
        let task = Task {
            share: counts,
            companions: &states.companions,
            first: share.first,
            denominators,
            ..Task::new(&share.batch, &states.learner, draw)
        };
        let learned = learn(stepper, task)?;
        if let Some(states) = learned.states {
            *carried = Some(states.hand_on()?);
        }
        Ok(learned.figures)
    }

    /// Updates the weights. Returns the norm and, with `looks`, the statistics of [`Stepper::update_observed`].
    pub(super) fn update(
        &mut self,
        learning_rate: f64,
        looks: bool,
    ) -> Result<(f64, Vec<WeightGradient>)> {
        match looks {
            true => self.stepper.update_observed(learning_rate),
            false => Ok((self.stepper.update(learning_rate)?, vec![])),
        }
    }

    /// The gradients of all learning weights, concatenated, on their device.
    pub(super) fn gradient(&self) -> Result<Tensor> {
        let all = self.stepper.learning().values().map(|weight| weight.flat_gradient());
        Ok(Tensor::cat(&all.collect::<Result<Vec<_>>>()?, 0)?)
    }

    /// Replaces the gradients of all learning weights by slices of `all`, as [`gradient`](Self::gradient) concatenates
    /// them.
    pub(super) fn set_gradient(&self, all: &Tensor) -> Result<()> {
        let mut from = 0;
        for weight in self.stepper.learning().values() {
            let count = weight.elem_count();
            weight.set_gradient(&all.narrow(0, from, count)?)?;
            from += count;
        }
        Ok(())
    }

    pub(super) fn digest(&self) -> Result<String> {
        let bytes = |weight: &Tensor| -> Result<Vec<u8>> {
            Ok(tensor::to_vec(weight)?.into_iter().flat_map(f32::to_le_bytes).collect())
        };
        let all = self.weights().values().map(|weight| bytes(weight));
        Ok(sha256(all.collect::<Result<Vec<_>>>()?))
    }
}
