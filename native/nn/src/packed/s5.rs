//! S5, one frame at a time.

use std::ops::Range;

use crate::spec::{Layered, StateConfig};
use sconce_ops::Activation;
use sconce_ops::activation::multiply;
use sconce_ops::activation::skip;
use sconce_ops::linear_recurrence::cells::{self, Cell};
use sconce_ops::linear_recurrence::step;
use sconce_tensor::Result;

use super::layer::{Game, Step};
use super::stack::{FeedForward, Stack};
use sconce_realtime::Matrix;
use sconce_realtime::Norm;
use sconce_realtime::Packer;
use sconce_realtime::Scratch;

/// `x + s5(norm(x))`, then `x + W_2 gelu(W_1 norm(x))` for each layer, then a LayerNorm, as
/// `crate::backbone::s5`.
pub(crate) fn s5(config: &StateConfig, width: usize, packer: &mut Packer) -> Result<Stack> {
    let mut stack = Stack::new(&config.trunk(), width, packer)?;
    for i in 0..config.num_layers {
        let name = format!("backbone.layers.{i}");
        let norm = Norm::layer_norm(packer, &format!("{name}.norm1"))?;
        stack.push(norm, S5::new(config, packer, &format!("{name}.mixer"))?);
        let norm = Norm::layer_norm(packer, &format!("{name}.norm2"))?;
        stack.push(norm, FeedForward::dense(packer, &name, ["ffn1", "ffn2"], Activation::Gelu)?);
    }
    Ok(stack.normed(Norm::layer_norm(packer, "backbone.norm")?))
}

/// `u = gelu(C h + D x)`, `y = u * sigmoid(W u)`, with h of `B x` as `sconce_ops::diagonal_ssm`
/// (Smith et al. 2023, on the real line).
struct S5 {
    input: Matrix,
    /// The decays and what an input is multiplied with, `[n]` each.
    parameters: [Range<usize>; 2],
    output: Matrix,
    d: Range<usize>,
    gate: Matrix,
    width: usize,
    size: usize,
}

impl S5 {
    fn new(config: &StateConfig, packer: &mut Packer, name: &str) -> Result<Self> {
        let (width, size) = (config.hidden_size, config.state_size);
        let input = Matrix::without_bias_named(packer, &format!("{name}.linear_b"), size)?;
        let a_log = packer.read_named(&format!("{name}.a_log"))?;
        let dt_log = packer.read_named(&format!("{name}.dt_log"))?;
        let weights = a_log.into_iter().zip(dt_log);
        let parameters = weights.map(|(a, dt)| cells::Diagonal.parameters([a, dt]).into());
        let (decays, scales): (Vec<f32>, Vec<f32>) = parameters.unzip();
        packer.check(&scales);
        Ok(S5 {
            input,
            parameters: [packer.lay(&decays), packer.lay(&scales)],
            output: Matrix::without_bias_named(packer, &format!("{name}.linear_c"), width)?,
            d: packer.keep_named(&format!("{name}.d"))?,
            gate: Matrix::dense_named(packer, &format!("{name}.gate"))?,
            width,
            size,
        })
    }
}

impl Step for S5 {
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
