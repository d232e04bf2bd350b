//! HGRN (Qin et al. 2023): forget gates have a lower bound that grows with the layer, so that upper layers remember
//! for longer.

use std::ops::Range;
use std::sync::Arc;

use sconce_ops::activation::multiply;
use sconce_ops::linear_recurrence::{cells, step};
use sconce_realtime::{self as packed, Matrix, Packer, Scratch};
use sconce_tensor::Tensor;
use sconce_tensor::tensor::{tensor, to_vec};

use super::config::{ExpandConfig, Layered};
use super::stack::{FeedForward, Residual, Stack};
use super::{Backbone, Context, State};
use crate::layer::{Linear, Norm, Projection};
use crate::ops::{self, Activation};
use crate::packed::{Game, Step};
use crate::weights::{Builder, Init, Weight};
use crate::{Result, memory};

/// `W_out (rmsnorm(h) * silu(W_gate x))` over the recurrence of [`ops::hgrn`] with `s` real numbers of state. The
/// published recurrence also rotates its state by a learned angle.
///
/// State: h `[b, s]`. Weights: `linear_f`, `linear_i`, `linear_v`, `linear_gate`, `norm`, `linear_out`.
struct Hgrn {
    projection: Projection,
    gate: Linear,
    norm: Norm,
    output: Linear,
    /// Lower bounds `[layers, s]`, a weight that all layers share, and the index of this layer.
    bounds: Option<(Weight, usize)>,
    size: usize,
}

impl Hgrn {
    fn new(
        width: usize,
        size: usize,
        bounds: Option<(Weight, usize)>,
        b: &Builder,
    ) -> Result<Self> {
        let names = [("linear_f", size), ("linear_i", size), ("linear_v", size)];
        let linear =
            |input, output, name| Linear::new(input, output, Activation::None, &b.under(name));
        Ok(Hgrn {
            projection: Projection::new(width, &names, b)?,
            gate: linear(width, size, "linear_gate")?,
            norm: Norm::rms(size, &b.under("norm"))?,
            output: linear(size, width, "linear_out")?,
            bounds,
            size,
        })
    }
}

impl Backbone for Hgrn {
    fn zero_state(&self, batch: usize) -> Result<State> {
        State::zeros(batch, &[self.size])
    }

    fn forward(&self, x: &Tensor, state: &State, context: &Context) -> Result<(Tensor, State)> {
        let ([h0], lengths) = (state.parts()?, context.lengths());
        let bound = match &self.bounds {
            Some((bounds, layer)) => ops::lower_bound(bounds, *layer)?,
            None => sconce_tensor::tensor::beside(x, memory::zeros(self.size), self.size)?,
        };
        let h = ops::hgrn(&self.projection.forward(x)?, &bound, h0, lengths.clone())?;
        context.tap("ssm_out", &h);
        let last = ops::last(&h, h0, &lengths)?;
        let (h, x) = (context.read_of(&h)?, context.read_of(x)?);
        let gate = self.gate.forward(&x)?;
        context.tap("gate", &gate);
        let y = ops::gated(&self.norm.forward(&h)?, &gate, Activation::Silu)?;
        Ok((self.output.forward(&y)?, State(vec![last])))
    }

    fn pack(&self, packer: &mut Packer) -> Result<Box<dyn Step>> {
        let mut parts = self.projection.parts();
        parts.push(self.gate.parts());
        let projection = Matrix::side_by_side(packer, &parts)?;
        let bound = match &self.bounds {
            Some((bounds, layer)) => {
                let bounds = tensor(packer.read(bounds)?, bounds.dims())?;
                to_vec(&ops::lower_bound(&bounds, *layer)?)?
            }
            None => vec![0.0; self.size],
        };
        let bound = packer.lay(&bound);
        let norm = self.norm.pack(packer)?;
        let output = self.output.pack(packer)?;
        Ok(Box::new(Packed { projection, bound, norm, output, size: self.size }))
    }
}

/// [`Hgrn`] packed for one frame at a time.
struct Packed {
    /// Rows that compute the forget gate, the input gate, the value and the output gate.
    projection: Matrix,
    /// Lower bounds of the forget gates.
    bound: Range<usize>,
    norm: packed::Norm,
    output: Matrix,
    size: usize,
}

impl Step for Packed {
    fn state_len(&self) -> usize {
        self.size
    }

    fn step(&self, arena: &[f32], games: &mut [Game<'_>], at: usize, scratch: &mut Scratch) {
        let (rows, n) = (games.len(), self.size);
        let Scratch { x, y, z, input, .. } = scratch;
        self.projection.read(input, x, rows);
        self.projection.apply(arena, input, y);
        let each = y.chunks_exact_mut(4 * n).zip(z.chunks_exact_mut(n));
        for (game, (y, z)) in games.iter_mut().zip(each) {
            let (inputs, gate) = y.split_at_mut(3 * n);
            let inputs = [&inputs[..n], &inputs[n..2 * n], &inputs[2 * n..]];
            let h = game.state(at, n);
            step(cells::Hgrn, h, inputs, [&arena[self.bound.clone()]]);
            self.norm.apply(arena, 1, h, z);
            Activation::Silu.apply(gate);
            multiply(z, gate);
        }
        self.output.read(input, z, rows);
        self.output.apply(arena, input, x);
    }
}

/// Ratio of the feed-forward layers' inner width to `hidden_size`.
const EXPAND: usize = 4;

/// Builds for each layer `x + hgrn(norm(x))`, then `x + W_2 silu(W_1 norm(x))`; finally a LayerNorm. Weights:
/// `layers.I.{norm1, mixer, norm2, ffn1, ffn2}`, `norm`, and `lower_bounds [layers, s]` ([`ops::lower_bound`]) if there
/// is more than one layer.
///
/// State: h `[b, s]` of each layer with `s = expand_factor * hidden_size`, 4 bytes x s x layers.
pub(super) fn stack(config: &ExpandConfig, input: usize, b: &Builder) -> Result<Stack> {
    let trunk = config.trunk();
    let (h, layers) = (trunk.hidden_size, trunk.num_layers);
    let size = config.expand_factor * h;
    let bounds = || b.get("lower_bounds", &[layers, size], Init::Constant(0.0));
    let bounds = (layers > 1).then(bounds).transpose()?;
    let mut residuals = Vec::with_capacity(2 * layers);
    for i in 0..layers {
        let b = b.under("layers").under(i);
        let bound = bounds.clone().map(|bounds| (bounds, i));
        let mixer = Hgrn::new(h, size, bound, &b.under("mixer"))?;
        residuals.push(Arc::new(Residual::new(Norm::layer(h, &b.under("norm1"))?, mixer)?));
        let up = Linear::new(h, EXPAND * h, Activation::Silu, &b.under("ffn1"))?;
        let down = Linear::new(EXPAND * h, h, Activation::None, &b.under("ffn2"))?;
        let norm = Norm::layer(h, &b.under("norm2"))?;
        residuals.push(Arc::new(Residual::new(norm, FeedForward::new(up, down))?));
    }
    Stack::new(&trunk, input, residuals, Some(Norm::layer(h, &b.under("norm"))?), b)
}
