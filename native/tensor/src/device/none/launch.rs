//! Launches where there is no card.

use std::convert::Infallible;

use candle_core::{DType, Error, Result, Shape, Tensor, WithDType};
use sconce_cuda::kernels::Module;

use crate::device::operand::{Address, Operand};

/// A kernel, and its arguments in the order of its signature.
pub struct Launch(Infallible);

impl Launch {
    pub fn of(_module: Module, _kernel: &str, _x: &Tensor) -> Result<Self> {
        Err(Error::NotCompiledWithCudaSupport)
    }

    pub fn tensor(self, _tensor: &Tensor) -> Result<Self> {
        match self.0 {}
    }

    pub fn option(self, _tensor: Option<&Tensor>) -> Result<Self> {
        match self.0 {}
    }

    pub fn place(self, _place: Address) -> Self {
        match self.0 {}
    }

    pub fn long(self, _value: usize) -> Self {
        match self.0 {}
    }

    pub fn int(self, _value: usize) -> Self {
        match self.0 {}
    }

    pub fn word(self, _value: u32) -> Self {
        match self.0 {}
    }

    pub fn float(self, _value: f32) -> Self {
        match self.0 {}
    }

    /// # Safety
    /// There is none.
    pub unsafe fn run(self, _grid: [usize; 3], _block: [usize; 3], _shared: usize) -> Result<()> {
        match self.0 {}
    }
}

pub fn unwritten(_shape: impl Into<Shape>, _dtype: DType, _x: &Tensor) -> Result<Tensor> {
    Err(Error::NotCompiledWithCudaSupport)
}

pub fn output(
    _shape: impl Into<Shape>,
    _dtype: DType,
    _x: &Tensor,
    _track: bool,
) -> Result<Tensor> {
    Err(Error::NotCompiledWithCudaSupport)
}

pub fn pointer(_tensor: &Tensor) -> Result<Address> {
    Err(Error::NotCompiledWithCudaSupport)
}

pub fn overwrite<T: WithDType>(_tensor: &Tensor, _values: &[T]) -> Result<()> {
    Err(Error::NotCompiledWithCudaSupport)
}

/// # Safety
/// There is none.
pub unsafe fn product(
    _beside: &Tensor,
    _operands: [Operand; 3],
    _sizes: (usize, [usize; 3]),
    _beta: f32,
) -> Result<()> {
    Err(Error::NotCompiledWithCudaSupport)
}
