//! Mamba-2: state spaces with one decay per head and a matrix as their state.

use std::ops::Range;

use sconce_ops::activation::{multiply, skip};
use sconce_ops::matrix_state::decay::ssd_frames;
use sconce_ops::matrix_state::head::recur;
use sconce_realtime::{self as packed, Conv, Matrix, Packer, Scratch};
use sconce_tensor::Tensor;
use sconce_tensor::simd::exp;

use super::config::{Layered, Mamba2Config};
use super::mamba::softplus_of_a_step;
use super::stack::{Residual, Stack};
use super::{Backbone, Context, State};
use crate::layer::{Linear, Norm};
use crate::ops::matrix_state::{Decay, Options, Readout, ssd_gates};
use crate::ops::{self, Activation};
use crate::packed::{Game, Step};
use crate::rng::Rng;
use crate::weights::{Builder, Init, Weight};
use crate::{Error, Result};

/// The block of Dao and Gu 2024 (section 7.1, fig. 6), with one group of keys and queries:
///
/// ```text
/// z, x, B, C, dt = in_proj(u)        x, B, C = silu(conv1d(x, B, C))
/// dt = softplus(dt + dt_bias)        S = e^(-dt e^A_log) S + dt x B^T        y = S C + D x
/// out = out_proj(norm(y * silu(z)))
/// ```
///
/// State: the last inputs of the convolution `[b, inner + 2 state_size, conv_size - 1]` and S
/// `[b, heads, head_dim, state_size]`.
pub struct Mamba2 {
    in_proj: Weight,
    conv_weight: Weight,
    conv_bias: Weight,
    dt_bias: Weight,
    a_log: Weight,
    skip: Weight,
    norm: Norm,
    out_proj: Linear,
    inner: usize,
    state_size: usize,
    heads: usize,
    head_dim: usize,
    chunk: usize,
    conv: usize,
}

/// Draws `ln A` with A uniform in 1..16.
fn a_log(rng: &Rng, i: u64) -> f32 {
    (1.0 + 15.0 * rng.uniform(i)).ln()
}

impl Mamba2 {
    /// Weights: `in_proj`, `conv1d`, `dt_bias`, `A_log`, `D`, `norm`, `out_proj`.
    pub fn new(config: &Mamba2Config, b: &Builder) -> Result<Self> {
        let (width, state_size) = (config.hidden_size, config.state_size);
        let inner = width * config.expand_factor;
        let heads = inner / config.head_dim;
        if heads * config.head_dim != inner {
            let expected = format!("a multiple of {}", config.head_dim);
            return Err(Error::mismatch("inner width of Mamba-2", expected, inner));
        }
        let channels = inner + 2 * state_size;
        let taps = config.conv_size;
        let conv = b.under("conv1d");
        Ok(Mamba2 {
            in_proj: b.under("in_proj").get(
                "weight",
                &[inner + channels + heads, width],
                Init::fan_in(width),
            )?,
            conv_weight: conv.get("weight", &[channels, 1, taps], Init::kernel(taps))?,
            conv_bias: conv.get("bias", &[channels], Init::kernel(taps))?,
            dt_bias: b.get("dt_bias", &[heads], Init::With(softplus_of_a_step))?,
            a_log: b.get("A_log", &[heads], Init::With(a_log))?,
            skip: b.get("D", &[heads], Init::Constant(1.0))?,
            norm: Norm::rms(inner, &b.under("norm"))?,
            out_proj: Linear::without_bias(inner, width, &b.under("out_proj"))?,
            inner,
            state_size,
            heads,
            head_dim: config.head_dim,
            chunk: config.chunk_size,
            conv: taps,
        })
    }

    /// Builds a stack of residual blocks without a final norm. Weights: `layers.I.{norm, mixer}`.
    pub fn stack(config: &Mamba2Config, input: usize, b: &Builder) -> Result<Stack> {
        let layers = (0..config.num_layers).map(|i| {
            let b = b.under("layers").under(i);
            let mixer = Mamba2::new(config, &b.under("mixer"))?;
            Ok(Residual::new(Norm::rms(config.hidden_size, &b.under("norm"))?, mixer)?.into())
        });
        let layers = layers.collect::<Result<_>>()?;
        Stack::new(&config.trunk(), input, layers, None, b)
    }
}

impl Backbone for Mamba2 {
    fn zero_state(&self, batch: usize) -> Result<State> {
        let channels = self.inner + 2 * self.state_size;
        Ok(State(vec![
            sconce_tensor::tensor::zeros(&[batch, channels, self.conv - 1])?,
            sconce_tensor::tensor::zeros(&[batch, self.heads, self.head_dim, self.state_size])?,
        ]))
    }

    fn forward(&self, x: &Tensor, state: &State, context: &Context) -> Result<(Tensor, State)> {
        let [conv, matrix] = state.parts()?;
        let (inner, key) = (self.inner, self.state_size);
        let widths = [inner, inner + 2 * key, self.heads];
        let [z, xbc, dt] = ops::linear_parts(x, &self.in_proj, widths)?;
        context.tap("pre_conv", &xbc);
        let lengths = context.lengths();
        let weight = (&self.conv_weight, Some(&*self.conv_bias));
        let (xbc, conv) = ops::causal_conv(&xbc, weight.0, weight.1, conv, true, lengths.clone())?;
        context.tap("post_conv", &xbc);
        let gates = ssd_gates(&dt, &self.dt_bias, &self.a_log)?;
        let options = Options {
            heads_per_group: self.heads,
            v: 0,
            k: inner,
            q: inner + key,
            chunk: self.chunk,
            lengths,
            ..Options::side_by_side(self.heads, key, self.head_dim, Decay::HeadAndInput)
        };
        let skip = Readout::Skip(self.skip.clone());
        let (y, matrix) = ops::matrix_state(&xbc, Some(&gates), matrix, skip, &options)?;
        context.tap("ssm_out", &y);
        context.tap("gate", &z);
        let (y, z) = (context.read_of(&y)?, context.read_of(&z)?);
        let y = self.norm.forward(&ops::gated(&y, &z, Activation::Silu)?)?;
        Ok((self.out_proj.forward(&y)?, State(vec![conv, matrix])))
    }

    fn pack(&self, packer: &mut Packer) -> Result<Box<dyn Step>> {
        let in_proj = Matrix::dense(packer, &self.in_proj, None)?;
        let conv = Conv::new(packer, &self.conv_weight, &self.conv_bias, Activation::Silu)?;
        let a: Vec<f32> = packer.read(&self.a_log)?.into_iter().map(|a| -a.exp()).collect();
        packer.check(&a);
        let skip = packer.read(&self.skip)?;
        let each = |d: &f32| std::iter::repeat_n(*d, self.head_dim);
        let skip: Vec<f32> = skip.iter().flat_map(each).collect();
        packer.holds(2 * self.heads);
        Ok(Box::new(Packed {
            in_proj,
            conv,
            dt_bias: packer.keep(&self.dt_bias)?,
            a: packer.lay(&a),
            skip: packer.lay(&skip),
            norm: self.norm.pack(packer)?,
            out_proj: self.out_proj.pack(packer)?,
            inner: self.inner,
            key: self.state_size,
            heads: self.heads,
        }))
    }
}

/// [`Mamba2`] packed for one frame at a time.
struct Packed {
    /// Rows that compute z, the inputs of the convolution (values, keys, queries), and dt.
    in_proj: Matrix,
    conv: Conv,
    /// Bias of dt, `[heads]`.
    dt_bias: Range<usize>,
    /// A, `-exp(A_log)`, `[heads]`.
    a: Range<usize>,
    /// D repeated for each value, `[inner]`.
    skip: Range<usize>,
    norm: packed::Norm,
    out_proj: Matrix,
    inner: usize,
    key: usize,
    heads: usize,
}

impl Packed {
    /// Updates the states and writes the output of the heads to `read [inner]`. `gates` is scratch of `[2 * heads]`.
    fn scan(
        &self,
        arena: &[f32],
        xbc: &[f32],
        dt: &[f32],
        state: &mut [f32],
        gates: &mut [f32],
        read: &mut [f32],
    ) {
        ssd_frames(gates, dt, &arena[self.dt_bias.clone()], &arena[self.a.clone()]);
        let ((values, kq), (logs, dts)) = (xbc.split_at(self.inner), gates.split_at(self.heads));
        let (k, q) = kq.split_at(self.key);
        let value = self.inner / self.heads;
        let heads = read.chunks_exact_mut(value).zip(values.chunks_exact(value));
        let states = state.chunks_exact_mut(value * self.key);
        for (((read, v), state), (log, dt)) in heads.zip(states).zip(logs.iter().zip(dts)) {
            recur(read, state, q, k, v, exp(*log), *dt);
        }
        skip::forward(read, values, &arena[self.skip.clone()]);
    }
}

impl Step for Packed {
    /// Length of the last inputs of the convolution, and of a matrix `[head_dim, state_size]` for each head.
    fn state_len(&self) -> usize {
        self.conv.state_len() + self.inner * self.key
    }

    fn step(&self, arena: &[f32], games: &mut [Game<'_>], at: usize, scratch: &mut Scratch) {
        let (rows, inner, past) = (games.len(), self.inner, self.conv.state_len());
        let Scratch { x, y, z, input, .. } = scratch;
        self.in_proj.read(input, x, rows);
        self.in_proj.apply(arena, input, y);
        let each = y.chunks_exact_mut(self.in_proj.outputs()).zip(x.chunks_exact_mut(inner));
        for (game, (y, read)) in games.iter_mut().zip(each) {
            let (gate, rest) = y.split_at_mut(inner);
            let (xbc, dt) = rest.split_at_mut(inner + 2 * self.key);
            self.conv.step(arena, xbc, game.state(at, past));
            let state = game.state(at + past, inner * self.key);
            self.scan(arena, xbc, dt, state, &mut z[..2 * self.heads], read);
            Activation::Silu.apply(gate);
            multiply(read, gate);
        }
        self.norm.apply(arena, rows, x, z);
        self.out_proj.read(input, z, rows);
        self.out_proj.apply(arena, input, x);
    }
}
