//! Diagonal state spaces whose decay and step size do not depend on the input.

use std::ops::Range;
use std::sync::Arc;

use sconce_realtime::{Matrix, Packer, Scratch};
use sconce_tensor::Tensor;
use sconce_tensor::simd::{dispatch, dot, exp_with};
use sconce_tensor::tensor::zeros;

use super::config::{Layered, StateConfig};
use super::mamba::log_of_a_step;
use super::stack::{PackedGatedFeedForward, Residual, Stack};
use super::{Backbone, Context, State};
use crate::Result;
use crate::layer::{Linear, Norm};
use crate::ops::{self, Activation, Selective};
use crate::packed::{Game, Step};
use crate::weights::{Builder, Init, Weight};

/// Ratio of the gated feed-forward layers' inner width to `hidden_size`.
pub const FFN: usize = 4;

/// S4D-Real (Gu et al. 2022, section 4) with B and C computed from the input, `[b, t, h]` -> `[b, t, h]`:
///
/// ```text
/// B, C = W_bc x            A = -exp(A_log)          dt = exp(log_dt)
/// s_t = exp(dt A) s_{t-1} + dt B_t x_t              y_t = C_t s_t + D x_t
/// W_out gelu(y) + b_out
/// ```
///
/// Each channel has n = `state_size` states. A starts as -1..-n; dt starts between 1e-3 and 0.1.
///
/// State: s `[b, h, n]`, 4 h n bytes. Tap: `ssm_out` (y, `[b, t, h]`).
pub struct S4d {
    bc_proj: Weight,
    a_log: Weight,
    log_dt: Weight,
    d: Weight,
    out_proj: Linear,
}

impl S4d {
    /// Weights: `bc_proj`, `A_log`, `log_dt`, `D`, `out_proj`.
    pub fn new(config: &StateConfig, b: &Builder) -> Result<Self> {
        let (h, n) = (config.hidden_size, config.state_size);
        Ok(S4d {
            bc_proj: b.under("bc_proj").get("weight", &[2 * n, h], Init::fan_in(h))?,
            a_log: b.get("A_log", &[h, n], Init::LogOfColumn(n))?,
            log_dt: b.get("log_dt", &[h], Init::With(log_of_a_step))?,
            d: b.get("D", &[h], Init::Constant(1.0))?,
            out_proj: Linear::new(h, h, Activation::None, &b.under("out_proj"))?,
        })
    }
}

impl Backbone for S4d {
    fn zero_state(&self, batch: usize) -> Result<State> {
        let (h, n) = self.a_log.dims2()?;
        Ok(State(vec![zeros(&[batch, h, n])?]))
    }

    fn forward(&self, x: &Tensor, state: &State, context: &Context) -> Result<(Tensor, State)> {
        let [s] = state.parts()?;
        let (_, n) = self.a_log.dims2()?;
        let [b, c] = ops::linear_parts(x, &self.bc_proj, [n, n])?;
        let inputs = Selective {
            u: x,
            dt: &self.log_dt.exp()?,
            dt_bias: None,
            dt_softplus: false,
            a: &self.a_log,
            a_log: true,
            b: &b,
            c: &c,
            d: Some(&self.d),
            z: None,
            h: s,
        };
        let (y, s) = ops::selective_scan(inputs, context.lengths())?;
        context.tap("ssm_out", &y);
        let y = context.read_of(&y)?;
        let y = self.out_proj.forward(&ops::activate(&y, Activation::Gelu)?)?;
        Ok((y, State(vec![s])))
    }

    fn pack(&self, packer: &mut Packer) -> Result<Box<dyn Step>> {
        let (channels, states) = self.a_log.dims2()?;
        let projection = Matrix::dense(packer, &self.bc_proj, None)?;
        let mut decay = packer.read(&self.a_log)?;
        let dt: Vec<f32> = packer.read(&self.log_dt)?.into_iter().map(f32::exp).collect();
        packer.check(&dt);
        decays(&mut decay, &dt);
        Ok(Box::new(Packed {
            projection,
            decay: packer.lay(&decay),
            dt: packer.lay(&dt),
            d: packer.keep(&self.d)?,
            output: self.out_proj.pack(packer)?,
            channels,
            states,
        }))
    }
}

/// [`S4d`] packed for one frame at a time.
struct Packed {
    /// Rows that compute B and C.
    projection: Matrix,
    /// `exp(dt A)`, `[h, n]`.
    decay: Range<usize>,
    /// Step sizes `[h]`.
    dt: Range<usize>,
    /// D `[h]`.
    d: Range<usize>,
    output: Matrix,
    channels: usize,
    states: usize,
}

dispatch! {
    /// Replaces a by `exp(-exp(a) dt)`.
    fn decays(a: &mut [f32], dt: &[f32]) {
        for (a, dt) in a.chunks_exact_mut(a.len() / dt.len()).zip(dt) {
            for a in a {
                *a = exp_with::<FMA>(dt * -exp_with::<FMA>(*a));
            }
        }
    }
}

impl Step for Packed {
    /// Length of s `[h, n]`.
    fn state_len(&self) -> usize {
        self.channels * self.states
    }

    fn step(&self, arena: &[f32], games: &mut [Game<'_>], at: usize, scratch: &mut Scratch) {
        let (rows, channels) = (games.len(), self.channels);
        let Scratch { x, y, input, .. } = scratch;
        self.projection.read(input, x, rows);
        self.projection.apply(arena, input, y);
        let each = y.chunks_exact(2 * self.states).zip(x.chunks_exact_mut(channels));
        for (game, (bc, x)) in games.iter_mut().zip(each) {
            let parts = [&self.decay, &self.dt, &self.d].map(|part| &arena[part.clone()]);
            scan(x, parts, bc, game.state(at, self.state_len()));
        }
        Activation::Gelu.apply(&mut x[..rows * channels]);
        self.output.read(input, x, rows);
        self.output.apply(arena, input, x);
    }
}

dispatch! {
    /// Computes `s = exp(dt A) s + dt B u` and `u = C s + D u` for each channel. `parts` are the decays, dt and D; `bc`
    /// holds B, then C.
    fn scan(u: &mut [f32], parts: [&[f32]; 3], bc: &[f32], state: &mut [f32]) {
        let ([decay, dt, d], (b, c)) = (parts, bc.split_at(bc.len() / 2));
        let n = b.len();
        let rows = state.chunks_exact_mut(n).zip(decay.chunks_exact(n));
        for (((u, dt), d), (state, decay)) in u.iter_mut().zip(dt).zip(d).zip(rows) {
            let input = dt * *u;
            for ((s, decay), b) in state.iter_mut().zip(decay).zip(b) {
                *s = decay * *s + input * b;
            }
            *u = dot(state, c) + d * *u;
        }
    }
}

/// `W_down (W_up x * silu(W_gate x))` (Shazeer 2020, SwiGLU), `[b, t, h]` -> `[b, t, h]`. Weights: `up` (`W_up` above
/// `W_gate`, `[2 inner, h]`), `down`.
struct GatedFeedForward {
    up: Weight,
    down: Linear,
    inner: usize,
}

impl GatedFeedForward {
    fn new(h: usize, inner: usize, b: &Builder) -> Result<Self> {
        let up = b.under("up").get("weight", &[2 * inner, h], Init::fan_in(h))?;
        Ok(GatedFeedForward { up, down: Linear::without_bias(inner, h, &b.under("down"))?, inner })
    }
}

impl Backbone for GatedFeedForward {
    fn zero_state(&self, _batch: usize) -> Result<State> {
        Ok(State(vec![]))
    }

    fn forward(&self, x: &Tensor, state: &State, _context: &Context) -> Result<(Tensor, State)> {
        let [x, gate] = ops::linear_parts(x, &self.up, [self.inner; 2])?;
        let y = self.down.forward(&ops::gated(&x, &gate, Activation::Silu)?)?;
        Ok((y, state.clone()))
    }

    fn pack(&self, packer: &mut Packer) -> Result<Box<dyn Step>> {
        let (up, down) = (Matrix::dense(packer, &self.up, None)?, self.down.pack(packer)?);
        Ok(Box::new(PackedGatedFeedForward::new(up, Activation::Silu, down)))
    }
}

/// `:s4d`: for each layer `x = x + s4d(norm1(x))`, then `x = x + ffn(norm2(x))`; finally a LayerNorm.
///
/// `x [b, t, input]` -> `[b, t, hidden_size]`. State: the state of each [`S4d`]. Weights: `input`,
/// `layers.I.{norm1, mixer, norm2, ffn}`, `norm`.
pub fn s4d(config: &StateConfig, input: usize, b: &Builder) -> Result<Stack> {
    let trunk = config.trunk();
    let h = trunk.hidden_size;
    let mut residuals = vec![];
    for i in 0..trunk.num_layers {
        let b = b.under("layers").under(i);
        let norm = |name| Norm::layer(h, &b.under(name));
        let ffn = GatedFeedForward::new(h, FFN * h, &b.under("ffn"))?;
        let mixer = S4d::new(config, &b.under("mixer"))?;
        residuals.push(Arc::new(Residual::new(norm("norm1")?, mixer)?));
        residuals.push(Arc::new(Residual::new(norm("norm2")?, ffn)?));
    }
    Stack::new(&trunk, input, residuals, Some(Norm::layer(h, &b.under("norm"))?), b)
}
