//! Weights as they are learned, beside the ones that forward passes read.

use std::collections::BTreeMap;

use sconce_nn::checkpoint::Optimiser;
use sconce_ops::weights::{Weight, Weights};
use sconce_tensor::{Error, Result, Tensor};

use super::steps::Steps;
use super::{WHOLE, WeightTransforms};

/// Master weights: transformed weights as they are learned.
#[derive(Default)]
pub(crate) struct Masters {
    learned: BTreeMap<String, Tensor>,
    /// Steps of their grids that are learned too. As long as the share is 0 they are those with which the weights would
    /// begin to move to their grid.
    steps: Steps,
    /// Share of the transforms that anneal in what forward passes read.
    share: f64,
}

impl Masters {
    /// Copies the `learning` weights that are transformed, and replaces them by their transformed values.
    pub(crate) fn new(learning: &Weights, transforms: &WeightTransforms) -> Result<Self> {
        let mut own = BTreeMap::new();
        for (name, weight) in learning {
            if transforms.covering(name).next().is_some() {
                own.insert(name.clone(), weight.copy()?.detach());
            }
        }
        let steps = Steps::first(&own, transforms)?;
        let masters = Masters { learned: own, steps, share: WHOLE };
        masters.show(learning, transforms)?;
        Ok(masters)
    }

    /// Whether no weight is transformed.
    pub(crate) fn is_empty(&self) -> bool {
        self.learned.is_empty()
    }

    /// The learned values, by name.
    pub(crate) fn learned(&self) -> &BTreeMap<String, Tensor> {
        &self.learned
    }

    /// The learned steps of a weight; `None` for a weight without such steps.
    pub(crate) fn steps_of(&self, name: &str) -> Result<Option<Vec<f32>>> {
        self.steps.of(name)
    }

    /// The learned steps as parameters of the optimiser.
    pub(crate) fn steps(&self) -> Weights {
        self.steps.parameters()
    }

    /// Adds what is learned beside the weights to a saved state.
    pub(crate) fn save(&self, state: &mut Optimiser) -> Result<()> {
        self.steps.save(state)
    }

    /// Restores what [`save`](Self::save) added to a state.
    pub(crate) fn load(
        &self,
        state: &Optimiser,
        learning: &Weights,
        transforms: &WeightTransforms,
    ) -> Result<()> {
        self.steps.load(state)?;
        self.show(learning, transforms)
    }

    /// The share of the transforms that anneal.
    pub(crate) fn share(&self) -> f64 {
        self.share
    }

    /// The weights of a policy; transformed weights are replaced by their learned values.
    pub(crate) fn over(&self, weights: &Weights) -> Weights {
        let own = self.learned.iter().map(|(name, weight)| (name.clone(), weight.clone().into()));
        let mut weights = weights.clone();
        weights.extend(own);
        weights
    }

    /// Changes the share of the transforms that anneal.
    pub(crate) fn anneal(
        &mut self,
        learning: &Weights,
        transforms: &WeightTransforms,
        share: f64,
    ) -> Result<()> {
        if share == self.share {
            return Ok(());
        }
        self.share = share;
        self.show(learning, transforms)
    }

    /// Before an update: restores the learned values of transformed weights, with the gradients at these values.
    pub(crate) fn reveal(&self, learning: &Weights, transforms: &WeightTransforms) -> Result<()> {
        for (weight, (name, own)) in self.among(learning) {
            let shown = weight.flat_gradient()?.reshape(own.dims())?;
            let steps = self.steps.of(name)?;
            let steps = steps.as_deref();
            let (gradient, of_steps) = transforms.backward(name, own, steps, shown, self.share)?;
            self.steps.set_gradient(name, of_steps)?;
            weight.set_gradient(&gradient.flatten_all()?)?;
            weight.slice_set(own, 0, 0)?;
        }
        Ok(())
    }

    /// After an update: keeps the learned values, and replaces the weights by their transformed values.
    pub(crate) fn take(&self, learning: &Weights, transforms: &WeightTransforms) -> Result<()> {
        for (weight, (_, own)) in self.among(learning) {
            own.slice_set(&weight.detach(), 0, 0)?;
        }
        if self.share <= 0.0 {
            self.steps.renew(&self.learned, transforms)?;
        }
        self.show(learning, transforms)
    }

    /// Replaces the weights by their transformed values.
    pub(crate) fn show(&self, learning: &Weights, transforms: &WeightTransforms) -> Result<()> {
        for (weight, (name, own)) in self.among(learning) {
            let steps = self.steps.of(name)?;
            let shown = transforms.forward(name, own, steps.as_deref(), self.share)?;
            if shown.dims() != own.dims() {
                let (expected, got) = (format!("{:?}", own.dims()), format!("{:?}", shown.dims()));
                return Err(Error::mismatch(format!("transformed weight {name}"), expected, got));
            }
            weight.slice_set(&shown.contiguous()?, 0, 0)?;
        }
        Ok(())
    }

    fn among<'a>(
        &'a self,
        learning: &'a Weights,
    ) -> impl Iterator<Item = (&'a Weight, (&'a String, &'a Tensor))> {
        self.learned.iter().filter_map(|own| Some((learning.get(own.0)?, own)))
    }
}
