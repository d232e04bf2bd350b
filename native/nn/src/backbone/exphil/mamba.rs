//! Mamba as ExPhil computes it.

use std::ops::Range;
use std::sync::Arc;

use sconce_ops::activation::clip;
use sconce_realtime::{self as packed, Matrix, Packer, Scratch, sums};
use sconce_tensor::Tensor;
use sconce_tensor::simd::{LANES, dispatch, dot, exp_below, exp_with, mul_add};
use sconce_tensor::tensor::{granted, zeros};

use super::super::config::{ExphilMambaConfig, Layered};
use super::super::mamba::{Conv, RANK};
use super::super::stack::{Residual, Stack};
use super::super::{Backbone, Context, State};
use super::constant::Constant;
use super::ssm::{Dense, STEPS, Selected, Sizes, bounded};
use crate::Result;
use crate::layer::Norm;
use crate::ops::arrange::{join, reshape};
use crate::ops::{self, Activation, Selective};
use crate::packed::{Game, Step};
use crate::weights::Builder;

/// The Mamba layer of ExPhil, `[b, t, h]` -> `[b, t, h]`. All dense layers have a bias:
///
/// ```text
/// u, z = W_in x        a = silu(conv(u))        B, C = W_bc a
/// dt = min(max(softplus(W_dt W_r a), 0.001), 0.1)        A = -1, -2, .., -n
/// s_t = exp(dt_t A) s_{t-1} + mean(dt_t) B_t a_t          y_t = C_t s_t
/// W_out (y * silu(z))
/// ```
///
/// There are c = `expand_factor` h channels with n = `state_size` states each, and dt has rank h / 16. The mean is that
/// over all channels. If `decays_input` is set, the new part decays too:
/// `s_t = exp(dt_t A) (s_{t-1} + mean(dt_t) B_t a_t)`.
///
/// State: the last `conv_size - 1` inputs of the convolution `[b, c, conv_size - 1]`, and s `[b, c, n]`.
///
/// Taps: `pre_conv`, `post_conv`, `gate` (z) and `ssm_out` (y, gated), all `[b, t, c]`.
struct Mamba {
    dense: Dense,
    conv: Conv,
    /// A, `[c, n]`.
    a: Constant,
    decays_input: bool,
}

impl Mamba {
    /// Weights: `in_proj`, `conv1d`, `bc_proj`, `dt_rank`, `dt_proj`, `out_proj`, each with `weight` and `bias`.
    fn new(config: &ExphilMambaConfig, b: &Builder) -> Result<Self> {
        let h = config.hidden_size;
        let (channels, states) = (config.expand_factor * h, config.state_size);
        let sizes = Sizes { hidden_size: h, channels, states, rank: (h / RANK).max(1) };
        let dense = Dense::new(sizes, b)?;
        let conv = Conv::new(channels, config.conv_size, &b.under("conv1d"))?;
        b.reserve("A", &[channels, states])?;
        let a = (0..channels).flat_map(|_| rates(states)).collect();
        Ok(Mamba {
            dense,
            conv,
            a: Constant::new(a, &[channels, states]),
            decays_input: config.decays_input,
        })
    }

    /// `y * silu(z)` and the states after the last frame.
    fn scan(
        &self,
        [a, z]: [&Tensor; 2],
        Selected { dt, b, c }: &Selected,
        h: &Tensor,
        context: &Context,
    ) -> Result<(Tensor, Tensor)> {
        let (dt, lengths) = (bounded(dt)?, context.lengths());
        let (mean, rates) = (dt.mean_keepdim(2)?, self.a.beside(a)?);
        granted(&[a, a]);
        let scan = |u: &Tensor, dt: &Tensor, [b, c]: [&Tensor; 2], z, lengths| {
            let (dt_bias, d) = (None, None);
            let (dt_softplus, a_log, a) = (false, false, &rates);
            let inputs = Selective { u, dt, dt_bias, dt_softplus, a, a_log, b, c, d, z, h };
            ops::selective_scan(inputs, lengths)
        };
        if !self.decays_input {
            // The op adds dt B u, so the mean over dt is a factor of u.
            let u = (a * mean.broadcast_div(&dt)?)?;
            return scan(&u, &dt, [b, c], Some(z), lengths);
        }
        // Each frame is two frames of the op: the first adds the new part and keeps the state, the second decays both.
        let [none, silent] = [a.zeros_like()?, b.zeros_like()?];
        let keeps = none.affine(0.0, KEEPS)?;
        let u = a.broadcast_mul(&mean)?.affine(1.0 / KEEPS, 0.0)?;
        let (u, dt) = (in_turn(&u, &none)?, in_turn(&keeps, &dt)?);
        let (b, c) = (in_turn(b, &silent)?, in_turn(&silent, c)?);
        let lengths = lengths.map(|all| all.iter().map(|n| 2 * n).collect());
        let (y, h) = scan(&u, &dt, [&b, &c], None, lengths)?;
        let (batch, time, channels) = a.dims3()?;
        let y = reshape(&y, [batch, time, 2 * channels])?.narrow(2, channels, channels)?;
        Ok((ops::gated(&y, z, Activation::Silu)?, h))
    }
}

/// A step size that keeps a state: `exp(-n KEEPS)` is 1 in f32. Division by a power of two is exact.
const KEEPS: f64 = 1.0 / (1u64 << 50) as f64;

/// The frames of `x` and of `y [b, t, d]` in turn, `[b, 2 t, d]`, beginning with `x`.
fn in_turn(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    let (batch, time, width) = x.dims3()?;
    reshape(&join(&[x, y])?, [batch, 2 * time, width])
}

/// A of one channel: -1, -2, .., -n.
fn rates(states: usize) -> impl Iterator<Item = f32> {
    (1..=states).map(|n| -(n as f32))
}

impl Backbone for Mamba {
    fn zero_state(&self, batch: usize) -> Result<State> {
        let Sizes { channels, states, .. } = self.dense.sizes;
        Ok(State(vec![self.conv.zero_state(batch)?, zeros(&[batch, channels, states])?]))
    }

    fn forward(&self, x: &Tensor, state: &State, context: &Context) -> Result<(Tensor, State)> {
        let [conv, ssm] = state.parts()?;
        let [u, z] = self.dense.branches(x)?;
        let (a, conv) = self.conv.forward(&u, conv, context)?;
        let selected = self.dense.select(&a)?;
        let (y, ssm) = self.scan([&a, &z], &selected, ssm, context)?;
        context.tap("gate", &z);
        context.tap("ssm_out", &y);
        let y = self.dense.out_proj.forward(&context.read_of(&y)?)?;
        Ok((y, State(vec![conv, ssm])))
    }

    fn pack(&self, packer: &mut Packer) -> Result<Box<dyn Step>> {
        let Sizes { channels, states, rank, .. } = self.dense.sizes;
        let in_proj = self.dense.in_proj.pack(packer)?;
        let conv = self.conv.pack(packer)?;
        let [selection, dt_proj] = self.dense.pack_selection(packer)?;
        let rates: Vec<f32> = rates(states).collect();
        let rates = packer.lay(&rates);
        let out_proj = self.dense.out_proj.pack(packer)?;
        let decays_input = self.decays_input;
        let sizes = [channels, states, rank];
        Ok(Box::new(Packed {
            in_proj,
            conv,
            selection,
            dt_proj,
            rates,
            out_proj,
            sizes,
            decays_input,
        }))
    }
}

/// [`Mamba`] packed for one frame at a time.
struct Packed {
    in_proj: Matrix,
    conv: packed::Conv,
    /// Rows of `dt_rank`, of B and of C.
    selection: Matrix,
    dt_proj: Matrix,
    /// A of each channel, `[n]`.
    rates: Range<usize>,
    out_proj: Matrix,
    /// The number of channels, the number of their states, and the rank of dt.
    sizes: [usize; 3],
    decays_input: bool,
}

impl Step for Packed {
    /// Length of the last inputs of the convolution `[c, k - 1]`, and of s `[c, n]`.
    fn state_len(&self) -> usize {
        let [channels, states, _] = self.sizes;
        self.conv.state_len() + channels * states
    }

    /// Each step replaces s, which is most of the state.
    fn kept(&self, _state: &[f32], at: usize, _steps: usize, each: &mut dyn FnMut(Range<usize>)) {
        each(at..at + self.conv.state_len());
    }

    fn step(&self, arena: &[f32], games: &mut [Game<'_>], at: usize, scratch: &mut Scratch) {
        let (rows, [channels, states, rank]) = (games.len(), self.sizes);
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
        self.selection.apply(arena, input, z);
        let (between, dt) = (z.chunks_exact(rank + 2 * states).take(rows), x);
        input.read(between.clone().map(|between| &between[..rank]));
        self.dt_proj.apply(arena, input, dt);
        let steps = &mut dt[..rows * channels];
        Activation::Softplus.apply(steps);
        clip::forward(steps, STEPS[0], STEPS[1]);
        let each = between.zip(dt.chunks_exact(channels)).zip(y.chunks_exact_mut(2 * channels));
        for (game, ((between, dt), y)) in games.iter_mut().zip(each) {
            let (u, gate) = y.split_at_mut(channels);
            let (b, c) = between[rank..].split_at(states);
            let parts = [&arena[self.rates.clone()], b, c, gate];
            let own = at + past..at + past + channels * states;
            let (before, scan) = (game.before.map(|all| &all[own.clone()]), &mut game.state[own]);
            let mut suspect = false;
            match (before, self.decays_input) {
                (Some(old), false) => select::<true, false>(u, dt, parts, old, scan, &mut suspect),
                (None, false) => select::<false, false>(u, dt, parts, &[], scan, &mut suspect),
                (Some(old), true) => select::<true, true>(u, dt, parts, old, scan, &mut suspect),
                (None, true) => select::<false, true>(u, dt, parts, &[], scan, &mut suspect),
            }
            game.suspect |= suspect;
        }
        input.read(y.chunks_exact(2 * channels).take(rows).map(|y| &y[..channels]));
        self.out_proj.apply(arena, input, dt);
    }
}

dispatch! {
    /// Computes the step of [`Mamba`] and `u = C s * gate` for each channel, from `u = a`. `parts` are A of a channel,
    /// B, C and the gate; dt is at least 0 and A at most 0. The new part decays too if it `DECAYS`. The s before is that
    /// of `before` if it is `APART`. A number of s that is not finite makes `C s` not finite, which sets `suspect`.
    fn select<[const APART: bool, const DECAYS: bool], [APART, DECAYS]>(u: &mut [f32], dt: &[f32], parts: [&[f32]; 4], before: &[f32], state: &mut [f32], suspect: &mut bool) {
        let [a, b, c, gate] = parts;
        let n = b.len();
        let mean = mean(dt);
        let mut read = [[0.0f32; LANES]; LANES];
        let mut finite = true;
        for first in (0..u.len()).step_by(LANES) {
            let channels = first..u.len().min(first + LANES);
            let states = channels.start * n..channels.end * n;
            let (u, dt) = (&mut u[channels.clone()], &dt[channels.clone()]);
            let state = &mut state[states.clone()];
            if APART {
                state.copy_from_slice(&before[states]);
            }
            let rows = state.chunks_exact_mut(n);
            for (((read, state), dt), u) in read.iter_mut().zip(rows).zip(dt).zip(&*u) {
                let mut lanes = [0.0f32; LANES];
                let parts = [a, b, c].map(|part| part.as_chunks().0);
                let each = parts[0].iter().zip(parts[1]).zip(parts[2]);
                for (s, ((a, b), c)) in state.as_chunks_mut().0.iter_mut().zip(each) {
                    vector::<DECAYS, FMA>(&mut lanes, s, [a, b, c], *dt, mean * u);
                }
                *read = lanes;
            }
            let mut read = sums(&read);
            let [a, b, c] = [a, b, c].map(|part| part.as_chunks::<LANES>().1);
            if !b.is_empty() {
                let rows = state.chunks_exact_mut(n);
                for (((read, state), dt), u) in read.iter_mut().zip(rows).zip(dt).zip(&*u) {
                    let state = state.as_chunks_mut::<LANES>().1;
                    for ((s, a), b) in state.iter_mut().zip(a).zip(b) {
                        let (decay, add) = (exp_with::<FMA>(dt * a), mean * u * b);
                        *s = if DECAYS { decay * (*s + add) } else { mul_add::<FMA>(decay, *s, add) };
                    }
                    *read += dot(state, c);
                }
            }
            finite &= read.iter().fold(true, |finite, read| finite & read.is_finite());
            for ((u, read), gate) in u.iter_mut().zip(read).zip(&gate[channels]) {
                *u = read * gate;
            }
        }
        *suspect |= !finite;
    }
}

/// The mean of all numbers.
#[inline(always)]
fn mean(numbers: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    for numbers in numbers.chunks(LANES) {
        for (lane, v) in lanes.iter_mut().zip(numbers) {
            *lane += v;
        }
    }
    lanes.iter().sum::<f32>() / numbers.len() as f32
}

/// Updates [`LANES`] states of a channel and adds their product with C to `read`. As a separate function it tells the
/// compiler that the arguments do not alias.
#[inline(always)]
fn vector<const DECAYS: bool, const FMA: bool>(
    read: &mut [f32; LANES],
    s: &mut [f32; LANES],
    [a, b, c]: [&[f32; LANES]; 3],
    dt: f32,
    input: f32,
) {
    for i in 0..LANES {
        let (decay, add) = (exp_below::<FMA>(dt * a[i]), input * b[i]);
        s[i] = if DECAYS { decay * (s[i] + add) } else { mul_add::<FMA>(decay, s[i], add) };
        read[i] = mul_add::<FMA>(s[i], c[i], read[i]);
    }
}

/// `:mamba` and `:mamba_2` of ExPhil: `x = x + mamba(norm(x))` for each layer, with LayerNorms and no final norm.
///
/// State: the state of each [`Mamba`]. Weights: `input`, `layers.I.{norm, mixer}`.
pub(in super::super) fn mamba(
    config: &ExphilMambaConfig,
    input: usize,
    b: &Builder,
) -> Result<Stack> {
    let trunk = config.trunk();
    let layer = |i| {
        let b = b.under("layers").under(i);
        let norm = Norm::layer(trunk.hidden_size, &b.under("norm"))?;
        Ok(Arc::new(Residual::new(norm, Mamba::new(config, &b.under("mixer"))?)?))
    };
    let residuals = (0..trunk.num_layers).map(layer).collect::<Result<_>>()?;
    Stack::new(&trunk, input, residuals, None, b)
}
