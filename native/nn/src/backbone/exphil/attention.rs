//! Attention over a window, with norms after the residuals.

use std::sync::Arc;

use sconce_tensor::Tensor;

use super::positions::Positions;
use crate::Result;
use crate::backbone::config::ExphilAttentionConfig;
use crate::backbone::recompute::recomputed;
use crate::backbone::{Backbone, Context, State};
use crate::layer::{Linear, Norm};
use crate::ops::Activation;
use crate::ops::arrange::add;
use crate::ops::attention::{Cache, Window, attend, attention_of_last, attention_weights};
use crate::weights::{Builder, Weight};

/// A transformer over the frames of a window:
///
/// ```text
/// x = W x + b    x[t, d] = x[t, d] + sin(t / (1 + 0.01 d))
/// x = norm1(x + softmax(q k' / sqrt(head_dim)) v)    x = norm2(x + W_2 gelu(W_1 x))    in each layer
/// ```
///
/// q, k, v are `W_qkv x + b`, without norms and without a projection after the heads; gelu is the exact form. Positions
/// count from the first frame of a window, so no state can be carried.
///
/// `x [b, t, input]` -> `[b, t, hidden_size]`. Tap: `I.attention_weights [b, heads, t, window_size]`. Weights: `input`,
/// `layers.I.{qkv, norm1, ffn1, ffn2, norm2}`, `input_norm`.
pub(in crate::backbone) struct Transformer {
    input_norm: Option<Norm>,
    input: Linear,
    layers: Vec<Arc<Layer>>,
    positions: Positions,
    input_dropout: f32,
    weights: Arc<[Weight]>,
}

struct Layer {
    qkv: Linear,
    norm1: Norm,
    ffn1: Linear,
    ffn2: Linear,
    norm2: Norm,
    window: Arc<Window>,
    dropout: f32,
}

impl Transformer {
    pub(in crate::backbone) fn new(
        config: &ExphilAttentionConfig,
        input: usize,
        b: &Builder,
    ) -> Result<Self> {
        let &ExphilAttentionConfig { hidden_size: h, num_heads, head_dim, window_size, .. } =
            config;
        b.reserve("positions", &Window::table(head_dim, window_size))?;
        let window = Arc::new(Window::without_positions(num_heads, head_dim, window_size)?);
        let dense = |[input, output]: [usize; 2], activation, b: Builder| {
            Linear::new(input, output, activation, &b)
        };
        let layer = |i| {
            let b = b.under("layers").under(i);
            Ok(Arc::new(Layer {
                qkv: dense([h, 3 * h], Activation::None, b.under("qkv"))?,
                norm1: Norm::layer(h, &b.under("norm1"))?,
                ffn1: dense([h, config.inner_size], Activation::GeluErf, b.under("ffn1"))?,
                ffn2: dense([config.inner_size, h], Activation::None, b.under("ffn2"))?,
                norm2: Norm::layer(h, &b.under("norm2"))?,
                window: window.clone(),
                dropout: config.dropout,
            }))
        };
        let norm = || Norm::layer(input, &b.under("input_norm"));
        Ok(Transformer {
            input_norm: config.input_norm.then(norm).transpose()?,
            input: dense([input, h], Activation::None, b.under("input"))?,
            layers: (0..config.num_layers).map(layer).collect::<Result<_>>()?,
            positions: Positions::default(),
            input_dropout: config.input_dropout,
            weights: b.taken(),
        })
    }

    fn read(&self, x: &Tensor, context: &Context) -> Result<Tensor> {
        let x = match &self.input_norm {
            Some(norm) => norm.forward(x)?,
            None => x.clone(),
        };
        let x = context.dropout_columns(&x, self.input_dropout, "input")?;
        self.positions.add(&self.input.forward(&x)?)
    }
}

impl Layer {
    fn forward(&self, x: &Tensor, context: &Context) -> Result<Tensor> {
        let (qkv, window) = (self.qkv.forward(x)?, &self.window);
        let none = no_memory(window, &qkv)?;
        context.tap_with("attention_weights", || {
            attention_weights(&qkv, &none, window, context.lengths())
        })?;
        let (y, _) = match context.is_of_last() {
            true => attention_of_last(&qkv, &none, window, false)?,
            false => attend(&qkv, &none, window, context.lengths(), false)?,
        };
        let y = context.dropout(&y, self.dropout, "attention")?;
        let x = self.norm1.forward(&add(&context.read_of(x)?, &y)?)?;
        let y = context.dropout(&self.ffn1.forward_then(&x, &self.ffn2)?, self.dropout, "ffn")?;
        self.norm2.forward(&add(&x, &y)?)
    }
}

/// The memory of an attention that has seen no frame, on the device and with the type of `qkv [b, t, ..]`.
pub(super) fn no_memory(window: &Window, qkv: &Tensor) -> Result<Cache> {
    let Cache { keys, values, seen } = Cache::empty(window, qkv.dim(0)?)?;
    let memory = State(vec![keys, values, seen]).beside(qkv)?;
    let [keys, values, seen] = memory.parts()?.clone();
    Ok(Cache { keys, values, seen })
}

/// Runs layers `first..`. All frames of a layer below another one are read.
fn run(layers: &[Arc<Layer>], first: usize, x: &Tensor, context: &Context) -> Result<Tensor> {
    let mut x = x.clone();
    for (i, layer) in layers.iter().enumerate() {
        let within = context.under(first + i);
        let within = if i + 1 < layers.len() { within.of_all() } else { within };
        x = layer.forward(&x, &within)?;
    }
    Ok(x)
}

impl Backbone for Transformer {
    fn zero_state(&self, _batch: usize) -> Result<State> {
        Ok(State(vec![]))
    }

    fn forward(&self, x: &Tensor, state: &State, context: &Context) -> Result<(Tensor, State)> {
        let [] = state.parts()?;
        let mut x = self.read(x, context)?;
        let Some(every) = context.recompute_every() else {
            return Ok((run(&self.layers, 0, &x, context)?, state.clone()));
        };
        for (group, layers) in self.layers.chunks(every).enumerate() {
            let layers = layers.to_vec();
            let block = move |x: &Tensor, state: &State, context: &Context| {
                Ok((run(&layers, group * every, x, context)?, state.clone()))
            };
            (x, _) = recomputed(&x, state, context, &self.weights, block)?;
        }
        Ok((x, state.clone()))
    }
}
