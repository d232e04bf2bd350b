//! Gated linear attention, one frame at a time.

use crate::backbone::gla::{EPS, LOW_RANK, ROOT};
use crate::spec::{GlaConfig, Layered};
use sconce_ops::Activation;
use sconce_ops::activation::multiply;
use sconce_ops::matrix_state::key::recur;
use sconce_ops::norm::group_norm::GroupNorm;
use sconce_tensor::Result;
use sconce_tensor::simd::{dispatch, exp_with, softplus_with};

use super::layer::{Game, Step};
use super::retnet::mixed;
use super::stack::Stack;
use sconce_realtime::HeadNorm;
use sconce_realtime::Matrix;
use sconce_realtime::Packer;
use sconce_realtime::Scratch;

/// Layers of gated linear attention, as `crate::backbone::gla`.
pub(crate) fn gla(config: &GlaConfig, width: usize, packer: &mut Packer) -> Result<Stack> {
    let mixer = |packer: &mut Packer, name: &str| Attention::new(config, packer, name);
    mixed(&config.trunk(), Activation::Silu, mixer, width, packer)
}

/// Gated linear attention (Yang et al. 2023, eq. 3 and section 4.4): of each head
/// `S = S diag(alpha) + v k^T / sqrt(d)`, `y = S q`, and `W_o (norm(y) * silu(g))`.
struct Attention {
    /// q, k, v, g, and what [`decay`](Self::decay) reads.
    projection: Matrix,
    decay: Matrix,
    norm: HeadNorm,
    out: Matrix,
    heads: usize,
    key: usize,
    value: usize,
}

impl Attention {
    fn new(config: &GlaConfig, packer: &mut Packer, name: &str) -> Result<Self> {
        let (width, heads, key) = (config.hidden_size, config.num_heads, config.head_dim);
        let value = config.expand_factor * width / heads;
        let of = format!("{name}.qkvg_proj.weight");
        let mut projection = packer.read_named(&of)?;
        projection.extend(packer.read_named(&format!("{name}.gate_low.weight"))?);
        let rows = 2 * heads * (key + value) + LOW_RANK;
        let norm = GroupNorm { size: value, center: false, eps: EPS };
        Ok(Attention {
            projection: Matrix::pack(packer, &of, &projection, &vec![0.0; rows]),
            decay: Matrix::dense_named(packer, &format!("{name}.gate_high"))?,
            norm: HeadNorm::named(packer, &format!("{name}.norm"), norm)?,
            out: Matrix::without_bias_named(packer, &format!("{name}.out_proj"), width)?,
            heads,
            key,
            value,
        })
    }
}

dispatch! {
    /// `sigmoid(x)^(1 / ROOT)`
    fn fade(x: &mut [f32]) {
        for x in x {
            *x = exp_with::<FMA>(-softplus_with::<FMA>(-*x) / ROOT);
        }
    }
}

impl Step for Attention {
    /// S, `[heads, value, key]`.
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
            // In the place of the values, which were read.
            self.norm.apply(arena, z, v);
            let gate = &mut gate[..inner];
            Activation::Silu.apply(gate);
            multiply(v, gate);
        }
        input.read(y.chunks_exact(width).take(rows).map(|y| &y[2 * keys..][..inner]));
        self.out.apply(arena, input, x);
    }
}
