//! RetNet, one frame at a time.

use crate::backbone::retnet::{EPS, log_gamma};
use crate::spec::{HeadsConfig, Layered, Trunk};
use sconce_ops::Activation;
use sconce_ops::activation::multiply;
use sconce_ops::attention::THETA;
use sconce_ops::matrix_state::head::recur;
use sconce_ops::norm::group_norm::GroupNorm;
use sconce_ops::rotary::{Rotary, Way};
use sconce_tensor::Result;
use sconce_tensor::simd::exp;

use super::layer::{Game, Step};
use super::stack::{FeedForward, Stack};
use sconce_realtime::Matrix;
use sconce_realtime::Packer;
use sconce_realtime::Scratch;
use sconce_realtime::{HeadNorm, Norm};

/// Retention layers, as `crate::backbone::retnet`.
pub(crate) fn retnet(config: &HeadsConfig, width: usize, packer: &mut Packer) -> Result<Stack> {
    let mixer = |packer: &mut Packer, name: &str| Retention::new(config, packer, name);
    mixed(&config.trunk(), Activation::Gelu, mixer, width, packer)
}

/// A stack in which a feed-forward layer follows each mixer: `layers.I.{norm, mixer, ffn_norm, ffn}` and a
/// last `norm`.
pub(crate) fn mixed<M: Step + 'static>(
    trunk: &Trunk,
    activation: Activation,
    mixer: impl Fn(&mut Packer, &str) -> Result<M>,
    width: usize,
    packer: &mut Packer,
) -> Result<Stack> {
    let mut stack = Stack::new(trunk, width, packer)?;
    for i in 0..trunk.num_layers {
        let name = format!("backbone.layers.{i}");
        let norm = Norm::layer_norm(packer, &format!("{name}.norm"))?;
        stack.push(norm, mixer(packer, &format!("{name}.mixer"))?);
        push_feed_forward(&mut stack, activation, packer, &name)?;
    }
    Ok(stack.normed(Norm::layer_norm(packer, "backbone.norm")?))
}

/// Puts `x + W_down act(W_up norm(x))` on top, of the weights `NAME.ffn_norm` and `NAME.ffn`.
pub(crate) fn push_feed_forward(
    stack: &mut Stack,
    activation: Activation,
    packer: &mut Packer,
    name: &str,
) -> Result<()> {
    let norm = Norm::layer_norm(packer, &format!("{name}.ffn_norm"))?;
    let ffn = FeedForward::dense(packer, &format!("{name}.ffn"), ["up", "down"], activation)?;
    stack.push(norm, ffn);
    Ok(())
}

/// Multi-scale retention (Sun et al. 2023, eq. 5, 6 and 8): of each head
/// `S = gamma S R + v k^T / sqrt(d)`, `y = S q`, and `W_o (norm(y) * silu(g))`.
struct Retention {
    /// q, k, v and g.
    projection: Matrix,
    /// gamma of each head.
    gammas: Vec<f32>,
    rotary: Rotary,
    norm: HeadNorm,
    out: Matrix,
    key: usize,
    value: usize,
}

impl Retention {
    fn new(config: &HeadsConfig, packer: &mut Packer, name: &str) -> Result<Self> {
        let (width, heads) = (config.hidden_size, config.num_heads);
        let inner = config.expand_factor * width;
        let (key, value) = (width / heads, inner / heads);
        let rows = 2 * (width + inner);
        let norm = GroupNorm { size: value, center: false, eps: EPS };
        Ok(Retention {
            projection: Matrix::without_bias_named(packer, &format!("{name}.qkvg_proj"), rows)?,
            gammas: (0..heads).map(|head| exp(log_gamma(head))).collect(),
            rotary: Rotary::new(key, 1, THETA)?,
            norm: HeadNorm::named(packer, &format!("{name}.norm"), norm)?,
            out: Matrix::without_bias_named(packer, &format!("{name}.out_proj"), width)?,
            key,
            value,
        })
    }
}

impl Step for Retention {
    /// S R, what the next query sees, `[heads, value, key]`.
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
            // In the place of the values, which were read.
            self.norm.apply(arena, z, v);
            Activation::Silu.apply(gate);
            multiply(v, gate);
        }
        input.read(y.chunks_exact(width).take(rows).map(|y| &y[2 * keys..][..inner]));
        self.out.apply(arena, input, x);
    }
}
