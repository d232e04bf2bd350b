//! Gated linear unit over two halves that lie side by side.

use candle_core::{CpuStorage, CustomOp1, Layout, Shape, Tensor};

use crate::memory;
use crate::ops::elementwise::activation::{Activation, multiply};
use crate::ops::{composed, tensor};
use crate::{Error, Result, pool};

/// Rows of one shard.
const ROWS: usize = 64;

/// `activation(x[.., ..n]) * x[.., n..]`, `x [.., 2n]` -> `[.., n]` (Dauphin et al. 2017; Shazeer 2020).
pub fn glu(x: &Tensor, activation: Activation) -> Result<Tensor> {
    let (_, width) = tensor::rows(x.dims());
    if width % 2 != 0 {
        return Err(Error::mismatch("width of a gated linear unit", "an even number", width));
    }
    if composed::wanted(x) {
        return composed::elementwise::glu(x, activation);
    }
    Ok(x.contiguous()?.apply_op1(Glu { activation, n: width / 2 })?)
}

struct Glu {
    activation: Activation,
    n: usize,
}

impl Glu {
    fn forward(&self, y: &mut [f32], x: &[f32]) {
        for (y, x) in y.chunks_exact_mut(self.n).zip(x.chunks_exact(2 * self.n)) {
            let (gate, value) = x.split_at(self.n);
            y.copy_from_slice(gate);
            self.activation.apply(y);
            multiply(y, value);
        }
    }

    fn backward(&self, dx: &mut [f32], x: &[f32], dy: &[f32]) {
        let n = self.n;
        let rows = dx.chunks_exact_mut(2 * n).zip(x.chunks_exact(2 * n)).zip(dy.chunks_exact(n));
        for ((dx, x), dy) in rows {
            let (d_gate, d_value) = dx.split_at_mut(n);
            let (gate, value) = x.split_at(n);
            d_value.copy_from_slice(gate);
            self.activation.apply(d_value);
            multiply(d_value, dy);
            d_gate.copy_from_slice(dy);
            multiply(d_gate, value);
            self.activation.backward(d_gate, gate);
        }
    }
}

impl CustomOp1 for Glu {
    fn name(&self) -> &'static str {
        "glu"
    }

    fn cpu_fwd(&self, x: &CpuStorage, xl: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let x = tensor::slice(x, xl)?;
        let mut y = memory::zeros(x.len() / 2);
        pool::for_each_rows(&mut y, self.n, ROWS, |first, y| {
            self.forward(y, &x[2 * first * self.n..]);
        });
        let mut dims = xl.dims().to_vec();
        if let Some(last) = dims.last_mut() {
            *last = self.n;
        }
        Ok((CpuStorage::F32(y), Shape::from(dims)))
    }

    fn bwd(&self, x: &Tensor, _y: &Tensor, dy: &Tensor) -> candle_core::Result<Option<Tensor>> {
        let mut dx = memory::zeros(x.elem_count());
        tensor::with(x, |x| {
            tensor::with(dy, |dy| {
                pool::for_each_rows(&mut dx, 2 * self.n, ROWS, |first, dx| {
                    self.backward(dx, &x[2 * first * self.n..], &dy[first * self.n..]);
                });
                Ok(())
            })
        })?;
        Ok(Some(tensor::tensor(dx, x.shape())?))
    }
}
