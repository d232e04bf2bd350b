//! One training step: forward, loss, backward, clip, update.

use candle_core::Tensor;
use candle_core::backprop::GradStore;
use sconce_core::backbone::Context;
use sconce_core::checkpoint::Optimiser;
use sconce_core::ops::tensor;
use sconce_core::policy::Frames;
use sconce_core::weights::{Weight, Weights};
use sconce_core::{Error, Policy, Result, pool};

use crate::loss::{LossOptions, Objective, Rows, SHARD_ROWS, Sums};
use crate::optimiser::{AdamW, AdamWConfig, Parameter, clip_factor, squared_norm};

/// Weights, and all that is needed to change them.
pub struct Stepper {
    policy: Policy,
    optimiser: AdamW,
    objective: Objective,
    max_grad_norm: f64,
    /// Dropout is drawn from it.
    seed: u64,
}

/// What a step learns from.
#[derive(Debug, Clone, Copy)]
pub struct Examples<'a> {
    pub frames: &'a Frames,
    /// `[b, t, num_labels]`
    pub labels: &'a [u16],
    /// `[b, t]`, how much a frame counts.
    pub weights: &'a [f32],
}

/// One step's figures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stepped {
    pub loss: f64,
    /// Before the clip.
    pub grad_norm: f64,
}

impl Stepper {
    /// Trains a copy of `policy`.
    pub fn new(
        policy: &Policy,
        loss: &LossOptions,
        config: AdamWConfig,
        max_grad_norm: f64,
        seed: u64,
    ) -> Result<Self> {
        let policy = policy.trainable()?;
        let parameter = |(name, weight): (&String, &Weight)| Parameter::new(name, weight.dims());
        let optimiser = AdamW::new(config, policy.weights().iter().map(parameter).collect());
        let objective = Objective::new(&policy.spec().heads, loss)?;
        Ok(Stepper { policy, optimiser, objective, max_grad_norm, seed })
    }

    /// Takes over the moments of an earlier run after so many updates.
    pub fn load_moments(&mut self, updates: u64, moments: &Optimiser) -> Result<()> {
        self.optimiser.load_state(updates, |name| moments.get(name).map(Vec::as_slice))
    }

    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    pub fn optimiser(&self) -> &AdamW {
        &self.optimiser
    }

    /// Step `step` of a run, counted from 0. A weight that no gradient reaches is an error that
    /// names it, and nothing changes.
    pub fn step(&mut self, x: Examples<'_>, step: u64, learning_rate: f64) -> Result<Stepped> {
        let state = self.policy.zero_state(x.frames.batch)?;
        let context = Context::training(self.seed, step);
        let (logits, _) = self.policy.forward(x.frames, Some(x.labels), &state, &context)?;
        let (loss, gradient) = loss_and_gradient(&self.objective, &logits, x)?;
        // The loss is not a node of the graph: its gradient at the logits starts the backward pass.
        let store = tensor::backward(&logits, gradient)?;
        let stepped = self.update(&store, learning_rate);
        self.policy.weights().values().for_each(Weight::forget);
        Ok(Stepped { loss, grad_norm: stepped? })
    }

    /// Clips and updates, and gives the norm before the clip.
    fn update(&mut self, store: &GradStore, learning_rate: f64) -> Result<f64> {
        let weights = self.policy.weights();
        census(weights, store)?;
        let squares = weights.values().map(|w| w.gradient(|g| squared_norm(g)));
        let norm = squares.sum::<f64>().sqrt();
        let factor = clip_factor(norm, self.max_grad_norm)?;
        self.optimiser.begin();
        for (i, weight) in weights.values().enumerate() {
            let optimiser = &mut self.optimiser;
            weight.gradient(|gradient| {
                let update =
                    |w: &mut [f32]| optimiser.update(i, w, gradient, factor, learning_rate);
                tensor::update(weight, update)
            })??;
        }
        Ok(norm)
    }
}

/// Gathers the gradients, and refuses a model of which some weight would never learn, by the names of
/// those weights.
fn census(weights: &Weights, store: &GradStore) -> Result<()> {
    let mut missing = vec![];
    for (name, weight) in weights {
        if !weight.gather(store)? {
            missing.push(name.clone());
        }
    }
    match missing.is_empty() {
        true => Ok(()),
        false => Err(Error::NoGradient { weights: missing }),
    }
}

/// The loss of a batch and its gradient at the logits, in fixed shards of rows.
fn loss_and_gradient(
    objective: &Objective,
    logits: &Tensor,
    x: Examples<'_>,
) -> Result<(f64, Tensor)> {
    let (n, width) = logits.dims2()?;
    let labels = x.labels.len() / n.max(1);
    let (loss, gradient) = tensor::with(logits, |logits| {
        let rows = |first: usize, count: usize| Rows {
            logits: &logits[first * width..(first + count) * width],
            labels: &x.labels[first * labels..(first + count) * labels],
            weights: Some(&x.weights[first..first + count]),
        };
        Ok(shards(objective, n, width, x.weights, rows))
    })??;
    Ok((loss, tensor::tensor(gradient, (n, width))?))
}

fn shards<'a>(
    objective: &Objective,
    n: usize,
    width: usize,
    weights: &[f32],
    rows: impl Fn(usize, usize) -> Rows<'a> + Sync,
) -> Result<(f64, Vec<f32>)> {
    let first = match objective.normalises() {
        true => Some(objective.sums(rows(0, n))?),
        false => None,
    };
    let denominators = objective.denominators(n, Some(weights), first.as_ref())?;
    let mut gradient = vec![0.0; n * width];
    let sums: Vec<std::sync::OnceLock<Result<Sums>>> =
        (0..n.div_ceil(SHARD_ROWS)).map(|_| std::sync::OnceLock::new()).collect();
    pool::for_each_rows(&mut gradient, width, SHARD_ROWS, |first, gradient| {
        let rows = rows(first, gradient.len() / width);
        let _ =
            sums[first / SHARD_ROWS].set(objective.backward(rows, &denominators, gradient, None));
    });
    let mut total: Option<Sums> = None;
    for sum in sums.into_iter().filter_map(std::sync::OnceLock::into_inner) {
        let sum = sum?;
        match &mut total {
            Some(total) => total.add(&sum),
            None => total = Some(sum),
        }
    }
    let total = total.ok_or_else(|| Error::not_found("rows of a batch"))?;
    Ok((objective.finish(&total, &denominators)?.value, gradient))
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{Device, Var};

    #[test]
    fn a_weight_that_no_gradient_reaches_is_named() {
        let variable = || Var::ones(2, candle_core::DType::F32, &Device::Cpu).unwrap().into_inner();
        let (used, forgotten) = (variable(), variable());
        let store = used.sum_all().unwrap().backward().unwrap();
        let weights =
            Weights::from([("used".into(), used.into()), ("forgotten".into(), forgotten.into())]);
        let Err(Error::NoGradient { weights }) = census(&weights, &store) else {
            panic!("no error")
        };
        assert_eq!(weights, ["forgotten"]);
    }
}
