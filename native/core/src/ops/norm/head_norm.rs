//! LayerNorm of each query and each key, before they are turned.

use candle_core::{CpuStorage, CustomOp3, Layout, Shape, Tensor};

use super::layer_norm::{backward, forward};
use crate::ops::{simd, tensor};
use crate::{Error, Result, pool};

/// Frames of one shard.
const ROWS: usize = 64;

/// LayerNorm over each head of the queries and of the keys in `qkv [.., 3 * heads * d]`; values stay as
/// they are (Henry et al. 2020; Dehghani et al. 2023, section 2.1). Scores then have a bound whatever
/// the projection does.
///
/// `queries` and `keys` are `[2, d]`: the weight and the bias that all heads share.
pub fn head_norm(qkv: &Tensor, queries: &Tensor, keys: &Tensor, eps: f32) -> Result<Tensor> {
    let (_, width) = tensor::rows(qkv.dims());
    let (_, d) = tensor::rows(queries.dims());
    for (name, t) in [("queries", queries), ("keys", keys)] {
        let what = format_args!("weight and bias of the norm of {name}");
        tensor::check_shape(what, &[2, d], t.dims())?;
    }
    if !width.is_multiple_of(3 * d) || width == 0 {
        let expected = format!("[.., a multiple of {}]", 3 * d);
        let got = format!("{:?}", qkv.dims());
        return Err(Error::mismatch("queries, keys and values", expected, got));
    }
    let (queries, keys) = (queries.contiguous()?, keys.contiguous()?);
    Ok(qkv.contiguous()?.apply_op3(&queries, &keys, HeadNorm { eps })?)
}

struct HeadNorm {
    eps: f32,
}

impl CustomOp3 for HeadNorm {
    fn name(&self) -> &'static str {
        "head-norm"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        q: &CpuStorage,
        ql: &Layout,
        k: &CpuStorage,
        kl: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let (x, q, k) = (tensor::slice(x, xl)?, tensor::slice(q, ql)?, tensor::slice(k, kl)?);
        let (_, width) = tensor::rows(xl.dims());
        let (part, d) = (width / 3, q.len() / 2);
        let mut y = x.to_vec();
        pool::for_each_rows(&mut y, width, ROWS, |first, y| {
            for (i, y) in y.chunks_exact_mut(width).enumerate() {
                let x = &x[(first + i) * width..][..width];
                forward(&mut y[..part], &x[..part], &q[..d], &q[d..], self.eps);
                let (y, x) = (&mut y[part..2 * part], &x[part..2 * part]);
                forward(y, x, &k[..d], &k[d..], self.eps);
            }
        });
        Ok((CpuStorage::F32(y), xl.shape().clone()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        q: &Tensor,
        k: &Tensor,
        _y: &Tensor,
        dy: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let (_, width) = tensor::rows(x.dims());
        let [dx, dq, dk] = tensor::with(x, |x| {
            tensor::with(q, |q| {
                tensor::with(k, |k| {
                    tensor::with(dy, |dy| Ok(gradients(x, [q, k], dy, width, self.eps)))
                })
            })
        })?;
        Ok((
            Some(tensor::tensor(dx, x.shape())?),
            Some(tensor::tensor(dq, q.shape())?),
            Some(tensor::tensor(dk, k.shape())?),
        ))
    }
}

/// Of qkv, and of weight and bias of the two norms; parts of the shards are summed in their order.
fn gradients(x: &[f32], [q, k]: [&[f32]; 2], dy: &[f32], width: usize, eps: f32) -> [Vec<f32>; 3] {
    let (part, d) = (width / 3, q.len() / 2);
    let mut dx = dy.to_vec();
    let zero = || [vec![0.0; 2 * d], vec![0.0; 2 * d]];
    let parts = pool::sum_rows(&mut dx, width, ROWS, zero, |first, dx, sums| {
        for (i, dx) in dx.chunks_exact_mut(width).enumerate() {
            let at = (first + i) * width;
            for (j, (weight, sums)) in [q, k].iter().zip(sums.iter_mut()).enumerate() {
                let (dw, db) = sums.split_at_mut(d);
                let span = at + j * part..at + (j + 1) * part;
                let dx = &mut dx[j * part..(j + 1) * part];
                backward(dx, dw, db, &x[span], &weight[..d], eps);
            }
        }
    });
    let [mut dq, mut dk] = zero();
    for [q, k] in &parts {
        simd::add_assign(&mut dq, q);
        simd::add_assign(&mut dk, k);
    }
    [dx, dq, dk]
}
