//! RWKV-4, one frame at a time.

use std::ops::Range;

use crate::spec::{ExpandConfig, Layered};
use sconce_ops::Activation;
use sconce_ops::activation::multiply;
use sconce_ops::frames::token_shift::blend;
use sconce_ops::wkv;
use sconce_tensor::Result;

use super::layer::{Game, Step};
use super::stack::Stack;
use sconce_realtime::Matrix;
use sconce_realtime::Norm;
use sconce_realtime::Packer;
use sconce_realtime::Scratch;

/// `x + time_mix(norm(x))`, then `x + channel_mix(norm(x))` for each layer, then a LayerNorm, as
/// `crate::backbone::rwkv`.
pub(crate) fn rwkv(config: &ExpandConfig, width: usize, packer: &mut Packer) -> Result<Stack> {
    let (mut stack, hidden) = (Stack::new(&config.trunk(), width, packer)?, config.hidden_size);
    for i in 0..config.num_layers {
        let name = format!("backbone.layers.{i}");
        let norm = Norm::layer_norm(packer, &format!("{name}.norm1"))?;
        stack.push(norm, TimeMix::new(hidden, packer, &format!("{name}.mixer"))?);
        let norm = Norm::layer_norm(packer, &format!("{name}.norm2"))?;
        stack.push(norm, ChannelMix::new(config, packer, &format!("{name}.channel"))?);
    }
    Ok(stack.normed(Norm::layer_norm(packer, "backbone.norm")?))
}

/// Each frame mixed with the one before, once for each matrix that reads it (Peng et al. 2023, eq. 11 to 13).
struct Shift {
    /// `[mixes, h]`
    mix: Range<usize>,
    width: usize,
}

impl Shift {
    fn new(width: usize, packer: &mut Packer, name: &str) -> Result<Self> {
        Ok(Shift { mix: packer.keep_named(&format!("{name}.mix"))?, width })
    }

    /// Makes a mix of the frames `scratch.x` the input; the states begin with the frames before.
    fn read(
        &self,
        arena: &[f32],
        mix: usize,
        games: &mut [Game<'_>],
        at: usize,
        scratch: &mut Scratch,
    ) {
        let (h, Scratch { x, z, input, .. }) = (self.width, scratch);
        let mix = &arena[self.mix.clone()][mix * h..][..h];
        let rows = x.chunks_exact(h).zip(z.chunks_exact_mut(h));
        for (game, (x, mixed)) in games.iter_mut().zip(rows) {
            blend(mixed, x, game.state(at, h), mix);
        }
        input.read(z.chunks_exact(h).take(games.len()));
    }

    /// The frames `x` become those before.
    fn keep(&self, games: &mut [Game<'_>], at: usize, x: &[f32]) {
        for (game, x) in games.iter_mut().zip(x.chunks_exact(self.width)) {
            game.state(at, self.width).copy_from_slice(x);
        }
    }
}

/// `W_out (sigmoid(W_r x_r) * wkv(W_k x_k, W_v x_v))` (eq. 11 to 17).
struct TimeMix {
    shift: Shift,
    /// Of r, k and v.
    parts: [Matrix; 3],
    /// `exp(decay)` and the bonus, `[h]` each.
    weights: [Range<usize>; 2],
    output: Matrix,
}

impl TimeMix {
    fn new(width: usize, packer: &mut Packer, name: &str) -> Result<Self> {
        // All three parts of a frame are held at once.
        packer.holds(3 * width);
        let shift = Shift::new(width, packer, name)?;
        let mut linear =
            |part| Matrix::without_bias_named(packer, &format!("{name}.linear_{part}"), width);
        let (parts, output) = ([linear("r")?, linear("k")?, linear("v")?], linear("out")?);
        let decay = packer.read_named(&format!("{name}.decay"))?;
        let decay: Vec<f32> = decay.into_iter().map(f32::exp).collect();
        packer.check(&decay);
        let weights = [packer.lay(&decay), packer.keep_named(&format!("{name}.bonus"))?];
        Ok(TimeMix { shift, parts, weights, output })
    }
}

impl Step for TimeMix {
    /// The last frame, the mean and the logarithm of its weight.
    fn state_len(&self) -> usize {
        3 * self.shift.width
    }

    fn step(&self, arena: &[f32], games: &mut [Game<'_>], at: usize, scratch: &mut Scratch) {
        let (rows, h) = (games.len(), self.shift.width);
        let n = rows * h;
        for (i, part) in self.parts.iter().enumerate() {
            self.shift.read(arena, i, games, at, scratch);
            part.apply(arena, &mut scratch.input, &mut scratch.y[i * n..]);
        }
        let Scratch { x, y, input, .. } = scratch;
        self.shift.keep(games, at, x);
        let (gate, kv) = y[..3 * n].split_at_mut(n);
        let (k, v) = kv.split_at(n);
        let weights = self.weights.each_ref().map(|weight| &arena[weight.clone()]);
        let inputs = k.chunks_exact(h).zip(v.chunks_exact(h));
        for (game, (x, (k, v))) in games.iter_mut().zip(x.chunks_exact_mut(h).zip(inputs)) {
            let (mean, weight) = game.state(at + h, 2 * h).split_at_mut(h);
            wkv::step(x, [mean, weight], [k, v], weights);
        }
        Activation::Sigmoid.apply(gate);
        multiply(gate, &x[..n]);
        self.output.read(input, gate, rows);
        self.output.apply(arena, input, x);
    }
}

/// `sigmoid(W_r x_r) * W_v relu(W_k x_k)^2` (eq. 18 to 20).
struct ChannelMix {
    shift: Shift,
    receptance: Matrix,
    key: Matrix,
    value: Matrix,
}

impl ChannelMix {
    fn new(config: &ExpandConfig, packer: &mut Packer, name: &str) -> Result<Self> {
        let (width, inner) = (config.hidden_size, config.expand_factor * config.hidden_size);
        let shift = Shift::new(width, packer, name)?;
        let mut linear = |part, outputs| {
            Matrix::without_bias_named(packer, &format!("{name}.linear_{part}"), outputs)
        };
        let (receptance, key) = (linear("r", width)?, linear("k", inner)?);
        Ok(ChannelMix { shift, receptance, key, value: linear("v", width)? })
    }
}

impl Step for ChannelMix {
    /// The last frame.
    fn state_len(&self) -> usize {
        self.shift.width
    }

    fn step(&self, arena: &[f32], games: &mut [Game<'_>], at: usize, scratch: &mut Scratch) {
        let (rows, n) = (games.len(), games.len() * self.shift.width);
        self.shift.read(arena, 1, games, at, scratch);
        self.key.apply(arena, &mut scratch.input, &mut scratch.y);
        self.shift.read(arena, 0, games, at, scratch);
        let Scratch { x, y, z, input, .. } = scratch;
        Activation::SquaredRelu.apply(&mut y[..rows * self.key.outputs()]);
        self.receptance.apply(arena, input, z);
        self.shift.keep(games, at, x);
        self.value.read(input, y, rows);
        self.value.apply(arena, input, x);
        Activation::Sigmoid.apply(&mut z[..n]);
        multiply(&mut x[..n], &z[..n]);
    }
}
