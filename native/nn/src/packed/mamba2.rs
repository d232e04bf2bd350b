//! Mamba-2, one frame at a time.

use std::ops::Range;

use crate::spec::{Layered, Mamba2Config};
use sconce_ops::Activation;
use sconce_ops::activation::{multiply, skip};
use sconce_ops::matrix_state::decay::ssd_frames;
use sconce_ops::matrix_state::head::recur;
use sconce_tensor::Result;
use sconce_tensor::simd::exp;

use super::layer::{Game, Step};
use super::stack::Stack;
use sconce_realtime::Conv;
use sconce_realtime::Matrix;
use sconce_realtime::Norm;
use sconce_realtime::Packer;
use sconce_realtime::Scratch;

/// `x = x + mamba2(norm(x))` for each layer, as in `crate::backbone::mamba2`.
pub(crate) fn mamba2(config: &Mamba2Config, width: usize, packer: &mut Packer) -> Result<Stack> {
    let mut stack = Stack::new(&config.trunk(), width, packer)?;
    for i in 0..config.num_layers {
        let name = format!("backbone.layers.{i}");
        let norm = Norm::rms(packer, &format!("{name}.norm"))?;
        stack.push(norm, Mamba2::new(config, packer, &format!("{name}.mixer"))?);
    }
    Ok(stack)
}

/// The block of Dao & Gu 2024 (section 7.1), of heads that share queries and keys.
struct Mamba2 {
    /// z, then what is convolved (values, keys, queries), then dt.
    in_proj: Matrix,
    conv: Conv,
    /// `[heads]`
    dt_bias: Range<usize>,
    /// A, `-exp(A_log)`, `[heads]`.
    a: Range<usize>,
    /// D of each value, `[inner]`.
    skip: Range<usize>,
    norm: Norm,
    out_proj: Matrix,
    inner: usize,
    key: usize,
    heads: usize,
}

impl Mamba2 {
    fn new(config: &Mamba2Config, packer: &mut Packer, name: &str) -> Result<Self> {
        let (width, key, head_dim) = (config.hidden_size, config.state_size, config.head_dim);
        let inner = width * config.expand_factor;
        let heads = inner / head_dim;
        let outputs = 2 * inner + 2 * key + heads;
        let in_proj = Matrix::without_bias_named(packer, &format!("{name}.in_proj"), outputs)?;
        let conv = Conv::named(packer, &format!("{name}.conv1d"), Activation::Silu)?;
        let a_log = packer.read_named(&format!("{name}.A_log"))?;
        let a: Vec<f32> = a_log.into_iter().map(|a| -a.exp()).collect();
        packer.check(&a);
        let skip = packer.read_named(&format!("{name}.D"))?;
        let skip: Vec<f32> = skip.iter().flat_map(|d| std::iter::repeat_n(*d, head_dim)).collect();
        packer.holds(2 * heads);
        Ok(Mamba2 {
            in_proj,
            conv,
            dt_bias: packer.keep_named(&format!("{name}.dt_bias"))?,
            a: packer.lay(&a),
            skip: packer.lay(&skip),
            norm: Norm::rms(packer, &format!("{name}.norm"))?,
            out_proj: Matrix::without_bias_named(packer, &format!("{name}.out_proj"), width)?,
            inner,
            key,
            heads,
        })
    }

    /// What the heads read of their states, `read [inner]`; `gates` is room for `[2 * heads]`.
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

impl Step for Mamba2 {
    /// The last inputs of the convolution, and a matrix `[head_dim, state_size]` of each head.
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
