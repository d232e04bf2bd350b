//! Diagonal state spaces of a fixed decay, one frame at a time.

use std::ops::Range;

use crate::backbone::s4d::FFN;
use crate::spec::{Layered, StateConfig};
use sconce_ops::Activation;
use sconce_tensor::Result;
use sconce_tensor::simd::{dispatch, dot, exp_with};

use super::layer::{Game, Step};
use super::stack::{GatedFeedForward, Stack};
use sconce_realtime::Matrix;
use sconce_realtime::Norm;
use sconce_realtime::Packer;
use sconce_realtime::Scratch;

/// For each layer `x = x + s4d(norm1(x))`, `x = x + ffn(norm2(x))`, and a LayerNorm at the end, as
/// `crate::backbone::s4d`.
pub(crate) fn s4d(config: &StateConfig, width: usize, packer: &mut Packer) -> Result<Stack> {
    let (mut stack, hidden) = (Stack::new(&config.trunk(), width, packer)?, config.hidden_size);
    for i in 0..config.num_layers {
        let name = format!("backbone.layers.{i}");
        let norm = Norm::layer_norm(packer, &format!("{name}.norm1"))?;
        stack.push(norm, S4d::new(config, packer, &format!("{name}.mixer"))?);
        let norm = Norm::layer_norm(packer, &format!("{name}.norm2"))?;
        let up = Matrix::without_bias_named(packer, &format!("{name}.ffn.up"), 2 * FFN * hidden)?;
        let down = Matrix::without_bias_named(packer, &format!("{name}.ffn.down"), hidden)?;
        stack.push(norm, GatedFeedForward::new(up, Activation::Silu, down));
    }
    Ok(stack.normed(Norm::layer_norm(packer, "backbone.norm")?))
}

/// S4D-Real (Gu et al. 2022, section 4) of h channels of n states.
struct S4d {
    /// B and C.
    projection: Matrix,
    /// `exp(dt A)`, `[h, n]`.
    decay: Range<usize>,
    /// `[h]`
    dt: Range<usize>,
    /// `[h]`
    d: Range<usize>,
    output: Matrix,
    channels: usize,
    states: usize,
}

impl S4d {
    fn new(config: &StateConfig, packer: &mut Packer, name: &str) -> Result<Self> {
        let (channels, states) = (config.hidden_size, config.state_size);
        let projection =
            Matrix::without_bias_named(packer, &format!("{name}.bc_proj"), 2 * states)?;
        let mut decay = packer.read_named(&format!("{name}.A_log"))?;
        let dt = packer.read_named(&format!("{name}.log_dt"))?;
        let dt: Vec<f32> = dt.into_iter().map(f32::exp).collect();
        packer.check(&dt);
        decays(&mut decay, &dt);
        Ok(S4d {
            projection,
            decay: packer.lay(&decay),
            dt: packer.lay(&dt),
            d: packer.keep_named(&format!("{name}.D"))?,
            output: Matrix::dense_named(packer, &format!("{name}.out_proj"))?,
            channels,
            states,
        })
    }
}

dispatch! {
    /// `exp(-exp(a) dt)` in the place of a.
    fn decays(a: &mut [f32], dt: &[f32]) {
        for (a, dt) in a.chunks_exact_mut(a.len() / dt.len()).zip(dt) {
            for a in a {
                *a = exp_with::<FMA>(dt * -exp_with::<FMA>(*a));
            }
        }
    }
}

impl Step for S4d {
    /// `[h, n]`
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
    /// `s = exp(dt A) s + dt B u` and `u = C s + D u` of each channel; the parts are the decays, dt and D,
    /// behind B lies C.
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
