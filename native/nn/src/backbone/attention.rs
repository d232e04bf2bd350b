//! Attention over the last frames, in a transformer and after an LSTM.

use std::ops::Range;
use std::sync::Arc;

use sconce_ops::attention::{count_on, frames_seen};
use sconce_realtime::{self as packed, Matrix, Packer, Scratch, mix, score};
use sconce_tensor::Tensor;
use sconce_tensor::simd::{LANES, add_assign, scale_all};

use super::config::{AttentionConfig, Layered, RecurrentConfig};
use super::recompute::recomputed;
use super::stack::{FeedForward, Residual, Stack};
use super::{Backbone, Cell, Context, Recurrent, State, recurrent, residual_by_parts};
use crate::layer::{Linear, Norm};
use crate::ops::attention::{Cache, Pairing, Projections, THETA, Window};
use crate::ops::{self, Activation};
use crate::packed::{Game, Step};
use crate::weights::{Builder, Weight};
use crate::{Error, Result};

/// Ratio of the feed-forward layers' inner width to `hidden_size`.
const FFN: usize = 4;

/// Sizes of an [`Attention`].
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Width of the input and of the output.
    pub hidden_size: usize,
    /// Number of heads.
    pub num_heads: usize,
    /// Width of a key and of a value of one head.
    pub head_dim: usize,
    /// Number of frames that a query sees, its own frame included.
    pub window_size: usize,
    /// LayerNorm of each query and key.
    pub qk_layernorm: bool,
    /// Pairing of the channels that a rotation (RoPE) turns together.
    pub pairing: Pairing,
}

impl From<&AttentionConfig> for Sizes {
    fn from(c: &AttentionConfig) -> Self {
        Sizes {
            hidden_size: c.hidden_size,
            num_heads: c.num_heads,
            head_dim: c.head_dim,
            window_size: c.window_size,
            qk_layernorm: c.qk_layernorm,
            pairing: Pairing::Half,
        }
    }
}

/// `W_out attend(norm(W_q x), norm(W_k x), W_v x)`, causal and within the last `window_size` frames, with rotary
/// positions (see [`ops::attention`]). A layer `[b, t, hidden_size]` -> `[b, t, hidden_size]`.
///
/// State: keys and values of the last frames, two rings `[b, window_size, num_heads * head_dim]`, and the number of
/// frames seen, `[b, 1]`. The state takes 8 bytes x `window_size` x `num_heads` x `head_dim`.
///
/// Tap: `attention_weights [b, heads, t, window_size]`; the last index is the age of the key in frames.
pub struct Attention {
    qkv: Linear,
    norms: Option<ops::HeadNorms>,
    out: Linear,
    window: Arc<Window>,
}

impl Attention {
    /// Weights: `qkv` (rows of queries, then keys, then values, each ordered by head), `out`, and optional `q_norm`,
    /// `k_norm`.
    pub fn new(sizes: &Sizes, b: &Builder) -> Result<Self> {
        let Sizes { num_heads, head_dim, window_size, pairing, hidden_size, .. } = *sizes;
        b.reserve("rotations", &Window::table(head_dim, window_size))?;
        let window = Window::new(num_heads, head_dim, window_size, pairing, THETA)?;
        let norm = |name| Norm::layer(head_dim, &b.under(name));
        let norms = || Ok::<_, Error>(Norm::of_heads(norm("q_norm")?, norm("k_norm")?));
        let norms = sizes.qk_layernorm.then(norms).transpose()?;
        Self::of(window, hidden_size, norms, b)
    }

    /// An attention over this window, for vectors of width `h`.
    pub(super) fn of(
        window: Window,
        h: usize,
        norms: Option<ops::HeadNorms>,
        b: &Builder,
    ) -> Result<Self> {
        let d = window.width();
        Ok(Attention {
            qkv: Linear::new(h, 3 * d, Activation::None, &b.under("qkv"))?,
            norms,
            out: Linear::new(d, h, Activation::None, &b.under("out"))?,
            window: Arc::new(window),
        })
    }
}

impl Attention {
    /// Queries, keys and values `[b, t, 3 * heads * head_dim]`.
    fn qkv(&self, x: &Tensor) -> Result<Tensor> {
        let qkv = self.qkv.forward(x)?;
        self.norms.as_ref().map_or(Ok(qkv.clone()), |norms| ops::head_norm(&qkv, norms))
    }

    fn packed(&self, packer: &mut Packer) -> Result<PackedAttention> {
        let norms = match &self.norms {
            Some(ops::HeadNorms { queries, keys }) => {
                Some([packed::Norm::new(packer, queries)?, packed::Norm::new(packer, keys)?])
            }
            None => None,
        };
        let (qkv, out) = (self.qkv.pack(packer)?, self.out.pack(packer)?);
        let heads = self.window.heads();
        if self.window.pairing() != Pairing::Half {
            let reason = "queries and keys are turned in interleaved pairs".into();
            return Err(Error::Unavailable { what: "a step of attention".into(), reason });
        }
        packer.holds(heads * self.window.frames().next_multiple_of(LANES));
        Ok(PackedAttention { qkv, norms, out, window: self.window.clone(), heads })
    }

    fn tap(&self, qkv: &Tensor, cache: &Cache, context: &Context) -> Result<()> {
        context.tap_with("attention_weights", || {
            ops::attention_weights(qkv, cache, &self.window, context.lengths())
        })
    }
}

impl Backbone for Attention {
    fn zero_state(&self, batch: usize) -> Result<State> {
        Ok(after(Cache::empty(&self.window, batch)?))
    }

    fn forward(&self, x: &Tensor, state: &State, context: &Context) -> Result<(Tensor, State)> {
        let (cache, qkv) = (cache(state)?, self.qkv(x)?);
        self.tap(&qkv, &cache, context)?;
        if context.is_of_last() {
            let cached = !context.is_forgetful();
            let (y, after_it) = ops::attention_of_last(&qkv, &cache, &self.window, cached)?;
            return Ok((self.out.forward(&y)?, after_it.map_or_else(|| state.clone(), after)));
        }
        let (y, cache) = ops::attention(&qkv, &cache, &self.window, context.lengths())?;
        Ok((self.out.forward(&y)?, after(cache)))
    }

    fn residual(
        &self,
        x: &Tensor,
        residual: &ops::Residual,
        state: &State,
        context: &Context,
    ) -> Result<(Tensor, State)> {
        if context.is_of_last() {
            return residual_by_parts(self, x, residual, state, context);
        }
        let cache = cache(state)?;
        if context.is_tapped() {
            self.tap(&self.qkv(&ops::row_norm(x, &residual.norm)?)?, &cache, context)?;
        }
        let projections = Projections {
            qkv: self.qkv.plain()?,
            norms: self.norms.clone(),
            out: self.out.plain()?,
        };
        let (window, lengths) = (&self.window, context.lengths());
        let append = !context.is_forgetful();
        let (y, after_it) =
            ops::attention_residual(x, residual, &projections, &cache, window, lengths, append)?;
        Ok((y, after_it.map_or_else(|| state.clone(), after)))
    }

    fn pack(&self, packer: &mut Packer) -> Result<Box<dyn Step>> {
        Ok(Box::new(self.packed(packer)?))
    }
}

/// [`Attention`] packed for one frame at a time. Rotations must pair the first half of a head's channels with the
/// second half, as in every backbone.
struct PackedAttention {
    /// Queries, keys and values.
    qkv: Matrix,
    /// Norms of queries and of keys.
    norms: Option<[packed::Norm; 2]>,
    out: Matrix,
    window: Arc<Window>,
    heads: usize,
}

impl PackedAttention {
    /// Number of f32 in the ring of keys; the ring of values has the same size.
    fn ring(&self) -> usize {
        self.window.frames() * self.window.width()
    }

    /// Stores the keys and values of a frame in the state, and computes the attention of its queries,
    /// `y [heads * head_dim]`.
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
        score(scores, &self.window, query, &keys[..there], now);
        mix(y, &self.window, scores, &values[..there]);
        Ok(())
    }
}

impl Step for PackedAttention {
    /// Length of keys, values and the number of frames seen.
    fn state_len(&self) -> usize {
        2 * self.ring() + 1
    }

    /// Reports the slots of the last frames in each ring.
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

fn cache(state: &State) -> Result<Cache> {
    let [keys, values, seen] = state.parts()?.clone();
    Ok(Cache { keys, values, seen })
}

fn after(Cache { keys, values, seen }: Cache) -> State {
    State(vec![keys, values, seen])
}

/// A feed-forward layer `W_2 gelu(W_1 x)`. Weights: `ffn1`, `ffn2`.
pub fn feed_forward(hidden_size: usize, inner: usize, b: &Builder) -> Result<FeedForward> {
    let up = Linear::new(hidden_size, inner, Activation::Gelu, &b.under("ffn1"))?;
    let down = Linear::new(inner, hidden_size, Activation::None, &b.under("ffn2"))?;
    Ok(FeedForward::new(up, down))
}

/// The two residuals of a transformer block: `norm1` with attention, `norm2` with a feed-forward layer.
pub fn block(sizes: &Sizes, inner: usize, b: &Builder) -> Result<[Arc<Residual>; 2]> {
    let norm = |name| Norm::layer(sizes.hidden_size, &b.under(name));
    Ok([
        Arc::new(Residual::new(norm("norm1")?, Attention::new(sizes, b)?)?),
        Arc::new(Residual::new(norm("norm2")?, feed_forward(sizes.hidden_size, inner, b)?)?),
    ])
}

/// A causal transformer over frames. Each frame sees the last `window_size` frames of the layer below (Vaswani et al.
/// 2017, pre-norm as in Xiong et al. 2020, window as in Beltagy et al. 2020):
///
/// ```text
/// x = x + attention(norm1(x))    x = x + W_2 gelu(W_1 norm2(x))    and at the end norm(x)
/// ```
///
/// `x [b, t, input]` -> `[b, t, hidden_size]`. `:causal_transformer` is the same network with other default sizes.
/// Rotations replace a table of time steps, so the result does not depend on the position of a frame in the game.
///
/// State: one state of an [`Attention`] for each layer.
///
/// Weights: `input`, `layers.I.{norm1, qkv, out, norm2, ffn1, ffn2}`, `norm`.
pub fn transformer(config: &AttentionConfig, input: usize, b: &Builder) -> Result<Stack> {
    let sizes = Sizes::from(config);
    let h = config.hidden_size;
    let mut residuals = vec![];
    for i in 0..config.num_layers {
        residuals.extend(block(&sizes, FFN * h, &b.under("layers").under(i))?);
    }
    let norm = Norm::layer(h, &b.under("norm"))?;
    Stack::new(&config.trunk(), input, residuals, Some(norm), b)
}

/// An LSTM followed by attention over its outputs:
///
/// ```text
/// u = W lstm(x)    y = norm(u + attention(u))
/// ```
///
/// `x [b, t, input]` -> `[b, t, hidden_size]`. State: h and c of each LSTM layer, then the state of the
/// [`Attention`]. Weights: `lstm.{weight,bias}_{ih,hh}_lI`, `dense`, `qkv`, `out`, `norm`.
pub struct LstmHybrid {
    lstm: Recurrent,
    /// Number of tensors in the LSTM's state, which precede those of the attention.
    parts: usize,
    head: Arc<Head>,
    /// All weights that the layers after the LSTM may use.
    weights: Arc<[Weight]>,
}

/// The layers after the LSTM.
pub(super) struct Head {
    pub(super) dense: Linear,
    pub(super) attention: Attention,
    pub(super) norm: Norm,
    pub(super) dropout: f32,
}

impl LstmHybrid {
    /// Builds the hybrid for vectors of width `input`.
    pub fn new(config: &AttentionConfig, input: usize, b: &Builder) -> Result<Self> {
        let h = config.hidden_size;
        let lstm = RecurrentConfig {
            hidden_size: h,
            num_layers: config.num_layers,
            layer_norm: false,
            input_norm: config.input_norm,
            dropout: config.dropout,
            input_dropout: config.input_dropout,
            ..Default::default()
        };
        let lstm = Recurrent::new(Cell::Lstm, &lstm, input, &b.under("lstm"))?;
        let head = Head {
            dense: Linear::new(h, h, Activation::None, &b.under("dense"))?,
            attention: Attention::new(&Sizes::from(config), b)?,
            norm: Norm::layer(h, &b.under("norm"))?,
            dropout: config.dropout,
        };
        Ok(LstmHybrid::of(lstm, 2 * config.num_layers, head, b))
    }

    /// An LSTM whose state has this number of tensors, and the layers after it, all made by this builder.
    pub(super) fn of(lstm: Recurrent, parts: usize, head: Head, b: &Builder) -> Self {
        LstmHybrid { lstm, parts, head: head.into(), weights: b.taken() }
    }
}

impl Head {
    fn forward(&self, h: &Tensor, state: &State, context: &Context) -> Result<(Tensor, State)> {
        let u = self.dense.forward(h)?;
        let (y, state) = self.attention.forward(&u, state, context)?;
        let y = (context.read_of(&u)? + context.dropout(&y, self.dropout, "attention")?)?;
        Ok((self.norm.forward(&y)?, state))
    }
}

impl Backbone for LstmHybrid {
    fn zero_state(&self, batch: usize) -> Result<State> {
        let mut state = self.lstm.zero_state(batch)?;
        state.0.extend(self.head.attention.zero_state(batch)?.0);
        Ok(state)
    }

    fn forward(&self, x: &Tensor, state: &State, context: &Context) -> Result<(Tensor, State)> {
        let Some((lstm, attention)) = state.0.split_at_checked(self.parts) else {
            return Err(Error::mismatch("parts of a state", self.parts + 3, state.0.len()));
        };
        let (h, mut next) = self.lstm.forward(x, &State(lstm.to_vec()), &context.of_all())?;
        let own = State(attention.to_vec());
        let (y, after) = match context.recompute_every() {
            None => self.head.forward(&h, &own, context)?,
            Some(_) => {
                let head = self.head.clone();
                let block = move |h: &Tensor, state: &State, context: &Context| {
                    head.forward(h, state, context)
                };
                recomputed(&h, &own, context, &self.weights, block)?
            }
        };
        next.0.extend(after.0);
        Ok((y, next))
    }

    fn pack(&self, packer: &mut Packer) -> Result<Box<dyn Step>> {
        Ok(Box::new(PackedLstmHybrid {
            lstm: self.lstm.packed(packer)?,
            dense: self.head.dense.pack(packer)?,
            attention: self.head.attention.packed(packer)?,
            norm: self.head.norm.pack(packer)?,
        }))
    }
}

/// [`LstmHybrid`] packed for one frame at a time.
struct PackedLstmHybrid {
    lstm: recurrent::Packed,
    dense: Matrix,
    attention: PackedAttention,
    norm: packed::Norm,
}

impl Step for PackedLstmHybrid {
    /// Length of h and c of each LSTM layer, then the state of the attention.
    fn state_len(&self) -> usize {
        self.lstm.state_len() + self.attention.state_len()
    }

    fn start(&self, arena: &[f32], state: &mut [f32], at: usize) {
        self.lstm.start(arena, state, at);
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
