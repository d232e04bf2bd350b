//! Selective state spaces, one frame at a time.

use std::ops::Range;

use sconce_core::Result;
use sconce_core::ops::Activation;
use sconce_core::ops::simd::{add_assign, dispatch, dot, exp_with};
use sconce_core::spec::MambaConfig;

use crate::arena::Packer;
use crate::gemv::Matrix;
use crate::norm::Norm;
use crate::scratch::Scratch;

/// `x = x + mamba(norm(x))` for each layer, as in `sconce_core::backbone::mamba`.
pub struct Mamba {
    input_norm: Option<Norm>,
    input: Option<Matrix>,
    layers: Vec<Layer>,
    hidden: usize,
}

/// Of c channels of n states, a convolution over k and steps of rank r.
struct Layer {
    norm: Norm,
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

impl Mamba {
    pub fn new(config: &MambaConfig, width: usize, packer: &mut Packer) -> Result<Self> {
        let hidden = config.hidden_size;
        let input_norm = Norm::layer(config.input_norm, packer, "backbone.input_norm")?;
        let input = (width != hidden).then(|| Matrix::dense(packer, "backbone.input"));
        let input = input.transpose()?;
        let layer = |i| Layer::new(config, packer, &format!("backbone.layers.{i}"));
        let layers = (0..config.num_layers).map(layer).collect::<Result<_>>()?;
        Ok(Mamba { input_norm, input, layers, hidden })
    }

    /// Widths of the parts of the state: of each layer the last inputs of the convolution
    /// `[c, k - 1]`, and `[c, n]`.
    pub fn widths(config: &MambaConfig) -> Vec<usize> {
        let channels = config.expand_factor * config.hidden_size;
        [channels * (config.conv_size - 1), channels * config.state_size].repeat(config.num_layers)
    }

    /// From `scratch.x` to the same.
    pub fn step(&self, arena: &[f32], scratch: &mut Scratch, width: usize, state: &mut [f32]) {
        let Scratch { x, y, active, .. } = &mut *scratch;
        if let Some(norm) = &self.input_norm {
            norm.apply(arena, &x[..width], &mut y[..width]);
            std::mem::swap(x, y);
        }
        if let Some(input) = &self.input {
            active.read(&x[..width]);
            input.apply(arena, active, x);
        }
        let mut rest = state;
        for layer in &self.layers {
            let (conv, after) = rest.split_at_mut(layer.channels * (layer.conv.kernel - 1));
            let (scan, after) = after.split_at_mut(layer.channels * layer.states);
            layer.step(arena, scratch, self.hidden, conv, scan);
            rest = after;
        }
    }
}

impl Layer {
    fn new(config: &MambaConfig, packer: &mut Packer, name: &str) -> Result<Self> {
        let (channels, states) = (config.expand_factor * config.hidden_size, config.state_size);
        let norm = Norm::rms(packer, &format!("{name}.norm"))?;
        let name = format!("{name}.mixer");
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
        packer.holds(between + channels);
        Ok(Layer { norm, in_proj, conv, x_proj, dt_proj, a, d, out_proj, channels, states, rank })
    }

    fn step(
        &self,
        arena: &[f32],
        scratch: &mut Scratch,
        hidden: usize,
        conv: &mut [f32],
        scan: &mut [f32],
    ) {
        let Scratch { x, y, z, active } = scratch;
        self.norm.apply(arena, &x[..hidden], &mut z[..hidden]);
        active.read(&z[..hidden]);
        self.in_proj.apply(arena, active, y);
        let (u, gate) = y[..2 * self.channels].split_at_mut(self.channels);
        self.conv.step(arena, u, conv);
        active.read(u);
        self.x_proj.apply(arena, active, z);
        let (between, dt) = z.split_at_mut(self.rank + 2 * self.states);
        active.read(&between[..self.rank]);
        let dt = &mut dt[..self.channels];
        self.dt_proj.apply(arena, active, dt);
        Activation::Softplus.apply(dt);
        Activation::Silu.apply(gate);
        let (b, c) = between[self.rank..].split_at(self.states);
        selective(u, dt, [&arena[self.a.clone()], b, c, &arena[self.d.clone()], gate], scan);
        active.read(u);
        self.out_proj.apply(arena, active, z);
        add_assign(&mut x[..hidden], &z[..hidden]);
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
