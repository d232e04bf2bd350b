//! Moments and average of a parameter.

use std::borrow::Cow;

use sconce_tensor::device::Held;
use sconce_tensor::{Result, Tensor, tensor};

#[derive(Debug, Clone, Default)]
pub(super) struct Memory {
    pub held: Held,
    pub moments: [Kept; 2],
    pub average: Kept,
}

/// An array of the parameter's shape, or none, on the device of the last update.
#[derive(Debug, Clone, Default)]
pub(super) struct Kept {
    values: Vec<f32>,
    /// The values on the parameter's device, if they are not in `values`.
    pub tensor: Option<Tensor>,
}

impl From<Vec<f32>> for Kept {
    fn from(values: Vec<f32>) -> Self {
        Kept { values, tensor: None }
    }
}

impl Kept {
    pub(super) fn read(&self) -> Result<Cow<'_, [f32]>> {
        match &self.tensor {
            Some(tensor) => Ok(tensor::to_vec(tensor)?.into()),
            None => Ok((&self.values).into()),
        }
    }

    /// Moves the values to the host, for an update there.
    pub(super) fn here(&mut self) -> Result<&mut [f32]> {
        if let Some(tensor) = self.tensor.take() {
            self.values = tensor::to_vec(&tensor)?;
        }
        Ok(&mut self.values)
    }

    /// Replaces the values; with `stays` the new values are written in place, at the same address.
    pub(super) fn set(&mut self, next: Option<Tensor>, stays: bool) -> Result<()> {
        match (&self.tensor, next) {
            (Some(place), Some(next)) if stays => place.slice_set(&next, 0, 0)?,
            (_, next) => self.tensor = next,
        }
        Ok(())
    }

    /// Moves the values to the device of parameter `p`, for an update there.
    pub(super) fn beside(&mut self, p: &Tensor) -> Result<Option<Tensor>> {
        if !self.values.is_empty() {
            self.tensor = Some(tensor::beside(p, self.values.clone(), p.shape())?);
            self.values = vec![];
        }
        Ok(self.tensor.clone())
    }
}
