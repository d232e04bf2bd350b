//! Jamba as ExPhil computes it: gated state spaces with attention.

use std::sync::{Arc, Mutex};

use sconce_tensor::Tensor;

use super::super::config::{ExphilGatedSsmConfig, ExphilJambaConfig, Layered};
use super::super::stack::{FeedForward, Residual, Stack};
use super::super::{Backbone, Context, State};
use super::attention::no_memory;
use super::constant::Constant;
use super::gated_ssm::GatedSsm;
use super::positions::Positions;
use crate::Result;
use crate::layer::{Linear, Norm};
use crate::ops::attention::Window;
use crate::ops::{self, Activation};
use crate::weights::{Builder, Weight};

/// Ratio of the feed-forward layers' inner width to `hidden_size`.
const FFN: usize = 4;
/// The constant that the norms of queries and keys add to the variance.
const EPS: f32 = 1e-6;

impl ExphilJambaConfig {
    /// Config of the layers without attention.
    fn gated_ssm(&self) -> ExphilGatedSsmConfig {
        ExphilGatedSsmConfig {
            hidden_size: self.hidden_size,
            num_layers: self.num_layers,
            state_size: self.state_size,
            expand_factor: self.expand_factor,
            conv_size: self.conv_size,
            input_norm: self.input_norm,
            dropout: self.dropout,
            input_dropout: self.input_dropout,
        }
    }
}

/// A state space with a norm of its own.
struct Normed {
    norm: Norm,
    layer: GatedSsm,
}

impl Backbone for Normed {
    fn zero_state(&self, batch: usize) -> Result<State> {
        self.layer.zero_state(batch)
    }

    fn forward(&self, x: &Tensor, state: &State, context: &Context) -> Result<(Tensor, State)> {
        self.layer.forward(&self.norm.forward(x)?, state, context)
    }
}

/// `W_out softmax(norm(q) norm(k)^T / sqrt(head_dim)) v` over the frames of the window up to the own one, with
/// `q, k, v = W_qkv W_in x`. The norms have no weights. W_in and W_out exist only if the width of all heads differs from
/// the width h of `x [b, t, h]`.
struct Attention {
    around: Option<[Linear; 2]>,
    qkv: Linear,
    num_heads: usize,
    head_dim: usize,
    /// The weights and the biases of the norms, ones and zeros `[head_dim]`.
    norm: [Constant; 2],
    /// The window of the last pass.
    window: Mutex<Option<Arc<Window>>>,
}

impl Attention {
    /// Weights: `proj_in`, `qkv` (rows of queries, then keys, then values, each ordered by head), `proj_out`.
    fn new(config: &ExphilJambaConfig, b: &Builder) -> Result<Self> {
        let (h, num_heads, head_dim) = (config.hidden_size, config.num_heads, config.head_dim);
        let d = num_heads.saturating_mul(head_dim);
        let dense =
            |name, input, output| Linear::new(input, output, Activation::None, &b.under(name));
        let around = || Ok::<_, crate::Error>([dense("proj_in", h, d)?, dense("proj_out", d, h)?]);
        Ok(Attention {
            around: (d != h).then(around).transpose()?,
            qkv: dense("qkv", d, 3 * d)?,
            num_heads,
            head_dim,
            norm: [1.0, 0.0].map(|v| Constant::new(vec![v; head_dim], &[head_dim])),
            window: Mutex::default(),
        })
    }

    /// The sizes of an attention over all of `time` frames.
    fn window(&self, time: usize) -> Result<Arc<Window>> {
        let mut last = self.window.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(window) = last.as_ref().filter(|window| window.frames() == time) {
            return Ok(window.clone());
        }
        let window = Arc::new(Window::without_positions(self.num_heads, self.head_dim, time)?);
        *last = Some(window.clone());
        Ok(window)
    }

    /// The normed queries and keys, and the values.
    fn qkv(&self, x: &Tensor) -> Result<Tensor> {
        let qkv = match &self.around {
            Some([proj_in, _]) => self.qkv.forward(&proj_in.forward(x)?)?,
            None => self.qkv.forward(x)?,
        };
        let [weight, bias] = &self.norm;
        let (weight, bias) = (weight.beside(&qkv)?, bias.beside(&qkv)?);
        let (weight, bias) = (Weight::from(weight), Some(Weight::from(bias)));
        let norm = ops::Norm { weight, bias, eps: EPS };
        ops::head_norm(&qkv, &ops::HeadNorms { queries: norm.clone(), keys: norm })
    }
}

impl Backbone for Attention {
    fn zero_state(&self, _batch: usize) -> Result<State> {
        Ok(State(vec![]))
    }

    fn forward(&self, x: &Tensor, state: &State, context: &Context) -> Result<(Tensor, State)> {
        let (qkv, window) = (self.qkv(x)?, self.window(x.dim(1)?)?);
        let empty = no_memory(&window, &qkv)?;
        let y = match context.is_of_last() {
            true => ops::attention_of_last(&qkv, &empty, &window, false)?.0,
            false => ops::attention(&qkv, &empty, &window, context.lengths())?.0,
        };
        let y = match &self.around {
            Some([_, proj_out]) => proj_out.forward(&y)?,
            None => y,
        };
        Ok((y, state.clone()))
    }
}

/// `:jamba` of ExPhil. `sin(t / (1 + 0.01 d))` is added to the projected input at place t of the window and channel d.
/// Every `attention_every`th layer is a transformer block, whose feed-forward layer has an inner width of four times
/// `hidden_size`; all other layers are gated state spaces with a second norm. A LayerNorm ends the stack.
///
/// Weights: `input`, `layers.I.{norm, mixer}` or `layers.I.{norm, attention, ffn_norm, ffn1, ffn2}`, `norm`.
pub(in super::super) fn jamba(
    config: &ExphilJambaConfig,
    input: usize,
    b: &Builder,
) -> Result<Stack> {
    let (trunk, gated) = (config.trunk(), config.gated_ssm());
    let h = trunk.hidden_size;
    let mut residuals = vec![];
    for i in 0..trunk.num_layers {
        let b = b.under("layers").under(i);
        let norm = |name| Norm::layer(h, &b.under(name));
        let dense =
            |name, input, output| Linear::new(input, output, Activation::None, &b.under(name));
        if (i + 1) % config.attention_every != 0 {
            let mixer = b.under("mixer");
            let own = Norm::layer(h, &mixer.under("norm"))?;
            let layer = Normed { norm: own, layer: GatedSsm::new(&gated, &mixer)? };
            residuals.push(Arc::new(Residual::of_window(norm("norm")?, layer)?));
            continue;
        }
        let attention = Attention::new(config, &b.under("attention"))?;
        residuals.push(Arc::new(Residual::of_window(norm("norm")?, attention)?));
        let up = dense("ffn1", h, FFN * h)?.activated(Activation::GeluErf);
        let ffn = FeedForward::new(up, dense("ffn2", FFN * h, h)?);
        residuals.push(Arc::new(Residual::new(norm("ffn_norm")?, ffn)?));
    }
    let norm = Norm::layer(h, &b.under("norm"))?;
    let positions = Positions::default();
    Ok(Stack::new(&trunk, input, residuals, Some(norm), b)?.placed(move |x| positions.add(x)))
}
