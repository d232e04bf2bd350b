//! xLSTM, one frame at a time.

use std::ops::Range;

use crate::backbone::xlstm::EPS;
use crate::spec::{HeadsConfig, Layered};
use sconce_ops::Activation;
use sconce_ops::activation::{multiply, skip};
use sconce_ops::matrix_state::decay::{stabilised, stabiliser};
use sconce_ops::matrix_state::head::recur;
use sconce_ops::norm::group_norm::GroupNorm;
use sconce_ops::recurrent::slstm::{self, Frame};
use sconce_tensor::Result;
use sconce_tensor::simd::{exp, scale_all};

use super::layer::{Game, Step};
use super::retnet::push_feed_forward;
use super::stack::Stack;
use sconce_realtime::Conv;
use sconce_realtime::Matrix;
use sconce_realtime::Packer;
use sconce_realtime::Scratch;
use sconce_realtime::{HeadNorm, Norm};

/// An mLSTM where a layer's number is even; where it is odd an sLSTM, and behind it a feed-forward layer. As
/// `crate::backbone::xlstm`.
pub(crate) fn xlstm(config: &HeadsConfig, width: usize, packer: &mut Packer) -> Result<Stack> {
    let mut stack = Stack::new(&config.trunk(), width, packer)?;
    for i in 0..config.num_layers {
        let name = format!("backbone.layers.{i}");
        let norm = Norm::layer_norm(packer, &format!("{name}.norm"))?;
        let mixer = format!("{name}.mixer");
        if i % 2 == 0 {
            stack.push(norm, Mlstm::new(config, packer, &mixer)?);
        } else {
            stack.push(norm, Slstm::new(config, packer, &mixer)?);
            push_feed_forward(&mut stack, Activation::Gelu, packer, &name)?;
        }
    }
    Ok(stack.normed(Norm::layer_norm(packer, "backbone.norm")?))
}

/// The mLSTM block of Beck et al. 2024 (eq. 19 to 27, fig. 11).
struct Mlstm {
    /// What is convolved, and the gate.
    up: Matrix,
    conv: Conv,
    v: Matrix,
    /// q, k, and the input and forget gates of all heads.
    qk_gates: Matrix,
    norm: HeadNorm,
    skip: Range<usize>,
    down: Matrix,
    heads: usize,
    inner: usize,
}

impl Mlstm {
    fn new(config: &HeadsConfig, packer: &mut Packer, name: &str) -> Result<Self> {
        let (width, heads) = (config.hidden_size, config.num_heads);
        let inner = config.expand_factor * width;
        let of = format!("{name}.qk_proj.weight");
        let mut weight = packer.read_named(&of)?;
        let mut bias = vec![0.0; 2 * inner];
        for gate in ["igate", "fgate"] {
            weight.extend(packer.read_named(&format!("{name}.{gate}.weight"))?);
            bias.extend(packer.read_named(&format!("{name}.{gate}.bias"))?);
        }
        // What the heads read lies behind them.
        packer.holds(bias.len() + inner);
        let norm = GroupNorm { size: inner / heads, center: true, eps: EPS };
        Ok(Mlstm {
            up: Matrix::without_bias_named(packer, &format!("{name}.up_proj"), 2 * inner)?,
            conv: Conv::named(packer, &format!("{name}.conv1d"), Activation::Silu)?,
            v: Matrix::without_bias_named(packer, &format!("{name}.v_proj"), inner)?,
            qk_gates: Matrix::pack(packer, &of, &weight, &bias),
            norm: HeadNorm::named(packer, &format!("{name}.norm"), norm)?,
            skip: packer.keep_named(&format!("{name}.skip"))?,
            down: Matrix::without_bias_named(packer, &format!("{name}.down_proj"), width)?,
            heads,
            inner,
        })
    }

    /// What the heads read of their states, from `qk_gates` and the values.
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

/// One frame of one head: `C = f C + i v k^T / sqrt(d)`, `n = f n + i k / sqrt(d)` and `C q / max(|n q|, 1)`, all
/// but the last kept as `e^-m` of what they are (eq. 15 to 21). `state` is C, and n as one more row.
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

impl Step for Mlstm {
    /// The inputs of the convolution, C and n of each head, m of each head.
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
            // In the place of the values, which were read.
            self.norm.apply(arena, read, x);
            skip::forward(x, c, &arena[self.skip.clone()]);
            Activation::Silu.apply(gate);
            multiply(x, gate);
        }
        self.down.read(input, x, rows);
        self.down.apply(arena, input, x);
    }
}

/// The sLSTM of Beck et al. 2024 (eq. 8 to 18, fig. 10), and a norm of each head.
struct Slstm {
    input: Matrix,
    /// Of each head its four gates, side by side.
    recurrent: Vec<Matrix>,
    norm: HeadNorm,
    width: usize,
}

impl Slstm {
    fn new(config: &HeadsConfig, packer: &mut Packer, name: &str) -> Result<Self> {
        let (width, heads) = (config.hidden_size, config.num_heads);
        let size = width / heads;
        let input = Matrix::dense_named(packer, &format!("{name}.input"))?;
        let of = format!("{name}.weight_hh");
        let weight = slstm::turned(&packer.read_named(&of)?, heads);
        let bias = vec![0.0; 4 * size];
        let mut pack = |weight: &[f32]| Matrix::pack(packer, &of, weight, &bias);
        let recurrent = weight.chunks_exact(4 * size * size).map(&mut pack).collect();
        let norm = GroupNorm { size, center: true, eps: EPS };
        let norm = HeadNorm::named(packer, &format!("{name}.norm"), norm)?;
        Ok(Slstm { input, recurrent, norm, width })
    }
}

impl Step for Slstm {
    /// h, c, n and m.
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
