//! Least forget gates that grow from layer to layer (Qin et al. 2023, eq. 6 to 8).

use candle_core::{CpuStorage, CustomOp1, Layout, Shape, Tensor};

use crate::ops::tensor;
use crate::{Error, Result};

/// The bound of one layer, `[c]`, from `bounds [layers, c]`: with the softmax P over the layers,
/// `P_1 + .. + P_layer`. The first layer, 0, has none, the last stays below 1.
pub fn lower_bound(bounds: &Tensor, layer: usize) -> Result<Tensor> {
    let (layers, _) = bounds.dims2()?;
    if layer >= layers {
        return Err(Error::out_of_range("layer", layer as f64, 0.0, layers as f64 - 1.0));
    }
    Ok(bounds.contiguous()?.apply_op1(LowerBound { layer })?)
}

struct LowerBound {
    layer: usize,
}

/// The softmax over the rows of `x [layers, c]`, at channel `i`.
fn softmax(x: &[f32], c: usize, i: usize) -> Vec<f32> {
    let column = || x[i..].iter().step_by(c);
    let most = column().fold(f32::NEG_INFINITY, |m, v| m.max(*v));
    let total: f32 = column().map(|v| (v - most).exp()).sum();
    column().map(|v| (v - most).exp() / total).collect()
}

impl CustomOp1 for LowerBound {
    fn name(&self) -> &'static str {
        "lower-bound"
    }

    fn cpu_fwd(&self, x: &CpuStorage, xl: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let (x, c) = (tensor::slice(x, xl)?, xl.dims()[1]);
        let sum = |i| softmax(x, c, i)[1..=self.layer].iter().sum();
        Ok((CpuStorage::F32((0..c).map(sum).collect()), Shape::from(c)))
    }

    /// `dx_j = P_j (1[0 < j <= layer] - y) dy`
    fn bwd(&self, x: &Tensor, y: &Tensor, dy: &Tensor) -> candle_core::Result<Option<Tensor>> {
        let (layers, c) = x.dims2()?;
        let (y, dy) = (tensor::to_vec(y)?, tensor::to_vec(dy)?);
        let mut dx = vec![0.0; layers * c];
        tensor::with(x, |x| {
            for i in 0..c {
                for (j, p) in softmax(x, c, i).into_iter().enumerate() {
                    let inside = if j > 0 && j <= self.layer { 1.0 } else { 0.0 };
                    dx[j * c + i] = p * (inside - y[i]) * dy[i];
                }
            }
            Ok(())
        })?;
        Ok(Some(tensor::tensor(dx, x.shape())?))
    }
}
