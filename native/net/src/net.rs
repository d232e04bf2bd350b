//! A declaration with its weights.

use std::collections::HashMap;

use sconce_tensor::rng::{Rng, Uniforms};
use sconce_tensor::simd::non_finite;

use crate::outline::{Initial, Outline, Slot, shown};
use crate::spec::NetSpec;
use crate::{Error, Result};

/// A network: its declaration, and weights that fit it.
#[derive(Debug, Clone)]
pub struct Net {
    spec: NetSpec,
    outline: Outline,
    weights: Vec<Weight>,
    /// Index of each weight.
    index: HashMap<String, usize>,
}

/// A weight of a network.
#[derive(Debug, Clone, PartialEq)]
pub struct Weight {
    /// The name, such as `layers.0.weight`.
    pub name: String,
    /// The shape, in PyTorch's layout.
    pub shape: Vec<usize>,
    /// The values.
    pub values: Vec<f32>,
    /// False for running statistics.
    pub trainable: bool,
}

impl Net {
    /// A network with PyTorch's initial distributions. The same seed gives the same weights on each machine.
    ///
    /// # Errors
    /// Those of [`NetSpec::check`].
    pub fn init(spec: &NetSpec, seed: u64) -> Result<Net> {
        let (outline, slots) = spec.slots()?;
        let weights = slots.into_iter().map(|slot| initial(slot, seed)).collect();
        Ok(Net::whole(spec.clone(), outline, weights))
    }

    /// A network with given weights, in any order. PyTorch's `num_batches_tracked` are ignored.
    ///
    /// # Errors
    /// Those of [`NetSpec::check`]; `NotFound` for a missing weight, `Mismatch` for another shape and for a name that no
    /// layer has, `NonFinite` for a value that is NaN or infinite.
    pub fn from_weights(
        spec: &NetSpec,
        weights: impl IntoIterator<Item = (String, Vec<f32>, Vec<usize>)>,
    ) -> Result<Net> {
        let (outline, slots) = spec.slots()?;
        let given = weights.into_iter().map(|(name, values, shape)| (name, (values, shape)));
        let given = given.filter(|(name, _own)| !name.ends_with(".num_batches_tracked"));
        let mut given: HashMap<_, _> = given.collect();
        let mut all = Vec::with_capacity(slots.len());
        for slot in slots {
            let found = given.remove(&slot.name);
            let (values, shape) = found.ok_or_else(|| Error::not_found(slot.name.clone()))?;
            all.push(fitting(slot, values, &shape)?);
        }
        match given.into_keys().min() {
            None => Ok(Net::whole(spec.clone(), outline, all)),
            Some(name) => Err(Error::mismatch("weights", "names of the layers' weights", name)),
        }
    }

    fn whole(spec: NetSpec, outline: Outline, weights: Vec<Weight>) -> Net {
        let index = weights.iter().enumerate().map(|(i, weight)| (weight.name.clone(), i));
        Net { index: index.collect(), spec, outline, weights }
    }

    /// The declaration.
    pub fn spec(&self) -> &NetSpec {
        &self.spec
    }

    /// The shapes and sizes.
    pub fn outline(&self) -> &Outline {
        &self.outline
    }

    /// All weights, in the order of the layers.
    pub fn weights(&self) -> &[Weight] {
        &self.weights
    }

    /// The values of a weight.
    ///
    /// # Errors
    /// `NotFound` for a name that no layer has.
    pub fn weight(&self, name: &str) -> Result<&[f32]> {
        let at = self.index.get(name).ok_or_else(|| Error::not_found(name))?;
        Ok(&self.weights[*at].values)
    }
}

fn fitting(slot: Slot, values: Vec<f32>, shape: &[usize]) -> Result<Weight> {
    let Slot { name, shape: expected, trainable, .. } = slot;
    if *shape != *expected {
        return Err(Error::mismatch(name, shown(&expected), shown(shape)));
    }
    let count = expected.iter().product::<usize>();
    if values.len() != count {
        let got = format!("{} values", values.len());
        return Err(Error::mismatch(name, format!("{count} values"), got));
    }
    if let Some(value) = non_finite(&values) {
        return Err(Error::NonFinite { what: name, value: value.into() });
    }
    if let (true, Some(least)) =
        (name.ends_with(".running_var"), values.iter().copied().find(|v| *v < 0.0))
    {
        return Err(Error::out_of_range(name, least.into(), 0.0, f32::MAX.into()));
    }
    Ok(Weight { name, shape: expected, values, trainable })
}

fn initial(slot: Slot, seed: u64) -> Weight {
    let Slot { name, shape, initial, trainable } = slot;
    let n = shape.iter().product::<usize>() as u64;
    let rng = Rng::new(seed, &format!("net.{name}"), 0);
    let values = match initial {
        Initial::Uniform(bound) => {
            let mut uniforms = Uniforms::new(rng);
            let value = |i| ((2.0 * f64::from(uniforms.at(i)) - 1.0) * bound) as f32;
            (0..n).map(value).collect()
        }
        Initial::Normal => (0..n).map(|i| rng.normal(i)).collect(),
        Initial::Constant(value) => vec![value; n as usize],
    };
    Weight { name, shape, values, trainable }
}
