//! Mamba: selective state spaces.

use std::ops::Range;
use std::sync::Arc;

use sconce_realtime::{self as packed, Matrix, Packer, Scratch, sums};
use sconce_tensor::Tensor;
use sconce_tensor::simd::{LANES, dispatch, dot, exp_below, exp_with, mul_add};
use sconce_tensor::tensor::zeros;

use super::config::{Layered, MambaConfig};
use super::stack::{Residual, Stack};
use super::{Backbone, Context, State, residual_by_parts};
use crate::Result;
use crate::layer::Norm;
use crate::ops::{self, Activation, MambaWeights, Selective};
use crate::packed::{Game, Step};
use crate::rng::Rng;
use crate::weights::{Builder, Init, Weight};

/// Ratio of a layer's width to the rank of its low-rank projections.
pub(super) const RANK: usize = 16;

/// A causal depthwise convolution with SiLU. Weights: `weight [c, 1, k]`, `bias [c]`.
pub(super) struct Conv {
    weight: Weight,
    bias: Weight,
}

impl Conv {
    pub(super) fn new(channels: usize, kernel: usize, b: &Builder) -> Result<Self> {
        let init = Init::kernel(kernel);
        let weight = b.get("weight", &[channels, 1, kernel], init)?;
        Ok(Conv { weight, bias: b.get("bias", &[channels], init)? })
    }

    pub(super) fn pack(&self, packer: &mut Packer) -> Result<packed::Conv> {
        packed::Conv::new(packer, &self.weight, &self.bias, Activation::Silu)
    }

    pub(super) fn zero_state(&self, batch: usize) -> Result<Tensor> {
        let (channels, _, kernel) = self.weight.dims3()?;
        Ok(zeros(&[batch, channels, kernel - 1])?)
    }

    pub(super) fn forward(
        &self,
        x: &Tensor,
        state: &Tensor,
        context: &Context,
    ) -> Result<(Tensor, Tensor)> {
        context.tap("pre_conv", x);
        let bias = Some(&*self.bias);
        let (y, state) = ops::causal_conv(x, &self.weight, bias, state, true, context.lengths())?;
        context.tap("post_conv", &y);
        Ok((y, state))
    }
}

/// Draws a log-uniform number between `low` and `high`.
pub(super) fn log_uniform(rng: &Rng, i: u64, low: f32, high: f32) -> f32 {
    let (low, high) = (low.ln(), high.ln());
    (low + (high - low) * rng.uniform(i)).exp()
}

/// Draws a bias whose softplus is a log-uniform step size between 1e-3 and 0.1 (Gu and Dao 2023, section 3.6).
pub(super) fn softplus_of_a_step(rng: &Rng, i: u64) -> f32 {
    let dt = log_uniform(rng, i, 1e-3, 0.1);
    dt + (-(-dt).exp_m1()).ln()
}

/// Draws the logarithm of a log-uniform step size between 1e-3 and 0.1.
pub(super) fn log_of_a_step(rng: &Rng, i: u64) -> f32 {
    log_uniform(rng, i, 1e-3, 0.1).ln()
}

/// The S6 layer of Mamba (Gu and Dao 2023, section 3 and fig. 3), `[b, t, h]` -> `[b, t, h]`:
///
/// ```text
/// x, z = W_in u            x = silu(conv(x))        dt, B, C = W_x x
/// dt = softplus(W_dt dt + b_dt)                     A = -exp(A_log)
/// s_t = exp(dt_t A) s_{t-1} + dt_t B_t x_t          y_t = C_t s_t + D x_t
/// W_out (y * silu(z))
/// ```
///
/// There are c = `expand_factor` h channels with n = `state_size` states each, and dt has rank h / 16. A_log, D and one
/// step size per channel are learned. A starts as -1..-n (S4D-Real: Gu et al. 2022), D as 1, and step sizes start
/// between 1e-3 and 0.1.
///
/// State: the last `conv_size - 1` inputs of the convolution `[b, c, conv_size - 1]`, and s `[b, c, n]`, together 4 c
/// (n + conv_size - 1) bytes, for example 38 KB for a width of 256.
///
/// Taps: `pre_conv`, `post_conv`, `gate` (z) and `ssm_out` (y, gated), all `[b, t, c]`.
pub struct Mamba {
    in_proj: Weight,
    conv: Conv,
    x_proj: Weight,
    dt_proj: Weight,
    dt_bias: Weight,
    a_log: Weight,
    d: Weight,
    out_proj: Weight,
    rank: usize,
}

impl Mamba {
    /// Weights: `in_proj`, `conv1d`, `x_proj`, `dt_proj`, `A_log`, `D`, `out_proj`.
    pub fn new(h: usize, config: &MambaConfig, b: &Builder) -> Result<Self> {
        let (c, n, rank) = (config.expand_factor * h, config.state_size, h.div_ceil(RANK));
        let project =
            |name, rows, inputs| b.under(name).get("weight", &[rows, inputs], Init::fan_in(inputs));
        let dt = b.under("dt_proj");
        Ok(Mamba {
            in_proj: project("in_proj", 2 * c, h)?,
            conv: Conv::new(c, config.conv_size, &b.under("conv1d"))?,
            x_proj: project("x_proj", rank + 2 * n, c)?,
            dt_proj: dt.get("weight", &[c, rank], Init::kernel(rank))?,
            dt_bias: dt.get("bias", &[c], Init::With(softplus_of_a_step))?,
            a_log: b.get("A_log", &[c, n], Init::LogOfColumn(n))?,
            d: b.get("D", &[c], Init::Constant(1.0))?,
            out_proj: project("out_proj", h, c)?,
            rank,
        })
    }

    /// `x + mamba(norm(x))`. Weights: `norm`, `mixer`.
    pub(super) fn residual(h: usize, config: &MambaConfig, b: &Builder) -> Result<Arc<Residual>> {
        let mixer = Mamba::new(h, config, &b.under("mixer"))?;
        Ok(Arc::new(Residual::new(Norm::rms(h, &b.under("norm"))?, mixer)?))
    }
}

impl Backbone for Mamba {
    fn zero_state(&self, batch: usize) -> Result<State> {
        let (c, n) = self.a_log.dims2()?;
        Ok(State(vec![self.conv.zero_state(batch)?, zeros(&[batch, c, n])?]))
    }

    fn forward(&self, x: &Tensor, state: &State, context: &Context) -> Result<(Tensor, State)> {
        let state = state.parts()?;
        let (y, after) = match context.is_tapped() || self.rounds() {
            true => self.op_by_op(x, state, context)?,
            false => ops::mamba(x, state, &self.weights(), context.lengths())?,
        };
        Ok((y, State(after.into())))
    }

    fn residual(
        &self,
        x: &Tensor,
        residual: &ops::Residual,
        state: &State,
        context: &Context,
    ) -> Result<(Tensor, State)> {
        let by_parts = context.is_tapped() || self.rounds();
        if by_parts || (context.is_of_last() && x.dim(1)? > 1) {
            return residual_by_parts(self, x, residual, state, context);
        }
        let (weights, lengths) = (self.weights(), context.lengths());
        let (y, after) = ops::mamba_residual(x, residual, state.parts()?, &weights, lengths)?;
        Ok((y, State(after.into())))
    }

    fn pack(&self, packer: &mut Packer) -> Result<Box<dyn Step>> {
        let (channels, states) = self.a_log.dims2()?;
        let in_proj = Matrix::dense(packer, &self.in_proj, None)?;
        let conv = self.conv.pack(packer)?;
        let x_proj = Matrix::dense(packer, &self.x_proj, None)?;
        let dt_proj = Matrix::dense(packer, &self.dt_proj, Some(&self.dt_bias))?;
        let a: Vec<f32> = packer.read(&self.a_log)?.into_iter().map(|a| -a.exp()).collect();
        packer.check(&a);
        let (a, d) = (packer.lay(&a), packer.keep(&self.d)?);
        let out_proj = Matrix::dense(packer, &self.out_proj, None)?;
        let rank = self.rank;
        let packed =
            Packed { in_proj, conv, x_proj, dt_proj, a, d, out_proj, channels, states, rank };
        Ok(Box::new(packed))
    }
}

/// [`Mamba`] packed for one frame at a time.
struct Packed {
    in_proj: Matrix,
    conv: packed::Conv,
    x_proj: Matrix,
    dt_proj: Matrix,
    /// A, `-exp(A_log)`, `[c, n]`.
    a: Range<usize>,
    /// D `[c]`.
    d: Range<usize>,
    out_proj: Matrix,
    channels: usize,
    states: usize,
    rank: usize,
}

impl Step for Packed {
    /// Length of the last inputs of the convolution `[c, k - 1]`, and of s `[c, n]`.
    fn state_len(&self) -> usize {
        self.conv.state_len() + self.channels * self.states
    }

    /// Each step replaces s, which is most of the state.
    fn kept(&self, _state: &[f32], at: usize, _steps: usize, each: &mut dyn FnMut(Range<usize>)) {
        each(at..at + self.conv.state_len());
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
            let parts = [&arena[self.a.clone()], b, c, &arena[self.d.clone()], gate];
            let own = at + past..at + past + channels * self.states;
            let (before, scan) = (game.before.map(|all| &all[own.clone()]), &mut game.state[own]);
            let mut suspect = false;
            match before {
                Some(before) => selective::<true>(u, dt, parts, before, scan, &mut suspect),
                None => selective::<false>(u, dt, parts, &[], scan, &mut suspect),
            }
            game.suspect |= suspect;
        }
        input.read(y.chunks_exact(2 * channels).take(rows).map(|y| &y[..channels]));
        self.out_proj.apply(arena, input, dt);
    }
}

dispatch! {
    /// Computes `s = exp(dt A) s + dt B u` and `u = (C s + D u) * gate` for each channel (Gu and Dao 2023, eq. 2a and
    /// 2b). `parts` are A, B, C, D and the gate; dt is at least 0 and A at most 0. The s before is that of `before` if
    /// it is `APART`. A number of s that is not finite makes `C s` not finite, which sets `suspect`.
    fn selective<[const APART: bool], [APART]>(u: &mut [f32], dt: &[f32], parts: [&[f32]; 5], before: &[f32], state: &mut [f32], suspect: &mut bool) {
        let [a, b, c, d, gate] = parts;
        let n = b.len();
        let ((b, b_rest), (c, c_rest)) = (b.as_chunks(), c.as_chunks());
        let mut read = [[0.0f32; LANES]; LANES];
        let mut finite = true;
        for first in (0..u.len()).step_by(LANES) {
            let channels = first..u.len().min(first + LANES);
            let states = channels.start * n..channels.end * n;
            let (u, dt) = (&mut u[channels.clone()], &dt[channels.clone()]);
            let (state, a) = (&mut state[states.clone()], &a[states.clone()]);
            let before = if APART { &before[states] } else { before };
            let rows = state.chunks_exact_mut(n).zip(a.chunks_exact(n)).enumerate();
            for (((read, (row, (state, a))), dt), u) in read.iter_mut().zip(rows).zip(dt).zip(&*u) {
                let (state, a) = (state.as_chunks_mut().0, a.as_chunks().0);
                let before = if APART { before[row * n..][..n].as_chunks().0 } else { &[] };
                let mut lanes = [0.0f32; LANES];
                let each = state.iter_mut().zip(a).zip(b.iter().zip(c)).enumerate();
                for (i, ((s, a), (b, c))) in each {
                    let old = if APART { before[i] } else { *s };
                    vector::<FMA>(&mut lanes, (s, old), [a, b, c], *dt, dt * u);
                }
                *read = lanes;
            }
            let mut read = sums(&read);
            if !b_rest.is_empty() {
                let rows = state.chunks_exact_mut(n).zip(a.chunks_exact(n)).enumerate();
                for (((read, (row, (state, a))), dt), u) in read.iter_mut().zip(rows).zip(dt).zip(&*u) {
                    let rest = state.as_chunks_mut::<LANES>().1;
                    let a_rest = a.as_chunks::<LANES>().1;
                    if APART {
                        rest.copy_from_slice(before[row * n..][..n].as_chunks::<LANES>().1);
                    }
                    for ((s, a), b) in rest.iter_mut().zip(a_rest).zip(b_rest) {
                        *s = mul_add::<FMA>(exp_with::<FMA>(dt * a), *s, dt * u * b);
                    }
                    *read += dot(rest, c_rest);
                }
            }
            finite &= read.iter().fold(true, |finite, read| finite & read.is_finite());
            let (d, gate) = (&d[channels.clone()], &gate[channels]);
            for (((u, read), d), gate) in u.iter_mut().zip(read).zip(d).zip(gate) {
                *u = (read + d * *u) * gate;
            }
        }
        *suspect |= !finite;
    }
}

/// Updates [`LANES`] states of a channel, from `old`, and adds their product with C to `read`. As a separate function it
/// tells the compiler that the arguments do not alias.
#[inline(always)]
fn vector<const FMA: bool>(
    read: &mut [f32; LANES],
    (s, old): (&mut [f32; LANES], [f32; LANES]),
    [a, b, c]: [&[f32; LANES]; 3],
    dt: f32,
    input: f32,
) {
    for i in 0..LANES {
        s[i] = mul_add::<FMA>(exp_below::<FMA>(dt * a[i]), old[i], input * b[i]);
        read[i] = mul_add::<FMA>(s[i], c[i], read[i]);
    }
}

impl Mamba {
    fn weights(&self) -> MambaWeights<'_> {
        MambaWeights {
            in_proj: &self.in_proj,
            conv: &self.conv.weight,
            conv_bias: &self.conv.bias,
            x_proj: &self.x_proj,
            dt_proj: &self.dt_proj,
            dt_bias: &self.dt_bias,
            a_log: &self.a_log,
            d: &self.d,
            out_proj: &self.out_proj,
        }
    }

    /// Whether products round their inputs, which the op of the whole layer leaves to others.
    fn rounds(&self) -> bool {
        let all = [&self.in_proj, &self.x_proj, &self.dt_proj, &self.out_proj];
        all.iter().any(|weight| weight.rounds())
    }

    /// Computes the layer as separate ops, with all intermediate values as tensors.
    fn op_by_op(
        &self,
        x: &Tensor,
        [conv, ssm]: &[Tensor; 2],
        context: &Context,
    ) -> Result<(Tensor, [Tensor; 2])> {
        let (c, n) = self.a_log.dims2()?;
        let [x, z] = ops::linear_parts(x, &self.in_proj, [c, c])?;
        let (u, conv) = self.conv.forward(&x, conv, context)?;
        let [dt, b, c] = ops::linear_parts(&u, &self.x_proj, [self.rank, n, n])?;
        let inputs = Selective {
            u: &u,
            dt: &ops::linear(&dt, &self.dt_proj, None, Activation::None)?,
            dt_bias: Some(&self.dt_bias),
            dt_softplus: true,
            a: &self.a_log,
            a_log: true,
            b: &b,
            c: &c,
            d: Some(&self.d),
            z: Some(&z),
            h: ssm,
        };
        let (y, ssm) = ops::selective_scan(inputs, context.lengths())?;
        context.tap("gate", &z);
        context.tap("ssm_out", &y);
        Ok((ops::linear(&y, &self.out_proj, None, Activation::None)?, [conv, ssm]))
    }
}

/// `:mamba`: `x = x + mamba(norm(x))` for each layer, with RMS norms and no final norm.
///
/// `x [b, t, input]` -> `[b, t, hidden_size]`. The input is projected if its width differs from `hidden_size`. State:
/// the state of each [`Mamba`]. Weights: `input`, `layers.I.{norm, mixer}`.
pub fn mamba(config: &MambaConfig, input: usize, b: &Builder) -> Result<Stack> {
    let trunk = config.trunk();
    let layer = |i| Mamba::residual(trunk.hidden_size, config, &b.under("layers").under(i));
    let residuals = (0..trunk.num_layers).map(layer).collect::<Result<_>>()?;
    Stack::new(&trunk, input, residuals, None, b)
}
