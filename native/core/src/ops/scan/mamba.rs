//! A whole Mamba layer as one op: its products, convolution and scan, without a node of the graph, a
//! zeroed gradient and a sum for each of the wide tensors between them.

use std::sync::OnceLock;

use candle_core::{Shape, Tensor};

use crate::memory;
use crate::ops::causal_conv::{Conv, Window};
use crate::ops::dense::parts::Parts;
use crate::ops::lengths::Lengths;
use crate::ops::many::{self, Many, Numbers};
use crate::ops::norm::row_norm;
use crate::ops::selective_scan::Scan;
use crate::ops::{Residual, composed, tensor};
use crate::weights::Weight;
use crate::{Error, Result};

/// Weights for h numbers a frame, c channels of n states, steps of rank r and a convolution over k.
#[derive(Clone, Copy)]
pub struct MambaWeights<'a> {
    /// `[2 c, h]`
    pub in_proj: &'a Weight,
    /// `[c, 1, k]`
    pub conv: &'a Weight,
    /// `[c]`
    pub conv_bias: &'a Weight,
    /// `[r + 2 n, c]`
    pub x_proj: &'a Weight,
    /// `[c, r]`
    pub dt_proj: &'a Weight,
    /// `[c]`
    pub dt_bias: &'a Weight,
    /// `[c, n]`
    pub a_log: &'a Weight,
    /// `[c]`
    pub d: &'a Weight,
    /// `[h, c]`
    pub out_proj: &'a Weight,
}

/// `y [b, t, h]` and the states after the last frame, from `x [b, t, h]` and the states before it:
/// `[b, c, k - 1]` of the convolution ([`crate::ops::causal_conv`]) and `[b, c, n]` of the scan
/// ([`crate::ops::selective_scan`]).
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
    if composed::wanted(x) {
        return composed::scan::mamba(x, states, weights, lengths);
    }
    let MambaWeights { in_proj, conv, conv_bias, x_proj, dt_proj, dt_bias, a_log, d, out_proj } =
        *weights;
    let inputs: [&Tensor; INPUTS] = [
        x, conv_state, ssm_state, in_proj, conv, conv_bias, x_proj, dt_proj, dt_bias, a_log, d,
        out_proj,
    ];
    let [y, conv, ssm] = many::take(many::apply(op, &inputs)?)?;
    Ok((y, [conv, ssm]))
}

/// `x + dropout(mamba(norm(x)))`, `x [b, t, h]` -> the same, and the states after the last frame: [`mamba`] and
/// [`Residual`] have the rest.
pub fn mamba_residual(
    x: &Tensor,
    residual: &Residual,
    states: &[Tensor; 2],
    weights: &MambaWeights<'_>,
    lengths: Lengths,
) -> Result<(Tensor, [Tensor; 2])> {
    residual.norm.check(tensor::rows(x.dims()).1)?;
    if composed::wanted(x) {
        Mamba::new(x, [&states[0], &states[1]], weights, lengths.clone())?;
        return composed::scan::mamba_residual(x, residual, states, weights, lengths);
    }
    let (y, after) = mamba(&row_norm(x, &residual.norm)?, states, weights, lengths)?;
    let y = match &residual.dropout {
        Some(dropout) => dropout.apply(&y)?,
        None => y,
    };
    Ok((tensor::add(x, &y)?, after))
}

const INPUTS: usize = 12;

struct Mamba {
    in_proj: Parts<2>,
    conv: Conv,
    x_proj: Parts<3>,
    dt_proj: Parts<1>,
    scan: Scan,
    out_proj: Parts<1>,
    kept: OnceLock<Kept>,
}

/// What lies between and backward reads.
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
            kept: OnceLock::new(),
        };
        Ok(Mamba {
            in_proj: Parts { weight: weights.in_proj.clone(), widths: [c, c], dims: dims(h) },
            conv: Conv { window, silu: true },
            x_proj: Parts { weight: weights.x_proj.clone(), widths: [rank, n, n], dims: dims(c) },
            dt_proj: Parts { weight: weights.dt_proj.clone(), widths: [c], dims: dims(rank) },
            scan,
            out_proj: Parts { weight: weights.out_proj.clone(), widths: [h], dims: dims(c) },
            kept: OnceLock::new(),
        })
    }
}

/// The two outputs of an op of ours.
fn two(outputs: Vec<Numbers>) -> [Numbers; 2] {
    let mut outputs = outputs.into_iter();
    std::array::from_fn(|_| outputs.next().unwrap_or((vec![], Shape::from(0))))
}

impl Many for Mamba {
    fn name(&self) -> &'static str {
        "mamba"
    }

    fn forward(&self, inputs: &[&[f32]], track: bool) -> Vec<Numbers> {
        let &[x, conv_state, ssm_state, w_in, conv, conv_bias, w_x, w_dt, dt_bias, a_log, d, w_out] =
            inputs
        else {
            return vec![];
        };
        let [x, z] = self.in_proj.products(x, w_in);
        let conv = self.conv.forward(&[&x, conv, conv_state, conv_bias], track);
        let [(u, _), conv_state] = two(conv);
        let [rank, b, c] = self.x_proj.products(&u, w_x);
        let [dt] = self.dt_proj.products(&rank, w_dt);
        let scan = [&u, &dt, a_log, &b, &c, ssm_state, dt_bias, d, &z];
        let [(y, _), ssm_state] = two(self.scan.forward(&scan, track));
        let [out] = self.out_proj.products(&y, w_out);
        if track {
            let _ = self.kept.set(Kept { x, z, u, rank, dt, b, c, y });
        }
        let (batch, time, h) = (self.scan.batch, self.scan.time, self.out_proj.widths[0]);
        vec![(out, (batch, time, h).into()), conv_state, ssm_state]
    }

    fn backward(
        &self,
        inputs: &[&[f32]],
        outputs: &[Option<&[f32]>],
        wanted: &[bool],
    ) -> Vec<Vec<f32>> {
        let (
            &[
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
            ],
            Some(kept),
        ) = (inputs, self.kept.get())
        else {
            return vec![];
        };
        let Kept { x, z, u, rank, dt, b, c, y } = kept;
        let mut dy = memory::zeros(y.len());
        self.out_proj.add_input_gradient(&mut dy, w_out, &outputs[..1]);
        if wanted[11] {
            self.out_proj.weight_gradient(y, &outputs[..1]);
        }

        let scan = [u, dt, a_log, b, c, ssm_state, dt_bias, d, z];
        let scan = self.scan.backward(&scan, &[Some(&dy), outputs[2]], &[true; 9]);
        drop(dy);
        let Ok([mut du, d_dt, d_a_log, db, dc, d_ssm, d_bias, d_skip, dz]) =
            <[Vec<f32>; 9]>::try_from(scan)
        else {
            return vec![];
        };

        let d_dt = [Some(&d_dt[..])];
        if wanted[7] {
            self.dt_proj.weight_gradient(rank, &d_dt);
        }
        let mut d_rank = memory::zeros(rank.len());
        self.dt_proj.add_input_gradient(&mut d_rank, w_dt, &d_dt);
        let d_parts = [Some(&d_rank[..]), Some(&db), Some(&dc)];
        if wanted[6] {
            self.x_proj.weight_gradient(u, &d_parts);
        }
        self.x_proj.add_input_gradient(&mut du, w_x, &d_parts);

        let from = [x, conv, conv_state, conv_bias];
        let conv = self.conv.backward(&from, &[Some(&du), outputs[1]], &[true; 4]);
        let Ok([dx, d_conv, d_conv_state, d_conv_bias]) = <[Vec<f32>; 4]>::try_from(conv) else {
            return vec![];
        };
        let d_parts = [Some(&dx[..]), Some(&dz)];
        if wanted[3] {
            self.in_proj.weight_gradient(input, &d_parts);
        }
        let mut d_input = memory::zeros(if wanted[0] { input.len() } else { 0 });
        if wanted[0] {
            self.in_proj.add_input_gradient(&mut d_input, w_in, &d_parts);
        }
        // In the order of the inputs; products have left theirs with the weights.
        vec![
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
        ]
    }
}
