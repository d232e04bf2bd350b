//! Lower bounds of forget gates that grow from layer to layer (Qin et al. 2023, eq. 6 to 8).

mod composed;

use candle_core::Tensor;

use crate::form::Form;
use crate::op::{self, Op, Pass};
use crate::simd::{add_assign, dispatch, exp_with};
use crate::{Error, Result, memory};

/// The bound of one layer, `[c]`, from `bounds [layers, c]`: `P_1 + .. + P_layer`, where P is the softmax over the
/// layers. Layer 0 has the bound 0, and the bound of the last layer is below 1.
pub fn lower_bound(bounds: &Tensor, layer: usize) -> Result<Tensor> {
    let (layers, channels) = bounds.dims2()?;
    if layer >= layers {
        return Err(Error::out_of_range("layer", layer as f64, 0.0, layers as f64 - 1.0));
    }
    if Form::of(bounds) != Form::Cpu {
        return composed::lower_bound(bounds, layer);
    }
    op::apply(LowerBound { layer, channels }, &[bounds], channels)
}

struct LowerBound {
    layer: usize,
    channels: usize,
}

dispatch! {
    /// The softmax over the rows of `x [layers, c]`, in place.
    fn softmax(x: &mut [f32], c: usize) {
        let mut most = x[..c].to_vec();
        for row in x.chunks_exact(c) {
            for (most, v) in most.iter_mut().zip(row) {
                *most = most.max(*v);
            }
        }
        let mut total = memory::zeros(c);
        for row in x.chunks_exact_mut(c) {
            for ((v, most), total) in row.iter_mut().zip(&most).zip(&mut total) {
                *v = exp_with::<FMA>(*v - most);
                *total += *v;
            }
        }
        for row in x.chunks_exact_mut(c) {
            for (v, total) in row.iter_mut().zip(&total) {
                *v /= total;
            }
        }
    }
}

impl Op for LowerBound {
    fn forward(&mut self, inputs: &[&[f32]], _track: bool) -> Result<Vec<Vec<f32>>> {
        let (mut p, c) = (memory::copied(inputs[0]), self.channels);
        softmax(&mut p, c);
        let mut y = memory::zeros(c);
        p[c..(self.layer + 1) * c].chunks_exact(c).for_each(|row| add_assign(&mut y, row));
        Ok(vec![y])
    }

    /// `dx_j = P_j (1[0 < j <= layer] - y) dy`.
    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let (y, dy) = (pass.outputs[0], pass.gradient()?);
        let (mut dx, c) = (memory::copied(pass.inputs[0]), self.channels);
        softmax(&mut dx, c);
        for (j, row) in dx.chunks_exact_mut(c).enumerate() {
            let inside = if j > 0 && j <= self.layer { 1.0 } else { 0.0 };
            for ((p, y), dy) in row.iter_mut().zip(y).zip(dy) {
                *p *= (inside - y) * dy;
            }
        }
        Ok(vec![dx])
    }
}
