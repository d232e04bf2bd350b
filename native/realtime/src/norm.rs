//! LayerNorm over a vector.

use std::ops::Range;

use sconce_core::Result;
use sconce_core::layer::EPS;
use sconce_core::ops::norm::layer_norm;

use crate::arena::Packer;

/// `(x - mean) / sqrt(variance + eps) * weight + bias` (Ba et al. 2016, eq. 3 and 4).
pub struct Norm {
    weight: Range<usize>,
    bias: Range<usize>,
}

impl Norm {
    /// The weights `NAME.weight` and `NAME.bias`, if there is to be one.
    pub fn new(wanted: bool, packer: &mut Packer, name: &str) -> Result<Option<Self>> {
        if !wanted {
            return Ok(None);
        }
        let weight = packer.keep(&format!("{name}.weight"))?;
        let bias = packer.keep(&format!("{name}.bias"))?;
        Ok(Some(Norm { weight, bias }))
    }

    pub fn apply(&self, arena: &[f32], x: &[f32], y: &mut [f32]) {
        let (weight, bias) = (&arena[self.weight.clone()], &arena[self.bias.clone()]);
        layer_norm::forward(y, x, weight, bias, EPS);
    }
}
