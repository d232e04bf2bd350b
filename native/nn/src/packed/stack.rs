//! Layers on top of each other, each added to what it reads.

use std::ops::Range;

use crate::spec::Trunk;
use sconce_ops::Activation;
use sconce_ops::activation::multiply;
use sconce_tensor::Result;
use sconce_tensor::simd::add_assign;

use super::layer::{Game, Step};
use sconce_realtime::Matrix;
use sconce_realtime::Norm;
use sconce_realtime::Packer;
use sconce_realtime::Scratch;

/// `norm(x) -> dense -> [x + layer(norm(x))] -> norm`, as `crate::backbone::stack`.
pub(crate) struct Stack {
    width: usize,
    input_norm: Option<Norm>,
    input: Option<Matrix>,
    residuals: Vec<(Norm, Box<dyn Step>)>,
    norm: Option<Norm>,
}

impl Stack {
    /// Without a layer yet, of inputs of `width`.
    pub(crate) fn new(trunk: &Trunk, width: usize, packer: &mut Packer) -> Result<Self> {
        let input_norm = Norm::layer(trunk.input_norm, packer, "backbone.input_norm")?;
        let input =
            (width != trunk.hidden_size).then(|| Matrix::dense_named(packer, "backbone.input"));
        let (width, input) = (trunk.hidden_size, input.transpose()?);
        packer.holds(width);
        Ok(Stack { width, input_norm, input, residuals: vec![], norm: None })
    }

    /// Puts `x + layer(norm(x))` on top.
    pub(crate) fn push(&mut self, norm: Norm, layer: impl Step + 'static) {
        self.residuals.push((norm, Box::new(layer)));
    }

    /// With a last norm.
    pub(crate) fn normed(self, norm: Norm) -> Self {
        Stack { norm: Some(norm), ..self }
    }
}

impl Step for Stack {
    fn state_len(&self) -> usize {
        self.residuals.iter().map(|(_, layer)| layer.state_len()).sum()
    }

    fn changed(&self, state: &[f32], at: usize, steps: usize, each: &mut dyn FnMut(Range<usize>)) {
        let mut at = at;
        for (_, layer) in &self.residuals {
            layer.changed(state, at, steps, each);
            at += layer.state_len();
        }
    }

    fn step(&self, arena: &[f32], games: &mut [Game<'_>], at: usize, scratch: &mut Scratch) {
        if let Some(norm) = &self.input_norm {
            norm.apply(arena, games.len(), &scratch.x, &mut scratch.y);
            std::mem::swap(&mut scratch.x, &mut scratch.y);
        }
        let n = games.len() * self.width;
        match &self.input {
            Some(input) => {
                let Scratch { x, stream, input: active, .. } = &mut *scratch;
                input.read(active, x, games.len());
                input.apply(arena, active, stream);
            }
            None => scratch.stream[..n].copy_from_slice(&scratch.x[..n]),
        }
        let mut at = at;
        for (norm, layer) in &self.residuals {
            norm.apply(arena, games.len(), &scratch.stream, &mut scratch.x);
            layer.step(arena, games, at, scratch);
            add_assign(&mut scratch.stream[..n], &scratch.x[..n]);
            at += layer.state_len();
        }
        match &self.norm {
            Some(norm) => norm.apply(arena, games.len(), &scratch.stream, &mut scratch.x),
            None => std::mem::swap(&mut scratch.stream, &mut scratch.x),
        }
    }
}

/// `W_2 act(W_1 x)`: no memory.
pub(crate) struct FeedForward {
    up: Matrix,
    activation: Activation,
    down: Matrix,
}

impl FeedForward {
    pub(crate) fn new(up: Matrix, activation: Activation, down: Matrix) -> Self {
        FeedForward { up, activation, down }
    }

    /// Of the weights `NAME.UP` and `NAME.DOWN`, each with a bias.
    pub(crate) fn dense(
        packer: &mut Packer,
        name: &str,
        [up, down]: [&str; 2],
        activation: Activation,
    ) -> Result<Self> {
        let up = Matrix::dense_named(packer, &format!("{name}.{up}"))?;
        let down = Matrix::dense_named(packer, &format!("{name}.{down}"))?;
        Ok(FeedForward::new(up, activation, down))
    }
}

impl Step for FeedForward {
    fn state_len(&self) -> usize {
        0
    }

    fn step(&self, arena: &[f32], games: &mut [Game<'_>], _at: usize, scratch: &mut Scratch) {
        let Scratch { x, y, input, .. } = scratch;
        self.up.read(input, x, games.len());
        self.up.apply(arena, input, y);
        self.activation.apply(&mut y[..games.len() * self.up.outputs()]);
        self.down.read(input, y, games.len());
        self.down.apply(arena, input, x);
    }
}

/// `W_down (W_up x * act(W_gate x))`: no memory.
pub(crate) struct GatedFeedForward {
    up: Matrix,
    activation: Activation,
    down: Matrix,
}

impl GatedFeedForward {
    /// `up` is `W_up` over `W_gate`.
    pub(crate) fn new(up: Matrix, activation: Activation, down: Matrix) -> Self {
        GatedFeedForward { up, activation, down }
    }
}

impl Step for GatedFeedForward {
    fn state_len(&self) -> usize {
        0
    }

    fn step(&self, arena: &[f32], games: &mut [Game<'_>], _at: usize, scratch: &mut Scratch) {
        let Scratch { x, y, input, .. } = scratch;
        let (rows, width) = (games.len(), self.up.outputs());
        self.up.read(input, x, rows);
        self.up.apply(arena, input, y);
        for y in y.chunks_exact_mut(width).take(rows) {
            let (x, gate) = y.split_at_mut(width / 2);
            self.activation.apply(gate);
            multiply(x, gate);
        }
        input.read(y.chunks_exact(width).take(rows).map(|y| &y[..width / 2]));
        self.down.apply(arena, input, x);
    }
}
