//! S5 (Smith et al. 2023): one state space with many inputs and outputs, instead of one state space per channel.

use std::ops::Range;
use std::sync::Arc;

use sconce_ops::activation::{multiply, skip};
use sconce_ops::linear_recurrence::cells::{self, Cell};
use sconce_ops::linear_recurrence::step;
use sconce_realtime::{Matrix, Packer, Scratch};
use sconce_tensor::Tensor;

use super::config::{Layered, StateConfig};
use super::stack::{FeedForward, Residual, Stack};
use super::{Backbone, Context, State};
use crate::Result;
use crate::layer::{Linear, Norm};
use crate::ops::{self, Activation};
use crate::packed::{Game, Step};
use crate::rng::Rng;
use crate::weights::{Builder, Init, Weight};

/// `u = gelu(C h + D x)`, `y = u * sigmoid(W u)`, where h is [`ops::diagonal_ssm`] of `B x`.
///
/// The diagonal is real: the state decays and does not rotate. The published diagonal is complex and starts as the
/// eigenvalues of a HiPPO matrix. Here decay rates start at 1, 2, .. N, and step sizes start log-uniform in 0.001..0.1.
///
/// State: h `[b, n]`. Weights: `linear_b [n, h]`, `linear_c [h, n]`, `a_log [n]`, `dt_log [n]`, `d [h]`, `gate`.
struct S5 {
    input: Linear,
    output: Linear,
    a_log: Weight,
    dt_log: Weight,
    d: Weight,
    gate: Linear,
    size: usize,
}

impl S5 {
    fn new(width: usize, size: usize, b: &Builder) -> Result<Self> {
        let rate = |_: &Rng, i: u64| (i as f32 + 1.0).ln();
        let step = |rng: &Rng, i| 1e-3f32.ln() + rng.uniform(i) * 100f32.ln();
        Ok(S5 {
            input: Linear::without_bias(width, size, &b.under("linear_b"))?,
            output: Linear::without_bias(size, width, &b.under("linear_c"))?,
            a_log: b.get("a_log", &[size], Init::With(rate))?,
            dt_log: b.get("dt_log", &[size], Init::With(step))?,
            d: b.get("d", &[width], Init::Normal(1.0))?,
            gate: Linear::new(width, width, Activation::None, &b.under("gate"))?,
            size,
        })
    }
}

impl Backbone for S5 {
    fn zero_state(&self, batch: usize) -> Result<State> {
        State::zeros(batch, &[self.size])
    }

    fn forward(&self, x: &Tensor, state: &State, context: &Context) -> Result<(Tensor, State)> {
        let ([h0], lengths) = (state.parts()?, context.lengths());
        let u = self.input.forward(x)?;
        let h = ops::diagonal_ssm(&u, &self.a_log, &self.dt_log, h0, lengths.clone())?;
        let last = ops::last(&h, h0, &lengths)?;
        let (h, x) = (context.read_of(&h)?, context.read_of(x)?);
        let y = ops::skip(&self.output.forward(&h)?, &x, &self.d)?;
        context.tap("ssm_out", &y);
        let u = ops::activate(&y, Activation::Gelu)?;
        let gate = self.gate.forward(&u)?;
        context.tap("gate", &gate);
        Ok((ops::gated(&u, &gate, Activation::Sigmoid)?, State(vec![last])))
    }

    fn pack(&self, packer: &mut Packer) -> Result<Box<dyn Step>> {
        let input = self.input.pack(packer)?;
        let weights = packer.read(&self.a_log)?.into_iter().zip(packer.read(&self.dt_log)?);
        let parameters = weights.map(|(a, dt)| cells::Diagonal.parameters([a, dt]).into());
        let (decays, scales): (Vec<f32>, Vec<f32>) = parameters.unzip();
        packer.check(&scales);
        Ok(Box::new(Packed {
            input,
            parameters: [packer.lay(&decays), packer.lay(&scales)],
            output: self.output.pack(packer)?,
            d: packer.keep(&self.d)?,
            gate: self.gate.pack(packer)?,
            width: self.d.dim(0)?,
            size: self.size,
        }))
    }
}

/// [`S5`] packed for one frame at a time.
struct Packed {
    input: Matrix,
    /// The decays and the factors of the input, `[n]` each.
    parameters: [Range<usize>; 2],
    output: Matrix,
    d: Range<usize>,
    gate: Matrix,
    width: usize,
    size: usize,
}

impl Step for Packed {
    fn state_len(&self) -> usize {
        self.size
    }

    fn step(&self, arena: &[f32], games: &mut [Game<'_>], at: usize, scratch: &mut Scratch) {
        let (rows, n) = (games.len(), games.len() * self.width);
        let Scratch { x, y, z, input, .. } = scratch;
        self.input.read(input, x, rows);
        self.input.apply(arena, input, y);
        for (game, y) in games.iter_mut().zip(y.chunks_exact(self.size)) {
            let parameters = self.parameters.each_ref().map(|part| &arena[part.clone()]);
            step(cells::Diagonal, game.state(at, self.size), [y], parameters);
        }
        input.read(games.iter_mut().map(|game| &*game.state(at, self.size)));
        self.output.apply(arena, input, z);
        skip::forward(&mut z[..n], &x[..n], &arena[self.d.clone()]);
        Activation::Gelu.apply(&mut z[..n]);
        self.gate.read(input, z, rows);
        self.gate.apply(arena, input, x);
        Activation::Sigmoid.apply(&mut x[..n]);
        multiply(&mut x[..n], &z[..n]);
    }
}

/// Ratio of the feed-forward layers' inner width to `hidden_size`.
const EXPAND: usize = 4;

/// Builds for each layer `x + s5(norm(x))`, then `x + W_2 gelu(W_1 norm(x))`; finally a LayerNorm. Weights:
/// `layers.I.{norm1, mixer, norm2, ffn1, ffn2}`, `norm`.
///
/// State: h `[b, n]` of each layer, 4 bytes x `state_size` x layers.
pub(super) fn stack(config: &StateConfig, input: usize, b: &Builder) -> Result<Stack> {
    let trunk = config.trunk();
    let h = trunk.hidden_size;
    let mut residuals = Vec::with_capacity(2 * trunk.num_layers);
    for i in 0..trunk.num_layers {
        let b = b.under("layers").under(i);
        let mixer = S5::new(h, config.state_size, &b.under("mixer"))?;
        residuals.push(Arc::new(Residual::new(Norm::layer(h, &b.under("norm1"))?, mixer)?));
        let up = Linear::new(h, EXPAND * h, Activation::Gelu, &b.under("ffn1"))?;
        let down = Linear::new(EXPAND * h, h, Activation::None, &b.under("ffn2"))?;
        let norm = Norm::layer(h, &b.under("norm2"))?;
        residuals.push(Arc::new(Residual::new(norm, FeedForward::new(up, down))?));
    }
    Stack::new(&trunk, input, residuals, Some(Norm::layer(h, &b.under("norm"))?), b)
}
