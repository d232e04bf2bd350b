//! Fake quantisation composed of candle's ops.

use candle_core::{DType, Tensor};

use super::{Codes, Groups};
use crate::Result;

pub(super) fn fake_quantise(
    x: &Tensor,
    step: &Tensor,
    zero: Option<&Tensor>,
    codes: Codes,
    groups: Groups,
) -> Result<Tensor> {
    let step = spread(step, groups)?.detach();
    let shift = match zero {
        Some(zero) => spread(zero, groups)?.detach(),
        None => step.zeros_like()?,
    };
    let flat = x.reshape(step.dims())?;
    let code = half_to_even(&(flat.detach() / &step)?)?;
    let ends = [codes.lo, codes.hi].map(|end| (&shift.neg()? + f64::from(end)).map_err(Into::into));
    let [lo, hi]: [Result<Tensor>; 2] = ends;
    let kept = code.maximum(&lo?)?.minimum(&hi?)?;
    let inside = kept.eq(&code)?.to_dtype(x.dtype())?;
    let y = (&kept * &step)?;
    Ok((y + inside.mul(&from_zero(&flat)?)?)?.reshape(x.shape())?)
}

pub(super) fn learned_step(
    x: &Tensor,
    step: &Tensor,
    offset: Option<&Tensor>,
    codes: Codes,
    groups: Groups,
) -> Result<Tensor> {
    let wide = spread(step, groups)?;
    let shift = match offset {
        Some(offset) => spread(offset, groups)?,
        None => wide.zeros_like()?,
    };
    let flat = x.reshape(wide.dims())?;
    let ratio = ((&flat - &shift)? / &wide)?.detach();
    let (lo, hi) = (f64::from(codes.lo), f64::from(codes.hi));
    let code = half_to_even(&ratio.clamp(lo, hi)?)?;
    let inside = (ratio.gt(lo)?.to_dtype(x.dtype())? * ratio.lt(hi)?.to_dtype(x.dtype())?)?;
    let factor = factors(groups, codes, &wide)?;
    let slope = ((&code - (&inside * &ratio)?)? * &factor)?;
    let outside = (inside.affine(-1.0, 1.0)? * &factor)?;
    let y = ((&code * wide.detach())? + shift.detach())?;
    let y = (y + inside.mul(&from_zero(&flat)?)?)?;
    let y = (y + slope.mul(&from_zero(&wide)?)?)?;
    Ok((y + outside.mul(&from_zero(&shift)?)?)?.reshape(x.shape())?)
}

/// Zeros with the gradient of `x`.
fn from_zero(x: &Tensor) -> Result<Tensor> {
    Ok((x - x.detach())?)
}

/// The number of each group at all its columns: `[rows, cols]`.
fn spread(of: &Tensor, groups: Groups) -> Result<Tensor> {
    let ([rows, cols, width], per_row) = (groups.sizes(), groups.per_row());
    let wide = of.reshape((rows, per_row, 1))?.broadcast_as((rows, per_row, width))?;
    Ok(wide.reshape((rows, per_row * width))?.narrow(1, 0, cols)?)
}

/// `1 / sqrt(N hi)` at all numbers: `[rows, cols]`.
fn factors(groups: Groups, codes: Codes, like: &Tensor) -> Result<Tensor> {
    let factor = |n: usize| 1.0 / (n as f64 * f64::from(codes.hi)).sqrt();
    let row: Vec<f64> = groups.lengths().flat_map(|n| vec![factor(n); n]).collect();
    let row = Tensor::from_vec(row, (1, like.dim(1)?), &candle_core::Device::Cpu)?;
    let row = row.to_dtype(DType::F32)?.to_device(like.device())?.to_dtype(like.dtype())?;
    Ok(row.broadcast_as(like.shape())?)
}

/// Rounds half to even; candle's `round` rounds half away from zero. In bf16 the sum with a half would be rounded too.
fn half_to_even(x: &Tensor) -> Result<Tensor> {
    let dtype = x.dtype();
    let x = if dtype == DType::BF16 { x.to_dtype(DType::F32)? } else { x.clone() };
    let up = (&x + 0.5)?.floor()?;
    let tie = (&up - &x)?.eq(0.5)?.to_dtype(x.dtype())?;
    let odd = (&up - (up.affine(0.5, 0.0)?.floor()? * 2.0)?)?;
    Ok((up - (tie * odd)?)?.to_dtype(dtype)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_stay_in_every_type() {
        for dtype in [DType::F32, DType::F64, DType::BF16] {
            let numbers: Vec<f32> = (-255..=255).map(|i| i as f32).collect();
            let x = Tensor::new(numbers.as_slice(), &candle_core::Device::Cpu).unwrap();
            let rounded = half_to_even(&x.to_dtype(dtype).unwrap()).unwrap();
            let rounded = rounded.to_dtype(DType::F32).unwrap().to_vec1::<f32>().unwrap();
            assert_eq!(rounded, numbers, "{dtype:?}");
        }
    }
}
