//! LSTM layers that add to a residual stream, one frame at a time.

use crate::backbone::Cell;
use crate::spec::{ExpandConfig, Layered, RecurrentConfig, StackConfig};
use sconce_ops::Activation;
use sconce_tensor::Result;

use super::layer::{Game, Step};
use super::recurrent::Recurrent;
use super::stack::{FeedForward, Stack};
use sconce_realtime::Matrix;
use sconce_realtime::Norm;
use sconce_realtime::Packer;
use sconce_realtime::Scratch;

/// `x = x + W_out lstm(norm1(x))` for each layer, as `crate::backbone::res_lstm`.
pub(crate) fn res_lstm(config: &StackConfig, width: usize, packer: &mut Packer) -> Result<Stack> {
    let mut stack = Stack::new(&config.trunk(), width, packer)?;
    for i in 0..config.num_layers {
        push_lstm(&mut stack, config.hidden_size, packer, &format!("backbone.layers.{i}"))?;
    }
    Ok(stack)
}

/// As [`res_lstm`], and after each layer `x = x + W_2 gelu(W_1 norm2(x))`.
pub(crate) fn tx_like(config: &ExpandConfig, width: usize, packer: &mut Packer) -> Result<Stack> {
    let (mut stack, hidden) = (Stack::new(&config.trunk(), width, packer)?, config.hidden_size);
    for i in 0..config.num_layers {
        let name = format!("backbone.layers.{i}");
        push_lstm(&mut stack, hidden, packer, &name)?;
        let norm = Norm::layer_norm(packer, &format!("{name}.norm2"))?;
        let up = Matrix::dense_named(packer, &format!("{name}.ffn1"))?;
        let down = Matrix::without_bias_named(packer, &format!("{name}.ffn2"), hidden)?;
        stack.push(norm, FeedForward::new(up, Activation::Gelu, down));
    }
    Ok(stack)
}

fn push_lstm(stack: &mut Stack, hidden: usize, packer: &mut Packer, name: &str) -> Result<()> {
    let norm = Norm::layer_norm(packer, &format!("{name}.norm1"))?;
    stack.push(norm, Lstm::new(hidden, packer, name)?);
    Ok(())
}

/// `W_out lstm(x)`
struct Lstm {
    lstm: Recurrent,
    out: Matrix,
}

impl Lstm {
    fn new(hidden_size: usize, packer: &mut Packer, name: &str) -> Result<Self> {
        let config = RecurrentConfig {
            hidden_size,
            num_layers: 1,
            layer_norm: false,
            input_norm: false,
            dropout: 0.0,
            input_dropout: 0.0,
        };
        let lstm = Recurrent::new(Cell::Lstm, &config, packer, &format!("{name}.lstm"))?;
        let out = Matrix::without_bias_named(packer, &format!("{name}.out"), hidden_size)?;
        Ok(Lstm { lstm, out })
    }
}

impl Step for Lstm {
    fn state_len(&self) -> usize {
        self.lstm.state_len()
    }

    fn step(&self, arena: &[f32], games: &mut [Game<'_>], at: usize, scratch: &mut Scratch) {
        self.lstm.step(arena, games, at, scratch);
        let Scratch { x, y, input, .. } = scratch;
        self.out.read(input, x, games.len());
        self.out.apply(arena, input, y);
        std::mem::swap(x, y);
    }
}
