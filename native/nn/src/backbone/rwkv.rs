//! RWKV-4 (Peng et al. 2023): a weighted average of the past, with a decay and a bonus per channel.

use std::ops::Range;
use std::sync::Arc;

use sconce_ops::activation::multiply;
use sconce_ops::frames::token_shift::blend;
use sconce_ops::wkv;
use sconce_realtime::{Matrix, Packer, Scratch};
use sconce_tensor::Tensor;

use super::config::{ExpandConfig, Layered};
use super::stack::{Residual, Stack};
use super::{Backbone, Context, State};
use crate::layer::{Linear, Norm};
use crate::ops::wkv::NOTHING;
use crate::ops::{self, Activation, Wkv};
use crate::packed::{Game, Step};
use crate::rng::Rng;
use crate::weights::{Builder, Init, Weight};
use crate::{Error, Result};

/// Mixes each frame with the previous frame; each row of `mix [n, h]` gives one mixture.
struct Shift {
    mix: Weight,
}

impl Shift {
    fn new(n: usize, width: usize, b: &Builder) -> Result<Self> {
        let init = Init::With(|rng, i| rng.uniform(i));
        Ok(Shift { mix: b.get("mix", &[n, width], init)? })
    }

    /// Returns the mixtures and the last frame.
    fn forward<const N: usize>(
        &self,
        x: &Tensor,
        before: &Tensor,
        context: &Context,
    ) -> Result<([Tensor; N], Tensor)> {
        let mixes = ops::token_shift(x, before, &self.mix, context.lengths())?;
        let mixes = <[Tensor; N]>::try_from(mixes)
            .map_err(|mixes| Error::mismatch("mixes of a token shift", N, mixes.len()))?;
        Ok((mixes, ops::last(x, before, &context.lengths())?))
    }

    fn pack(&self, packer: &mut Packer) -> Result<PackedShift> {
        Ok(PackedShift { mix: packer.keep(&self.mix)?, width: self.mix.dim(1)? })
    }
}

/// [`Shift`] packed for one frame at a time.
struct PackedShift {
    /// Weights of the mixtures, `[mixes, h]`.
    mix: Range<usize>,
    width: usize,
}

impl PackedShift {
    /// Writes mixture `mix` of the frames `scratch.x` to `scratch.input`. The state at `at` holds the previous frame.
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

    /// Stores the frames `x` as the previous ones.
    fn keep(&self, games: &mut [Game<'_>], at: usize, x: &[f32]) {
        for (game, x) in games.iter_mut().zip(x.chunks_exact(self.width)) {
            game.state(at, self.width).copy_from_slice(x);
        }
    }
}

/// `W_out (sigmoid(W_r x_r) * wkv(W_k x_k, W_v x_v))` (eq. 11 to 17). The average wkv is computed by [`ops::wkv()`].
///
/// State: the last frame, the mean and the logarithm of the mean's weight, `[b, h]` each. Weights: `mix [3, h]`,
/// `linear_r`, `linear_k`, `linear_v`, `linear_out`, `decay [h]`, `bonus [h]`.
struct TimeMix {
    shift: Shift,
    receptance: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    decay: Weight,
    bonus: Weight,
    width: usize,
}

impl TimeMix {
    fn new(width: usize, b: &Builder) -> Result<Self> {
        let linear = |name| Linear::without_bias(width, width, &b.under(name));
        // Decay rates from e^-5 to e^3 nats per frame as published, but assigned to channels at random.
        let decay = |rng: &Rng, i| -5.0 + 8.0 * rng.uniform(i);
        let bonus = |_: &Rng, i: u64| 0.3f32.ln() + 0.5 * ((i + 1) % 3) as f32 - 0.5;
        Ok(TimeMix {
            shift: Shift::new(3, width, b)?,
            receptance: linear("linear_r")?,
            key: linear("linear_k")?,
            value: linear("linear_v")?,
            output: linear("linear_out")?,
            decay: b.get("decay", &[width], Init::With(decay))?,
            bonus: b.get("bonus", &[width], Init::With(bonus))?,
            width,
        })
    }
}

impl Backbone for TimeMix {
    fn zero_state(&self, batch: usize) -> Result<State> {
        let mut state = State::zeros(batch, &[self.width, self.width])?;
        let nothing = vec![NOTHING; batch * self.width];
        state.0.push(sconce_tensor::tensor::tensor(nothing, (batch, self.width))?);
        Ok(state)
    }

    fn forward(&self, x: &Tensor, state: &State, context: &Context) -> Result<(Tensor, State)> {
        let [before, mean, weight] = state.parts()?;
        let ([r, k, v], last) = self.shift.forward(x, before, context)?;
        let (k, v) = (&self.key.forward(&k)?, &self.value.forward(&v)?);
        let inputs = Wkv { k, v, w: &self.decay, u: &self.bonus, mean, weight };
        let [y, mean, weight] = ops::wkv(inputs, context.lengths())?;
        context.tap("ssm_out", &y);
        let (y, r) = (context.read_of(&y)?, context.read_of(&r)?);
        let gate = self.receptance.forward(&r)?;
        context.tap("gate", &gate);
        let y = self.output.forward(&ops::gated(&y, &gate, Activation::Sigmoid)?)?;
        Ok((y, State(vec![last, mean, weight])))
    }

    fn pack(&self, packer: &mut Packer) -> Result<Box<dyn Step>> {
        // The scratch holds r, k and v of a frame at once.
        packer.holds(3 * self.width);
        let shift = self.shift.pack(packer)?;
        let parts =
            [self.receptance.pack(packer)?, self.key.pack(packer)?, self.value.pack(packer)?];
        let output = self.output.pack(packer)?;
        let decay: Vec<f32> = packer.read(&self.decay)?.into_iter().map(f32::exp).collect();
        packer.check(&decay);
        let weights = [packer.lay(&decay), packer.keep(&self.bonus)?];
        Ok(Box::new(PackedTimeMix { shift, parts, weights, output }))
    }
}

/// [`TimeMix`] packed for one frame at a time.
struct PackedTimeMix {
    shift: PackedShift,
    /// Matrices of r, k and v.
    parts: [Matrix; 3],
    /// `exp(decay)` and the bonus, `[h]` each.
    weights: [Range<usize>; 2],
    output: Matrix,
}

impl Step for PackedTimeMix {
    /// Length of the last frame, the mean and the logarithm of the mean's weight.
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
///
/// State: the last frame `[b, h]`. Weights: `mix [2, h]`, `linear_r`, `linear_k`, `linear_v`.
struct ChannelMix {
    shift: Shift,
    receptance: Linear,
    key: Linear,
    value: Linear,
    width: usize,
}

impl ChannelMix {
    fn new(width: usize, inner: usize, b: &Builder) -> Result<Self> {
        let linear = |input, output, name| Linear::without_bias(input, output, &b.under(name));
        Ok(ChannelMix {
            shift: Shift::new(2, width, b)?,
            receptance: linear(width, width, "linear_r")?,
            key: linear(width, inner, "linear_k")?.activated(Activation::SquaredRelu),
            value: linear(inner, width, "linear_v")?,
            width,
        })
    }
}

impl Backbone for ChannelMix {
    fn zero_state(&self, batch: usize) -> Result<State> {
        State::zeros(batch, &[self.width])
    }

    fn forward(&self, x: &Tensor, state: &State, context: &Context) -> Result<(Tensor, State)> {
        let [before] = state.parts()?;
        let ([r, k], last) = self.shift.forward(x, before, context)?;
        let (r, k) = (context.read_of(&r)?, context.read_of(&k)?);
        let value = self.value.forward(&self.key.forward(&k)?)?;
        let y = ops::gated(&value, &self.receptance.forward(&r)?, Activation::Sigmoid)?;
        Ok((y, State(vec![last])))
    }

    fn pack(&self, packer: &mut Packer) -> Result<Box<dyn Step>> {
        let shift = self.shift.pack(packer)?;
        let (receptance, key) = (self.receptance.pack(packer)?, self.key.pack(packer)?);
        let value = self.value.pack(packer)?;
        Ok(Box::new(PackedChannelMix { shift, receptance, key, value }))
    }
}

/// [`ChannelMix`] packed for one frame at a time.
struct PackedChannelMix {
    shift: PackedShift,
    receptance: Matrix,
    key: Matrix,
    value: Matrix,
}

impl Step for PackedChannelMix {
    /// Length of the last frame.
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

/// Builds for each layer `x + time_mix(norm(x))`, then `x + channel_mix(norm(x))`; finally a LayerNorm. Weights:
/// `layers.I.{norm1, mixer, norm2, channel}`, `norm`.
///
/// State: four tensors `[b, h]` for each layer, 16 bytes x `hidden_size` x layers.
pub(super) fn stack(config: &ExpandConfig, input: usize, b: &Builder) -> Result<Stack> {
    let trunk = config.trunk();
    let h = trunk.hidden_size;
    let mut residuals = Vec::with_capacity(2 * trunk.num_layers);
    for i in 0..trunk.num_layers {
        let b = b.under("layers").under(i);
        let time = TimeMix::new(h, &b.under("mixer"))?;
        residuals.push(Arc::new(Residual::new(Norm::layer(h, &b.under("norm1"))?, time)?));
        let channel = ChannelMix::new(h, config.expand_factor * h, &b.under("channel"))?;
        residuals.push(Arc::new(Residual::new(Norm::layer(h, &b.under("norm2"))?, channel)?));
    }
    Stack::new(&trunk, input, residuals, Some(Norm::layer(h, &b.under("norm"))?), b)
}
