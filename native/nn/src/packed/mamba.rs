//! Selective state spaces, one frame at a time.

use std::ops::Range;

use crate::spec::{HawkConfig, JambaConfig, Layered, MambaConfig};
use sconce_ops::Activation;
use sconce_tensor::Result;
use sconce_tensor::simd::{LANES, dispatch, dot, exp_with, mul_add, sigmoid_with, sum};

use super::attention::Block;
use super::layer::{Game, Step};
use super::stack::Stack;
use sconce_realtime::Conv;
use sconce_realtime::Matrix;
use sconce_realtime::Norm;
use sconce_realtime::Packer;
use sconce_realtime::Scratch;

/// `x = x + mamba(norm(x))` for each layer, as in `crate::backbone::mamba`.
pub(crate) fn mamba(config: &MambaConfig, width: usize, packer: &mut Packer) -> Result<Stack> {
    let mut stack = Stack::new(&config.trunk(), width, packer)?;
    for i in 0..config.num_layers {
        push(&mut stack, config, packer, i)?;
    }
    Ok(stack)
}

/// Every `attention_every`th layer is a block of a transformer, the others are those of [`mamba`]; then a
/// LayerNorm, as in `crate::backbone::mamba`.
pub(crate) fn jamba(config: &JambaConfig, width: usize, packer: &mut Packer) -> Result<Stack> {
    let mut stack = Stack::new(&config.trunk(), width, packer)?;
    for i in 0..config.num_layers {
        match (i + 1) % config.attention_every {
            0 => {
                let name = format!("backbone.layers.{i}");
                Block::new(&config.attention(), packer, &name)?.push_to(&mut stack);
            }
            _ => push(&mut stack, &config.mamba(), packer, i)?,
        }
    }
    Ok(stack.normed(Norm::layer_norm(packer, "backbone.norm")?))
}

/// The layers of [`mamba`], after every `attention_every` of them one and the same block of a transformer; then
/// a LayerNorm, as in `crate::backbone::mamba`.
pub(crate) fn zamba(config: &JambaConfig, width: usize, packer: &mut Packer) -> Result<Stack> {
    let mut stack = Stack::new(&config.trunk(), width, packer)?;
    let every = config.attention_every;
    let block = || Block::new(&config.attention(), packer, "backbone.shared");
    let shared = (config.num_layers >= every).then(block).transpose()?;
    for i in 0..config.num_layers {
        push(&mut stack, &config.mamba(), packer, i)?;
        if let (0, Some(shared)) = ((i + 1) % every, &shared) {
            shared.push_to(&mut stack);
        }
    }
    Ok(stack.normed(Norm::layer_norm(packer, "backbone.norm")?))
}

/// `x = x + gated_ssm(norm(x))` for each layer, as in `crate::backbone::mamba`.
pub(crate) fn gated_ssm(config: &HawkConfig, width: usize, packer: &mut Packer) -> Result<Stack> {
    let mut stack = Stack::new(&config.trunk(), width, packer)?;
    for i in 0..config.num_layers {
        let name = format!("backbone.layers.{i}");
        let norm = Norm::rms(packer, &format!("{name}.norm"))?;
        stack.push(norm, Gated::new(config, packer, &format!("{name}.mixer"))?);
    }
    Ok(stack)
}

/// Layer `i` of Mamba.
fn push(stack: &mut Stack, config: &MambaConfig, packer: &mut Packer, i: usize) -> Result<()> {
    let name = format!("backbone.layers.{i}");
    let norm = Norm::rms(packer, &format!("{name}.norm"))?;
    stack.push(norm, Mixer::new(config, packer, &format!("{name}.mixer"))?);
    Ok(())
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

impl Mixer {
    fn new(config: &MambaConfig, packer: &mut Packer, name: &str) -> Result<Self> {
        let (channels, states) = (config.expand_factor * config.hidden_size, config.state_size);
        let in_proj = Matrix::without_bias_named(packer, &format!("{name}.in_proj"), 2 * channels)?;
        let conv = Conv::named(packer, &format!("{name}.conv1d"), Activation::Silu)?;
        let rank = packer.read_named(&format!("{name}.dt_proj.weight"))?.len() / channels.max(1);
        let between = rank + 2 * states;
        let x_proj = Matrix::without_bias_named(packer, &format!("{name}.x_proj"), between)?;
        let dt_proj = Matrix::dense_named(packer, &format!("{name}.dt_proj"))?;
        let a_log = packer.read_named(&format!("{name}.A_log"))?;
        let a: Vec<f32> = a_log.into_iter().map(|a| -a.exp()).collect();
        packer.check(&a);
        let (a, d) = (packer.lay(&a), packer.keep_named(&format!("{name}.D"))?);
        let out_proj =
            Matrix::without_bias_named(packer, &format!("{name}.out_proj"), config.hidden_size)?;
        Ok(Mixer { in_proj, conv, x_proj, dt_proj, a, d, out_proj, channels, states, rank })
    }
}

impl Step for Mixer {
    /// The last inputs of the convolution `[c, k - 1]`, and `[c, n]`.
    fn state_len(&self) -> usize {
        self.conv.state_len() + self.channels * self.states
    }

    fn step(&self, arena: &[f32], games: &mut [Game<'_>], at: usize, scratch: &mut Scratch) {
        let (rows, channels) = (games.len(), self.channels);
        let Scratch { x, y, z, input, .. } = scratch;
        self.in_proj.read(input, x, rows);
        self.in_proj.apply(arena, input, y);
        let past = self.conv.state_len();
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

dispatch! {
    /// `s = exp(dt A) s + dt B u` and `u = (C s + D u) * gate` of each channel (Gu and Dao 2023, eq. 2a
    /// and 2b); the parts are A, B, C, D and the gate.
    fn selective(u: &mut [f32], dt: &[f32], parts: [&[f32]; 5], state: &mut [f32]) {
        let [a, b, c, d, gate] = parts;
        let n = b.len();
        let ((b, b_rest), (c, c_rest)) = (b.as_chunks(), c.as_chunks());
        let rows = state.chunks_exact_mut(n).zip(a.chunks_exact(n));
        for ((((u, dt), (state, a)), d), gate) in u.iter_mut().zip(dt).zip(rows).zip(d).zip(gate) {
            let input = dt * *u;
            let ((state, rest), (a, a_rest)) = (state.as_chunks_mut(), a.as_chunks());
            let mut lanes = [0.0f32; LANES];
            for ((s, a), (b, c)) in state.iter_mut().zip(a).zip(b.iter().zip(c)) {
                vector::<FMA>(&mut lanes, s, [a, b, c], *dt, input);
            }
            let mut read = sum(lanes);
            if !rest.is_empty() {
                for ((s, a), b) in rest.iter_mut().zip(a_rest).zip(b_rest) {
                    *s = mul_add::<FMA>(exp_with::<FMA>(dt * a), *s, input * b);
                }
                read += dot(rest, c_rest);
            }
            *u = (read + d * *u) * gate;
        }
    }
}

/// 16 states of a channel, and what C reads of them; a function of its own, for which none of its arguments lie
/// on one another.
#[inline(always)]
fn vector<const FMA: bool>(
    read: &mut [f32; LANES],
    s: &mut [f32; LANES],
    [a, b, c]: [&[f32; LANES]; 3],
    dt: f32,
    input: f32,
) {
    for i in 0..LANES {
        s[i] = mul_add::<FMA>(exp_with::<FMA>(dt * a[i]), s[i], input * b[i]);
        read[i] = mul_add::<FMA>(s[i], c[i], read[i]);
    }
}

/// One state a channel, with an input gate and a forget gate.
struct Gated {
    in_proj: Matrix,
    conv: Conv,
    x_proj: Matrix,
    decay_proj: Matrix,
    input_proj: Matrix,
    out_proj: Matrix,
    channels: usize,
}

impl Gated {
    fn new(config: &HawkConfig, packer: &mut Packer, name: &str) -> Result<Self> {
        let channels = config.expand_factor * config.hidden_size;
        let in_proj = Matrix::without_bias_named(packer, &format!("{name}.in_proj"), 2 * channels)?;
        let conv = Conv::named(packer, &format!("{name}.conv1d"), Activation::Silu)?;
        let between = packer.read_named(&format!("{name}.x_proj.weight"))?.len() / channels.max(1);
        let x_proj = Matrix::without_bias_named(packer, &format!("{name}.x_proj"), between)?;
        let decay_proj = Matrix::dense_named(packer, &format!("{name}.decay_proj"))?;
        let input_proj = Matrix::dense_named(packer, &format!("{name}.input_proj"))?;
        let out_proj =
            Matrix::without_bias_named(packer, &format!("{name}.out_proj"), config.hidden_size)?;
        Ok(Gated { in_proj, conv, x_proj, decay_proj, input_proj, out_proj, channels })
    }
}

impl Step for Gated {
    /// The last inputs of the convolution `[c, k - 1]`, and `[c]`.
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
    /// `s = a s + (1 - a) g u` and `u = s silu(z)` of each channel, with a and g the sigmoids of the first two
    /// parts, and z the third.
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
