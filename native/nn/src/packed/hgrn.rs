//! HGRN, one frame at a time.

use std::ops::Range;

use crate::spec::{ExpandConfig, Layered};
use sconce_ops::activation::multiply;
use sconce_ops::linear_recurrence::{cells, step};
use sconce_ops::{Activation, lower_bound};
use sconce_tensor::Result;
use sconce_tensor::tensor::{tensor, to_vec};

use super::layer::{Game, Step};
use super::stack::{FeedForward, Stack};
use sconce_realtime::Matrix;
use sconce_realtime::Norm;
use sconce_realtime::Packer;
use sconce_realtime::Scratch;

/// `x + hgrn(norm(x))`, then `x + W_2 silu(W_1 norm(x))` for each layer, then a LayerNorm, as
/// `crate::backbone::hgrn`.
pub(crate) fn hgrn(config: &ExpandConfig, width: usize, packer: &mut Packer) -> Result<Stack> {
    let mut stack = Stack::new(&config.trunk(), width, packer)?;
    for i in 0..config.num_layers {
        let name = format!("backbone.layers.{i}");
        let norm = Norm::layer_norm(packer, &format!("{name}.norm1"))?;
        stack.push(norm, Hgrn::new(config, i, packer, &format!("{name}.mixer"))?);
        let norm = Norm::layer_norm(packer, &format!("{name}.norm2"))?;
        stack.push(norm, FeedForward::dense(packer, &name, ["ffn1", "ffn2"], Activation::Silu)?);
    }
    Ok(stack.normed(Norm::layer_norm(packer, "backbone.norm")?))
}

/// `W_out (rmsnorm(h) * silu(W_gate x))` over the recurrence of `sconce_ops::hgrn`.
struct Hgrn {
    /// Of the forget gate, the input gate, the value and the gate.
    projection: Matrix,
    /// The least forget gates.
    bound: Range<usize>,
    norm: Norm,
    output: Matrix,
    size: usize,
}

impl Hgrn {
    fn new(config: &ExpandConfig, layer: usize, packer: &mut Packer, name: &str) -> Result<Self> {
        let size = config.expand_factor * config.hidden_size;
        let parts = ["linear_f", "linear_i", "linear_v", "linear_gate"];
        let projection = Matrix::side_by_side_named(packer, name, &parts)?;
        let bound = match config.num_layers {
            1 => vec![0.0; size],
            layers => {
                let bounds = packer.read_named("backbone.lower_bounds")?;
                to_vec(&lower_bound(&tensor(bounds, (layers, size))?, layer)?)?
            }
        };
        let bound = packer.lay(&bound);
        let norm = Norm::rms(packer, &format!("{name}.norm"))?;
        let output = Matrix::dense_named(packer, &format!("{name}.linear_out"))?;
        Ok(Hgrn { projection, bound, norm, output, size })
    }
}

impl Step for Hgrn {
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
