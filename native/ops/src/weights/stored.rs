//! Weights in the forms that a checkpoint stores.

use std::sync::Arc;

use sconce_tensor::Device;

use super::{Coded, Factors, Weight};
use crate::simd::non_finite;
use crate::{Error, Result, memory, tensor};

impl Weight {
    /// A matrix `[outputs, inputs]` with the values of its codes.
    pub fn coded(codes: impl Into<Arc<Coded>>) -> Result<Self> {
        let codes = codes.into();
        let tensor = tensor::tensor(codes.weights(), (codes.outputs(), codes.inputs()))?;
        Ok(Weight { codes: Some(codes), ..tensor.into() })
    }

    /// The codes of the weight's values, if it has them. A weight that learns has none.
    pub fn codes(&self) -> Option<&Arc<Coded>> {
        self.codes.as_ref()
    }

    /// A matrix `[outputs, inputs]` with the values of the product of its factors.
    ///
    /// # Errors
    /// `NonFinite` for a product that is not finite, `OutOfMemory`.
    pub fn factored(factors: impl Into<Arc<Factors>>) -> Result<Self> {
        let factors = factors.into();
        let shape = (factors.outputs(), factors.inputs());
        memory::room("a product of factors", (size_of::<f32>() * shape.0 * shape.1) as u64)?;
        let weights = factors.weights();
        if let Some(value) = non_finite(&weights) {
            let what = "product of factors".into();
            return Err(Error::NonFinite { what, value: f64::from(value) });
        }
        let tensor = tensor::tensor(weights, shape)?;
        Ok(Weight { factors: Some(factors), ..tensor.into() })
    }

    /// The factors of the weight's values, if it has them. A weight that learns has none.
    pub fn factors(&self) -> Option<&Arc<Factors>> {
        self.factors.as_ref()
    }

    /// A copy of an untrained weight on `device`, with the same codes or factors.
    pub fn copied_to(&self, device: &Device) -> Result<Self> {
        let mut tensor = self.tensor.detach();
        if !tensor.device().same_device(device) {
            // Between two cards, or two streams of one card, a direct copy does not wait for work in flight.
            tensor = tensor.to_device(&Device::Cpu)?.to_device(device)?;
        }
        let (codes, factors) = (self.codes.clone(), self.factors.clone());
        Ok(Weight { codes, factors, ..tensor.into() })
    }
}
