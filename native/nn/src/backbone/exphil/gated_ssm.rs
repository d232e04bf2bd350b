//! The gated state space of ExPhil, which has no recurrence.

use std::sync::Arc;

use sconce_tensor::Tensor;
use sconce_tensor::tensor::{beside, granted, zeros};

use super::super::config::{ExphilGatedSsmConfig, Layered};
use super::super::stack::{Residual, Stack};
use super::super::{Backbone, Context, State};
use super::constant::Constant;
use super::ssm::{Dense, Selected, Sizes};
use crate::Result;
use crate::layer::{Linear, Norm};
use crate::ops::{self, Activation};
use crate::weights::{Builder, Weight};

/// The ratio of the weights of two neighbouring frames.
const FADE: f64 = 0.9;

/// The gated state space of ExPhil, `[b, t, h]` -> `[b, t, h]`. All dense layers have a bias:
///
/// ```text
/// u, z = W_in x        a = silu(W_conv mean(u_t, u_{t-1}, ..))        B, C = W_bc a
/// gate = sigmoid(mean(softplus(W_dt W_r a)))        g = gate sigmoid(B C) a
/// y_t = g_t + (1 - gate_t) w_t g_t                  w_t = 0.9^(T-1-t) / (0.9^0 + .. + 0.9^(T-1))
/// W_out (y * silu(z))
/// ```
///
/// There are c = `expand_factor` h channels. B and C have n = `state_size` values each, and dt has rank h / n. The first
/// mean is over `conv_size` frames, with zeros before the window; the second is over all channels. T is the length of
/// the window, so a frame's output depends on the window that it is in.
///
/// Taps: `pre_conv` (u), `post_conv` (a), `gate` (z) and `ssm_out` (y), all `[b, t, c]`.
pub(super) struct GatedSsm {
    dense: Dense,
    /// The kernel of the mean over frames, `[c, 1, k]`.
    mean: Constant,
    frames: usize,
    conv_proj: Linear,
}

impl GatedSsm {
    /// Weights: `in_proj`, `conv_proj`, `bc_proj`, `dt_rank`, `dt_proj`, `out_proj`, each with `weight` and `bias`.
    pub(super) fn new(config: &ExphilGatedSsmConfig, b: &Builder) -> Result<Self> {
        let (h, states, frames) = (config.hidden_size, config.state_size, config.conv_size);
        let channels = config.expand_factor * h;
        let rank = (h / states).max(1);
        let dense = Dense::new(Sizes { hidden_size: h, channels, states, rank }, b)?;
        let conv = b.under("conv_proj");
        b.reserve("mean", &[channels, frames])?;
        Ok(GatedSsm {
            dense,
            mean: Constant::new(
                vec![1.0 / frames as f32; channels * frames],
                &[channels, 1, frames],
            ),
            frames,
            conv_proj: Linear::new(channels, channels, Activation::Silu, &conv)?,
        })
    }

    /// The mean over the last frames, with zeros before the window.
    fn mean_of_frames(&self, u: &Tensor, context: &Context) -> Result<Tensor> {
        let (batch, _, channels) = u.dims3()?;
        let before = zeros(&[batch, channels, self.frames - 1])?;
        let before = sconce_tensor::tensor::moved(&before, u)?;
        let kernel = Weight::from(self.mean.beside(u)?);
        Ok(ops::causal_conv(u, &kernel, None, &before, false, context.lengths())?.0)
    }

    /// The factor of each frame's a, `[b, t, 1]`: `gate sigmoid(B C) (1 + (1 - gate) w)`.
    fn factor(&self, selected: &Selected, context: &Context) -> Result<Tensor> {
        let Selected { dt, b, c } = selected;
        let sigmoid = |x: &Tensor| ops::activate(x, Activation::Sigmoid);
        let gate = sigmoid(&dt.mean_keepdim(2)?)?;
        let similar = sigmoid(&(b * c)?.sum_keepdim(2)?)?;
        let places = fading(dt, context)?;
        let more = gate.affine(-1.0, 1.0)?.broadcast_mul(&places)?.affine(1.0, 1.0)?;
        Ok(((gate * similar)? * more)?)
    }
}

/// The weight of each frame by its place in the window, `[b, t, 1]` or `[1, t, 1]`; 0 in frames that do not exist.
fn fading(x: &Tensor, context: &Context) -> Result<Tensor> {
    let (batch, time, _) = x.dims3()?;
    let lengths = context.lengths();
    let all = match &lengths {
        Some(lengths) => lengths.to_vec(),
        None => vec![time],
    };
    let rows = if lengths.is_some() { batch } else { 1 };
    let mut weights = Vec::with_capacity(rows * time);
    for length in all {
        let total: f64 = (0..length).map(|k| FADE.powf(k as f64)).sum();
        weights.extend((0..time).map(|t| match length.checked_sub(t + 1) {
            Some(age) => (FADE.powf(age as f64) / total) as f32,
            None => 0.0,
        }));
    }
    Ok(beside(x, weights, (rows, time, 1))?)
}

impl Backbone for GatedSsm {
    fn zero_state(&self, _batch: usize) -> Result<State> {
        Ok(State(vec![]))
    }

    fn forward(&self, x: &Tensor, state: &State, context: &Context) -> Result<(Tensor, State)> {
        let [u, z] = self.dense.branches(x)?;
        context.tap("pre_conv", &u);
        let a = self.conv_proj.forward(&self.mean_of_frames(&u, context)?)?;
        context.tap("post_conv", &a);
        let factor = self.factor(&self.dense.select(&a)?, context)?;
        granted(&[&a]);
        let y = a.broadcast_mul(&factor)?;
        context.tap("gate", &z);
        context.tap("ssm_out", &y);
        let (y, z) = (context.read_of(&y)?, context.read_of(&z)?);
        let y = self.dense.out_proj.forward(&ops::gated(&y, &z, Activation::Silu)?)?;
        Ok((y, state.clone()))
    }
}

/// `:gated_ssm` of ExPhil: `x = x + gated_ssm(norm(x))` for each layer, with LayerNorms and no final norm.
///
/// Weights: `input`, `layers.I.{norm, mixer}`.
pub(in super::super) fn gated_ssm(
    config: &ExphilGatedSsmConfig,
    input: usize,
    b: &Builder,
) -> Result<Stack> {
    let trunk = config.trunk();
    let layer = |i| {
        let b = b.under("layers").under(i);
        let norm = Norm::layer(trunk.hidden_size, &b.under("norm"))?;
        let mixer = GatedSsm::new(config, &b.under("mixer"))?;
        Ok(Arc::new(Residual::of_window(norm, mixer)?))
    };
    let residuals = (0..trunk.num_layers).map(layer).collect::<Result<_>>()?;
    Stack::new(&trunk, input, residuals, None, b)
}
