//! Transforms of weights before a forward pass, and of their gradients after a backward pass.
//!
//! To add a transform, add a file here and a line to [`TABLE`]. A transformed weight is kept twice: as it is learned,
//! for a run to resume from; and as forward passes read it, for validation, the best checkpoint and play.
//!
//! A transform that [anneals](WeightTransform::anneals) is blended in while a run learns: with a share from 0 to 1, which
//! the run raises, forward passes read `w + share * (transformed - w)`, or what the transform gives for the share
//! ([`WeightTransform::partial`]). Validations and the best checkpoint of imitation always have the whole transform, so a
//! policy from before the end of the annealing competes with later ones by the form in which it is played.

mod freeze;
mod masters;
mod prune;
pub mod pruning;
pub mod quantisation;
mod quantise;
mod steps;

use std::collections::BTreeSet;

use sconce_nn::policy::{LEAST_INPUTS, is_matrix};
use sconce_ops::fake_quantise::InputGrid;
use sconce_ops::weights::{Coded, Weight, Weights};
use sconce_tensor::tensor::{beside, read, to_vec};
use sconce_tensor::{Error, Result, Tensor};

pub(crate) use self::freeze::is_frozen;
pub(crate) use self::masters::Masters;
pub(crate) use self::steps::{NAME as STEPS, exponentials};
use crate::options::TrainOptions;

/// The share of a transform that is not annealed, or no longer.
pub(crate) const WHOLE: f64 = 1.0;

/// Inputs from which the transforms of a run are made.
pub(crate) struct Setup<'a> {
    pub options: &'a TrainOptions,
    /// Weights of the run's policy.
    pub weights: &'a Weights,
}

/// The names of the matrices on a CPU that `learns` selects. Errors name what would be done, in both forms of the verb.
///
/// # Errors
/// `Mismatch` without such a matrix, `Unavailable` on a card.
fn matrices(
    (verb, done): (&str, &str),
    weights: &Weights,
    learns: impl Fn(&str) -> bool,
) -> Result<BTreeSet<String>> {
    if !weights.values().all(|weight| weight.device().is_cpu()) {
        return Err(Error::Unavailable {
            what: format!("{verb} on a card"),
            reason: format!("weights are {done} on a CPU only (to mend it: device: :cpu)"),
        });
    }
    let all =
        weights.iter().filter(|(name, weight)| is_matrix(name, weight.dims()) && learns(name));
    let names: BTreeSet<String> = all.map(|(name, _)| name.clone()).collect();
    if names.is_empty() {
        let expected = format!("a matrix with {LEAST_INPUTS} inputs or more that learns");
        return Err(Error::mismatch(verb, expected, "a policy without one"));
    }
    Ok(names)
}

/// A transform of some weights before a forward pass.
pub trait WeightTransform: Send + Sync {
    /// Whether the transform applies to the weight of this name.
    fn covers(&self, name: &str) -> bool;

    /// Whether the weights that the transform covers learn at all.
    fn learns(&self) -> bool {
        true
    }

    /// Whether a run blends the transform in, instead of applying it from its first step on.
    fn anneals(&self) -> bool {
        false
    }

    /// Returns the weight that forward passes read, of the same shape and on the same device.
    fn forward(&self, weight: &Tensor) -> Result<Tensor> {
        Ok(weight.clone())
    }

    /// The weight that forward passes read at this share of a transform that anneals; `None` blends linearly.
    fn partial(&self, weight: &Tensor, share: f64) -> Result<Option<Tensor>> {
        let _ = (weight, share);
        Ok(None)
    }

    /// Maps the gradient at the transformed weight to the gradient at the learned weight; by default they are equal.
    fn backward(&self, weight: &Tensor, gradient: Tensor) -> Result<Tensor> {
        let _ = weight;
        Ok(gradient)
    }

    /// The codes of the transformed weight, if the transform gives it as integers.
    fn coded(&self, weight: &Tensor) -> Result<Option<Coded>> {
        let _ = weight;
        Ok(None)
    }

    /// The rounding of the inputs of the weight of this name, if its products round them.
    fn inputs(&self, name: &str) -> Result<Option<InputGrid>> {
        let _ = name;
        Ok(None)
    }

    /// The same transform with steps that are learned beside each weight, if it has such steps.
    fn stepped(&self) -> Option<&dyn SteppedTransform> {
        None
    }
}

/// A transform to a grid whose steps are learned. Without steps, its [`WeightTransform`] takes the first ones of the
/// weight.
pub trait SteppedTransform: Send + Sync {
    /// The steps with which training begins, all above 0.
    fn first_steps(&self, weight: &Tensor) -> Result<Vec<f32>>;

    /// [`WeightTransform::forward`] to the grid of these steps.
    fn forward_on(&self, weight: &Tensor, steps: &[f32]) -> Result<Tensor>;

    /// The gradients at the learned weight and at the steps.
    fn backward_on(
        &self,
        weight: &Tensor,
        steps: &[f32],
        gradient: Tensor,
    ) -> Result<(Tensor, Vec<f32>)>;

    /// The codes of the weight on the grid of these steps, which are the scales of the codes.
    fn coded_on(&self, weight: &Tensor, steps: &[f32]) -> Result<Coded>;
}

/// Makes a transform, if the options of the run ask for it.
type Make = fn(&Setup<'_>) -> Result<Option<Box<dyn WeightTransform>>>;

/// All transforms, in the order in which they are applied.
const TABLE: &[Make] = &[freeze::of, prune::of, quantise::of];

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

    /// A weight whose products round their inputs, if a transform asks for it; else the weight itself.
    pub(crate) fn rounding(&self, name: &str, weight: Weight) -> Result<Weight> {
        match self.covering(name).find_map(|transform| transform.inputs(name).transpose()) {
            Some(inputs) => Ok(weight.rounding(inputs?)),
            None => Ok(weight),
        }
    }

    /// The steps with which a weight begins to learn; `None` for a weight without learned steps.
    pub(crate) fn first_steps(&self, name: &str, weight: &Tensor) -> Result<Option<Vec<f32>>> {
        let stepped = self.covering(name).find_map(WeightTransform::stepped);
        stepped.map(|stepped| stepped.first_steps(weight)).transpose()
    }

    /// The weight that forward passes read, with this share of the transforms that anneal.
    pub(crate) fn forward(
        &self,
        name: &str,
        weight: &Tensor,
        steps: Option<&[f32]>,
        share: f64,
    ) -> Result<Tensor> {
        let mut all = self.covering(name);
        all.try_fold(weight.clone(), |weight, transform| forward(transform, &weight, steps, share))
    }

    /// Maps the gradient at the transformed weight to the gradients at the learned weight and at its steps.
    fn backward(
        &self,
        name: &str,
        weight: &Tensor,
        steps: Option<&[f32]>,
        gradient: Tensor,
        share: f64,
    ) -> Result<(Tensor, Option<Vec<f32>>)> {
        let all: Vec<_> = self.covering(name).collect();
        let (mut input, mut inputs, mut of_steps) = (weight.clone(), vec![], None);
        for (i, transform) in all.iter().enumerate() {
            inputs.push(input.clone());
            // Nothing reads the output of the last one here.
            if i + 1 < all.len() {
                input = forward(*transform, &input, steps, share)?;
            }
        }
        let mut passed = all.iter().zip(&inputs).rev();
        let gradient = passed.try_fold(gradient, |gradient, (transform, input)| {
            let through = match (transform.stepped(), steps) {
                (Some(stepped), Some(steps)) if share > 0.0 => {
                    let (through, mut own) = stepped.backward_on(input, steps, gradient.clone())?;
                    let share = if transform.anneals() { share.min(WHOLE) as f32 } else { 1.0 };
                    own.iter_mut().for_each(|own| *own *= share);
                    of_steps = Some(own);
                    through
                }
                (Some(_), Some(_)) => gradient.clone(),
                _ => transform.backward(input, gradient.clone())?,
            };
            blend(*transform, gradient, through, share)
        })?;
        Ok((gradient, of_steps))
    }

    /// The codes of a weight that is transformed as a whole; `None` unless its last transform gives codes.
    pub(crate) fn coded(
        &self,
        name: &str,
        weight: &Tensor,
        steps: Option<&[f32]>,
    ) -> Result<Option<Coded>> {
        let mut all: Vec<_> = self.covering(name).collect();
        let Some(last) = all.pop() else { return Ok(None) };
        let input = all
            .iter()
            .try_fold(weight.clone(), |weight, of| forward(*of, &weight, steps, WHOLE))?;
        match (last.stepped(), steps) {
            (Some(stepped), Some(steps)) => stepped.coded_on(&input, steps).map(Some),
            _ => last.coded(&input),
        }
    }
}

fn forward(
    transform: &dyn WeightTransform,
    weight: &Tensor,
    steps: Option<&[f32]>,
    share: f64,
) -> Result<Tensor> {
    if transform.anneals() && share <= 0.0 {
        return Ok(weight.clone());
    }
    if transform.anneals()
        && share < WHOLE
        && let Some(own) = transform.partial(weight, share)?
    {
        return Ok(own);
    }
    let whole = match (transform.stepped(), steps) {
        (Some(stepped), Some(steps)) => stepped.forward_on(weight, steps)?,
        _ => transform.forward(weight)?,
    };
    blend(transform, weight.clone(), whole, share)
}

/// `from + share * (to - from)` for a transform that anneals, else `to`. At a share of 1 it has the bits of `to`.
fn blend(transform: &dyn WeightTransform, from: Tensor, to: Tensor, share: f64) -> Result<Tensor> {
    if !transform.anneals() || share >= WHOLE {
        return Ok(to);
    }
    let (share, mut blended) = (share as f32, to_vec(&to)?);
    read(&from, |from| {
        for (to, from) in blended.iter_mut().zip(from) {
            *to = from + share * (*to - from);
        }
        Ok(())
    })?;
    Ok(beside(&from, blended, from.dims())?)
}
