//! Several linear layers over one input, their outputs side by side.

use candle_core::{CpuStorage, CustomOp2, Layout, Shape, Tensor};

use super::linear::{row_sum, weight_gradient};
use super::matmul::{View, matmul};
use super::tensor;
use crate::weights::Weight;
use crate::{Error, Result, pool};

/// Rows of one shard of a product.
const ROWS: usize = 128;

/// `x [.., k]`, layers of `weight [n_i, k]` and `bias [n_i]` -> `[.., n_1 + n_2 + ..]`: `x W_i^T + b_i`
/// one after the other.
///
/// As one op it reads `x` once and gives it one gradient, `dx = sum of dy_i W_i`; gradients of the
/// weights are left with them ([`Weight::accumulate`]).
pub fn project(x: &Tensor, layers: &[(&Weight, Option<&Weight>)]) -> Result<Tensor> {
    let Some((first, _)) = layers.first() else {
        return Err(Error::mismatch("layers of a projection", "at least 1", 0));
    };
    let k = x.dims().last().copied().unwrap_or(1);
    let mut parts = Vec::with_capacity(layers.len());
    let mut width = 0;
    for (weight, bias) in layers {
        let (n, inputs) = weight.dims2()?;
        if inputs != k {
            let got = format!("{:?}", x.dims());
            return Err(Error::mismatch("input of a projection", format!("[.., {inputs}]"), got));
        }
        if let Some(bias) = bias
            && bias.dims() != [n]
        {
            let got = format!("{:?}", bias.dims());
            return Err(Error::mismatch("bias of a projection", format!("[{n}]"), got));
        }
        parts.push(Part { weight: (*weight).clone(), bias: bias.cloned(), begin: width, n });
        width += n;
    }
    Ok(x.contiguous()?.apply_op2(first, Project { parts, k, width })?)
}

/// One layer and where its outputs begin.
struct Part {
    weight: Weight,
    bias: Option<Weight>,
    begin: usize,
    n: usize,
}

struct Project {
    parts: Vec<Part>,
    k: usize,
    width: usize,
}

impl Project {
    fn forward(&self, x: &[f32]) -> candle_core::Result<Vec<f32>> {
        let (k, width) = (self.k, self.width);
        let mut y = vec![0.0; x.len() / k.max(1) * width];
        for part in &self.parts {
            let columns = part.begin..part.begin + part.n;
            let bias = part.bias.as_ref().map(|b| tensor::to_vec(b)).transpose()?;
            tensor::with(&part.weight, |w| {
                let w = View::rows(w, part.n, k).transposed();
                pool::for_each_rows(&mut y, width, ROWS, |first, y| {
                    let rows = y.len() / width;
                    if let Some(bias) = &bias {
                        y.chunks_exact_mut(width)
                            .for_each(|row| row[columns.clone()].copy_from_slice(bias));
                    }
                    let x = View::rows(&x[first * k..], rows, k);
                    matmul(&mut y[part.begin..], width, x, w, bias.is_some());
                });
                Ok(())
            })?;
        }
        Ok(y)
    }

    fn weights_backward(&self, part: &Part, x: &[f32], dy: &[f32]) {
        let (rows, columns) = (dy.len() / self.width, part.begin..part.begin + part.n);
        let own = View::rows(dy, rows, self.width).columns(columns.clone());
        let x = View::rows(x, rows, self.k);
        part.weight.accumulate(|dw, accumulate| weight_gradient(dw, own, x, accumulate));
        if let Some(bias) = &part.bias {
            let mut sum = vec![0.0; self.width];
            row_sum(&mut sum, dy, false);
            bias.accumulate(|db, accumulate| match accumulate {
                true => super::simd::add_assign(db, &sum[columns]),
                false => db.copy_from_slice(&sum[columns]),
            });
        }
    }

    fn input_backward(&self, dx: &mut [f32], dy: &[f32]) -> candle_core::Result<()> {
        let (k, width) = (self.k, self.width);
        for (i, part) in self.parts.iter().enumerate() {
            tensor::with(&part.weight, |w| {
                pool::for_each_rows(dx, k, ROWS, |first, dx| {
                    let dy = &dy[first * width + part.begin..];
                    let dy = View::strided(dy, dx.len() / k, part.n, width);
                    matmul(dx, k, dy, View::rows(w, part.n, k), i > 0);
                });
                Ok(())
            })?;
        }
        Ok(())
    }
}

impl CustomOp2 for Project {
    fn name(&self) -> &'static str {
        "project"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let y = self.forward(tensor::slice(x, xl)?)?;
        let mut dims = xl.dims().to_vec();
        if let Some(last) = dims.last_mut() {
            *last = self.width;
        }
        Ok((CpuStorage::F32(y), Shape::from(dims)))
    }

    fn bwd(
        &self,
        x: &Tensor,
        _: &Tensor,
        _y: &Tensor,
        dy: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>)> {
        tensor::with(dy, |dy| {
            tensor::with(x, |x| {
                self.parts.iter().for_each(|part| self.weights_backward(part, x, dy));
                Ok(())
            })?;
            if !x.track_op() {
                return Ok((None, None));
            }
            let mut dx = vec![0.0; x.elem_count()];
            self.input_backward(&mut dx, dy)?;
            Ok((Some(tensor::tensor(dx, x.shape())?), None))
        })
    }
}
