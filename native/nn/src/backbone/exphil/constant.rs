//! Tensors that are not trained and not stored.

use std::sync::Mutex;

use sconce_tensor::Tensor;
use sconce_tensor::tensor::beside;

use crate::Result;

/// A tensor of constants, and its copies on the devices and in the types that have used it.
pub(super) struct Constant {
    values: Vec<f32>,
    shape: Vec<usize>,
    copies: Mutex<Vec<Tensor>>,
}

impl Constant {
    /// A constant of this shape.
    pub(super) fn new(values: Vec<f32>, shape: &[usize]) -> Self {
        Constant { values, shape: shape.to_vec(), copies: Mutex::default() }
    }

    /// The constant on the device and in the type of `x`.
    pub(super) fn beside(&self, x: &Tensor) -> Result<Tensor> {
        let mut copies = self.copies.lock().unwrap_or_else(|e| e.into_inner());
        let same = |t: &&Tensor| t.device().same_device(x.device()) && t.dtype() == x.dtype();
        if let Some(copy) = copies.iter().find(same) {
            return Ok(copy.clone());
        }
        let copy = beside(x, self.values.clone(), &self.shape[..])?;
        copies.push(copy.clone());
        Ok(copy)
    }
}
