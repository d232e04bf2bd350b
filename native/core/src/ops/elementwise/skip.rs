//! `y + d * x`, a weight a channel.

use candle_core::{CpuStorage, CustomOp2, Layout, Shape, Tensor};

use crate::memory;
use crate::ops::simd::{add_assign, dispatch};
use crate::ops::{composed, tensor};
use crate::weights::Weight;
use crate::{Result, pool};

/// Rows of one shard.
const ROWS: usize = 256;

/// `y + d * x`: `y [.., c]`, `x [.., c]`, `d [c]`, the skip of a state space (Gu et al. 2022, eq. 1).
pub fn skip(y: &Tensor, x: &Tensor, d: &Weight) -> Result<Tensor> {
    let (_, c) = tensor::rows(x.dims());
    tensor::check_shape("input of a skip", x.dims(), y.dims())?;
    tensor::check_shape("weight of a skip", &[c], d.dims())?;
    if composed::wanted(x) {
        return composed::elementwise::skip(y, x, d);
    }
    Ok(y.contiguous()?.apply_op2(&x.contiguous()?, Skip { d: d.clone() })?)
}

struct Skip {
    d: Weight,
}

dispatch! {
    /// `y += d * x`, row by row.
    pub fn forward(y: &mut [f32], x: &[f32], d: &[f32]) {
        for (y, x) in y.chunks_exact_mut(d.len()).zip(x.chunks_exact(d.len())) {
            for ((y, x), d) in y.iter_mut().zip(x).zip(d) {
                *y += d * x;
            }
        }
    }
}

dispatch! {
    /// `dx *= d`, and the rows' parts of the gradient of `d`; `dx` holds `dy`.
    fn backward(dx: &mut [f32], dd: &mut [f32], x: &[f32], d: &[f32]) {
        for (dx, x) in dx.chunks_exact_mut(d.len()).zip(x.chunks_exact(d.len())) {
            for (((dx, x), d), dd) in dx.iter_mut().zip(x).zip(d).zip(dd.iter_mut()) {
                *dd += *dx * x;
                *dx *= d;
            }
        }
    }
}

impl CustomOp2 for Skip {
    fn name(&self) -> &'static str {
        "skip"
    }

    fn cpu_fwd(
        &self,
        y: &CpuStorage,
        yl: &Layout,
        x: &CpuStorage,
        xl: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let mut y = memory::copied(tensor::slice(y, yl)?);
        let x = tensor::slice(x, xl)?;
        tensor::with(&self.d, |d| {
            pool::for_each_rows(&mut y, d.len(), ROWS, |first, y| {
                forward(y, &x[first * d.len()..], d);
            });
            Ok(())
        })?;
        Ok((CpuStorage::F32(y), yl.shape().clone()))
    }

    fn bwd(
        &self,
        _y: &Tensor,
        x: &Tensor,
        _: &Tensor,
        dy: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>)> {
        let mut dx = tensor::to_vec(dy)?;
        tensor::with(&self.d, |d| {
            tensor::with(x, |x| {
                let c = d.len();
                let zero = || memory::zeros(c);
                let parts = pool::sum_rows(&mut dx, c, ROWS, zero, |first, dx, part| {
                    backward(dx, part, &x[first * c..], d);
                });
                self.d.accumulate(|dd, accumulate| {
                    if !accumulate {
                        dd.fill(0.0);
                    }
                    parts.iter().for_each(|part| add_assign(dd, part));
                });
                Ok(())
            })
        })?;
        Ok((Some(dy.clone()), Some(tensor::tensor(dx, x.shape())?)))
    }
}
