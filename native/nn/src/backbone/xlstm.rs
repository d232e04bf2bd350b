//! xLSTM: LSTMs with exponential gates, and with a matrix as their state.

use sconce_tensor::Tensor;

use super::retnet::feed_forward;
use super::stack::{Residual, Stack};
use super::{Backbone, Context, State};
use crate::layer::{Linear, Norm};
use crate::ops::arrange::join;
use crate::ops::matrix_state::mlstm_gates;
use crate::ops::matrix_state::{Decay, Options, Readout};
use crate::ops::slstm::SlstmState;
use crate::ops::{self, Activation};
use crate::spec::{HeadsConfig, Layered};
use crate::weights::{Builder, Init, Weight};
use crate::{Error, Result};

/// The mLSTM block of Beck et al. 2024 (eq. 19 to 27, fig. 11), with dense instead of block-diagonal
/// projections and sigmoid forget gates:
///
/// ```text
/// x, z = up(u)        c = silu(conv1d(x))        q, k = qk_proj(c)        v = v_proj(x)
/// C = f C + i v k^T / sqrt(d)        n = f n + i k / sqrt(d)        h = C q / max(|n q|, 1)
/// out = down((norm(h) + skip * c) * silu(z))
/// ```
///
/// with `i = e^i~`, `f = sigmoid(f~)` from c, and a LayerNorm of each head without a bias. State: the inputs
/// `[b, inner, 3]` of the convolution; `e^-m` times C with n as one more row `[b, heads, value + 1, key]`; m `[b, heads]`.
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

/// The sLSTM of Beck et al. 2024 (eq. 8 to 18, fig. 10, without the optional convolution), and a
/// LayerNorm of each head without a bias. State: h, c, n and m, each `[b, h]`.
pub struct Slstm {
    input: Linear,
    recurrent: Weight,
    norm: Weight,
    heads: usize,
    width: usize,
}

/// Taps of the convolution.
pub const CONV: usize = 4;
/// Of the norms of each head.
pub const EPS: f32 = 1e-5;

fn check_heads(what: &str, width: usize, heads: usize) -> Result<()> {
    match width % heads {
        0 => Ok(()),
        _ => Err(Error::mismatch(what, format!("a multiple of {heads}"), width)),
    }
}

impl Mlstm {
    /// Weights `up_proj`, `conv1d`, `qk_proj`, `v_proj`, `igate`, `fgate`, `norm`, `skip`, `down_proj`.
    pub fn new(config: &HeadsConfig, b: &Builder) -> Result<Self> {
        let (width, heads) = (config.hidden_size, config.num_heads);
        let inner = width * config.expand_factor;
        check_heads("inner width of an mLSTM", inner, heads)?;
        let conv = b.under("conv1d");
        // The forget gates begin open, from 0.95 to 0.998 (the authors' code).
        let open = Init::With(|rng, i| 3.0 + 3.0 * rng.uniform(i));
        Ok(Mlstm {
            up: b.under("up_proj").get("weight", &[2 * inner, width], Init::fan_in(width))?,
            conv_weight: conv.get("weight", &[inner, 1, CONV], Init::fan_in(CONV))?,
            conv_bias: conv.get("bias", &[inner], Init::fan_in(CONV))?,
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
}

impl Slstm {
    /// Weights `input`, `weight_hh`, `norm`.
    pub fn new(config: &HeadsConfig, b: &Builder) -> Result<Self> {
        let (width, heads) = (config.hidden_size, config.num_heads);
        check_heads("width of an sLSTM", width, heads)?;
        let head = width / heads;
        Ok(Slstm {
            input: Linear::new(width, 4 * width, Activation::None, &b.under("input"))?,
            recurrent: b.get("weight_hh", &[4 * width, head], Init::fan_in(head))?,
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
}

/// Residual blocks `layers.I.norm`, `layers.I.mixer`: an mLSTM where I is even; where it is odd an sLSTM,
/// and behind it `layers.I.ffn_norm`, `layers.I.ffn`. A last `norm`.
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
