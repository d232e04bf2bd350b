//! A Mamba layer with one state per channel and gates instead of dt, B and C.

use std::sync::Arc;

use sconce_realtime::{self as packed, Matrix, Packer, Scratch};
use sconce_tensor::Tensor;
use sconce_tensor::simd::{dispatch, sigmoid_with};
use sconce_tensor::tensor::zeros;

use super::config::{HawkConfig, Layered};
use super::mamba::{Conv, RANK, log_uniform};
use super::stack::{Residual, Stack};
use super::{Backbone, Context, State};
use crate::Result;
use crate::layer::{Linear, Norm};
use crate::ops::{self, Activation};
use crate::packed::{Game, Step};
use crate::weights::{Builder, Init, Weight};

/// A Mamba layer with one state per channel. An input gate and a forget gate replace dt, B and C. `[b, t, h]` ->
/// `[b, t, h]`:
///
/// ```text
/// x, z = W_in u            x = silu(conv(x))        f, i = W_x x, of rank h / 16 each
/// a = sigmoid(W_a f + b_a)                          g = sigmoid(W_i i + b_i)
/// s_t = a_t s_{t-1} + (1 - a_t) g_t x_t             W_out (s * silu(z))
/// ```
///
/// There are c = `expand_factor` h channels. b_a starts so that a lies between 0.9 and 0.999.
///
/// State: the last inputs of the convolution `[b, c, conv_size - 1]`, and s `[b, c]`, together 4 c `conv_size` bytes.
/// Taps: `pre_conv`, `post_conv`, `gate` (z) and `ssm_out` (s), all `[b, t, c]`.
pub(super) struct GatedSsm {
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
    /// Weights: `in_proj`, `conv1d`, `x_proj`, `decay_proj`, `input_proj`, `out_proj`.
    pub(super) fn new(config: &HawkConfig, b: &Builder) -> Result<Self> {
        let h = config.hidden_size;
        let (c, rank) = (config.expand_factor * h, h.div_ceil(RANK));
        let project =
            |name, rows, inputs| b.under(name).get("weight", &[rows, inputs], Init::fan_in(inputs));
        // Draws the logit of 1 - log-uniform(1e-3, 0.1).
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

    fn pack(&self, packer: &mut Packer) -> Result<Box<dyn Step>> {
        Ok(Box::new(PackedGatedSsm {
            in_proj: Matrix::dense(packer, &self.in_proj, None)?,
            conv: self.conv.pack(packer)?,
            x_proj: Matrix::dense(packer, &self.x_proj, None)?,
            decay_proj: self.decay_proj.pack(packer)?,
            input_proj: self.input_proj.pack(packer)?,
            out_proj: self.out_proj.pack(packer)?,
            channels: self.channels,
        }))
    }
}

/// [`GatedSsm`] packed for one frame at a time.
struct PackedGatedSsm {
    in_proj: Matrix,
    conv: packed::Conv,
    x_proj: Matrix,
    decay_proj: Matrix,
    input_proj: Matrix,
    out_proj: Matrix,
    channels: usize,
}

impl Step for PackedGatedSsm {
    /// Length of the last inputs of the convolution `[c, k - 1]`, and of s `[c]`.
    fn state_len(&self) -> usize {
        self.conv.state_len() + self.channels
    }

    fn step(&self, arena: &[f32], games: &mut [Game<'_>], at: usize, scratch: &mut Scratch) {
        let (rows, channels, past) = (games.len(), self.channels, self.conv.state_len());
        let Scratch { x, y, z, input, .. } = scratch;
        self.in_proj.read(input, x, rows);
        self.in_proj.apply(arena, input, y);
        for (game, y) in games.iter_mut().zip(y.chunks_exact_mut(2 * channels)) {
            self.conv.step(arena, &mut y[..channels], game.state(at, past));
        }
        input.read(y.chunks_exact(2 * channels).take(rows).map(|y| &y[..channels]));
        self.x_proj.apply(arena, input, z);
        let between = self.x_proj.outputs();
        input.read(z.chunks_exact(between).take(rows).map(|z| &z[..between / 2]));
        self.decay_proj.apply(arena, input, x);
        input.read(z.chunks_exact(between).take(rows).map(|z| &z[between / 2..]));
        self.input_proj.apply(arena, input, z);
        let gates = x.chunks_exact(channels).zip(z.chunks_exact(channels));
        let each = y.chunks_exact_mut(2 * channels).zip(gates);
        for (game, (y, (decay, input))) in games.iter_mut().zip(each) {
            let (u, gate) = y.split_at_mut(channels);
            gated(u, [decay, input, gate], game.state(at + past, channels));
        }
        input.read(y.chunks_exact(2 * channels).take(rows).map(|y| &y[..channels]));
        self.out_proj.apply(arena, input, x);
    }
}

dispatch! {
    /// Computes `s = a s + (1 - a) g u` and `u = s silu(z)` for each channel. a and g are the sigmoids of the first two
    /// `parts`; z is the third.
    fn gated(u: &mut [f32], parts: [&[f32]; 3], state: &mut [f32]) {
        let n = u.len();
        let ([decay, input, gate], state) = (parts.map(|part| &part[..n]), &mut state[..n]);
        for i in 0..n {
            let a = sigmoid_with::<FMA>(decay[i]);
            let new = sigmoid_with::<FMA>(input[i]) * u[i];
            state[i] = a * state[i] + (new - new * a);
            u[i] = state[i] * gate[i] * sigmoid_with::<FMA>(gate[i]);
        }
    }
}

/// `:gated_ssm`: `x = x + gated_ssm(norm(x))` for each layer, with RMS norms and no final norm.
///
/// State: the state of each [`GatedSsm`]. Weights: `input`, `layers.I.{norm, mixer}`.
pub(super) fn gated_ssm(config: &HawkConfig, input: usize, b: &Builder) -> Result<Stack> {
    let trunk = config.trunk();
    let layer = |i| {
        let b = b.under("layers").under(i);
        let norm = Norm::rms(trunk.hidden_size, &b.under("norm"))?;
        Ok(Arc::new(Residual::new(norm, GatedSsm::new(config, &b.under("mixer"))?)?))
    };
    let residuals = (0..trunk.num_layers).map(layer).collect::<Result<_>>()?;
    Stack::new(&trunk, input, residuals, None, b)
}
