//! Ops with two results: candle's give one.

use std::sync::{Arc, Mutex};

use candle_core::{CpuStorage, CustomOp1, Layout, Shape, Tensor};

use super::tensor;
use crate::Result;

/// The second result of an op, which leaves it here, and its gradient, which the op's backward finds
/// here. A column of one large result would do as well, but candle gives the gradient of a narrowed
/// tensor the size of the whole.
#[derive(Debug, Default)]
pub(super) struct Second {
    value: Mutex<Option<Vec<f32>>>,
    gradient: Mutex<Option<Vec<f32>>>,
}

impl Second {
    pub fn set(&self, value: Vec<f32>) {
        *self.value.lock().unwrap_or_else(|e| e.into_inner()) = Some(value);
    }

    /// The gradient, where anything was made of the second result.
    pub fn take_gradient(&self) -> Option<Vec<f32>> {
        self.gradient.lock().unwrap_or_else(|e| e.into_inner()).take()
    }

    fn take(&self) -> candle_core::Result<Vec<f32>> {
        match self.value.lock().unwrap_or_else(|e| e.into_inner()).take() {
            Some(value) => Ok(value),
            None => candle_core::bail!("an op left no second result"),
        }
    }
}

/// The second result of the op that made `first`: a node behind it in the graph, so that its gradient is
/// there before the op's own backward runs.
pub(super) fn second(
    first: &Tensor,
    second: Arc<Second>,
    shape: impl Into<Shape>,
) -> Result<Tensor> {
    let shape = shape.into();
    Ok(match first.track_op() {
        true => first.apply_op1(Behind { second, shape })?,
        false => tensor::tensor(second.take()?, shape)?,
    })
}

struct Behind {
    second: Arc<Second>,
    shape: Shape,
}

impl CustomOp1 for Behind {
    fn name(&self) -> &'static str {
        "second-result"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(self.second.take()?), self.shape.clone()))
    }

    fn bwd(&self, first: &Tensor, _: &Tensor, d: &Tensor) -> candle_core::Result<Option<Tensor>> {
        let d = tensor::to_vec(d)?;
        *self.second.gradient.lock().unwrap_or_else(|e| e.into_inner()) = Some(d);
        // Zero, but given: without any gradient of the first result its op would not be asked.
        Ok(Some(first.zeros_like()?))
    }
}
