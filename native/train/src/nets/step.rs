//! One update of the weights by the mean gradient of a batch.

use std::borrow::Cow;
use std::collections::BTreeMap;

use sconce_net::Net;
use sconce_net::training::{Mode, Training};
use sconce_ops::weights::Weight;
use sconce_tensor::simd::non_finite;
use sconce_tensor::tensor::{read, tensor, update};
use sconce_tensor::{Error, Result, Tensor, memory, pool, tape};

use super::examples::Examples;
use super::loss::Score;
use super::options::FitOptions;
use crate::optimiser::{Optimiser, Parameter, clip, squared_norm};

/// Examples of one shard of the loss.
const SHARD: usize = 8;

/// Moments of an optimiser by name.
pub(super) type Moments<'a> = BTreeMap<String, Cow<'a, [f32]>>;

/// A network that learns.
pub(super) struct Learner {
    training: Training,
    weights: Vec<(String, Weight)>,
    optimiser: Optimiser,
    max_grad_norm: f64,
}

impl Learner {
    pub(super) fn new(net: &Net, options: &FitOptions) -> Result<Self> {
        let training = Training::new(net)?;
        let weights = training.weights().iter();
        let weights: Vec<_> =
            weights.map(|(name, weight)| (name.clone(), weight.clone())).collect();
        if weights.is_empty() {
            return Err(Error::mismatch("net", "a layer with weights", "none"));
        }
        let parameters = weights.iter().map(|(name, weight)| Parameter::new(name, weight.dims()));
        let optimiser = Optimiser::new(options.optimiser()?, parameters.collect());
        let max_grad_norm = options.max_grad_norm.unwrap_or(f64::INFINITY);
        Ok(Learner { training, weights, optimiser, max_grad_norm })
    }

    /// The number of updates, and the moments of the optimiser by name.
    pub(super) fn state(&self) -> Result<(u64, Moments<'_>)> {
        Ok((self.optimiser.updates(), self.optimiser.state()?.into_iter().collect()))
    }

    /// Takes over the state of another optimiser of the same weights.
    ///
    /// # Errors
    /// `NotFound` and `Mismatch` for moments that are missing or have another size.
    pub(super) fn restore(&mut self, updates: u64, moments: &Moments<'_>) -> Result<()> {
        self.optimiser.load_state(updates, |name| moments.get(name).map(|values| &**values))
    }

    /// The network with the present weights.
    pub(super) fn net(&self) -> Result<Net> {
        self.training.net()
    }

    /// Updates the weights by a batch, and returns its mean loss before the update.
    ///
    /// # Errors
    /// `NonFinite` for the loss, or for the gradient of a weight. The weights are then unchanged, but not the running
    /// statistics.
    pub(super) fn step(
        &mut self,
        examples: &Examples<'_>,
        batch: &[usize],
        rate: f64,
    ) -> Result<f64> {
        let loss = memory::caught(|| self.gradients(examples, batch))?;
        self.update(rate)?;
        Ok(loss)
    }

    fn gradients(&self, examples: &Examples<'_>, batch: &[usize]) -> Result<f64> {
        let inputs = examples.batch(batch)?;
        let _tape = tape::record();
        let output = self.training.forward(&inputs, Mode::Training)?;
        let (loss, gradient) = loss(examples, batch, &output)?;
        if !loss.is_finite() {
            return Err(Error::NonFinite { what: "loss".into(), value: loss });
        }
        let store = tape::backward(&output, gradient)?;
        let mut missing = vec![];
        for (name, weight) in &self.weights {
            if !weight.gather(&store)? {
                missing.push(name.clone());
            }
        }
        match missing.is_empty() {
            true => Ok(loss),
            false => Err(Error::NoGradient { weights: missing }),
        }
    }

    fn update(&mut self, rate: f64) -> Result<()> {
        let squares = self.weights.iter().map(|(_, weight)| weight.gradient(|g| squared_norm(g)));
        let clipped = clip(squares.sum(), 1.0, self.max_grad_norm);
        let (_norm, factor) = clipped.map_err(|error| self.culprit(error))?;
        self.optimiser.begin();
        for (i, (_name, weight)) in self.weights.iter().enumerate() {
            let optimiser = &mut self.optimiser;
            weight.gradient(|gradient| {
                update(weight, |w: &mut [f32]| optimiser.update(i, w, gradient, factor, rate))
            })??;
            weight.forget();
        }
        Ok(())
    }

    /// The error of a gradient that is not finite, with the name of its weight.
    fn culprit(&self, error: Error) -> Error {
        for (name, weight) in &self.weights {
            if let Some(value) = weight.gradient(|gradient| non_finite(gradient)) {
                let what = format!("gradient of {name}");
                return Error::NonFinite { what, value: value.into() };
            }
        }
        error
    }
}

/// The mean loss of an output `[b, ..]`, and its gradient.
fn loss(examples: &Examples<'_>, batch: &[usize], output: &Tensor) -> Result<(f64, Tensor)> {
    let width = examples.output_width();
    let terms = batch.len() * examples.target_width();
    let scale = 1.0 / terms.max(1) as f64;
    let mut gradient = memory::zeros(batch.len() * width);
    let parts = read(output, |output| {
        let buffers = [(&mut gradient[..], width)];
        Ok(pool::sum_shards(batch.len(), SHARD, buffers, Score::default, |rows, [d], score| {
            let outputs = output[rows.start * width..rows.end * width].chunks_exact(width);
            let rows = batch[rows].iter().zip(outputs).zip(d.chunks_exact_mut(width));
            for ((example, output), d) in rows {
                examples.score(*example, output, Some((d, scale)), score);
            }
        }))
    })?;
    let mut score = Score::default();
    parts.into_iter().for_each(|part| score.add(part));
    Ok((score.mean(), tensor(gradient, output.shape())?))
}
