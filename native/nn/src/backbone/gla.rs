//! Gated linear attention: every key channel has its own forget gate.

use sconce_ops::activation::multiply;
use sconce_ops::matrix_state::key::recur;
use sconce_ops::norm::group_norm::GroupNorm;
use sconce_realtime::{HeadNorm, Matrix, Packer, Scratch};
use sconce_tensor::Tensor;
use sconce_tensor::simd::{dispatch, exp_with, softplus_with};

use super::config::{GlaConfig, Layered};
use super::retnet::mixed;
use super::stack::Stack;
use super::{Backbone, Context, State};
use crate::layer::Linear;
use crate::ops::matrix_state::{Decay, Options, Readout, log_sigmoid};
use crate::ops::{self, Activation};
use crate::packed::{Game, Step};
use crate::weights::{Builder, Init, Weight};
use crate::{Error, Result};

/// Gated linear attention (Yang et al. 2023, eq. 3 and section 4.4):
///
/// ```text
/// q, k, v, g = x W        alpha = sigmoid(W_2 W_1 x + b)^(1/16)
/// S = S diag(alpha) + v k^T        y = S q / sqrt(d)        out = W_o (norm(y) * silu(g))
/// ```
///
/// Each head has a norm, keys of width `head_dim`, and values of width `expand_factor * hidden_size / heads`. State: S
/// `[b, heads, value, key]`.
pub struct GatedLinearAttention {
    qkvg: Weight,
    low: Linear,
    decay: Linear,
    norm: Weight,
    out: Linear,
    heads: usize,
    key: usize,
    value: usize,
}

/// Inner width of the low-rank projection of the gates.
pub const LOW_RANK: usize = 16;
/// Degree of the root taken of each gate, so that gates start near 1.
pub const ROOT: f32 = 16.0;
/// Eps of each head's norm.
pub const EPS: f32 = 1e-5;

impl GatedLinearAttention {
    /// Weights: `qkvg_proj`, `gate_low`, `gate_high`, `norm`, `out_proj`.
    pub fn new(config: &GlaConfig, b: &Builder) -> Result<Self> {
        let (width, heads, key) = (config.hidden_size, config.num_heads, config.head_dim);
        let inner = width * config.expand_factor;
        if !inner.is_multiple_of(heads) {
            let expected = format!("a multiple of {heads}");
            return Err(Error::mismatch("inner width of a GLA", expected, inner));
        }
        let keys = heads * key;
        let rows = 2 * keys + 2 * inner;
        Ok(GatedLinearAttention {
            qkvg: b.under("qkvg_proj").get("weight", &[rows, width], Init::fan_in(width))?,
            low: Linear::without_bias(width, LOW_RANK, &b.under("gate_low"))?,
            decay: Linear::new(LOW_RANK, keys, Activation::None, &b.under("gate_high"))?,
            norm: b.under("norm").get("weight", &[inner], Init::Constant(1.0))?,
            out: Linear::without_bias(inner, width, &b.under("out_proj"))?,
            heads,
            key,
            value: inner / heads,
        })
    }

    /// Builds a stack whose layers mix with gated linear attention. Weights: `layers.I.{norm, mixer, ffn_norm, ffn}`,
    /// `norm`.
    pub fn stack(config: &GlaConfig, input: usize, b: &Builder) -> Result<Stack> {
        let mixer = |b: &Builder| GatedLinearAttention::new(config, b);
        mixed(&config.trunk(), config.expand_factor, Activation::Silu, mixer, input, b)
    }
}

impl Backbone for GatedLinearAttention {
    fn zero_state(&self, batch: usize) -> Result<State> {
        Ok(State(vec![sconce_tensor::tensor::zeros(&[batch, self.heads, self.value, self.key])?]))
    }

    fn forward(&self, x: &Tensor, state: &State, context: &Context) -> Result<(Tensor, State)> {
        let [matrix] = state.parts()?;
        let (keys, inner) = (self.heads * self.key, self.heads * self.value);
        let [qkv, gate] = ops::linear_parts(x, &self.qkvg, [2 * keys + inner, inner])?;
        let decay = log_sigmoid(&self.decay.forward(&self.low.forward(x)?)?, 1.0 / ROOT)?;
        let options = Options {
            scale: 1.0 / (self.key as f32).sqrt(),
            lengths: context.lengths(),
            ..Options::side_by_side(self.heads, self.key, self.value, Decay::Key)
        };
        let (y, matrix) = ops::matrix_state(&qkv, Some(&decay), matrix, Readout::Plain, &options)?;
        context.tap("ssm_out", &y);
        context.tap("gate", &gate);
        let (y, gate) = (context.read_of(&y)?, context.read_of(&gate)?);
        let y = ops::group_norm(&y, &self.norm, self.heads, false, EPS)?;
        let y = self.out.forward(&ops::gated(&y, &gate, Activation::Silu)?)?;
        Ok((y, State(vec![matrix])))
    }

    fn pack(&self, packer: &mut Packer) -> Result<Box<dyn Step>> {
        let norm = GroupNorm { size: self.value, center: false, eps: EPS };
        Ok(Box::new(Packed {
            projection: Matrix::side_by_side(packer, &[(&self.qkvg, None), self.low.parts()])?,
            decay: self.decay.pack(packer)?,
            norm: HeadNorm::new(packer, &self.norm, norm)?,
            out: self.out.pack(packer)?,
            heads: self.heads,
            key: self.key,
            value: self.value,
        }))
    }
}

/// [`GatedLinearAttention`] packed for one frame at a time.
struct Packed {
    /// Rows that compute q, k, v, g, and the input of [`decay`](Self::decay).
    projection: Matrix,
    decay: Matrix,
    norm: HeadNorm,
    out: Matrix,
    heads: usize,
    key: usize,
    value: usize,
}

dispatch! {
    /// Replaces x by `sigmoid(x)^(1 / ROOT)`.
    fn fade(x: &mut [f32]) {
        for x in x {
            *x = exp_with::<FMA>(-softplus_with::<FMA>(-*x) / ROOT);
        }
    }
}

impl Step for Packed {
    /// Length of S, `[heads, value, key]`.
    fn state_len(&self) -> usize {
        self.heads * self.value * self.key
    }

    fn step(&self, arena: &[f32], games: &mut [Game<'_>], at: usize, scratch: &mut Scratch) {
        let Scratch { x, y, z, input, .. } = scratch;
        let (keys, inner) = (self.heads * self.key, self.heads * self.value);
        let (rows, width) = (games.len(), 2 * (keys + inner) + LOW_RANK);
        self.projection.read(input, x, rows);
        self.projection.apply(arena, input, y);
        input.read(y.chunks_exact(width).take(rows).map(|y| &y[2 * (keys + inner)..]));
        self.decay.apply(arena, input, x);
        fade(&mut x[..rows * keys]);
        let each =
            y.chunks_exact_mut(width).zip(x.chunks_exact(keys)).zip(z.chunks_exact_mut(inner));
        for (game, ((y, fades), z)) in games.iter_mut().zip(each) {
            let (qk, vg) = y.split_at_mut(2 * keys);
            let ((q, k), (v, gate)) = (qk.split_at_mut(keys), vg.split_at_mut(inner));
            let scale = 1.0 / (self.key as f32).sqrt();
            k.iter_mut().for_each(|k| *k *= scale);
            let state = game.state(at, self.state_len()).chunks_exact_mut(self.value * self.key);
            let heads = state.zip(fades.chunks_exact(self.key));
            let keys = q.chunks_exact(self.key).zip(k.chunks_exact(self.key));
            let values = v.chunks_exact(self.value).zip(z.chunks_exact_mut(self.value));
            for (((state, fades), (q, k)), (v, z)) in heads.zip(keys).zip(values) {
                recur(z, state, q, k, v, fades);
            }
            // The output of the norm overwrites the values v, which are no longer needed.
            self.norm.apply(arena, z, v);
            let gate = &mut gate[..inner];
            Activation::Silu.apply(gate);
            multiply(v, gate);
        }
        input.read(y.chunks_exact(width).take(rows).map(|y| &y[2 * keys..][..inner]));
        self.out.apply(arena, input, x);
    }
}
