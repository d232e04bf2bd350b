//! Pruning while a run learns: forward passes read matrices without their smallest weights.
//!
//! | kept | removed at the end of the ramp |
//! |---|---|
//! | 2:4 | of each four consecutive inputs of an output all but the two largest magnitudes (Mishra et al. 2021) |
//! | unstructured | of each output the part of the weights with the smallest magnitudes |
//!
//! Within the ramp the removed part grows by the cubic schedule of Zhu & Gupta (2017): `1 - (1 - share)^3` of what is removed at
//! its end, the smallest magnitudes first. For 2:4 these are the smallest of all that go in the end, in any group.
//!
//! The gradient is that of the straight-through estimator (Bengio et al. 2013): a removed weight learns from the gradient at 0,
//! and comes back when its magnitude is among the largest again. With masked gradients the first mask would be the last.
//!
//! Pruned are the weights that [`is_matrix`] names.

use std::collections::BTreeSet;

use sconce_nn::policy::{LEAST_INPUTS, is_matrix};
use sconce_ops::weights::Weights;
use sconce_ops::weights::two_four::{FOUR, TWO};
use sconce_tensor::tensor::{tensor, to_vec};
use sconce_tensor::{Error, Result, Tensor};

use super::pruning::{Pattern, Pruning};
use super::{Setup, WHOLE, WeightTransform, freeze};

impl Pruning {
    /// The transform of the weights that `learns` selects.
    ///
    /// # Errors
    /// `Mismatch` if none of them is a matrix that is pruned, `Unavailable` on a card.
    pub fn transform(
        &self,
        weights: &Weights,
        learns: impl Fn(&str) -> bool,
    ) -> Result<Box<dyn WeightTransform>> {
        if !weights.values().all(|weight| weight.device().is_cpu()) {
            return Err(Error::Unavailable {
                what: "prune on a card".into(),
                reason: "weights are pruned on a CPU only (to mend it: device: :cpu)".into(),
            });
        }
        let matrices =
            weights.iter().filter(|(name, weight)| is_matrix(name, weight.dims()) && learns(name));
        let names: BTreeSet<String> = matrices.map(|(name, _)| name.clone()).collect();
        if names.is_empty() {
            let expected = format!("a matrix with {LEAST_INPUTS} inputs or more that learns");
            return Err(Error::mismatch("prune", expected, "a policy without one"));
        }
        Ok(Box::new(Prune { pattern: self.pattern, sparsity: self.sparsity, names }))
    }
}

/// Matrices without their smallest weights.
struct Prune {
    pattern: Pattern,
    sparsity: f64,
    /// Names of the matrices.
    names: BTreeSet<String>,
}

/// The transform of a run, if its options ask for it.
///
/// # Errors
/// Those of [`Pruning::transform`].
pub(super) fn of(setup: &Setup<'_>) -> Result<Option<Box<dyn WeightTransform>>> {
    let learns = |name: &str| !freeze::is_frozen(setup.options, name);
    setup.options.pruning().map(|own| own.transform(setup.weights, learns)).transpose()
}

/// `part` of `all`, rounded half to even.
fn count(part: f64, all: usize) -> usize {
    (part * all as f64).round_ties_even() as usize
}

/// Sets the `count` of these weights with the smallest magnitudes to 0; of equal ones the last.
fn remove(weights: &mut [f32], mut places: Vec<usize>, count: usize) {
    let by_magnitude =
        |a: &usize, b: &usize| weights[*a].abs().total_cmp(&weights[*b].abs()).then(b.cmp(a));
    if (1..places.len()).contains(&count) {
        places.select_nth_unstable_by(count - 1, by_magnitude);
    }
    places.into_iter().take(count).for_each(|at| weights[at] = 0.0);
}

impl WeightTransform for Prune {
    fn covers(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    fn anneals(&self) -> bool {
        true
    }

    fn forward(&self, weight: &Tensor) -> Result<Tensor> {
        self.forward_at(weight, WHOLE)
    }

    fn partial(&self, weight: &Tensor, share: f64) -> Result<Option<Tensor>> {
        self.forward_at(weight, share).map(Some)
    }
}

impl Prune {
    fn forward_at(&self, weight: &Tensor, share: f64) -> Result<Tensor> {
        let (outputs, inputs) = weight.dims2()?;
        let mut shown = to_vec(weight)?;
        let part = 1.0 - (1.0 - share.clamp(0.0, WHOLE)).powi(3);
        match self.pattern {
            Pattern::Unstructured => {
                let gone = count(part * self.sparsity, inputs);
                shown.chunks_mut(inputs).for_each(|row| remove(row, (0..inputs).collect(), gone));
            }
            Pattern::TwoFour => {
                let mut going = vec![];
                for first in (0..outputs).map(|output| output * inputs) {
                    for begin in (first..first + inputs).step_by(FOUR) {
                        let mut group: [usize; FOUR] = std::array::from_fn(|i| begin + i);
                        let group = &mut group[..FOUR.min(first + inputs - begin)];
                        let drop = group.len().saturating_sub(TWO);
                        let magnitude = |at: &usize| shown[*at].abs();
                        group.sort_by(|a, b| magnitude(a).total_cmp(&magnitude(b)).then(b.cmp(a)));
                        going.extend(&group[..drop]);
                    }
                }
                let gone = count(part, going.len());
                remove(&mut shown, going, gone);
            }
        }
        Ok(tensor(shown, (outputs, inputs))?)
    }
}
