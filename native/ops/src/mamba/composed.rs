//! A Mamba layer made of other ops.

use candle_core::Tensor;

use crate::dense::composites::affine_to;
use crate::lengths::Lengths;
use crate::residual::composed::around;
use crate::{Activation, Affine, MambaWeights, Residual, Result, Selective};

pub(super) fn mamba(
    x: &Tensor,
    states: &[Tensor; 2],
    weights: &MambaWeights<'_>,
    lengths: Lengths,
) -> Result<(Tensor, [Tensor; 2])> {
    mamba_to(x, states, weights, lengths, None)
}

pub(super) fn mamba_residual(
    x: &Tensor,
    residual: &Residual,
    states: &[Tensor; 2],
    weights: &MambaWeights<'_>,
    lengths: Lengths,
) -> Result<(Tensor, [Tensor; 2])> {
    let mut after = states.clone();
    let y = around(x, residual, |x, rest| {
        let y;
        (y, after) = mamba_to(x, states, weights, lengths, rest)?;
        Ok(y)
    })?;
    Ok((y, after))
}

/// `mamba(x) + rest`.
fn mamba_to(
    x: &Tensor,
    [conv_state, ssm_state]: &[Tensor; 2],
    weights: &MambaWeights<'_>,
    lengths: Lengths,
    rest: Option<&Tensor>,
) -> Result<(Tensor, [Tensor; 2])> {
    let ((_, rank), (_, n)) = (weights.dt_proj.dims2()?, weights.a_log.dims2()?);
    let product = |x: &Tensor, weight| crate::linear(x, weight, None, Activation::None);
    let inner = weights.in_proj.dim(0)? / 2;
    let [u, z] = crate::linear_parts(x, weights.in_proj, [inner; 2])?;
    let bias = Some(&**weights.conv_bias);
    let (u, conv) = crate::causal_conv(&u, weights.conv, bias, conv_state, true, lengths.clone())?;
    let [dt, b, c] = crate::linear_parts(&u, weights.x_proj, [rank, n, n])?;
    let inputs = Selective {
        u: &u,
        dt: &product(&dt, weights.dt_proj)?,
        dt_bias: Some(weights.dt_bias),
        dt_softplus: true,
        a: weights.a_log,
        a_log: true,
        b: &b,
        c: &c,
        d: Some(weights.d),
        z: Some(&z),
        h: ssm_state,
    };
    let (y, ssm) = crate::selective_scan(inputs, lengths)?;
    let out = Affine { weight: weights.out_proj.clone(), bias: None };
    Ok((affine_to(&y, &out, rest)?, [conv, ssm]))
}
