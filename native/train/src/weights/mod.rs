//! Transforms of weights before a forward pass, and of their gradients after a backward pass.
//!
//! To add a transform, add a file here and a line to [`TABLE`]. A transformed weight is kept twice: as it is learned,
//! for a run to resume from; and as forward passes read it, for validation, the best checkpoint and play.

mod freeze;

use std::collections::BTreeMap;

use sconce_ops::weights::{Weight, Weights};
use sconce_tensor::{Error, Result, Tensor};

use crate::options::TrainOptions;

/// Inputs from which the transforms of a run are made.
pub(crate) struct Setup<'a> {
    pub options: &'a TrainOptions,
    /// Weights of the run's policy.
    pub weights: &'a Weights,
}

/// A transform of some weights before a forward pass.
pub trait WeightTransform: Send + Sync {
    /// Whether the transform applies to the weight of this name.
    fn covers(&self, name: &str) -> bool;

    /// Whether the weights that the transform covers learn at all.
    fn learns(&self) -> bool {
        true
    }

    /// Returns the weight that forward passes read, of the same shape and on the same device.
    fn forward(&self, weight: &Tensor) -> Result<Tensor> {
        Ok(weight.clone())
    }

    /// Maps the gradient at the transformed weight to the gradient at the learned weight; by default they are equal.
    fn backward(&self, weight: &Tensor, gradient: Tensor) -> Result<Tensor> {
        let _ = weight;
        Ok(gradient)
    }
}

/// Makes a transform, if the options of the run ask for it.
type Make = fn(&Setup<'_>) -> Result<Option<Box<dyn WeightTransform>>>;

/// All transforms, in the order in which they are applied.
const TABLE: &[Make] = &[freeze::of];

/// The transforms of a run.
#[derive(Default)]
pub struct WeightTransforms(Vec<Box<dyn WeightTransform>>);

impl WeightTransforms {
    /// Applies these transforms in order.
    pub fn new(all: Vec<Box<dyn WeightTransform>>) -> Self {
        WeightTransforms(all)
    }

    /// The transforms that the options of a run ask for.
    pub(crate) fn of(setup: &Setup<'_>) -> Result<Self> {
        let all = TABLE.iter().filter_map(|make| make(setup).transpose());
        Ok(WeightTransforms(all.collect::<Result<_>>()?))
    }

    fn covering<'a>(
        &'a self,
        name: &'a str,
    ) -> impl DoubleEndedIterator<Item = &'a dyn WeightTransform> {
        self.0.iter().filter(|transform| transform.covers(name)).map(|transform| &**transform)
    }

    /// Whether a weight learns.
    pub(crate) fn learns(&self, name: &str) -> bool {
        self.covering(name).all(WeightTransform::learns)
    }

    /// The weight that forward passes read.
    pub(crate) fn forward(&self, name: &str, weight: &Tensor) -> Result<Tensor> {
        self.covering(name).try_fold(weight.clone(), |weight, transform| transform.forward(&weight))
    }

    /// Maps the gradient at the transformed weight to the gradient at the learned weight.
    fn backward(&self, name: &str, weight: &Tensor, gradient: Tensor) -> Result<Tensor> {
        let mut inputs = vec![(weight.clone(), None)];
        for transform in self.covering(name) {
            if let Some((weight, of)) = inputs.last_mut() {
                *of = Some(transform);
                let next = transform.forward(weight)?;
                inputs.push((next, None));
            }
        }
        let passed = inputs.iter().rev().filter_map(|(weight, of)| Some((weight, (*of)?)));
        passed.into_iter().try_fold(gradient, |gradient, (weight, transform)| {
            transform.backward(weight, gradient)
        })
    }
}

/// Master weights: transformed weights as they are learned.
#[derive(Default)]
pub(crate) struct Masters(BTreeMap<String, Tensor>);

impl Masters {
    /// Copies the `learning` weights that are transformed, and replaces them by their transformed values.
    pub(crate) fn new(learning: &Weights, transforms: &WeightTransforms) -> Result<Self> {
        let mut own = BTreeMap::new();
        for (name, weight) in learning {
            if transforms.covering(name).next().is_some() {
                own.insert(name.clone(), weight.copy()?.detach());
            }
        }
        let masters = Masters(own);
        masters.show(learning, transforms)?;
        Ok(masters)
    }

    /// Whether no weight is transformed.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The weights of a policy; transformed weights are replaced by their learned values.
    pub(crate) fn over(&self, weights: &Weights) -> Weights {
        let own = self.0.iter().map(|(name, weight)| (name.clone(), weight.clone().into()));
        let mut weights = weights.clone();
        weights.extend(own);
        weights
    }

    /// Before an update: restores the learned values of transformed weights, with the gradients at these values.
    pub(crate) fn reveal(&self, learning: &Weights, transforms: &WeightTransforms) -> Result<()> {
        for (weight, (name, own)) in self.among(learning) {
            let shown = weight.flat_gradient()?.reshape(own.dims())?;
            let gradient = transforms.backward(name, own, shown)?;
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
            let shown = transforms.forward(name, own)?;
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
        self.0.iter().filter_map(|own| Some((learning.get(own.0)?, own)))
    }
}
