//! minGRU and minLSTM, one frame at a time.

use crate::backbone::MinRnn;
use crate::spec::{Layered, StackConfig};
use sconce_ops::linear_recurrence::cells::{self, Cell};
use sconce_ops::linear_recurrence::step;
use sconce_tensor::Result;

use super::layer::{Game, Layer};
use super::stack::Stack;
use sconce_realtime::Matrix;
use sconce_realtime::Norm;
use sconce_realtime::Packer;
use sconce_realtime::Scratch;

/// A cell whose N gates and candidates read the input alone (Feng et al. 2024), as
/// `crate::backbone::MinRnn`.
struct Gates<C, const N: usize> {
    projection: Matrix,
    cell: C,
    hidden: usize,
}

/// minGRU layers: `h = (1 - z) h + z W_h x` with `z = sigmoid(W_z x)`.
pub(crate) fn min_gru(config: &StackConfig, width: usize, packer: &mut Packer) -> Result<Stack> {
    stack(cells::MinGru, ["linear_z", "linear_h"], config, width, packer)
}

/// minLSTM layers: `h = f h + i W_h x` with `f, i = sigmoid(W_f x), sigmoid(W_i x)` over their sum.
pub(crate) fn min_lstm(config: &StackConfig, width: usize, packer: &mut Packer) -> Result<Stack> {
    let cell = cells::MinLstm { eps: MinRnn::EPS };
    stack(cell, ["linear_f", "linear_i", "linear_h"], config, width, packer)
}

/// `x + cell(norm(x))` for each layer, then a LayerNorm.
fn stack<C: Cell<N, 0>, const N: usize>(
    cell: C,
    parts: [&str; N],
    config: &StackConfig,
    width: usize,
    packer: &mut Packer,
) -> Result<Stack> {
    let (mut stack, hidden) = (Stack::new(&config.trunk(), width, packer)?, config.hidden_size);
    for i in 0..config.num_layers {
        let name = format!("backbone.layers.{i}");
        let norm = Norm::layer_norm(packer, &format!("{name}.norm"))?;
        let projection = Matrix::side_by_side(packer, &format!("{name}.cell"), &parts)?;
        stack.push(norm, Gates { projection, cell, hidden });
    }
    Ok(stack.normed(Norm::layer_norm(packer, "backbone.norm")?))
}

impl<C: Cell<N, 0>, const N: usize> Layer for Gates<C, N> {
    fn state_len(&self) -> usize {
        self.hidden
    }

    fn step(&self, arena: &[f32], games: &mut [Game<'_>], at: usize, scratch: &mut Scratch) {
        let Scratch { x, y, input, .. } = scratch;
        self.projection.read(input, x, games.len());
        self.projection.apply(arena, input, y);
        let rows = y.chunks_exact(N * self.hidden).zip(x.chunks_exact_mut(self.hidden));
        for (game, (y, x)) in games.iter_mut().zip(rows) {
            let h = game.state(at, self.hidden);
            let inputs = std::array::from_fn(|n| &y[n * self.hidden..][..self.hidden]);
            step(self.cell, h, inputs, []);
            x.copy_from_slice(h);
        }
    }
}
