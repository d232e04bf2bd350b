//! Selective state spaces, one frame at a time.

use std::ops::Range;

use sconce_core::Result;
use sconce_core::ops::Activation;
use sconce_core::ops::simd::{dispatch, dot, exp_with};
use sconce_core::spec::{Layered, MambaConfig};

use crate::arena::Packer;
use crate::gemv::Matrix;
use crate::layer::{Game, Layer};
use crate::norm::Norm;
use crate::scratch::Scratch;
use crate::stack::Stack;

/// `x = x + mamba(norm(x))` for each layer, as in `sconce_core::backbone::mamba`.
pub fn mamba(config: &MambaConfig, width: usize, packer: &mut Packer) -> Result<Stack> {
    let mut stack = Stack::new(&config.trunk(), width, packer)?;
    for i in 0..config.num_layers {
        let name = format!("backbone.layers.{i}");
        let norm = Norm::rms(packer, &format!("{name}.norm"))?;
        stack.push(norm, Mixer::new(config, packer, &format!("{name}.mixer"))?);
    }
    Ok(stack)
}

/// Of c channels of n states, a convolution over k and steps of rank r.
struct Mixer {
    in_proj: Matrix,
    conv: Conv,
    x_proj: Matrix,
    dt_proj: Matrix,
    /// A, `-exp(A_log)`, `[c, n]`.
    a: Range<usize>,
    /// `[c]`
    d: Range<usize>,
    out_proj: Matrix,
    channels: usize,
    states: usize,
    rank: usize,
}

struct Conv {
    /// `[c, k]`
    weight: Range<usize>,
    /// `[c]`
    bias: Range<usize>,
    kernel: usize,
}

impl Mixer {
    fn new(config: &MambaConfig, packer: &mut Packer, name: &str) -> Result<Self> {
        let (channels, states) = (config.expand_factor * config.hidden_size, config.state_size);
        let in_proj = Matrix::without_bias(packer, &format!("{name}.in_proj"), 2 * channels)?;
        let conv = Conv {
            weight: packer.keep(&format!("{name}.conv1d.weight"))?,
            bias: packer.keep(&format!("{name}.conv1d.bias"))?,
            kernel: config.conv_size,
        };
        let rank = packer.read(&format!("{name}.dt_proj.weight"))?.len() / channels.max(1);
        let between = rank + 2 * states;
        let x_proj = Matrix::without_bias(packer, &format!("{name}.x_proj"), between)?;
        let dt_proj = Matrix::dense(packer, &format!("{name}.dt_proj"))?;
        let a_log = packer.read(&format!("{name}.A_log"))?;
        let a: Vec<f32> = a_log.into_iter().map(|a| -a.exp()).collect();
        packer.check(&a);
        let (a, d) = (packer.lay(&a), packer.keep(&format!("{name}.D"))?);
        let out_proj =
            Matrix::without_bias(packer, &format!("{name}.out_proj"), config.hidden_size)?;
        Ok(Mixer { in_proj, conv, x_proj, dt_proj, a, d, out_proj, channels, states, rank })
    }
}

impl Layer for Mixer {
    /// The last inputs of the convolution `[c, k - 1]`, and `[c, n]`.
    fn state_len(&self) -> usize {
        self.channels * (self.conv.kernel - 1 + self.states)
    }

    fn step(&self, arena: &[f32], games: &mut [Game<'_>], at: usize, scratch: &mut Scratch) {
        let (rows, channels) = (games.len(), self.channels);
        let Scratch { x, y, z, input, .. } = scratch;
        self.in_proj.read(input, x, rows);
        self.in_proj.apply(arena, input, y);
        let past = channels * (self.conv.kernel - 1);
        for (game, y) in games.iter_mut().zip(y.chunks_exact_mut(2 * channels)) {
            let (u, gate) = y.split_at_mut(channels);
            self.conv.step(arena, u, game.state(at, past));
            Activation::Silu.apply(gate);
        }
        input.read(y.chunks_exact(2 * channels).take(rows).map(|y| &y[..channels]));
        self.x_proj.apply(arena, input, z);
        let between = self.rank + 2 * self.states;
        let (between, dt) = (z.chunks_exact(between).take(rows), x);
        input.read(between.clone().map(|between| &between[..self.rank]));
        self.dt_proj.apply(arena, input, dt);
        Activation::Softplus.apply(&mut dt[..rows * channels]);
        let each = between.zip(dt.chunks_exact(channels)).zip(y.chunks_exact_mut(2 * channels));
        for (game, ((between, dt), y)) in games.iter_mut().zip(each) {
            let (u, gate) = y.split_at_mut(channels);
            let (b, c) = between[self.rank..].split_at(self.states);
            let scan = game.state(at + past, channels * self.states);
            selective(u, dt, [&arena[self.a.clone()], b, c, &arena[self.d.clone()], gate], scan);
        }
        input.read(y.chunks_exact(2 * channels).take(rows).map(|y| &y[..channels]));
        self.out_proj.apply(arena, input, dt);
    }
}

impl Conv {
    /// `silu(conv(x))` in its place; the state takes in what was there.
    fn step(&self, arena: &[f32], x: &mut [f32], state: &mut [f32]) {
        let (weight, bias) = (&arena[self.weight.clone()], &arena[self.bias.clone()]);
        let before = self.kernel - 1;
        for (c, (x, bias)) in x.iter_mut().zip(bias).enumerate() {
            let (state, weight) = (&mut state[c * before..][..before], &weight[c * self.kernel..]);
            let past: f32 = state.iter().zip(weight).map(|(x, w)| x * w).sum();
            let now = *x;
            *x = bias + past + now * weight[before];
            if let Some(last) = before.checked_sub(1) {
                state.copy_within(1.., 0);
                state[last] = now;
            }
        }
        Activation::Silu.apply(x);
    }
}

dispatch! {
    /// `s = exp(dt A) s + dt B u` and `u = (C s + D u) * gate` of each channel (Gu and Dao 2023, eq. 2a
    /// and 2b); the parts are A, B, C, D and the gate.
    fn selective(u: &mut [f32], dt: &[f32], parts: [&[f32]; 5], state: &mut [f32]) {
        let [a, b, c, d, gate] = parts;
        let n = b.len();
        let rows = state.chunks_exact_mut(n).zip(a.chunks_exact(n));
        for ((((u, dt), (state, a)), d), gate) in u.iter_mut().zip(dt).zip(rows).zip(d).zip(gate) {
            let input = dt * *u;
            for ((s, a), b) in state.iter_mut().zip(a).zip(b) {
                *s = exp_with::<FMA>(dt * a) * *s + input * b;
            }
            *u = (dot(state, c) + d * *u) * gate;
        }
    }
}
