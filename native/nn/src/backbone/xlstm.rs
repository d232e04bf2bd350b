//! xLSTM: LSTMs with exponential gates, in one variant with a matrix as their state.

use std::ops::Range;

use sconce_ops::activation::{multiply, skip};
use sconce_ops::matrix_state::decay::{stabilised, stabiliser};
use sconce_ops::matrix_state::head::recur;
use sconce_ops::norm::group_norm::GroupNorm;
use sconce_ops::recurrent::slstm::{self, Frame};
use sconce_realtime::{Conv, HeadNorm, Matrix, Packer, Scratch};
use sconce_tensor::Tensor;
use sconce_tensor::simd::{exp, scale_all};

use super::config::{HeadsConfig, Layered};
use super::retnet::feed_forward;
use super::stack::{Residual, Stack};
use super::{Backbone, Context, State};
use crate::layer::{Linear, Norm};
use crate::ops::arrange::join;
use crate::ops::matrix_state::{Decay, Options, Readout, mlstm_gates};
use crate::ops::recurrent::SlstmState;
use crate::ops::{self, Activation};
use crate::packed::{Game, Step};
use crate::weights::{Block, Builder, Init, Weight};
use crate::{Error, Result};

/// The mLSTM block of Beck et al. 2024 (eq. 19 to 27, fig. 11), with dense instead of block-diagonal projections and
/// with sigmoid forget gates:
///
/// ```text
/// x, z = up(u)        c = silu(conv1d(x))        q, k = qk_proj(c)        v = v_proj(x)
/// C = f C + i v k^T / sqrt(d)        n = f n + i k / sqrt(d)        h = C q / max(|n q|, 1)
/// out = down((norm(h) + skip * c) * silu(z))
/// ```
///
/// The gates `i = e^i~` and `f = sigmoid(f~)` are computed from c. Each head has a LayerNorm without a bias. State:
/// the last inputs of the convolution `[b, inner, 3]`; `e^-m` times C with n as one more row,
/// `[b, heads, value + 1, key]`; m `[b, heads]`.
pub struct Mlstm {
    up: Weight,
    conv_weight: Weight,
    conv_bias: Weight,
    qk: Linear,
    v: Linear,
    input_gate: Linear,
    forget_gate: Linear,
    norm: Weight,
    skip: Weight,
    down: Linear,
    inner: usize,
    heads: usize,
}

/// The sLSTM of Beck et al. 2024 (eq. 8 to 18, fig. 10), without the optional convolution. Each head has a LayerNorm
/// without a bias. State: h, c, n and m, each `[b, h]`.
pub struct Slstm {
    input: Linear,
    recurrent: Weight,
    norm: Weight,
    heads: usize,
    width: usize,
}

/// Number of frames in the kernel of the convolution.
pub const CONV: usize = 4;
/// Eps of each head's norm.
pub const EPS: f32 = 1e-5;

fn check_heads(what: &str, width: usize, heads: usize) -> Result<()> {
    match width % heads {
        0 => Ok(()),
        _ => Err(Error::mismatch(what, format!("a multiple of {heads}"), width)),
    }
}

impl Mlstm {
    /// Weights: `up_proj`, `conv1d`, `qk_proj`, `v_proj`, `igate`, `fgate`, `norm`, `skip`, `down_proj`.
    pub fn new(config: &HeadsConfig, b: &Builder) -> Result<Self> {
        let (width, heads) = (config.hidden_size, config.num_heads);
        let inner = width * config.expand_factor;
        check_heads("inner width of an mLSTM", inner, heads)?;
        let conv = b.under("conv1d");
        // The forget gates start open, at 0.95 to 0.998, as in the authors' code.
        let open = Init::With(|rng, i| 3.0 + 3.0 * rng.uniform(i));
        Ok(Mlstm {
            up: b.under("up_proj").get("weight", &[2 * inner, width], Init::fan_in(width))?,
            conv_weight: conv.get("weight", &[inner, 1, CONV], Init::kernel(CONV))?,
            conv_bias: conv.get("bias", &[inner], Init::kernel(CONV))?,
            qk: Linear::without_bias(inner, 2 * inner, &b.under("qk_proj"))?,
            v: Linear::without_bias(inner, inner, &b.under("v_proj"))?,
            input_gate: Linear::new(inner, heads, Activation::None, &b.under("igate"))?,
            forget_gate: Linear::with_bias(inner, heads, open, &b.under("fgate"))?,
            norm: b.under("norm").get("weight", &[inner], Init::Constant(1.0))?,
            skip: b.get("skip", &[inner], Init::Constant(1.0))?,
            down: Linear::without_bias(inner, width, &b.under("down_proj"))?,
            inner,
            heads,
        })
    }
}

impl Backbone for Mlstm {
    fn zero_state(&self, batch: usize) -> Result<State> {
        let head = self.inner / self.heads;
        Ok(State(vec![
            sconce_tensor::tensor::zeros(&[batch, self.inner, CONV - 1])?,
            sconce_tensor::tensor::zeros(&[batch, self.heads, head + 1, head])?,
            sconce_tensor::tensor::zeros(&[batch, self.heads])?,
        ]))
    }

    fn forward(&self, x: &Tensor, state: &State, context: &Context) -> Result<(Tensor, State)> {
        let [conv, matrix, m] = state.parts()?;
        let (heads, head) = (self.heads, self.inner / self.heads);
        let [x, z] = ops::linear_parts(x, &self.up, [self.inner; 2])?;
        context.tap("pre_conv", &x);
        let lengths = context.lengths();
        let weight = (&self.conv_weight, Some(&*self.conv_bias));
        let (c, conv) = ops::causal_conv(&x, weight.0, weight.1, conv, true, lengths.clone())?;
        context.tap("post_conv", &c);
        let qkv = join(&[&self.qk.forward(&c)?, &self.v.forward(&x)?])?;
        let raw = join(&[&self.input_gate.forward(&c)?, &self.forget_gate.forward(&c)?])?;
        let gates = mlstm_gates(&raw, m, &lengths)?;
        let options = Options {
            scale: 1.0 / (head as f32).sqrt(),
            lengths,
            ..Options::side_by_side(heads, head, head, Decay::HeadAndInput)
        };
        let readout = Readout::Normalised(gates.m);
        let (h, matrix) = ops::matrix_state(&qkv, Some(&gates.gates), matrix, readout, &options)?;
        context.tap("ssm_out", &h);
        context.tap("gate", &z);
        let [h, c, z] = [context.read_of(&h)?, context.read_of(&c)?, context.read_of(&z)?];
        let h = ops::group_norm(&h, &self.norm, heads, true, EPS)?;
        let h = ops::skip(&h, &c, &self.skip)?;
        let y = self.down.forward(&ops::gated(&h, &z, Activation::Silu)?)?;
        Ok((y, State(vec![conv, matrix, gates.last])))
    }

    fn pack(&self, packer: &mut Packer) -> Result<Box<dyn Step>> {
        let gates = [self.qk.parts(), self.input_gate.parts(), self.forget_gate.parts()];
        // The scratch holds q, k and the gates, then the outputs of the heads.
        packer.holds(3 * self.inner + 2 * self.heads);
        let norm = GroupNorm { size: self.inner / self.heads, center: true, eps: EPS };
        Ok(Box::new(PackedMlstm {
            up: Matrix::dense(packer, &self.up, None)?,
            conv: Conv::new(packer, &self.conv_weight, &self.conv_bias, Activation::Silu)?,
            v: self.v.pack(packer)?,
            qk_gates: Matrix::side_by_side(packer, &gates)?,
            norm: HeadNorm::new(packer, &self.norm, norm)?,
            skip: packer.keep(&self.skip)?,
            down: self.down.pack(packer)?,
            heads: self.heads,
            inner: self.inner,
        }))
    }
}

/// [`Mlstm`] packed for one frame at a time.
struct PackedMlstm {
    /// Rows of the convolution's input and of the gate.
    up: Matrix,
    conv: Conv,
    v: Matrix,
    /// Rows of q, k, and the input and forget gates of all heads.
    qk_gates: Matrix,
    norm: HeadNorm,
    skip: Range<usize>,
    down: Matrix,
    heads: usize,
    inner: usize,
}

impl PackedMlstm {
    /// Updates the states from `qk_gates` and the values, and writes the outputs of the heads to `read`.
    fn remember(&self, qk_gates: &[f32], v: &[f32], state: &mut [f32], read: &mut [f32]) {
        let size = self.inner / self.heads;
        let (qk, gates) = qk_gates.split_at(2 * self.inner);
        let ((q, k), (i, f)) = (qk.split_at(self.inner), gates.split_at(self.heads));
        let (matrices, m) = state.split_at_mut(state.len() - self.heads);
        for (head, matrix) in matrices.chunks_exact_mut((size + 1) * size).enumerate() {
            let span = head * size..(head + 1) * size;
            let [q, k, v] = [q, k, v].map(|of| &of[span.clone()]);
            remember([i[head], f[head]], [q, k, v], matrix, &mut m[head], &mut read[span]);
        }
    }
}

/// Runs one frame of one head: `C = f C + i v k^T / sqrt(d)`, `n = f n + i k / sqrt(d)` and the output `C q / max(|n
/// q|, 1)` (eq. 15 to 21). C and n are stored scaled by `e^-m`. `state` holds C, then n as one more row.
fn remember(
    [i, f]: [f32; 2],
    [q, k, v]: [&[f32]; 3],
    state: &mut [f32],
    m: &mut f32,
    read: &mut [f32],
) {
    let before = *m;
    *m = stabiliser(i, f, before);
    let (log, factor) = stabilised(i, f, before, *m);
    let (fade, factor) = (exp(log), factor / (k.len() as f32).sqrt());
    let (c, n) = state.split_at_mut(v.len() * k.len());
    let mut norm = [0.0];
    recur(read, c, q, k, v, fade, factor);
    recur(&mut norm, n, q, k, &[1.0], fade, factor);
    scale_all(read, 1.0 / norm[0].abs().max((-*m).exp()));
}

impl Step for PackedMlstm {
    /// Length of the last inputs of the convolution, C and n of each head, then m of each head.
    fn state_len(&self) -> usize {
        self.conv.state_len() + self.inner * (self.inner / self.heads + 1) + self.heads
    }

    fn step(&self, arena: &[f32], games: &mut [Game<'_>], at: usize, scratch: &mut Scratch) {
        let (rows, inner, past) = (games.len(), self.inner, self.conv.state_len());
        let Scratch { x, y, z, input, .. } = scratch;
        self.up.read(input, x, rows);
        self.up.apply(arena, input, y);
        input.read(y.chunks_exact(2 * inner).take(rows).map(|y| &y[..inner]));
        self.v.apply(arena, input, x);
        for (game, y) in games.iter_mut().zip(y.chunks_exact_mut(2 * inner)) {
            self.conv.step(arena, &mut y[..inner], game.state(at, past));
        }
        input.read(y.chunks_exact(2 * inner).take(rows).map(|y| &y[..inner]));
        self.qk_gates.apply(arena, input, z);
        let width = self.qk_gates.outputs();
        let (z, read) = z.split_at_mut(rows * width);
        let each = y.chunks_exact_mut(2 * inner).zip(x.chunks_exact_mut(inner));
        let each = each.zip(z.chunks_exact(width).zip(read.chunks_exact_mut(inner)));
        for (game, ((y, x), (z, read))) in games.iter_mut().zip(each) {
            let (c, gate) = y.split_at_mut(inner);
            let state = game.state(at + past, self.state_len() - past);
            self.remember(z, x, state, read);
            // The output of the norm overwrites the values in x, which are no longer needed.
            self.norm.apply(arena, read, x);
            skip::forward(x, c, &arena[self.skip.clone()]);
            Activation::Silu.apply(gate);
            multiply(x, gate);
        }
        self.down.read(input, x, rows);
        self.down.apply(arena, input, x);
    }
}

impl Slstm {
    /// Weights: `input`, `weight_hh`, `norm`.
    pub fn new(config: &HeadsConfig, b: &Builder) -> Result<Self> {
        let (width, heads) = (config.hidden_size, config.num_heads);
        check_heads("width of an sLSTM", width, heads)?;
        let head = width / heads;
        let gates = |rows, n| b.in_blocks(vec![Block { rows, gain: 1.0 }; n]);
        let input = gates(width, 4).under("input");
        let shape = [4 * width, head];
        Ok(Slstm {
            input: Linear::new(width, 4 * width, Activation::None, &input)?,
            recurrent: gates(head, 4 * heads).get("weight_hh", &shape, Init::fan_in(head))?,
            norm: b.under("norm").get("weight", &[width], Init::Constant(1.0))?,
            heads,
            width,
        })
    }
}

impl Backbone for Slstm {
    fn zero_state(&self, batch: usize) -> Result<State> {
        let part = || sconce_tensor::tensor::zeros(&[batch, self.width]);
        Ok(State(vec![part()?, part()?, part()?, part()?]))
    }

    fn forward(&self, x: &Tensor, state: &State, context: &Context) -> Result<(Tensor, State)> {
        let [h, c, n, m] = state.parts()?;
        let projected = self.input.forward(x)?;
        let state = SlstmState { h: h.clone(), c: c.clone(), n: n.clone(), m: m.clone() };
        let (y, next) =
            ops::slstm(&projected, &self.recurrent, self.heads, &state, context.lengths())?;
        let y = ops::group_norm(&context.read_of(&y)?, &self.norm, self.heads, true, EPS)?;
        Ok((y, State(vec![next.h, next.c, next.n, next.m])))
    }

    fn pack(&self, packer: &mut Packer) -> Result<Box<dyn Step>> {
        let size = self.width / self.heads;
        let input = self.input.pack(packer)?;
        let weight = slstm::turned(&packer.read(&self.recurrent)?, self.heads);
        let (name, bias) = (packer.name(&self.recurrent), vec![0.0; 4 * size]);
        let pack = |weight: &[f32]| Matrix::pack(packer, name, weight, &bias);
        let recurrent = weight.chunks_exact(4 * size * size).map(pack).collect::<Result<_>>()?;
        let norm = GroupNorm { size, center: true, eps: EPS };
        let norm = HeadNorm::new(packer, &self.norm, norm)?;
        Ok(Box::new(PackedSlstm { input, recurrent, norm, width: self.width }))
    }
}

/// [`Slstm`] packed for one frame at a time.
struct PackedSlstm {
    input: Matrix,
    /// The four gates of each head, side by side.
    recurrent: Vec<Matrix>,
    norm: HeadNorm,
    width: usize,
}

impl Step for PackedSlstm {
    /// Length of h, c, n and m.
    fn state_len(&self) -> usize {
        4 * self.width
    }

    fn step(&self, arena: &[f32], games: &mut [Game<'_>], at: usize, scratch: &mut Scratch) {
        let (rows, h, size) = (games.len(), self.width, self.width / self.recurrent.len());
        let Scratch { x, y, z, input, .. } = scratch;
        self.input.read(input, x, rows);
        self.input.apply(arena, input, y);
        for (head, recurrent) in self.recurrent.iter().enumerate() {
            let own = head * size..(head + 1) * size;
            input.read(games.iter_mut().map(|game| &*game.state(at + own.start, size)));
            recurrent.apply(arena, input, z);
            let each = y.chunks_exact(4 * h).zip(z.chunks_exact_mut(4 * size));
            for (game, (y, gates)) in games.iter_mut().zip(each) {
                let (hc, nm) = game.state(at, 4 * h).split_at_mut(2 * h);
                let ((hidden, c), (n, m)) = (hc.split_at_mut(h), nm.split_at_mut(h));
                let [hidden, c, n, m] = [hidden, c, n, m].map(|part| &mut part[own.clone()]);
                let frame = Frame { gates, slopes: &mut x[..size], c, n, m, y: hidden };
                slstm::cell(frame, &y[own.start..], h);
            }
        }
        for (game, x) in games.iter_mut().zip(x.chunks_exact_mut(h)) {
            self.norm.apply(arena, game.state(at, h), x);
        }
    }
}

/// Residual blocks `layers.I.norm`, `layers.I.mixer`, and a final `norm`. An even I is an mLSTM. An odd I is an sLSTM
/// followed by `layers.I.ffn_norm`, `layers.I.ffn`.
pub fn stack(config: &HeadsConfig, input: usize, b: &Builder) -> Result<Stack> {
    let width = config.hidden_size;
    let mut layers = vec![];
    for i in 0..config.num_layers {
        let b = b.under("layers").under(i);
        let (norm, mixer) = (Norm::layer(width, &b.under("norm"))?, b.under("mixer"));
        if i % 2 == 0 {
            layers.push(Residual::new(norm, Mlstm::new(config, &mixer)?)?.into());
            continue;
        }
        layers.push(Residual::new(norm, Slstm::new(config, &mixer)?)?.into());
        let ffn = feed_forward(width, config.expand_factor, Activation::Gelu, &b.under("ffn"))?;
        layers.push(Residual::new(Norm::layer(width, &b.under("ffn_norm"))?, ffn)?.into());
    }
    let norm = Some(Norm::layer(width, &b.under("norm"))?);
    Stack::new(&config.trunk(), input, layers, norm, b)
}
