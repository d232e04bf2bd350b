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
//! Quantised are the weights that [`is_matrix`] names.

use std::collections::BTreeSet;

use sconce_nn::policy::{LEAST_INPUTS, is_matrix};
use sconce_ops::fake_quantise::finest_steps;
use sconce_ops::weights::{Coded, Weights};
use sconce_ops::{Codes, Groups, fake_quantise};
use sconce_tensor::tensor::{tensor, update, with};
use sconce_tensor::{Error, Result, Tensor};

use super::quantisation::{Format, Quantisation};
use super::{Setup, WeightTransform, freeze};

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
        if !weights.values().all(|weight| weight.device().is_cpu()) {
            return Err(Error::Unavailable {
                what: "quantise on a card".into(),
                reason: "weights are quantised on a CPU only (to mend it: device: :cpu)".into(),
            });
        }
        let matrices =
            weights.iter().filter(|(name, weight)| is_matrix(name, weight.dims()) && learns(name));
        let names: BTreeSet<String> = matrices.map(|(name, _)| name.clone()).collect();
        if names.is_empty() {
            let expected = format!("a matrix with {LEAST_INPUTS} inputs or more that learns");
            return Err(Error::mismatch("quantise", expected, "a policy without one"));
        }
        Ok(Box::new(Quantise { format: self.format, group: self.group.unwrap_or(GROUP), names }))
    }
}

/// Matrices on their grid.
struct Quantise {
    format: Format,
    group: usize,
    /// Names of the matrices.
    names: BTreeSet<String>,
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
        let (groups, codes) = self.grid(weight)?;
        let scales = Quantise::scales(weight, groups, codes)?;
        let scales = tensor(scales, groups.count())?;
        let shown = fake_quantise(weight, &scales, None, codes, groups)?;
        // A small negative weight is rounded to -0. The sum with 0 is the 0 that its code stands for.
        update(&shown, |shown| shown.iter_mut().for_each(|w| *w += 0.0))?;
        Ok(shown)
    }

    fn coded(&self, weight: &Tensor) -> Result<Option<Coded>> {
        let [_, inputs, group] = self.grid(weight)?.0.sizes();
        let bits = self.format.bits();
        Ok(Some(with(weight, |weight| Ok(Coded::nearest(bits, weight, inputs, group)))??))
    }
}
