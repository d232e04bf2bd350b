//! The weights of norms, and their gradients.

use std::mem::MaybeUninit;

use super::{layer_norm, rms_norm};
use crate::simd::row_sum;
use crate::uninit::writable;
use crate::weights::Weight;
use crate::{Result, memory, tensor};

/// Scale and shift of a norm: with a shift a LayerNorm (Ba et al. 2016, eq. 3 and 4), without a shift an RMSNorm (Zhang
/// & Sennrich 2019, eq. 4), which subtracts no mean.
#[derive(Clone)]
pub struct Norm {
    /// The scale, `[d]`.
    pub weight: Weight,
    /// The shift of a LayerNorm, `[d]`.
    pub bias: Option<Weight>,
    /// The constant added to the variance.
    pub eps: f32,
}

/// The values of a [`Norm`].
pub(crate) struct Values {
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
    eps: f32,
}

/// The gradients of a norm's weights over some rows; without a bias the bias gradient is empty.
#[derive(Default)]
pub(crate) struct Gradients {
    weight: Vec<f32>,
    bias: Vec<f32>,
}

impl Norm {
    pub(crate) fn check(&self, d: usize) -> Result<()> {
        for (name, t) in [("weight", Some(&self.weight)), ("bias", self.bias.as_ref())] {
            let Some(t) = t else { continue };
            tensor::check_shape(format_args!("{name} of a norm"), &[d], t.dims())?;
        }
        Ok(())
    }

    pub(crate) fn values(&self) -> candle_core::Result<Values> {
        let bias = self.bias.as_ref().map(|bias| tensor::to_vec(bias)).transpose()?;
        Ok(Values { weight: tensor::to_vec(&self.weight)?, bias, eps: self.eps })
    }

    /// Accumulates gradients in the weights, summed in the order of the shards.
    pub(crate) fn accumulate<'a>(&self, parts: impl IntoIterator<Item = &'a Gradients>) {
        for (i, part) in parts.into_iter().enumerate() {
            self.weight.accumulate(|sum, adds| row_sum(sum, &part.weight, adds || i > 0));
            if let Some(bias) = &self.bias {
                bias.accumulate(|sum, adds| row_sum(sum, &part.bias, adds || i > 0));
            }
        }
    }
}

impl Values {
    pub(crate) fn forward(&self, y: &mut [f32], x: &[f32]) {
        self.fill(writable(y), x);
    }

    /// Normalises rows into uninitialised memory of the same length; returns it as initialised.
    pub(crate) fn fill<'a>(&self, y: &'a mut [MaybeUninit<f32>], x: &[f32]) -> &'a mut [f32] {
        assert_eq!(y.len(), x.len(), "length of normed rows");
        assert!(x.len().is_multiple_of(self.weight.len()), "whole rows of a norm");
        match &self.bias {
            Some(bias) => layer_norm::fill(y, x, &self.weight, bias, self.eps),
            None => rms_norm::fill(y, x, &self.weight, self.eps),
        }
        // SAFETY: the norm wrote every value of every row, and `y` consists of whole rows.
        unsafe { std::slice::from_raw_parts_mut(y.as_mut_ptr().cast(), y.len()) }
    }

    /// Normalises some rows.
    pub(crate) fn rows(&self, x: &[f32]) -> Vec<f32> {
        let mut y = memory::with_capacity(x.len());
        self.fill(&mut y.spare_capacity_mut()[..x.len()], x);
        // SAFETY: `fill` wrote every value.
        unsafe { y.set_len(x.len()) };
        y
    }

    /// Turns the gradient of y into the gradient of x, in place.
    pub(crate) fn backward(&self, d: &mut [f32], part: &mut Gradients, x: &[f32]) {
        self.backward_with::<false>(d, part, x, &[], &mut []);
    }

    /// The backward pass of `x + layer(norm(x))` for some rows: turns the gradient of the normed rows into the gradient
    /// of x, in place, where `rest` is the gradient of the sum, and writes the normed rows to `y`.
    pub(crate) fn backward_residual(
        &self,
        d: &mut [f32],
        part: &mut Gradients,
        x: &[f32],
        rest: &[f32],
        y: &mut [MaybeUninit<f32>],
    ) {
        assert_eq!([d.len(), rest.len(), y.len()], [x.len(); 3], "length of normed rows");
        assert!(x.len().is_multiple_of(self.weight.len()), "whole rows of a norm");
        self.backward_with::<true>(d, part, x, rest, y);
    }

    fn backward_with<const RESIDUAL: bool>(
        &self,
        d: &mut [f32],
        part: &mut Gradients,
        x: &[f32],
        rest: &[f32],
        y: &mut [MaybeUninit<f32>],
    ) {
        let (Gradients { weight: dw, bias: db }, w, eps) = (part, &self.weight, self.eps);
        match &self.bias {
            Some(b) => layer_norm::backward::<RESIDUAL>(d, dw, db, x, w, b, eps, rest, y),
            None => rms_norm::backward::<RESIDUAL>(d, dw, x, w, eps, rest, y),
        }
    }

    pub(crate) fn zeros(&self) -> Gradients {
        let d = self.weight.len();
        Gradients {
            weight: memory::zeros(d),
            bias: memory::zeros(if self.bias.is_some() { d } else { 0 }),
        }
    }
}

/// Norms of queries and of keys, `[d]` wide, shared by all heads.
#[derive(Clone)]
pub struct HeadNorms {
    /// The norm of each query.
    pub queries: Norm,
    /// The norm of each key.
    pub keys: Norm,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of a width that is no multiple of a vector.
    const D: usize = 37;

    fn numbers(count: usize, seed: f32) -> Vec<f32> {
        (0..count).map(|i| (i as f32 * seed).sin()).collect()
    }

    #[test]
    fn a_residual_backward_pass_has_the_bits_of_its_parts() {
        let (x, dy, rest) = (numbers(5 * D, 0.37), numbers(5 * D, 0.71), numbers(5 * D, 0.13));
        for bias in [Some(numbers(D, 0.29)), None] {
            let values = Values { weight: numbers(D, 0.53), bias, eps: 1e-5 };
            let (mut expected, mut parts) = (dy.clone(), values.zeros());
            values.backward(&mut expected, &mut parts, &x);
            crate::simd::add_assign(&mut expected, &rest);
            let (mut dx, mut sums) = (dy.clone(), values.zeros());
            let mut y = vec![f32::NAN; x.len()];
            values.backward_residual(&mut dx, &mut sums, &x, &rest, writable(&mut y));
            assert_eq!((dx, sums.weight, sums.bias), (expected, parts.weight, parts.bias));
            assert_eq!(y, values.rows(&x));
        }
    }
}
