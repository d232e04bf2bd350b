//! The norm, dropout and sum around a layer.

pub(crate) mod composed;

use std::borrow::Cow;

use super::dropout::Dropout;
use super::norm::Norm;
use super::simd;

/// `x + dropout(layer(norm(x)))`, pre-norm (Xiong et al. 2020), for an op that computes the whole sum: the graph then
/// has one edge for the layer, and no intermediate tensor is saved.
#[derive(Clone)]
pub struct Residual {
    /// The norm before the layer.
    pub norm: Norm,
    /// The dropout after the layer, if any.
    pub dropout: Option<Dropout>,
}

impl Residual {
    /// Turns the layer's output for the rows `first..` into the residual sum, in place.
    pub(crate) fn add(&self, first: usize, y: &mut [f32], x: &[f32], width: usize) {
        if let Some(dropout) = &self.dropout {
            dropout.mask_rows(first, y, width);
        }
        simd::add_assign(y, x);
    }

    /// Computes the gradient of the layer's output from the gradient of the sum.
    pub(crate) fn of_layer<'a>(&self, dy: &'a [f32], width: usize) -> Cow<'a, [f32]> {
        match &self.dropout {
            Some(dropout) => dropout.mask(dy, width).into(),
            None => dy.into(),
        }
    }
}
