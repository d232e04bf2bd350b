//! Hawk and Griffin (De et al. 2024): real-gated linear recurrences, with and without local attention.

use std::ops::Range;
use std::sync::Arc;

use sconce_ops::activation::multiply;
use sconce_ops::linear_recurrence::cells::{Cell, RgLru};
use sconce_ops::linear_recurrence::step;
use sconce_realtime::{Conv, Matrix, Packer, Scratch};
use sconce_tensor::Tensor;

use super::attention::{Attention, Sizes};
use super::config::{GriffinConfig, HawkConfig, Layered, Trunk};
use super::stack::{PackedGatedFeedForward, Residual, Stack};
use super::{Backbone, Context, State};
use crate::layer::{Linear, Norm, Projection};
use crate::ops::attention::Pairing;
use crate::ops::{self, Activation};
use crate::packed::{Game, Step};
use crate::rng::Rng;
use crate::weights::{Builder, Init, Weight};
use crate::{Error, Result};

/// `W_out (gelu(W_gate x) * rglru(conv(W_value x)))` (fig. 2c). The gates `r` and `i` of the RG-LRU are computed from
/// the output of the convolution (eq. 1 to 4); see [`ops::rg_lru`].
///
/// State: the last `conv_size - 1` values `[b, inner, conv_size - 1]` and h `[b, inner]`. Weights: `linear_gate`,
/// `linear_value`, `conv1d`, `rglru.{Lambda, gate_a, gate_x}`, `linear_out`.
pub struct RecurrentBlock {
    gate: Linear,
    value: Linear,
    conv_weight: Weight,
    conv_bias: Weight,
    gates: Projection,
    lambda: Weight,
    output: Linear,
    inner: usize,
    conv_size: usize,
}

impl RecurrentBlock {
    /// A block `[b, t, width]` -> `[b, t, width]` with a recurrence of `inner` channels.
    pub fn new(width: usize, inner: usize, conv_size: usize, b: &Builder) -> Result<Self> {
        let linear =
            |input, output, name| Linear::new(input, output, Activation::None, &b.under(name));
        let (conv, rglru) = (b.under("conv1d"), b.under("rglru"));
        if conv_size == 0 {
            return Err(Error::out_of_range("conv_size", 0.0, 1.0, f64::INFINITY));
        }
        let init = Init::kernel(conv_size);
        Ok(RecurrentBlock {
            gate: linear(width, inner, "linear_gate")?,
            value: linear(width, inner, "linear_value")?,
            conv_weight: conv.get("weight", &[inner, 1, conv_size], init)?,
            conv_bias: conv.get("bias", &[inner], init)?,
            gates: Projection::new(inner, &[("gate_a", inner), ("gate_x", inner)], &rglru)?,
            lambda: rglru.get("Lambda", &[inner], Init::With(decay))?,
            output: linear(inner, width, "linear_out")?,
            inner,
            conv_size,
        })
    }
}

/// Draws `Lambda` such that `a = sigmoid(Lambda)` is uniform in 0.9..0.999 (section 2.4).
fn decay(rng: &Rng, i: u64) -> f32 {
    let a = 0.9 + 0.099 * rng.uniform(i);
    (a / (1.0 - a)).ln()
}

impl Backbone for RecurrentBlock {
    fn zero_state(&self, batch: usize) -> Result<State> {
        let zeros = sconce_tensor::tensor::zeros;
        let conv = zeros(&[batch, self.inner, self.conv_size - 1])?;
        Ok(State(vec![conv, zeros(&[batch, self.inner])?]))
    }

    fn forward(&self, x: &Tensor, state: &State, context: &Context) -> Result<(Tensor, State)> {
        let ([conv, h0], lengths) = (state.parts()?, context.lengths());
        let value = self.value.forward(x)?;
        context.tap("pre_conv", &value);
        let (bias, short) = (Some(&*self.conv_bias), lengths.clone());
        let (value, conv) = ops::causal_conv(&value, &self.conv_weight, bias, conv, false, short)?;
        context.tap("post_conv", &value);
        let gates = self.gates.forward(&value)?;
        let h = ops::rg_lru(&gates, &value, &self.lambda, h0, lengths.clone())?;
        context.tap("ssm_out", &h);
        let last = ops::last(&h, h0, &lengths)?;
        let (h, x) = (context.read_of(&h)?, context.read_of(x)?);
        let gate = self.gate.forward(&x)?;
        context.tap("gate", &gate);
        let y = self.output.forward(&ops::gated(&h, &gate, Activation::Gelu)?)?;
        Ok((y, State(vec![conv, last])))
    }

    fn pack(&self, packer: &mut Packer) -> Result<Box<dyn Step>> {
        let projection = Matrix::side_by_side(packer, &[self.value.parts(), self.gate.parts()])?;
        let conv = Conv::new(packer, &self.conv_weight, &self.conv_bias, Activation::None)?;
        let gates = self.gates.pack(packer)?;
        let lambda = packer.read(&self.lambda)?;
        let decay: Vec<f32> = lambda.into_iter().flat_map(|l| RgLru.parameters([l])).collect();
        packer.check(&decay);
        let decay = packer.lay(&decay);
        let output = self.output.pack(packer)?;
        Ok(Box::new(Packed { projection, conv, gates, decay, output }))
    }
}

/// [`RecurrentBlock`] packed for one frame at a time.
struct Packed {
    /// Rows that compute the value and the gate.
    projection: Matrix,
    conv: Conv,
    /// Rows that compute the gates r and i.
    gates: Matrix,
    /// The parameter of the cell, computed from Lambda.
    decay: Range<usize>,
    output: Matrix,
}

impl Step for Packed {
    /// Length of the last inputs of the convolution `[inner, k - 1]`, and of h `[inner]`.
    fn state_len(&self) -> usize {
        self.conv.state_len() + self.decay.len()
    }

    fn step(&self, arena: &[f32], games: &mut [Game<'_>], at: usize, scratch: &mut Scratch) {
        let (rows, inner, past) = (games.len(), self.decay.len(), self.conv.state_len());
        let Scratch { x, y, z, input, .. } = scratch;
        self.projection.read(input, x, rows);
        self.projection.apply(arena, input, y);
        for (game, y) in games.iter_mut().zip(y.chunks_exact_mut(2 * inner)) {
            self.conv.step(arena, &mut y[..inner], game.state(at, past));
        }
        input.read(y.chunks_exact(2 * inner).take(rows).map(|y| &y[..inner]));
        self.gates.apply(arena, input, z);
        let each = y.chunks_exact_mut(2 * inner).zip(z.chunks_exact(2 * inner));
        for (game, (y, gates)) in games.iter_mut().zip(each) {
            let ((value, gate), (r, i)) = (y.split_at_mut(inner), gates.split_at(inner));
            let h = game.state(at + past, inner);
            step(RgLru, h, [r, i, value], [&arena[self.decay.clone()]]);
            value.copy_from_slice(h);
            Activation::Gelu.apply(gate);
            multiply(value, gate);
        }
        input.read(y.chunks_exact(2 * inner).take(rows).map(|y| &y[..inner]));
        self.output.apply(arena, input, x);
    }
}

/// `W_down (gelu(W_gate x) * W_up x)` (fig. 2b), without memory. Weights: `mlp_gate`, `mlp_up`, `mlp_down`.
pub struct GatedMlp {
    up: Projection,
    down: Linear,
}

impl GatedMlp {
    /// A layer `[b, t, width]` -> `[b, t, width]` with an inner width of `inner`.
    pub fn new(width: usize, inner: usize, b: &Builder) -> Result<Self> {
        Ok(GatedMlp {
            up: Projection::new(width, &[("mlp_gate", inner), ("mlp_up", inner)], b)?,
            down: Linear::new(inner, width, Activation::None, &b.under("mlp_down"))?,
        })
    }
}

impl Backbone for GatedMlp {
    fn zero_state(&self, _batch: usize) -> Result<State> {
        Ok(State(vec![]))
    }

    fn forward(&self, x: &Tensor, state: &State, _context: &Context) -> Result<(Tensor, State)> {
        let y = ops::glu(&self.up.forward(x)?, Activation::Gelu)?;
        Ok((self.down.forward(&y)?, state.clone()))
    }

    fn pack(&self, packer: &mut Packer) -> Result<Box<dyn Step>> {
        let mut parts = self.up.parts();
        parts.reverse();
        let up = Matrix::side_by_side(packer, &parts)?;
        let down = self.down.pack(packer)?;
        Ok(Box::new(PackedGatedFeedForward::new(up, Activation::Gelu, down)))
    }
}

/// Builds for each layer `x + mixer(rmsnorm(x))`, then `x + gated_mlp(rmsnorm(x))`; finally an RMSNorm. Weights:
/// `layers.I.{norm1, mixer, norm2, mlp_gate, mlp_up, mlp_down}`, `norm`.
fn stack(
    trunk: Trunk,
    expand_factor: usize,
    input: usize,
    b: &Builder,
    mixer: impl Fn(usize, &Builder) -> Result<Residual>,
) -> Result<Stack> {
    let h = trunk.hidden_size;
    let mut residuals = Vec::with_capacity(2 * trunk.num_layers);
    for i in 0..trunk.num_layers {
        let b = b.under("layers").under(i);
        residuals.push(Arc::new(mixer(i, &b)?));
        let norm = Norm::rms(h, &b.under("norm2"))?;
        let mlp = GatedMlp::new(h, expand_factor * h, &b)?;
        residuals.push(Arc::new(Residual::new(norm, mlp)?));
    }
    Stack::new(&trunk, input, residuals, Some(Norm::rms(h, &b.under("norm"))?), b)
}

fn recurrent(width: usize, conv_size: usize, b: &Builder) -> Result<Residual> {
    let norm = Norm::rms(width, &b.under("norm1"))?;
    Residual::new(norm, RecurrentBlock::new(width, width, conv_size, &b.under("mixer"))?)
}

/// Hawk: Griffin without attention.
///
/// State of each layer: `[b, h, conv_size - 1]` and `[b, h]`, together 4 bytes x `hidden_size` x `conv_size`.
pub(super) fn hawk(config: &HawkConfig, input: usize, b: &Builder) -> Result<Stack> {
    let trunk = config.trunk();
    let mixer = |_, b: &Builder| recurrent(trunk.hidden_size, config.conv_size, b);
    stack(trunk, config.expand_factor, input, b, mixer)
}

/// Griffin: every `attention_every`th block attends to the last `window_size` frames; all other blocks are those of
/// [`hawk`]. Heads have a width of `hidden_size / num_heads`, and each head has its own keys and values; in the paper
/// all heads share them. Weights of an attention block: `mixer.qkv`, `mixer.out`.
///
/// State of an attention block: see [`Attention`].
pub(super) fn griffin(config: &GriffinConfig, input: usize, b: &Builder) -> Result<Stack> {
    let trunk = config.trunk();
    let (h, heads) = (trunk.hidden_size, config.num_heads);
    if heads == 0 || h % heads != 0 {
        let expected = format!("a multiple of {heads} heads");
        return Err(Error::mismatch("hidden_size of a griffin", expected, h));
    }
    let sizes = Sizes {
        hidden_size: h,
        num_heads: heads,
        head_dim: h / heads,
        window_size: config.window_size,
        qk_layernorm: false,
        pairing: Pairing::Half,
    };
    let mixer = |i: usize, b: &Builder| match (i + 1) % config.attention_every.max(1) {
        0 => {
            let norm = Norm::rms(h, &b.under("norm1"))?;
            Residual::new(norm, Attention::new(&sizes, &b.under("mixer"))?)
        }
        _ => recurrent(h, config.conv_size, b),
    };
    stack(trunk, config.expand_factor, input, b, mixer)
}
