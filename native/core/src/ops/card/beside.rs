//! Outputs besides the one that an op has in the graph.

use std::sync::{Arc, Mutex};

use candle_core::cuda_backend::CudaStorage;
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor, bail};

use super::op::{lock, taken};

/// Another output of an op, or the place where the op's backward pass finds its gradient.
#[derive(Clone, Default)]
pub struct Beside(Arc<Mutex<Option<Tensor>>>);

impl Beside {
    /// `value`, which nobody else has, as an output of the op that has the output `y`.
    pub fn output(&self, y: &Tensor, value: Tensor) -> Result<Tensor> {
        if !y.track_op() {
            return Ok(value);
        }
        let shape = value.shape().clone();
        let value = Mutex::new(Some((taken(&value)?, shape)));
        y.apply_op1(Output { value, gradient: self.clone() })
    }

    /// What came back; nothing where nobody used the output.
    pub fn gradient(&self) -> Option<Tensor> {
        lock(&self.0).take()
    }
}

struct Output {
    value: Mutex<Option<(CudaStorage, Shape)>>,
    gradient: Beside,
}

impl CustomOp1 for Output {
    fn name(&self) -> &'static str {
        "beside"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        bail!("this op runs on a card only")
    }

    fn cuda_fwd(&self, _: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        match lock(&self.value).take() {
            Some(value) => Ok(value),
            None => bail!("an output was taken twice"),
        }
    }

    /// Behind it comes the op of `y`, which then finds a gradient in any case.
    fn bwd(&self, y: &Tensor, _: &Tensor, d: &Tensor) -> Result<Option<Tensor>> {
        *lock(&self.gradient.0) = Some(d.contiguous()?.detach());
        Ok(Some(y.zeros_like()?))
    }
}
