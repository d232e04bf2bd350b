//! Learned steps of grids.
//!
//! The optimiser trains the logarithm of a step by the gradient at the step: exponentiated gradients (Kivinen and Warmuth
//! 1997). An update multiplies a step by a number above 0, so a step stays above 0, and optimisers that divide by the
//! size of a gradient change small and large steps by the same share.

use std::collections::BTreeMap;

use sconce_nn::checkpoint::Optimiser;
use sconce_ops::weights::{Weight, Weights};
use sconce_tensor::tensor::{read, tensor, update};
use sconce_tensor::{Error, Result, Tensor, candle::Var};

use super::WeightTransforms;

/// Last part of the name of a weight's steps among the parameters of the optimiser.
pub(crate) const NAME: &str = "quantise_steps";

/// The logarithms of the steps of each weight, by the weight's name.
#[derive(Default)]
pub(super) struct Steps(BTreeMap<String, Weight>);

impl Steps {
    /// The steps with which these weights begin to learn.
    pub(super) fn first(
        learned: &BTreeMap<String, Tensor>,
        transforms: &WeightTransforms,
    ) -> Result<Self> {
        let mut all = BTreeMap::new();
        for (name, weight) in learned {
            let Some(first) = transforms.first_steps(name, weight)? else { continue };
            let count = first.len();
            let own = Var::from_tensor(&tensor(logarithms(first), count)?)?.into_inner();
            all.insert(name.clone(), own.into());
        }
        Ok(Steps(all))
    }

    /// Replaces all steps by those with which these weights begin to learn.
    pub(super) fn renew(
        &self,
        learned: &BTreeMap<String, Tensor>,
        transforms: &WeightTransforms,
    ) -> Result<()> {
        for (name, own) in &self.0 {
            let Some(weight) = learned.get(name) else { continue };
            if let Some(first) = transforms.first_steps(name, weight)? {
                update(own, |own| own.copy_from_slice(&logarithms(first)))?;
            }
        }
        Ok(())
    }

    /// The steps of a weight; `None` for a weight without learned steps.
    pub(super) fn of(&self, name: &str) -> Result<Option<Vec<f32>>> {
        let steps = |own: &Weight| read(own, |own| Ok(exponentials(own)));
        Ok(self.0.get(name).map(steps).transpose()?)
    }

    /// Sets the gradient at the steps of a weight.
    pub(super) fn set_gradient(&self, name: &str, gradient: Option<Vec<f32>>) -> Result<()> {
        let Some(own) = self.0.get(name) else { return Ok(()) };
        let count = own.elem_count();
        own.set_gradient(&tensor(gradient.unwrap_or_else(|| vec![0.0; count]), count)?)
    }

    /// The parameters that the optimiser trains, by the names of their weights and [`NAME`].
    pub(super) fn parameters(&self) -> Weights {
        self.0.iter().map(|(name, own)| (parameter(name), own.clone())).collect()
    }

    /// Adds the steps to a saved state.
    pub(super) fn save(&self, state: &mut Optimiser) -> Result<()> {
        for (name, own) in &self.0 {
            state.insert(parameter(name), read(own, |own| Ok(own.to_vec()))?);
        }
        Ok(())
    }

    /// Replaces the steps by those of a saved state.
    ///
    /// # Errors
    /// `NotFound` and `Mismatch` for a state without these steps.
    pub(super) fn load(&self, state: &Optimiser) -> Result<()> {
        for (name, own) in &self.0 {
            let name = parameter(name);
            let saved = state.get(&name).ok_or_else(|| Error::not_found(&name))?;
            if saved.len() != own.elem_count() {
                return Err(Error::mismatch(name, own.elem_count(), saved.len()));
            }
            update(own, |own| own.copy_from_slice(saved))?;
        }
        Ok(())
    }
}

fn parameter(name: &str) -> String {
    format!("{name}.{NAME}")
}

fn logarithms(steps: Vec<f32>) -> Vec<f32> {
    steps.into_iter().map(|step| f64::from(step).ln() as f32).collect()
}

/// The steps whose logarithms these are.
pub(crate) fn exponentials(logarithms: &[f32]) -> Vec<f32> {
    logarithms.iter().map(|own| f64::from(*own).exp() as f32).collect()
}
