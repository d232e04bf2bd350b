//! RetNet: each head has its own constant decay, and rotations encode the positions of frames.

use std::sync::Arc;

use sconce_ops::activation::multiply;
use sconce_ops::matrix_state::head::recur;
use sconce_ops::norm::group_norm::GroupNorm;
use sconce_ops::rotary::Way;
use sconce_realtime::{HeadNorm, Matrix, Packer, Scratch};
use sconce_tensor::Tensor;
use sconce_tensor::simd::exp;

use super::config::{HeadsConfig, Layered, Trunk};
use super::stack::{FeedForward, Residual, Stack};
use super::{Backbone, Context, State};
use crate::layer::{Linear, Norm};
use crate::ops::attention::THETA;
use crate::ops::matrix_state::{Decay, Options, Readout};
use crate::ops::rotary::Rotary;
use crate::ops::{self, Activation};
use crate::packed::{Game, Step};
use crate::weights::{Builder, Init, Weight};
use crate::{Error, Result};

/// Multi-scale retention (Sun et al. 2023, eq. 5, 6 and 8), in its recurrent and its chunked form:
///
/// ```text
/// q, k, v, g = x W        S = gamma_h S R + v k^T / sqrt(d)        y = S q
/// out = W_o (norm(y) * silu(g))        gamma_h = 1 - 2^(-5 - h)
/// ```
///
/// Each head has a norm, keys of width `hidden_size / heads`, which must be even, and values `expand_factor` times as
/// wide. R rotates the keys in S by one frame (RoPE, angles `10000^(-2i / d)`). R replaces the absolute positions in
/// the paper's eq. 5: gamma and R depend on the distance between two frames, so the result does not depend on a frame's
/// absolute position.
///
/// State: S R, which the next query multiplies, `[b, heads, value, key]`.
pub struct Retention {
    qkvg: Weight,
    norm: Weight,
    out: Linear,
    heads: usize,
    key: usize,
    value: usize,
    decay: Decay,
    rotary: Arc<Rotary>,
}

/// Eps of each head's norm.
pub const EPS: f32 = 1e-5;

/// The logarithm of a head's gamma.
pub fn log_gamma(head: usize) -> f32 {
    (1.0 - (-5.0 - head as f64).exp2()).ln() as f32
}

impl Retention {
    /// Weights: `qkvg_proj`, `norm`, `out_proj`.
    pub fn new(config: &HeadsConfig, b: &Builder) -> Result<Self> {
        let (width, heads) = (config.hidden_size, config.num_heads);
        if !width.is_multiple_of(heads) {
            let expected = format!("a multiple of {heads}");
            return Err(Error::mismatch("hidden_size of a RetNet", expected, width));
        }
        let inner = width * config.expand_factor;
        let key = width / heads;
        let decay = Decay::Constant((0..heads).map(log_gamma).collect());
        let rows = 2 * width + 2 * inner;
        let qkvg = b.under("qkvg_proj").get("weight", &[rows, width], Init::fan_in(width))?;
        Ok(Retention {
            qkvg,
            norm: b.under("norm").get("weight", &[inner], Init::Constant(1.0))?,
            out: Linear::without_bias(inner, width, &b.under("out_proj"))?,
            heads,
            key,
            value: inner / heads,
            rotary: Rotary::new(key, decay.chunk(), THETA)?.into(),
            decay,
        })
    }

    /// Builds a stack whose layers mix with retention. Weights: `layers.I.{norm, mixer, ffn_norm, ffn}`, `norm`.
    pub fn stack(config: &HeadsConfig, input: usize, b: &Builder) -> Result<Stack> {
        let mixer = |b: &Builder| Retention::new(config, b);
        mixed(&config.trunk(), config.expand_factor, Activation::Gelu, mixer, input, b)
    }
}

/// Builds a stack in which a feed-forward layer follows each mixer, with a final norm. Weights: `layers.I.{norm, mixer,
/// ffn_norm, ffn}`, `norm`.
pub(super) fn mixed<M: Backbone + 'static>(
    trunk: &Trunk,
    expand: usize,
    activation: Activation,
    mixer: impl Fn(&Builder) -> Result<M>,
    input: usize,
    b: &Builder,
) -> Result<Stack> {
    let width = trunk.hidden_size;
    let mut layers = vec![];
    for i in 0..trunk.num_layers {
        let b = b.under("layers").under(i);
        let mixer = mixer(&b.under("mixer"))?;
        layers.push(Residual::new(Norm::layer(width, &b.under("norm"))?, mixer)?.into());
        let ffn = feed_forward(width, expand, activation, &b.under("ffn"))?;
        layers.push(Residual::new(Norm::layer(width, &b.under("ffn_norm"))?, ffn)?.into());
    }
    let norm = Some(Norm::layer(width, &b.under("norm"))?);
    Stack::new(trunk, input, layers, norm, b)
}

/// `down(activation(up(x)))` with an inner width of `expand * width`. Weights: `up`, `down`.
pub(super) fn feed_forward(
    width: usize,
    expand: usize,
    activation: Activation,
    b: &Builder,
) -> Result<FeedForward> {
    let up = Linear::new(width, expand * width, activation, &b.under("up"))?;
    let down = Linear::new(expand * width, width, Activation::None, &b.under("down"))?;
    Ok(FeedForward::new(up, down))
}

impl Backbone for Retention {
    fn zero_state(&self, batch: usize) -> Result<State> {
        Ok(State(vec![sconce_tensor::tensor::zeros(&[batch, self.heads, self.value, self.key])?]))
    }

    fn forward(&self, x: &Tensor, state: &State, context: &Context) -> Result<(Tensor, State)> {
        let [matrix] = state.parts()?;
        let (keys, inner) = (self.heads * self.key, self.heads * self.value);
        let [qkv, gate] = ops::linear_parts(x, &self.qkvg, [2 * keys + inner, inner])?;
        let options = Options {
            rotary: Some(self.rotary.clone()),
            scale: 1.0 / (self.key as f32).sqrt(),
            lengths: context.lengths(),
            ..Options::side_by_side(self.heads, self.key, self.value, self.decay.clone())
        };
        let (y, matrix) = ops::matrix_state(&qkv, None, matrix, Readout::Plain, &options)?;
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
            projection: Matrix::dense(packer, &self.qkvg, None)?,
            gammas: (0..self.heads).map(|head| exp(log_gamma(head))).collect(),
            rotary: Rotary::new(self.key, 1, THETA)?,
            norm: HeadNorm::new(packer, &self.norm, norm)?,
            out: self.out.pack(packer)?,
            key: self.key,
            value: self.value,
        }))
    }
}

/// [`Retention`] packed for one frame at a time.
struct Packed {
    /// Rows that compute q, k, v and g.
    projection: Matrix,
    /// Decay gamma of each head.
    gammas: Vec<f32>,
    rotary: Rotary,
    norm: HeadNorm,
    out: Matrix,
    key: usize,
    value: usize,
}

impl Step for Packed {
    /// Length of S R, which the next query multiplies, `[heads, value, key]`.
    fn state_len(&self) -> usize {
        self.gammas.len() * self.value * self.key
    }

    fn step(&self, arena: &[f32], games: &mut [Game<'_>], at: usize, scratch: &mut Scratch) {
        let Scratch { x, y, z, input, .. } = scratch;
        let (keys, inner) = (self.gammas.len() * self.key, self.gammas.len() * self.value);
        let (rows, width) = (games.len(), 2 * (keys + inner));
        self.projection.read(input, x, rows);
        self.projection.apply(arena, input, y);
        let scale = 1.0 / (self.key as f32).sqrt();
        let each = y.chunks_exact_mut(width).zip(z.chunks_exact_mut(inner));
        for (game, (y, z)) in games.iter_mut().zip(each) {
            let (qk, vg) = y.split_at_mut(2 * keys);
            let ((q, k), (v, gate)) = (qk.split_at(keys), vg.split_at_mut(inner));
            let state = game.state(at, self.state_len());
            let heads = state.chunks_exact_mut(self.value * self.key).zip(&self.gammas);
            let keys = q.chunks_exact(self.key).zip(k.chunks_exact(self.key));
            let values = v.chunks_exact(self.value).zip(z.chunks_exact_mut(self.value));
            for (((state, gamma), (q, k)), (v, z)) in heads.zip(keys).zip(values) {
                recur(z, state, q, k, v, *gamma, scale);
                self.rotary.turn(state, 1, Way::Back);
            }
            // The output of the norm overwrites the values v, which are no longer needed.
            self.norm.apply(arena, z, v);
            Activation::Silu.apply(gate);
            multiply(v, gate);
        }
        input.read(y.chunks_exact(width).take(rows).map(|y| &y[2 * keys..][..inner]));
        self.out.apply(arena, input, x);
    }
}
