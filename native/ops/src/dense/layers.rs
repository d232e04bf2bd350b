//! The weights of linear layers.

use crate::simd::row_sum;
use crate::weights::Weight;
use crate::{Error, Result, memory, simd, tensor};

/// One layer: `weight [n, k]`, `bias [n]`.
#[derive(Clone)]
pub struct Affine {
    pub weight: Weight,
    pub bias: Option<Weight>,
}

impl Affine {
    pub(crate) fn bias(&self) -> candle_core::Result<Option<Vec<f32>>> {
        self.bias.as_ref().map(|bias| tensor::to_vec(bias)).transpose()
    }

    /// The gradient of the bias over some rows; empty where there is none.
    pub(crate) fn bias_gradient(&self, d: &[f32], n: usize) -> Vec<f32> {
        let mut sum = memory::zeros(if self.bias.is_some() { n } else { 0 });
        if self.bias.is_some() {
            simd::add_rows(&mut sum, d);
        }
        sum
    }

    /// Leaves the gradient with the bias, summed in the order of the parts.
    pub(crate) fn accumulate_bias<'a>(&self, parts: impl IntoIterator<Item = &'a Vec<f32>>) {
        let Some(bias) = &self.bias else { return };
        for (i, part) in parts.into_iter().enumerate() {
            bias.accumulate(|sum, adds| row_sum(sum, part, adds || i > 0));
        }
    }

    /// The width of what comes out.
    pub(crate) fn check(&self, what: &str, input: usize) -> Result<usize> {
        let (n, k) = self.weight.dims2()?;
        if k != input {
            return Err(Error::mismatch(format!("input of the {what} layer"), k, input));
        }
        match &self.bias {
            Some(bias) if bias.dims() != [n] => {
                let (expected, got) = (format!("[{n}]"), format!("{:?}", bias.dims()));
                Err(Error::mismatch(format!("bias of the {what} layer"), expected, got))
            }
            _ => Ok(n),
        }
    }
}

/// One layer: `weight [n, k]`, `bias [n]`.
#[derive(Clone)]
pub struct Dense {
    pub weight: Weight,
    pub bias: Weight,
}

/// Two layers, with a relu between them.
#[derive(Clone)]
pub struct Branch {
    pub hidden: Dense,
    pub out: Dense,
}
