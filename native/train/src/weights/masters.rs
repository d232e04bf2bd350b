//! Weights as they are learned, beside the ones that forward passes read.

use std::collections::BTreeMap;

use sconce_ops::weights::{Weight, Weights};
use sconce_tensor::{Error, Result, Tensor};

use super::{WHOLE, WeightTransforms};

/// Master weights: transformed weights as they are learned.
#[derive(Default)]
pub(crate) struct Masters {
    learned: BTreeMap<String, Tensor>,
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
        let masters = Masters { learned: own, share: WHOLE };
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
            let gradient = transforms.backward(name, own, shown, self.share)?;
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
        self.show(learning, transforms)
    }

    /// Replaces the weights by their transformed values.
    pub(crate) fn show(&self, learning: &Weights, transforms: &WeightTransforms) -> Result<()> {
        for (weight, (name, own)) in self.among(learning) {
            let shown = transforms.forward(name, own, self.share)?;
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
