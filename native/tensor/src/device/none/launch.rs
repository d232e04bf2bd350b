//! Kernel launches in a build without CUDA.

use std::convert::Infallible;

use candle_core::{DType, Error, Result, Shape, Tensor, WithDType};
use sconce_cuda::kernels::Module;

use crate::device::operand::{Address, Operand};

/// A kernel and its arguments, in the order of its signature.
pub struct Launch(Infallible);

impl Launch {
    /// A kernel of a module on the card of `_x`. Fails in this build.
    pub fn of(_module: Module, _kernel: &str, _x: &Tensor) -> Result<Self> {
        Err(Error::NotCompiledWithCudaSupport)
    }

    /// Adds a pointer to a contiguous tensor.
    pub fn tensor(self, _tensor: &Tensor) -> Result<Self> {
        match self.0 {}
    }

    /// Adds a pointer to a contiguous tensor, or a null pointer.
    pub fn option(self, _tensor: Option<&Tensor>) -> Result<Self> {
        match self.0 {}
    }

    /// Adds an address.
    pub fn place(self, _place: Address) -> Self {
        match self.0 {}
    }

    /// Adds a size of 64 bits.
    pub fn long(self, _value: usize) -> Self {
        match self.0 {}
    }

    /// Adds a size of 32 bits.
    pub fn int(self, _value: usize) -> Self {
        match self.0 {}
    }

    /// Adds 32 bits that are not a size.
    pub fn word(self, _value: u32) -> Self {
        match self.0 {}
    }

    /// Adds an f32.
    pub fn float(self, _value: f32) -> Self {
        match self.0 {}
    }

    /// Launches the kernel.
    ///
    /// # Safety
    /// No requirement in this build.
    pub unsafe fn run(self, _grid: [usize; 3], _block: [usize; 3], _shared: usize) -> Result<()> {
        match self.0 {}
    }

    /// Launches the kernel with all blocks at once.
    ///
    /// # Safety
    /// No requirement in this build.
    pub unsafe fn run_together(
        self,
        _grid: [usize; 3],
        _block: [usize; 3],
        _shared: usize,
    ) -> Result<()> {
        match self.0 {}
    }

    /// The most blocks that the card runs at once.
    pub fn most_together(&self, _threads: usize, _shared: usize) -> Result<usize> {
        match self.0 {}
    }
}

/// Allocates a tensor with undefined contents on the card of `_x`. Fails in this build.
pub fn unwritten(_shape: impl Into<Shape>, _dtype: DType, _x: &Tensor) -> Result<Tensor> {
    Err(Error::NotCompiledWithCudaSupport)
}

/// Allocates the output of an op on the card of `_x`, tracked for a backward pass if `_track`. Fails in this build.
pub fn output(
    _shape: impl Into<Shape>,
    _dtype: DType,
    _x: &Tensor,
    _track: bool,
) -> Result<Tensor> {
    Err(Error::NotCompiledWithCudaSupport)
}

/// The address of the first value of a contiguous tensor. Fails in this build.
pub fn pointer(_tensor: &Tensor) -> Result<Address> {
    Err(Error::NotCompiledWithCudaSupport)
}

/// Overwrites a contiguous tensor in place. Fails in this build.
pub fn overwrite<T: WithDType>(_tensor: &Tensor, _values: &[T]) -> Result<()> {
    Err(Error::NotCompiledWithCudaSupport)
}

/// `c = a b + beta c` by cuBLAS. Fails in this build.
///
/// # Safety
/// No requirement in this build.
pub unsafe fn product(
    _beside: &Tensor,
    _operands: [Operand; 3],
    _sizes: (usize, [usize; 3]),
    _beta: f32,
) -> Result<()> {
    Err(Error::NotCompiledWithCudaSupport)
}
