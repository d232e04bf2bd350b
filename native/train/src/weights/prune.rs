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
//! Pruned are the weights that [`is_matrix`](sconce_nn::policy::is_matrix) names.

use std::collections::BTreeSet;

use sconce_ops::weights::Weights;
use sconce_ops::weights::two_four::{FOUR, going};
use sconce_tensor::tensor::{tensor, to_vec};
use sconce_tensor::{Result, Tensor};

use super::pruning::{Pattern, Pruning};
use super::{Setup, WHOLE, WeightTransform, freeze, matrices};

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
        let names = matrices(("prune", "pruned"), weights, learns)?;
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
                let mut places = vec![];
                for (output, row) in shown.chunks(inputs).enumerate() {
                    for (i, group) in row.chunks(FOUR).enumerate() {
                        places.extend(going(group).map(|at| output * inputs + i * FOUR + at));
                    }
                }
                let gone = count(part, places.len());
                remove(&mut shown, places, gone);
            }
        }
        Ok(tensor(shown, (outputs, inputs))?)
    }
}
