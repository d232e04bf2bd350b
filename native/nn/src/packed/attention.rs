//! Attention over the last frames, one frame at a time.

use std::ops::Range;
use std::sync::Arc;

use crate::backbone::Cell;
use crate::backbone::attention::Sizes;
use crate::spec::{AttentionConfig, Layered, RecurrentConfig};
use sconce_ops::Activation;
use sconce_ops::attention::{THETA, Window, count_on, exponentials, frames_seen};
use sconce_tensor::Result;
use sconce_tensor::simd::{LANES, add_assign, dispatch, mul_add, scale_all, sum};

use super::layer::{Game, Step};
use super::recurrent::Recurrent;
use super::stack::{FeedForward, Stack};
use sconce_realtime::Matrix;
use sconce_realtime::Norm;
use sconce_realtime::Packer;
use sconce_realtime::Scratch;

/// `W_out attend(norm(W_q x), norm(W_k x), W_v x)` over the last frames, as in
/// `crate::backbone::attention`.
pub(crate) struct Attention {
    /// Queries, keys and values.
    qkv: Matrix,
    /// Of queries and of keys.
    norms: Option<[Norm; 2]>,
    out: Matrix,
    window: Window,
    heads: usize,
    head_dim: usize,
}

impl Attention {
    /// Of the weights under `name`. Pairs that turn are the halves of a head: those of every backbone are.
    pub(crate) fn new(sizes: &Sizes, packer: &mut Packer, name: &str) -> Result<Self> {
        let Sizes { num_heads, head_dim, window_size, pairing, .. } = *sizes;
        let window = Window::new(num_heads, head_dim, window_size, pairing, THETA)?;
        let mut norm = |part| Norm::layer(sizes.qk_layernorm, packer, &format!("{name}.{part}"));
        let norms = norm("q_norm")?.zip(norm("k_norm")?).map(<[Norm; 2]>::from);
        let qkv = Matrix::dense_named(packer, &format!("{name}.qkv"))?;
        let out = Matrix::dense_named(packer, &format!("{name}.out"))?;
        packer.holds(num_heads * window_size.next_multiple_of(LANES));
        Ok(Attention { qkv, norms, out, window, heads: num_heads, head_dim })
    }

    /// Numbers of a ring of keys, and of one of values.
    fn ring(&self) -> usize {
        self.window.frames() * self.window.width()
    }

    /// Takes the keys and values of a frame into the state, and makes `y [heads * head_dim]` of what its
    /// queries see there.
    fn attend(
        &self,
        qkv: &mut [f32],
        state: &mut [f32],
        scores: &mut [f32],
        y: &mut [f32],
    ) -> Result<()> {
        let (width, frames) = (self.window.width(), self.window.frames());
        let (keys, rest) = state.split_at_mut(self.ring());
        let (values, seen) = rest.split_at_mut(self.ring());
        let before = frames_seen(seen[0], frames)?;
        let now = before % frames;
        let (query, given) = qkv.split_at_mut(width);
        keys[now * width..][..width].copy_from_slice(&given[..width]);
        values[now * width..][..width].copy_from_slice(&given[width..]);
        seen[0] = count_on(before, 1, frames) as f32;
        let there = (before + 1).min(frames) * width;
        scale_all(query, self.window.scale());
        let stride = frames.next_multiple_of(LANES);
        let scores = &mut scores[..self.heads * stride];
        score(scores, self, query, &keys[..there], now);
        mix(y, self, scores, &values[..there]);
        Ok(())
    }
}

impl Step for Attention {
    /// Keys and values, and how many frames were seen.
    fn state_len(&self) -> usize {
        2 * self.ring() + 1
    }

    /// Of each ring the places of the last frames.
    fn changed(&self, state: &[f32], at: usize, steps: usize, each: &mut dyn FnMut(Range<usize>)) {
        let (frames, width) = (self.window.frames(), self.window.width());
        let Ok(seen) = frames_seen(state[at + 2 * self.ring()], frames) else {
            return each(at..at + self.state_len());
        };
        for back in 1..=steps.min(seen).min(frames) {
            let place = at + (seen - back) % frames * width;
            each(place..place + width);
            each(place + self.ring()..place + self.ring() + width);
        }
        each(at + 2 * self.ring()..at + self.state_len());
    }

    fn step(&self, arena: &[f32], games: &mut [Game<'_>], at: usize, scratch: &mut Scratch) {
        let (rows, width) = (games.len(), self.window.width());
        let Scratch { x, y, z, input, .. } = scratch;
        self.qkv.read(input, x, rows);
        self.qkv.apply(arena, input, y);
        let each = y.chunks_exact_mut(3 * width).zip(x.chunks_exact_mut(width));
        for (game, (qkv, mixed)) in games.iter_mut().zip(each) {
            if let Some(norms) = &self.norms {
                for (norm, x) in norms.iter().zip(qkv.chunks_exact_mut(width)) {
                    norm.apply(arena, self.heads, x, z);
                    x.copy_from_slice(&z[..width]);
                }
            }
            game.then(|game| self.attend(qkv, game.state(at, self.state_len()), z, mixed));
        }
        self.out.read(input, x, rows);
        self.out.apply(arena, input, x);
    }
}

dispatch! {
    /// `q . R(age) k` of each head and key (Su et al. 2021, eq. 34); frame `now` has age 0. Rows of scores are so
    /// long that each ends with a whole vector.
    fn score(scores: &mut [f32], of: &Attention, query: &[f32], keys: &[f32], now: usize) {
        let (dim, half, width) = (of.head_dim, of.head_dim / 2, of.window.width());
        let (frames, stride) = (keys.len() / width, scores.len() / of.heads);
        for (slot, keys) in keys.chunks_exact(width).enumerate() {
            let age = if slot <= now { now - slot } else { now + frames - slot };
            let (cos, sin) = of.window.rotation(age);
            let heads = query.chunks_exact(dim).zip(keys.chunks_exact(dim));
            for (head, (query, key)) in heads.enumerate() {
                let ((p, q), (a, b)) = (query.split_at(half), key.split_at(half));
                scores[head * stride + slot] = product::<FMA>([p, q, a, b, cos, sin]);
            }
        }
    }
}

/// Of the halves of a query and of a key, and the cosines and sines of an angle.
#[inline(always)]
fn product<const FMA: bool>(parts: [&[f32]; 6]) -> f32 {
    let parts = parts.map(<[f32]>::as_chunks::<LANES>);
    let mut lanes = [0.0f32; LANES];
    for at in 0..parts[0].0.len() {
        let [p, q, a, b, cos, sin] = parts.map(|(whole, _)| &whole[at]);
        for i in 0..LANES {
            lanes[i] = turned::<FMA>([p[i], q[i], a[i], b[i], cos[i], sin[i]], lanes[i]);
        }
    }
    let mut product = sum(lanes);
    for i in 0..parts[0].1.len() {
        product = turned::<FMA>(parts.map(|(_, rest)| rest[i]), product);
    }
    product
}

/// One pair's share, on top of what there is already.
#[inline(always)]
fn turned<const FMA: bool>([p, q, a, b, cos, sin]: [f32; 6], sum: f32) -> f32 {
    let along = mul_add::<FMA>(p, a, q * b);
    let across = mul_add::<FMA>(p, b, -q * a);
    mul_add::<FMA>(cos, along, mul_add::<FMA>(sin, across, sum))
}

dispatch! {
    /// `softmax(scores) v` of each head (Vaswani et al. 2017, eq. 1).
    fn mix(y: &mut [f32], of: &Attention, scores: &mut [f32], values: &[f32]) {
        let (dim, width) = (of.head_dim, of.window.width());
        let (frames, stride) = (values.len() / width, scores.len() / of.heads);
        for (head, (y, scores)) in y.chunks_exact_mut(dim).zip(scores.chunks_exact_mut(stride)).enumerate() {
            let (sum, _) = exponentials(scores, 0..frames);
            y.fill(0.0);
            let values = values[head * dim..].chunks(width);
            for (weight, value) in scores.iter().zip(values) {
                for (y, v) in y.iter_mut().zip(&value[..dim]) {
                    *y = mul_add::<FMA>(*weight, *v, *y);
                }
            }
            for y in y.iter_mut() {
                *y /= sum;
            }
        }
    }
}

/// The two residuals of a block of a transformer, which may stand in a stack several times: with the same
/// weights, and a state of its own each time.
pub(crate) struct Block {
    norms: [Norm; 2],
    attention: Arc<Attention>,
    feed_forward: Arc<FeedForward>,
}

impl Block {
    /// Of the weights `norm1`, `qkv`, `out`, `norm2`, `ffn1` and `ffn2` under `name`.
    pub(crate) fn new(sizes: &Sizes, packer: &mut Packer, name: &str) -> Result<Self> {
        let first = Norm::layer_norm(packer, &format!("{name}.norm1"))?;
        let attention = Attention::new(sizes, packer, name)?.into();
        let second = Norm::layer_norm(packer, &format!("{name}.norm2"))?;
        let feed_forward =
            FeedForward::dense(packer, name, ["ffn1", "ffn2"], Activation::Gelu)?.into();
        Ok(Block { norms: [first, second], attention, feed_forward })
    }

    pub(crate) fn push_to(&self, stack: &mut Stack) {
        let [first, second] = self.norms.clone();
        stack.push(first, self.attention.clone());
        stack.push(second, self.feed_forward.clone());
    }
}

/// `x = x + attention(norm1(x))`, then `x = x + W_2 gelu(W_1 norm2(x))` for each layer, and at the end
/// norm(x), as in `crate::backbone::attention`.
pub(crate) fn transformer(
    config: &AttentionConfig,
    width: usize,
    packer: &mut Packer,
) -> Result<Stack> {
    let mut stack = Stack::new(&config.trunk(), width, packer)?;
    for i in 0..config.num_layers {
        let name = format!("backbone.layers.{i}");
        Block::new(&Sizes::from(config), packer, &name)?.push_to(&mut stack);
    }
    Ok(stack.normed(Norm::layer_norm(packer, "backbone.norm")?))
}

/// `norm(u + attention(u))` with `u = W lstm(x)`, as `crate::backbone::attention::LstmHybrid`.
pub(crate) struct LstmHybrid {
    lstm: Recurrent,
    dense: Matrix,
    attention: Attention,
    norm: Norm,
}

impl LstmHybrid {
    pub(crate) fn new(config: &AttentionConfig, packer: &mut Packer) -> Result<Self> {
        let lstm = RecurrentConfig {
            hidden_size: config.hidden_size,
            num_layers: config.num_layers,
            layer_norm: false,
            input_norm: config.input_norm,
            dropout: config.dropout,
            input_dropout: config.input_dropout,
        };
        Ok(LstmHybrid {
            lstm: Recurrent::new(Cell::Lstm, &lstm, packer, "backbone.lstm")?,
            dense: Matrix::dense_named(packer, "backbone.dense")?,
            attention: Attention::new(&Sizes::from(config), packer, "backbone")?,
            norm: Norm::layer_norm(packer, "backbone.norm")?,
        })
    }
}

impl Step for LstmHybrid {
    /// h and c of each layer of the LSTM, then that of the attention.
    fn state_len(&self) -> usize {
        self.lstm.state_len() + self.attention.state_len()
    }

    fn changed(&self, state: &[f32], at: usize, steps: usize, each: &mut dyn FnMut(Range<usize>)) {
        self.lstm.changed(state, at, steps, each);
        self.attention.changed(state, at + self.lstm.state_len(), steps, each);
    }

    fn step(&self, arena: &[f32], games: &mut [Game<'_>], at: usize, scratch: &mut Scratch) {
        self.lstm.step(arena, games, at, scratch);
        let n = games.len() * self.dense.outputs();
        self.dense.read(&mut scratch.input, &scratch.x, games.len());
        self.dense.apply(arena, &mut scratch.input, &mut scratch.stream);
        scratch.x[..n].copy_from_slice(&scratch.stream[..n]);
        self.attention.step(arena, games, at + self.lstm.state_len(), scratch);
        add_assign(&mut scratch.stream[..n], &scratch.x[..n]);
        self.norm.apply(arena, games.len(), &scratch.stream, &mut scratch.x);
    }
}
