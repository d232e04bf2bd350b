//! The training form of a network: passes over batches, recorded on the tape.

mod attention;
mod functions;
mod pass;

use std::collections::BTreeMap;

use sconce_ops::weights;
use sconce_tensor::candle::{Device, Tensor, Var};
use sconce_tensor::tensor::{check_shape, to_vec};

use self::pass::Pass;
use crate::outline::shown;
use crate::{Error, Net, NetSpec, Result};

/// The statistics that a batch normalisation uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Those of the batch. The running statistics move towards them.
    Training,
    /// The running statistics, unchanged.
    Inference,
}

/// A network whose weights are variables of the tape.
pub struct Training {
    spec: NetSpec,
    weights: weights::Weights,
    /// Running statistics by name.
    statistics: BTreeMap<String, Tensor>,
    /// Names and shapes of weights and statistics, in the order of the layers.
    order: Vec<(String, Vec<usize>)>,
}

impl Training {
    /// The training form of a network, with a copy of its weights.
    ///
    /// # Errors
    /// `OutOfMemory` if the weights do not fit in memory.
    pub fn new(net: &Net) -> Result<Self> {
        let (mut weights, mut statistics) = (weights::Weights::new(), BTreeMap::new());
        for weight in net.weights() {
            let tensor = Tensor::from_slice(&weight.values, &*weight.shape, &Device::Cpu)?;
            if weight.trainable {
                let variable = Var::from_tensor(&tensor)?.into_inner();
                weights.insert(weight.name.clone(), variable.into());
            } else {
                statistics.insert(weight.name.clone(), tensor);
            }
        }
        let order = net.weights().iter().map(|weight| (weight.name.clone(), weight.shape.clone()));
        Ok(Training { spec: net.spec().clone(), weights, statistics, order: order.collect() })
    }

    /// The training form with these weights, which may have other owners too. For a network without running statistics.
    ///
    /// # Errors
    /// Those of [`NetSpec::check`]; `NotFound` and `Mismatch` for a weight that is missing or has another shape, `Mismatch`
    /// for a batch normalisation.
    pub fn sharing(spec: &NetSpec, weights: weights::Weights) -> Result<Self> {
        let (_outline, slots) = spec.slots()?;
        let mut order = Vec::with_capacity(slots.len());
        for slot in slots {
            if !slot.trainable {
                let what = "layers of a network that shares its weights";
                return Err(Error::mismatch(what, "no batch_norm", slot.name));
            }
            let weight = weights.get(&slot.name);
            let weight = weight.ok_or_else(|| Error::not_found(slot.name.clone()))?;
            check_shape(&slot.name, &slot.shape, weight.dims())?;
            order.push((slot.name, slot.shape));
        }
        Ok(Training { spec: spec.clone(), weights, statistics: BTreeMap::new(), order })
    }

    /// The declaration.
    pub fn spec(&self) -> &NetSpec {
        &self.spec
    }

    /// The trained weights by name. Their gradients accumulate in them.
    pub fn weights(&self) -> &weights::Weights {
        &self.weights
    }

    /// The outputs `[b, ..]` for inputs `[b, ..]` in the order of the declaration. Tokens are whole numbers.
    ///
    /// # Errors
    /// `Mismatch` for inputs that do not fit the declaration, and in training for a batch normalisation of a single value.
    /// `OutOfRange` for a token outside of the vocabulary. `Unavailable` for tensors that are not f32 on a CPU.
    pub fn forward(&self, inputs: &[Tensor], mode: Mode) -> Result<Tensor> {
        let declared = &self.spec.inputs;
        if inputs.len() != declared.len() {
            return Err(Error::mismatch("inputs", declared.len(), inputs.len()));
        }
        let batch = inputs.first().and_then(|x| x.dims().first()).copied().unwrap_or(0);
        if batch == 0 {
            let got = inputs.first().map_or(String::new(), |x| shown(x.dims()));
            return Err(Error::mismatch("inputs", "a batch", got));
        }
        for (x, input) in inputs.iter().zip(declared) {
            let shape = [&[batch], &input.shape[..]].concat();
            check_shape(format_args!("input {}", input.name), &shape, x.dims())?;
        }
        let pass =
            Pass { spec: &self.spec, weights: &self.weights, statistics: &self.statistics, mode };
        pass.network(inputs)
    }

    /// The network with the present weights.
    ///
    /// # Errors
    /// `NonFinite` for a weight that is NaN or infinite.
    pub fn net(&self) -> Result<Net> {
        let weights = self.order.iter().map(|(name, shape)| {
            let tensor = self.weights.get(name).map(|weight| &**weight);
            let tensor = tensor.or_else(|| self.statistics.get(name));
            let tensor = tensor.ok_or_else(|| Error::not_found(name.clone()))?;
            Ok((name.clone(), to_vec(tensor)?, shape.clone()))
        });
        Net::from_weights(&self.spec, weights.collect::<Result<Vec<_>>>()?)
    }
}
