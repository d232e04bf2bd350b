//! Hawk and Griffin, one frame at a time.

use std::ops::Range;

use crate::backbone::attention::Sizes;
use crate::spec::{GriffinConfig, HawkConfig, Layered};
use sconce_ops::Activation;
use sconce_ops::activation::multiply;
use sconce_ops::attention::Pairing;
use sconce_ops::linear_recurrence::cells::{Cell, RgLru};
use sconce_ops::linear_recurrence::step;
use sconce_tensor::Result;

use super::attention::Attention;
use super::layer::{Game, Step};
use super::stack::{GatedFeedForward, Stack};
use sconce_realtime::Conv;
use sconce_realtime::Matrix;
use sconce_realtime::Norm;
use sconce_realtime::Packer;
use sconce_realtime::Scratch;

/// `x + mixer(norm1(x))`, then `x + gated_mlp(norm2(x))` for each layer, then an RMSNorm, as in
/// `crate::backbone`; every mixer is recurrent.
pub(crate) fn hawk(config: &HawkConfig, width: usize, packer: &mut Packer) -> Result<Stack> {
    let mut stack = Stack::new(&config.trunk(), width, packer)?;
    for i in 0..config.num_layers {
        let name = format!("backbone.layers.{i}");
        let norm = Norm::rms(packer, &format!("{name}.norm1"))?;
        stack.push(norm, Recurrent::new(packer, &format!("{name}.mixer"))?);
        push_mlp(&mut stack, packer, &name)?;
    }
    Ok(stack.normed(Norm::rms(packer, "backbone.norm")?))
}

/// As [`hawk`]; every `attention_every`th mixer attends.
pub(crate) fn griffin(config: &GriffinConfig, width: usize, packer: &mut Packer) -> Result<Stack> {
    let sizes = Sizes {
        hidden_size: config.hidden_size,
        num_heads: config.num_heads,
        head_dim: config.hidden_size / config.num_heads.max(1),
        window_size: config.window_size,
        qk_layernorm: false,
        pairing: Pairing::Half,
    };
    let mut stack = Stack::new(&config.trunk(), width, packer)?;
    for i in 0..config.num_layers {
        let name = format!("backbone.layers.{i}");
        let norm = Norm::rms(packer, &format!("{name}.norm1"))?;
        let mixer = format!("{name}.mixer");
        match (i + 1) % config.attention_every.max(1) {
            0 => stack.push(norm, Attention::new(&sizes, packer, &mixer)?),
            _ => stack.push(norm, Recurrent::new(packer, &mixer)?),
        }
        push_mlp(&mut stack, packer, &name)?;
    }
    Ok(stack.normed(Norm::rms(packer, "backbone.norm")?))
}

fn push_mlp(stack: &mut Stack, packer: &mut Packer, name: &str) -> Result<()> {
    let norm = Norm::rms(packer, &format!("{name}.norm2"))?;
    let up = Matrix::side_by_side_named(packer, name, &["mlp_up", "mlp_gate"])?;
    let down = Matrix::dense_named(packer, &format!("{name}.mlp_down"))?;
    stack.push(norm, GatedFeedForward::new(up, Activation::Gelu, down));
    Ok(())
}

/// `W_out (gelu(W_gate x) * rglru(conv(W_value x)))`, as `crate::backbone::RecurrentBlock`.
struct Recurrent {
    /// Of the value and of the gate.
    projection: Matrix,
    conv: Conv,
    /// r and i.
    gates: Matrix,
    /// What the cell makes of Lambda.
    decay: Range<usize>,
    output: Matrix,
}

impl Recurrent {
    fn new(packer: &mut Packer, name: &str) -> Result<Self> {
        let projection =
            Matrix::side_by_side_named(packer, name, &["linear_value", "linear_gate"])?;
        let conv = Conv::named(packer, &format!("{name}.conv1d"), Activation::None)?;
        let gates =
            Matrix::side_by_side_named(packer, &format!("{name}.rglru"), &["gate_a", "gate_x"])?;
        let lambda = packer.read_named(&format!("{name}.rglru.Lambda"))?;
        let decay: Vec<f32> = lambda.into_iter().flat_map(|l| RgLru.parameters([l])).collect();
        packer.check(&decay);
        let decay = packer.lay(&decay);
        let output = Matrix::dense_named(packer, &format!("{name}.linear_out"))?;
        Ok(Recurrent { projection, conv, gates, decay, output })
    }
}

impl Step for Recurrent {
    /// The last inputs of the convolution `[inner, k - 1]`, and h `[inner]`.
    fn state_len(&self) -> usize {
        self.conv.state_len() + self.decay.len()
    }

    fn step(&self, arena: &[f32], games: &mut [Game<'_>], at: usize, scratch: &mut Scratch) {
        let (rows, inner, past) = (games.len(), self.decay.len(), self.conv.state_len());
        let Scratch { x, y, z, input, .. } = scratch;
        self.projection.read(input, x, rows);
        self.projection.apply(arena, input, y);
        for (game, y) in games.iter_mut().zip(y.chunks_exact_mut(2 * inner)) {
            self.conv.step(arena, &mut y[..inner], game.state(at, past));
        }
        input.read(y.chunks_exact(2 * inner).take(rows).map(|y| &y[..inner]));
        self.gates.apply(arena, input, z);
        let each = y.chunks_exact_mut(2 * inner).zip(z.chunks_exact(2 * inner));
        for (game, (y, gates)) in games.iter_mut().zip(each) {
            let ((value, gate), (r, i)) = (y.split_at_mut(inner), gates.split_at(inner));
            let h = game.state(at + past, inner);
            step(RgLru, h, [r, i, value], [&arena[self.decay.clone()]]);
            value.copy_from_slice(h);
            Activation::Gelu.apply(gate);
            multiply(value, gate);
        }
        input.read(y.chunks_exact(2 * inner).take(rows).map(|y| &y[..inner]));
        self.output.apply(arena, input, x);
    }
}
