//! Quantisation-aware training: forward passes read matrices on a grid of integers.
//!
//! The grid of a group of weights is `scale * code`, where the codes are whole numbers from `-hi` to `hi` and
//! `scale = max|w| / hi`.
//!
//! | format | `hi` | a group |
//! |---|---|---|
//! | int8 | 127 | a row |
//! | int4 | 7 | 32 consecutive columns of a row, or as many as given |
//!
//! Rounding is half to even, and a group of zeros has scale 1. Weights on their grid are quantised to the same codes and
//! scales: `scale * hi / hi` is `scale` for every quotient `scale = max|w| / hi` of these two `hi`.
//!
//! The gradient is that of the straight-through estimator (Bengio et al. 2013): a grid contains all weights of its group,
//! so the gradient at a weight is the one at its rounded value.
//!
//! With learned steps (LSQ, Esser et al. 2020) the grid is `step * round(clamp(w / step, -hi, hi))`, and the gradient of a
//! step is that of [`learned_step`], `1 / sqrt(N hi)` included. A step begins as LSQ's `2 mean|w| / sqrt(hi)`, but never
//! above `max|w| / hi`: a larger one would leave the outermost codes unused. In small groups and with 8 bits LSQ's is
//! larger. Codes have no zero points, because the packed formats of weights have none.
//!
//! With quantised activations the products of these matrices round their inputs ([`InputGrid`]), as packed steps do.
//!
//! Quantised are the weights that [`is_matrix`](sconce_nn::policy::is_matrix) names.

use std::collections::BTreeSet;

use sconce_ops::fake_quantise::{InputGrid, finest_steps, first_steps, learned_step_gradients};
use sconce_ops::weights::{Coded, Weights};
use sconce_ops::{Codes, Groups, fake_quantise, learned_step};
use sconce_tensor::tensor::{beside, tensor, update, with};
use sconce_tensor::{Error, Result, Tensor};

use super::quantisation::{Format, Quantisation, Steps};
use super::{Setup, SteppedTransform, WeightTransform, freeze, matrices};

/// Columns of a group of int4, unless others are given.
const GROUP: usize = 32;

impl Quantisation {
    /// The transform of the weights that `learns` selects.
    ///
    /// # Errors
    /// `Mismatch` if none of them is a matrix that is quantised, `Unavailable` on a card.
    pub fn transform(
        &self,
        weights: &Weights,
        learns: impl Fn(&str) -> bool,
    ) -> Result<Box<dyn WeightTransform>> {
        let names = matrices(("quantise", "quantised"), weights, learns)?;
        let (format, group) = (self.format, self.group.unwrap_or(GROUP));
        let learned = self.steps == Steps::Learned;
        let activations = self.activations;
        Ok(Box::new(Quantise { format, group, names, learned, activations }))
    }
}

/// Matrices on their grid.
struct Quantise {
    format: Format,
    group: usize,
    /// Names of the matrices.
    names: BTreeSet<String>,
    /// Whether the steps of the grids are learned.
    learned: bool,
    /// Whether products round their inputs.
    activations: bool,
}

/// The transform of a run, if its options ask for it.
///
/// # Errors
/// Those of [`Quantisation::transform`].
pub(super) fn of(setup: &Setup<'_>) -> Result<Option<Box<dyn WeightTransform>>> {
    let learns = |name: &str| !freeze::is_frozen(setup.options, name);
    let quantisation = setup.options.quantisation();
    quantisation.map(|own| own.transform(setup.weights, learns)).transpose()
}

impl Quantise {
    /// The groups of a matrix, and their range of codes.
    fn grid(&self, weight: &Tensor) -> Result<(Groups, Codes)> {
        let (rows, cols) = weight.dims2()?;
        let groups = match self.format {
            Format::Int8 => Groups::rows(rows, cols)?,
            Format::Int4 => Groups::new(rows, cols, self.group)?,
        };
        Ok((groups, Codes::symmetric(self.format.bits())?))
    }

    fn scales(weight: &Tensor, groups: Groups, codes: Codes) -> Result<Vec<f32>> {
        let scales = with(weight, |w| Ok(finest_steps(w, codes, groups)))?;
        match scales.iter().find(|scale| !scale.is_finite()) {
            None => Ok(scales),
            Some(scale) => {
                let (what, value) = ("scale of quantised weights".into(), f64::from(*scale));
                Err(Error::NonFinite { what, value })
            }
        }
    }
}

impl WeightTransform for Quantise {
    fn covers(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    fn anneals(&self) -> bool {
        true
    }

    fn forward(&self, weight: &Tensor) -> Result<Tensor> {
        if self.learned {
            return self.forward_on(weight, &self.first_steps(weight)?);
        }
        let (groups, codes) = self.grid(weight)?;
        let scales = Quantise::scales(weight, groups, codes)?;
        let scales = tensor(scales, groups.count())?;
        without_negative_zeros(fake_quantise(weight, &scales, None, codes, groups)?)
    }

    fn coded(&self, weight: &Tensor) -> Result<Option<Coded>> {
        if self.learned {
            return self.coded_on(weight, &self.first_steps(weight)?).map(Some);
        }
        let [_, inputs, group] = self.grid(weight)?.0.sizes();
        let bits = self.format.bits();
        Ok(Some(with(weight, |weight| Ok(Coded::nearest(bits, weight, inputs, group)))??))
    }

    fn inputs(&self, name: &str) -> Result<Option<InputGrid>> {
        let rounds = self.activations && self.covers(name);
        rounds.then(|| InputGrid::new(self.format.bits())).transpose()
    }

    fn stepped(&self) -> Option<&dyn SteppedTransform> {
        self.learned.then_some(self)
    }
}

impl SteppedTransform for Quantise {
    fn first_steps(&self, weight: &Tensor) -> Result<Vec<f32>> {
        let (groups, codes) = self.grid(weight)?;
        let mut steps = Quantise::scales(weight, groups, codes)?;
        let first = with(weight, |w| Ok(first_steps(w, codes, groups)))?;
        steps.iter_mut().zip(first).for_each(|(step, first)| *step = step.min(first));
        Ok(steps)
    }

    fn forward_on(&self, weight: &Tensor, steps: &[f32]) -> Result<Tensor> {
        let (groups, codes) = self.grid(weight)?;
        let steps = tensor(steps.to_vec(), steps.len())?;
        without_negative_zeros(learned_step(&weight.detach(), &steps, None, codes, groups)?)
    }

    fn backward_on(
        &self,
        weight: &Tensor,
        steps: &[f32],
        gradient: Tensor,
    ) -> Result<(Tensor, Vec<f32>)> {
        let (groups, codes) = self.grid(weight)?;
        let [through, of_steps] = learned_step_gradients(weight, steps, &gradient, codes, groups)?;
        Ok((beside(weight, through, weight.dims())?, of_steps))
    }

    fn coded_on(&self, weight: &Tensor, steps: &[f32]) -> Result<Coded> {
        let [_, inputs, group] = self.grid(weight)?.0.sizes();
        let on = |weight: &[f32]| {
            Ok(Coded::on(self.format.bits(), weight, inputs, group, steps.to_vec()))
        };
        with(weight, on)?
    }
}

/// A small negative weight is rounded to -0. Its sum with 0 is the 0 that its code stands for.
fn without_negative_zeros(shown: Tensor) -> Result<Tensor> {
    update(&shown, |shown| shown.iter_mut().for_each(|w| *w += 0.0))?;
    Ok(shown)
}
