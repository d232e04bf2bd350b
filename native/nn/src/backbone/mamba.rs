//! Selective state spaces: Mamba, its hybrids with attention, and a block with one gate a channel.

use std::sync::Arc;

use sconce_tensor::Tensor;

use super::attention::{self, Sizes};
use super::stack::{Residual, Stack};
use super::{Backbone, Context, State, residual_by_parts};
use crate::Result;
use crate::layer::{Linear, Norm};
use crate::ops::{self, Activation, MambaWeights, Selective};
use crate::rng::Rng;
use crate::spec::{HawkConfig, JambaConfig, Layered, MambaConfig};
use crate::weights::{Builder, Init, Weight};
use sconce_tensor::tensor::zeros;

/// Inner width of the feed-forward layers of the hybrids over `hidden_size`.
const FFN: usize = 4;

/// Widths of a layer for each number of a low-rank projection.
const RANK: usize = 16;

/// A causal depthwise convolution with SiLU; weights `weight [c, 1, k]`, `bias [c]`.
struct Conv {
    weight: Weight,
    bias: Weight,
}

impl Conv {
    fn new(channels: usize, kernel: usize, b: &Builder) -> Result<Self> {
        let init = Init::fan_in(kernel);
        let weight = b.get("weight", &[channels, 1, kernel], init)?;
        Ok(Conv { weight, bias: b.get("bias", &[channels], init)? })
    }

    fn zero_state(&self, batch: usize) -> Result<Tensor> {
        let (channels, _, kernel) = self.weight.dims3()?;
        Ok(zeros(&[batch, channels, kernel - 1])?)
    }

    fn forward(&self, x: &Tensor, state: &Tensor, context: &Context) -> Result<(Tensor, Tensor)> {
        context.tap("pre_conv", x);
        let bias = Some(&*self.bias);
        let (y, state) = ops::causal_conv(x, &self.weight, bias, state, true, context.lengths())?;
        context.tap("post_conv", &y);
        Ok((y, state))
    }
}

/// A number between `low` and `high`, evenly spread in its logarithm.
fn log_uniform(rng: &Rng, i: u64, low: f32, high: f32) -> f32 {
    let (low, high) = (low.ln(), high.ln());
    (low + (high - low) * rng.uniform(i)).exp()
}

/// The bias whose softplus is a step size between 1e-3 and 0.1 (Gu and Dao 2023, section 3.6).
pub(super) fn softplus_of_a_step(rng: &Rng, i: u64) -> f32 {
    let dt = log_uniform(rng, i, 1e-3, 0.1);
    dt + (-(-dt).exp_m1()).ln()
}

/// The logarithm of such a step size.
pub(super) fn log_of_a_step(rng: &Rng, i: u64) -> f32 {
    log_uniform(rng, i, 1e-3, 0.1).ln()
}

/// The S6 layer of Mamba (Gu and Dao 2023, section 3 and fig. 3), `[b, t, h]` to the same:
///
/// ```text
/// x, z = W_in u            x = silu(conv(x))        dt, B, C = W_x x
/// dt = softplus(W_dt dt + b_dt)                     A = -exp(A_log)
/// s_t = exp(dt_t A) s_{t-1} + dt_t B_t x_t          y_t = C_t s_t + D x_t
/// W_out (y * silu(z))
/// ```
///
/// with c = `expand_factor` h channels of n = `state_size` states, and dt of rank h / 16. A_log, D
/// and a step size of each channel are learned; they begin as 1..n (S4D-Real: Gu et al. 2022), 1 and
/// between 1e-3 and 0.1.
///
/// State: the last `conv_size - 1` inputs of the convolution `[b, c, conv_size - 1]`, and s
/// `[b, c, n]`: 4 c (n + conv_size - 1) bytes, 38 KB for 256 wide.
///
/// Taps: `pre_conv`, `post_conv`, `gate` (z) and `ssm_out` (y, gated), all `[b, t, c]`.
pub struct Mamba {
    in_proj: Weight,
    conv: Conv,
    x_proj: Weight,
    dt_proj: Weight,
    dt_bias: Weight,
    a_log: Weight,
    d: Weight,
    out_proj: Weight,
    rank: usize,
}

impl Mamba {
    /// Weights `in_proj`, `conv1d`, `x_proj`, `dt_proj`, `A_log`, `D`, `out_proj`.
    pub fn new(h: usize, config: &MambaConfig, b: &Builder) -> Result<Self> {
        let (c, n, rank) = (config.expand_factor * h, config.state_size, h.div_ceil(RANK));
        let project =
            |name, rows, inputs| b.under(name).get("weight", &[rows, inputs], Init::fan_in(inputs));
        Ok(Mamba {
            in_proj: project("in_proj", 2 * c, h)?,
            conv: Conv::new(c, config.conv_size, &b.under("conv1d"))?,
            x_proj: project("x_proj", rank + 2 * n, c)?,
            dt_proj: project("dt_proj", c, rank)?,
            dt_bias: b.under("dt_proj").get("bias", &[c], Init::With(softplus_of_a_step))?,
            a_log: b.get("A_log", &[c, n], Init::LogOfColumn(n))?,
            d: b.get("D", &[c], Init::Constant(1.0))?,
            out_proj: project("out_proj", h, c)?,
            rank,
        })
    }

    /// `x + mamba(norm(x))`; weights `norm`, `mixer`.
    fn residual(h: usize, config: &MambaConfig, b: &Builder) -> Result<Arc<Residual>> {
        let mixer = Mamba::new(h, config, &b.under("mixer"))?;
        Ok(Arc::new(Residual::new(Norm::rms(h, &b.under("norm"))?, mixer)?))
    }
}

impl Backbone for Mamba {
    fn zero_state(&self, batch: usize) -> Result<State> {
        let (c, n) = self.a_log.dims2()?;
        Ok(State(vec![self.conv.zero_state(batch)?, zeros(&[batch, c, n])?]))
    }

    fn forward(&self, x: &Tensor, state: &State, context: &Context) -> Result<(Tensor, State)> {
        let state = state.parts()?;
        let (y, after) = match context.is_tapped() {
            true => self.op_by_op(x, state, context)?,
            false => ops::mamba(x, state, &self.weights(), context.lengths())?,
        };
        Ok((y, State(after.into())))
    }

    fn residual(
        &self,
        x: &Tensor,
        residual: &ops::Residual,
        state: &State,
        context: &Context,
    ) -> Result<(Tensor, State)> {
        if context.is_tapped() || (context.is_of_last() && x.dim(1)? > 1) {
            return residual_by_parts(self, x, residual, state, context);
        }
        let (weights, lengths) = (self.weights(), context.lengths());
        let (y, after) = ops::mamba_residual(x, residual, state.parts()?, &weights, lengths)?;
        Ok((y, State(after.into())))
    }
}

impl Mamba {
    fn weights(&self) -> MambaWeights<'_> {
        MambaWeights {
            in_proj: &self.in_proj,
            conv: &self.conv.weight,
            conv_bias: &self.conv.bias,
            x_proj: &self.x_proj,
            dt_proj: &self.dt_proj,
            dt_bias: &self.dt_bias,
            a_log: &self.a_log,
            d: &self.d,
            out_proj: &self.out_proj,
        }
    }

    /// The same with all that lies between as tensors.
    fn op_by_op(
        &self,
        x: &Tensor,
        [conv, ssm]: &[Tensor; 2],
        context: &Context,
    ) -> Result<(Tensor, [Tensor; 2])> {
        let (c, n) = self.a_log.dims2()?;
        let [x, z] = ops::linear_parts(x, &self.in_proj, [c, c])?;
        let (u, conv) = self.conv.forward(&x, conv, context)?;
        let [dt, b, c] = ops::linear_parts(&u, &self.x_proj, [self.rank, n, n])?;
        let inputs = Selective {
            u: &u,
            dt: &ops::linear(&dt, &self.dt_proj, None, Activation::None)?,
            dt_bias: Some(&self.dt_bias),
            dt_softplus: true,
            a: &self.a_log,
            a_log: true,
            b: &b,
            c: &c,
            d: Some(&self.d),
            z: Some(&z),
            h: ssm,
        };
        let (y, ssm) = ops::selective_scan(inputs, context.lengths())?;
        context.tap("gate", &z);
        context.tap("ssm_out", &y);
        Ok((ops::linear(&y, &self.out_proj, None, Activation::None)?, [conv, ssm]))
    }
}

/// `:mamba`: `x = x + mamba(norm(x))` for each layer, norms RMS; no last norm.
///
/// `x [b, t, input]` -> `[b, t, hidden_size]`; `input` is projected where it has another width. State:
/// that of each [`Mamba`]. Weights: `input`, `layers.I.{norm, mixer}`.
pub fn mamba(config: &MambaConfig, input: usize, b: &Builder) -> Result<Stack> {
    let trunk = config.trunk();
    let layer = |i| Mamba::residual(trunk.hidden_size, config, &b.under("layers").under(i));
    let residuals = (0..trunk.num_layers).map(layer).collect::<Result<_>>()?;
    Stack::new(&trunk, input, residuals, None, b)
}

impl JambaConfig {
    /// Of the Mamba layers.
    pub fn mamba(&self) -> MambaConfig {
        MambaConfig {
            hidden_size: self.hidden_size,
            num_layers: self.num_layers,
            state_size: self.state_size,
            expand_factor: self.expand_factor,
            conv_size: self.conv_size,
            input_norm: self.input_norm,
            dropout: self.dropout,
            input_dropout: self.input_dropout,
        }
    }

    /// Of the attending layers.
    pub fn attention(&self) -> Sizes {
        Sizes {
            hidden_size: self.hidden_size,
            num_heads: self.num_heads,
            head_dim: self.head_dim,
            window_size: self.window_size,
            qk_layernorm: self.qk_layernorm,
            pairing: ops::attention::Pairing::Half,
        }
    }
}

/// `:jamba`: Mamba and attention in turn (Lieber et al. 2024). Each `attention_every`th layer is a
/// block of a transformer over the last `window_size` frames, its FFN four times as wide; the others
/// are those of [`mamba`]. A LayerNorm ends the stack.
///
/// State: those of the layers, see [`Mamba`] and [`attention::Attention`]. Weights: `input`,
/// `layers.I.{norm, mixer}` or `layers.I.{norm1, qkv, out, norm2, ffn1, ffn2}`, `norm`.
pub fn jamba(config: &JambaConfig, input: usize, b: &Builder) -> Result<Stack> {
    let (trunk, mamba, sizes) = (config.trunk(), config.mamba(), config.attention());
    let h = trunk.hidden_size;
    let mut residuals = vec![];
    for i in 0..trunk.num_layers {
        let b = b.under("layers").under(i);
        match (i + 1) % config.attention_every {
            0 => residuals.extend(attention::block(&sizes, FFN * h, &b)?),
            _ => residuals.push(Mamba::residual(h, &mamba, &b)?),
        }
    }
    Stack::new(&trunk, input, residuals, Some(Norm::layer(h, &b.under("norm"))?), b)
}

/// `:zamba`: a stack of Mamba layers, and one block of a transformer that comes after every
/// `attention_every` of them, each time with the same weights and a memory of its own (Glorioso et al.
/// 2024). A LayerNorm ends the stack.
///
/// State: those of the layers in their order. Weights: `input`, `layers.I.{norm, mixer}`,
/// `shared.{norm1, qkv, out, norm2, ffn1, ffn2}`, `norm`.
pub fn zamba(config: &JambaConfig, input: usize, b: &Builder) -> Result<Stack> {
    let (trunk, mamba) = (config.trunk(), config.mamba());
    let h = trunk.hidden_size;
    let every = config.attention_every;
    // A block that no layer comes to would be weights without a gradient.
    let block = || attention::block(&config.attention(), FFN * h, &b.under("shared"));
    let shared = (trunk.num_layers >= every).then(block).transpose()?;
    let mut residuals = vec![];
    for i in 0..trunk.num_layers {
        residuals.push(Mamba::residual(h, &mamba, &b.under("layers").under(i))?);
        if let (0, Some(shared)) = ((i + 1) % every, &shared) {
            residuals.extend(shared.iter().cloned());
        }
    }
    Stack::new(&trunk, input, residuals, Some(Norm::layer(h, &b.under("norm"))?), b)
}

/// A Mamba layer with one state a channel: an input gate and a forget gate in place of dt, B and C,
/// `[b, t, h]` to the same:
///
/// ```text
/// x, z = W_in u            x = silu(conv(x))        f, i = W_x x, of rank h / 16 each
/// a = sigmoid(W_a f + b_a)                          g = sigmoid(W_i i + b_i)
/// s_t = a_t s_{t-1} + (1 - a_t) g_t x_t             W_out (s * silu(z))
/// ```
///
/// with c = `expand_factor` h channels. b_a begins so that a lies between 0.9 and 0.999.
///
/// State: the last inputs of the convolution `[b, c, conv_size - 1]`, and s `[b, c]`: 4 c `conv_size`
/// bytes. Taps: `pre_conv`, `post_conv`, `gate` (z) and `ssm_out` (s), all `[b, t, c]`.
pub struct GatedSsm {
    in_proj: Weight,
    conv: Conv,
    x_proj: Weight,
    decay_proj: Linear,
    input_proj: Linear,
    out_proj: Linear,
    channels: usize,
    rank: usize,
}

impl GatedSsm {
    /// Weights `in_proj`, `conv1d`, `x_proj`, `decay_proj`, `input_proj`, `out_proj`.
    pub fn new(config: &HawkConfig, b: &Builder) -> Result<Self> {
        let h = config.hidden_size;
        let (c, rank) = (config.expand_factor * h, h.div_ceil(RANK));
        let project =
            |name, rows, inputs| b.under(name).get("weight", &[rows, inputs], Init::fan_in(inputs));
        // The logit of 1 - log-uniform(1e-3, 0.1).
        let forget = Init::With(|rng, i| {
            let keep = 1.0 - log_uniform(rng, i, 1e-3, 0.1);
            (keep / (1.0 - keep)).ln()
        });
        let decay = Linear::with_bias(rank, c, forget, &b.under("decay_proj"))?;
        Ok(GatedSsm {
            in_proj: project("in_proj", 2 * c, h)?,
            conv: Conv::new(c, config.conv_size, &b.under("conv1d"))?,
            x_proj: project("x_proj", 2 * rank, c)?,
            decay_proj: decay,
            input_proj: Linear::new(rank, c, Activation::None, &b.under("input_proj"))?,
            out_proj: Linear::without_bias(c, h, &b.under("out_proj"))?,
            channels: c,
            rank,
        })
    }
}

impl Backbone for GatedSsm {
    fn zero_state(&self, batch: usize) -> Result<State> {
        Ok(State(vec![self.conv.zero_state(batch)?, zeros(&[batch, self.channels])?]))
    }

    fn forward(&self, x: &Tensor, state: &State, context: &Context) -> Result<(Tensor, State)> {
        let [conv, first] = state.parts()?;
        let [x, z] = ops::linear_parts(x, &self.in_proj, [self.channels; 2])?;
        let (x, conv) = self.conv.forward(&x, conv, context)?;
        let [f, i] = ops::linear_parts(&x, &self.x_proj, [self.rank; 2])?;
        let decay = ops::activate(&self.decay_proj.forward(&f)?, Activation::Sigmoid)?;
        let input = ops::gated(&x, &self.input_proj.forward(&i)?, Activation::Sigmoid)?;
        sconce_tensor::tensor::granted(&[&input, &decay]);
        let b = (&input - (&input * &decay)?)?;
        let s = ops::linear_recurrence(&decay, &b, first, context.lengths())?;
        let last = ops::last(&s, first, &context.lengths())?;
        context.tap("gate", &z);
        context.tap("ssm_out", &s);
        let (s, z) = (context.read_of(&s)?, context.read_of(&z)?);
        let y = self.out_proj.forward(&ops::gated(&s, &z, Activation::Silu)?)?;
        Ok((y, State(vec![conv, last])))
    }
}

/// `:gated_ssm`: `x = x + gated_ssm(norm(x))` for each layer, norms RMS; no last norm.
///
/// State: that of each [`GatedSsm`]. Weights: `input`, `layers.I.{norm, mixer}`.
pub fn gated_ssm(config: &HawkConfig, input: usize, b: &Builder) -> Result<Stack> {
    let trunk = config.trunk();
    let layer = |i| {
        let b = b.under("layers").under(i);
        let norm = Norm::rms(trunk.hidden_size, &b.under("norm"))?;
        Ok(Arc::new(Residual::new(norm, GatedSsm::new(config, &b.under("mixer"))?)?))
    };
    let residuals = (0..trunk.num_layers).map(layer).collect::<Result<_>>()?;
    Stack::new(&trunk, input, residuals, None, b)
}
