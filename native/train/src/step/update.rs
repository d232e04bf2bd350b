//! The update of the weights by clipped gradients.

use sconce_ops::weights::Weight;
use sconce_tensor::simd::non_finite;
use sconce_tensor::trace::{self, Kind};
use sconce_tensor::{Error, Result, Tensor, tensor};

use super::stepper::Stepper;
use crate::gradients::WeightGradient;
use crate::loss_scale::LossScale;
use crate::optimiser::{Next, Optimiser, clip, squared_norm, squares_of};

impl Stepper<'_> {
    /// Updates the weights by the clipped mean of the gradients since the last update. Returns the mean's norm before
    /// the clip. Without a gradient nothing changes and the norm is 0. A gradient that overflowed f16 changes nothing,
    /// and its norm is infinite.
    pub fn update(&mut self, learning_rate: f64) -> Result<f64> {
        let updated = self.as_learned(|stepper| stepper.descend(learning_rate, None));
        self.forget();
        updated
    }

    /// Runs [`update`](Self::update) and returns statistics of the gradient and the change of each weight.
    pub fn update_observed(&mut self, learning_rate: f64) -> Result<(f64, Vec<WeightGradient>)> {
        let mut seen = vec![];
        let updated = self.as_learned(|stepper| stepper.descend(learning_rate, Some(&mut seen)));
        self.forget();
        Ok((updated?, seen))
    }

    /// Runs an update on the learned form of the weights, if forward passes read transformed weights.
    fn as_learned<T>(&mut self, update: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.masters.is_empty() || self.learned == 0.0 {
            return update(self);
        }
        if let Err(error) = self.masters.reveal(&self.learning, &self.transforms) {
            // On failure some weights are already in their learned form: all are replaced by transformed weights again.
            self.masters.show(&self.learning, &self.transforms)?;
            return Err(error);
        }
        let updated = update(self);
        self.masters.take(&self.learning, &self.transforms)?;
        updated
    }

    fn descend(
        &mut self,
        learning_rate: f64,
        seen: Option<&mut Vec<WeightGradient>>,
    ) -> Result<f64> {
        if self.learned == 0.0 {
            return Ok(0.0);
        }
        let _span = trace::span(Kind::Step, "update of weights");
        let sum = self.learned * self.scale();
        let at_once = match seen {
            Some(_) => None,
            None => self.update_at_once([sum, self.max_grad_norm, learning_rate])?,
        };
        let weights = &self.parameters[..];
        let clipped = match at_once {
            Some(norm) => clip(norm * norm, 1.0, self.max_grad_norm),
            None => clip(squares(weights)?, sum, self.max_grad_norm),
        };
        let (norm, factor) = match clipped {
            Err(_) if self.loss_scale.as_mut().is_some_and(LossScale::halve) => {
                return Ok(f64::INFINITY);
            }
            Err(error) => return Err(culprit(weights, error)?),
            Ok(clipped) => clipped,
        };
        if at_once.is_none() {
            self.update_each(sum, factor, learning_rate, seen)?;
        }
        if let Some(scale) = &mut self.loss_scale {
            scale.updated();
        }
        Ok(norm)
    }

    /// Updates one weight after another by `factor` times its gradient. Each gradient is a sum over batches of total
    /// weight `sum`.
    fn update_each(
        &mut self,
        sum: f64,
        factor: f64,
        learning_rate: f64,
        mut seen: Option<&mut Vec<WeightGradient>>,
    ) -> Result<()> {
        let weights = &self.parameters[..];
        self.optimiser.begin();
        let nexts = nexts(&mut self.optimiser, weights, factor, learning_rate);
        let nexts = nexts.inspect_err(|_| self.optimiser.give_up())?;
        for (i, ((name, weight), next)) in weights.iter().zip(nexts).enumerate() {
            let before = seen.is_some().then(|| tensor::to_vec(weight)).transpose()?;
            let optimiser = &mut self.optimiser;
            match next {
                Some(next) => optimiser.take(i, weight, next)?,
                None => weight.gradient(|gradient| {
                    let update =
                        |w: &mut [f32]| optimiser.update(i, w, gradient, factor, learning_rate);
                    tensor::update(weight, update)
                })??,
            }
            if let (Some(seen), Some(before)) = (seen.as_deref_mut(), before) {
                let after = tensor::to_vec(weight)?;
                let look = |g: &[f32]| WeightGradient::new(name, g, sum, &before, &after);
                seen.push(weight.read_gradient(look)?);
            }
        }
        Ok(())
    }

    /// Updates all weights together, if there are kernels for the update. `numbers` are the weight of the gradients'
    /// sums, the largest norm and the learning rate. Returns the norm of the mean gradient, which may not be finite.
    fn update_at_once(&mut self, numbers: [f64; 3]) -> Result<Option<f64>> {
        let given = self.parameters.iter().map(|(_, weight)| {
            let gradient = weight.gradient_tensor()?;
            Some((&**weight, gradient))
        });
        let Some(given) = given.collect::<Option<Vec<_>>>() else { return Ok(None) };
        let contiguous = given.into_iter().map(|(p, g)| Ok((p, g.contiguous()?)));
        self.optimiser.update_at_once(&contiguous.collect::<Result<Vec<_>>>()?, numbers)
    }
}

/// Computes the new values of weights on a device other than the CPU before any weight changes, as this may run out of
/// memory.
fn nexts(
    optimiser: &mut Optimiser,
    weights: &[(String, Weight)],
    factor: f64,
    lr: f64,
) -> Result<Vec<Option<Next>>> {
    let mut next = |(i, (_, weight)): (usize, &(String, Weight))| {
        let gradient = weight.gradient_tensor();
        gradient.map(|g| optimiser.next(i, weight, &g, factor, lr)).transpose()
    };
    weights.iter().enumerate().map(&mut next).collect()
}

/// Sum of the squares of all gradients. Squares on another device are added there and read back once.
fn squares(weights: &[(String, Weight)]) -> Result<f64> {
    let (mut here, mut there) = (0.0, vec![]);
    for (_, weight) in weights {
        match weight.gradient_tensor() {
            Some(gradient) => there.push(squares_of(&gradient)?),
            None => here += weight.gradient(|g| squared_norm(g)),
        }
    }
    if there.is_empty() {
        return Ok(here);
    }
    Ok(here + Tensor::stack(&there, 0)?.sum_all()?.to_scalar::<f64>()?)
}

/// Returns an error that names the weight whose gradient is not finite; without such a weight, returns `error`.
fn culprit(weights: &[(String, Weight)], error: Error) -> Result<Error> {
    for (name, weight) in weights {
        if let Some(value) = weight.read_gradient(non_finite)? {
            let what = format!("gradient of {name}");
            return Ok(Error::NonFinite { what, value: value.into() });
        }
    }
    Ok(error)
}
