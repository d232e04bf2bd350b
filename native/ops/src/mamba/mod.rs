//! A whole Mamba layer as one op: the wide tensors between its products, convolution and scan need no tape entries and
//! no gradient tensors.

mod card;
mod composed;

use candle_core::Tensor;

use crate::causal_conv::{Conv, Window};
use crate::dense::parts::Parts;
use crate::form::Form;
use crate::lengths::Lengths;
use crate::norm::row_norm;
use crate::op::{self, Op, Pass};
use crate::selective_scan::Scan;
use crate::weights::Weight;
use crate::{Error, Residual, Result, arrange, tensor};

/// Weights of a layer with h values per frame, c channels of n states, steps of rank r and a convolution over k frames.
#[derive(Clone, Copy)]
pub struct MambaWeights<'a> {
    /// Input projection `[2 c, h]`, to x and z.
    pub in_proj: &'a Weight,
    /// Convolution `[c, 1, k]`.
    pub conv: &'a Weight,
    /// Bias of the convolution `[c]`.
    pub conv_bias: &'a Weight,
    /// Projection `[r + 2 n, c]` to dt, B and C.
    pub x_proj: &'a Weight,
    /// Projection `[c, r]` of dt.
    pub dt_proj: &'a Weight,
    /// Bias of dt `[c]`.
    pub dt_bias: &'a Weight,
    /// Logarithm of -A, `[c, n]`.
    pub a_log: &'a Weight,
    /// Skip D, `[c]`.
    pub d: &'a Weight,
    /// Output projection `[h, c]`.
    pub out_proj: &'a Weight,
}

/// `y [b, t, h]` and the states after the last frame, from `x [b, t, h]` and the states before the first frame: `[b, c,
/// k - 1]` of the convolution ([`crate::causal_conv`]) and `[b, c, n]` of the scan ([`crate::selective_scan`]).
///
/// ```text
/// x, z = W_in x      u = silu(conv(x))      dt, B, C = W_x u
/// W_out scan(u, softplus(W_dt dt + b_dt), -exp(A_log), B, C, D, z)
/// ```
pub fn mamba(
    x: &Tensor,
    states: &[Tensor; 2],
    weights: &MambaWeights<'_>,
    lengths: Lengths,
) -> Result<(Tensor, [Tensor; 2])> {
    let [conv_state, ssm_state] = states;
    let op = Mamba::new(x, [conv_state, ssm_state], weights, lengths.clone())?;
    if Form::of(x) != Form::Cpu {
        return composed::mamba(x, states, weights, lengths);
    }
    let MambaWeights { in_proj, conv, conv_bias, x_proj, dt_proj, dt_bias, a_log, d, out_proj } =
        *weights;
    let inputs: [&Tensor; 12] = [
        x, conv_state, ssm_state, in_proj, conv, conv_bias, x_proj, dt_proj, dt_bias, a_log, d,
        out_proj,
    ];
    let shapes = [x, conv_state, ssm_state].map(|t| t.shape().clone());
    let [y, conv, ssm] = op::apply_all(op, &inputs, shapes)?;
    Ok((y, [conv, ssm]))
}

/// `x + dropout(mamba(norm(x)))`, `x [b, t, h]` -> `[b, t, h]`, and the states after the last frame. See [`mamba`] and
/// [`Residual`].
pub fn mamba_residual(
    x: &Tensor,
    residual: &Residual,
    states: &[Tensor; 2],
    weights: &MambaWeights<'_>,
    lengths: Lengths,
) -> Result<(Tensor, [Tensor; 2])> {
    residual.norm.check(tensor::rows(x.dims()).1)?;
    let form = Form::of(x);
    if form != Form::Cpu {
        Mamba::new(x, [&states[0], &states[1]], weights, lengths.clone())?;
    }
    if form == Form::Card
        && let Some(stepped) = card::mamba_step(x, residual, states, weights, &lengths)?
    {
        return Ok(stepped);
    }
    if form != Form::Cpu {
        return composed::mamba_residual(x, residual, states, weights, lengths);
    }
    let (y, after) = mamba(&row_norm(x, &residual.norm)?, states, weights, lengths)?;
    let y = match &residual.dropout {
        Some(dropout) => dropout.apply(&y)?,
        None => y,
    };
    Ok((arrange::add(x, &y)?, after))
}

struct Mamba {
    in_proj: Parts<2>,
    conv: Conv,
    x_proj: Parts<3>,
    dt_proj: Parts<1>,
    scan: Scan,
    out_proj: Parts<1>,
    kept: Kept,
}

/// Intermediate tensors that the backward pass reads.
#[derive(Default)]
struct Kept {
    x: Vec<f32>,
    z: Vec<f32>,
    u: Vec<f32>,
    rank: Vec<f32>,
    dt: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
    y: Vec<f32>,
}

impl Mamba {
    fn new(
        x: &Tensor,
        states: [&Tensor; 2],
        weights: &MambaWeights<'_>,
        lengths: Lengths,
    ) -> Result<Self> {
        let (batch, time, h) = x.dims3()?;
        let (c, n) = weights.a_log.dims2()?;
        let (_, rank) = weights.dt_proj.dims2()?;
        let check = |what: &str, expected: &[usize], got: &Tensor| {
            tensor::check_shape(format_args!("{what} of a Mamba layer"), expected, got.dims())
        };
        check("in_proj", &[2 * c, h], weights.in_proj)?;
        check("x_proj", &[rank + 2 * n, c], weights.x_proj)?;
        check("dt_proj", &[c, rank], weights.dt_proj)?;
        check("dt_bias", &[c], weights.dt_bias)?;
        check("D", &[c], weights.d)?;
        check("out_proj", &[h, c], weights.out_proj)?;
        check("state of the scan", &[batch, c, n], states[1])?;
        if x.elem_count() * n * rank == 0 {
            return Err(Error::mismatch("frames of a window", "at least 1", time));
        }
        let window = Window::of(
            [batch, time, c],
            weights.conv,
            Some(weights.conv_bias),
            states[0],
            lengths.clone(),
        )?;
        let dims = |width| vec![batch, time, width];
        let scan = Scan {
            batch,
            time,
            channels: c,
            state: n,
            steady: false,
            bias: true,
            softplus: true,
            log: true,
            skip: true,
            gate: true,
            lengths,
            kept: vec![],
        };
        Ok(Mamba {
            in_proj: Parts { weight: weights.in_proj.clone(), widths: [c, c], dims: dims(h) },
            conv: Conv { window, silu: true },
            x_proj: Parts { weight: weights.x_proj.clone(), widths: [rank, n, n], dims: dims(c) },
            dt_proj: Parts { weight: weights.dt_proj.clone(), widths: [c], dims: dims(rank) },
            scan,
            out_proj: Parts { weight: weights.out_proj.clone(), widths: [h], dims: dims(c) },
            kept: Kept::default(),
        })
    }
}

impl Op for Mamba {
    fn forward(&mut self, inputs: &[&[f32]], track: bool) -> Result<Vec<Vec<f32>>> {
        let [x, conv_state, ssm_state, w_in, conv, conv_bias, w_x, w_dt, dt_bias, a_log, d, w_out] =
            op::numbers(inputs)?;
        let [x, z] = self.in_proj.products(x, w_in);
        let conv = self.conv.forward(&[&x, conv, conv_state, conv_bias], track)?;
        let [u, conv_state] = op::results(conv)?;
        let [rank, b, c] = self.x_proj.products(&u, w_x);
        let [dt] = self.dt_proj.products(&rank, w_dt);
        let scan = [&u, &dt, a_log, &b, &c, ssm_state, dt_bias, d, &z];
        let [y, ssm_state] = op::results(self.scan.forward(&scan, track)?)?;
        let [out] = self.out_proj.products(&y, w_out);
        if track {
            self.kept = Kept { x, z, u, rank, dt, b, c, y };
        }
        Ok(vec![out, conv_state, ssm_state])
    }

    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let [
            input,
            conv_state,
            ssm_state,
            w_in,
            conv,
            conv_bias,
            w_x,
            w_dt,
            dt_bias,
            a_log,
            d,
            w_out,
        ] = op::numbers(pass.inputs)?;
        let [d_out, d_conv_state, d_ssm] = op::numbers(pass.gradients)?;
        let Kept { x, z, u, rank, dt, b, c, y } = std::mem::take(&mut self.kept);
        let dy = self.out_proj.input_gradient(w_out, &[d_out]);
        if pass.wants(11) {
            self.out_proj.weight_gradient(&y, &[d_out]);
        }

        let scan = self.scan.backward(&Pass {
            inputs: &[&u, &dt, a_log, &b, &c, ssm_state, dt_bias, d, &z],
            outputs: &[],
            gradients: &[Some(&dy), d_ssm],
            wanted: &[true; 9],
        })?;
        drop((dy, y, dt, b, c, z));
        let [mut du, d_dt, d_a_log, db, dc, d_ssm, d_bias, d_skip, dz] = op::results(scan)?;

        let d_dt = [Some(&d_dt[..])];
        if pass.wants(7) {
            self.dt_proj.weight_gradient(&rank, &d_dt);
        }
        let d_rank = self.dt_proj.input_gradient(w_dt, &d_dt);
        let d_parts = [Some(&d_rank[..]), Some(&db), Some(&dc)];
        if pass.wants(6) {
            self.x_proj.weight_gradient(&u, &d_parts);
        }
        self.x_proj.add_input_gradient(&mut du, w_x, &d_parts);

        let conv = self.conv.backward(&Pass {
            inputs: &[&x, conv, conv_state, conv_bias],
            outputs: &[],
            gradients: &[Some(&du), d_conv_state],
            wanted: &[true; 4],
        })?;
        drop((du, u, x));
        let [dx, d_conv, d_conv_state, d_conv_bias] = op::results(conv)?;
        let d_parts = [Some(&dx[..]), Some(&dz)];
        if pass.wants(3) {
            self.in_proj.weight_gradient(input, &d_parts);
        }
        let d_input = match pass.wants(0) {
            true => self.in_proj.input_gradient(w_in, &d_parts),
            false => vec![],
        };
        // Gradients in the order of the inputs; the products accumulated the weights' gradients in the weights.
        Ok(vec![
            d_input,
            d_conv_state,
            d_ssm,
            vec![],
            d_conv,
            d_conv_bias,
            vec![],
            vec![],
            d_bias,
            d_a_log,
            d_skip,
            vec![],
        ])
    }
}
