//! A smooth bound on numbers.

mod composed;

use candle_core::Tensor;

use crate::Result;
use crate::form::Form;
use crate::op::{self, Op, Pass};
use crate::pool::for_each_rows;

/// Numbers per shard.
const SHARD: usize = 1 << 14;

/// `cap tanh(x / cap)` of each number, from `x: [..]` to `[..]` (Gemma 2, 2024, section 2). On a card it is composed of
/// candle's ops.
pub fn softcap(x: &Tensor, cap: f32) -> Result<Tensor> {
    match Form::of(x) {
        Form::Cpu => op::apply(Softcap { cap }, &[x], x.shape()),
        Form::Card | Form::Composed => composed::softcap(x, cap),
    }
}

struct Softcap {
    cap: f32,
}

impl Op for Softcap {
    fn forward(&mut self, inputs: &[&[f32]], _track: bool) -> Result<Vec<Vec<f32>>> {
        let mut y = crate::memory::copied(inputs[0]);
        let cap = self.cap;
        for_each_rows(&mut y, 1, SHARD, |_, y| {
            y.iter_mut().for_each(|y| *y = cap * (*y / cap).tanh());
        });
        Ok(vec![y])
    }

    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let mut dx = crate::memory::copied(pass.gradient()?);
        let (y, cap) = (pass.outputs[0], self.cap);
        for_each_rows(&mut dx, 1, SHARD, |first, dx| {
            for (dx, y) in dx.iter_mut().zip(&y[first..]) {
                *dx *= 1.0 - (y / cap) * (y / cap);
            }
        });
        Ok(vec![dx])
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Var};

    use super::*;
    use crate::tape;

    /// Outputs and gradients, as f64.
    fn both(x: &Tensor, dtype: DType) -> Result<[Vec<f64>; 2]> {
        let x = Var::from_tensor(&x.to_dtype(dtype)?)?.into_inner();
        let _tape = tape::record();
        let y = softcap(&x, 3.0)?;
        let gradients = tape::backward(&y, y.ones_like()?)?;
        let dx = gradients.get(&x).cloned().ok_or_else(|| crate::Error::not_found("gradient"))?;
        let numbers = |t: &Tensor| t.to_dtype(DType::F64)?.to_vec1::<f64>();
        Ok([numbers(&y.detach())?, numbers(&dx)?])
    }

    #[test]
    fn values_and_gradients_agree_with_f64() -> Result<()> {
        let x = Tensor::arange(-40f32, 40.0, &Device::Cpu)?.affine(0.25, 0.1)?;
        let [got, want] = [both(&x, DType::F32)?, both(&x, DType::F64)?];
        for (got, want) in got.iter().flatten().zip(want.iter().flatten()) {
            assert!((got - want).abs() < 1e-6, "{got} is not {want}");
        }
        Ok(())
    }
}
