//! A stack of residual layers: `x + layer(norm(x))`.

use std::ops::Range;
use std::sync::Arc;

use sconce_ops::activation::multiply;
use sconce_realtime::{self as packed, Matrix, Packer, Scratch};
use sconce_tensor::Tensor;
use sconce_tensor::simd::add_assign;

use super::config::Trunk;
use super::recompute::recomputed;
use super::{Backbone, Context, State};
use crate::layer::{Linear, Norm};
use crate::ops::{self, Activation};
use crate::packed::{Game, Step};
use crate::weights::{Builder, Weight};
use crate::{Error, Result};

/// `x + dropout(layer(norm(x)))`, pre-norm (Xiong et al. 2020). A layer maps `[b, t, h]` to `[b, t, h]`. Feed-forward
/// layers are layers without a state.
pub struct Residual {
    norm: Norm,
    layer: Box<dyn Backbone>,
    /// Number of tensors in the layer's state.
    parts: usize,
    /// Whether an output of the layer depends on the frames before.
    looks_back: bool,
}

impl Residual {
    /// A residual around `layer`, whose input is the output of `norm`. A layer without a state sees only one frame at a
    /// time.
    pub fn new(norm: Norm, layer: impl Backbone + 'static) -> Result<Self> {
        // The state of 0 games has the same number of tensors and takes no memory.
        let parts = layer.zero_state(0)?.0.len();
        Ok(Residual { norm, layer: Box::new(layer), parts, looks_back: parts > 0 })
    }

    /// A residual around a layer that sees all frames of a window and has no state.
    pub fn of_window(norm: Norm, layer: impl Backbone + 'static) -> Result<Self> {
        Ok(Residual { looks_back: true, ..Residual::new(norm, layer)? })
    }
}

/// `norm(x) -> dense to h -> residuals -> norm`. The input norm is optional. The dense layer exists only if the widths
/// differ, the last norm only if the published architecture has one.
///
/// State: the states of the layers, in their order. A layer that occurs twice has two states. Taps of layer `i` are
/// named `i.NAME`.
pub struct Stack {
    input_norm: Option<Norm>,
    input: Option<Linear>,
    residuals: Vec<Arc<Residual>>,
    norm: Option<Norm>,
    /// Adds the place of each frame in the window.
    place: Option<Place>,
    dropout: f32,
    input_dropout: f32,
    width: usize,
    /// All weights that the residuals may use.
    weights: Arc<[Weight]>,
}

/// Adds the place of each frame in its window to `x [b, t, h]`.
type Place = Box<dyn Fn(&Tensor) -> Result<Tensor> + Send + Sync>;

impl Stack {
    /// Weights: `input_norm`, `input`. The caller has already created the weights of the residuals and of the last norm
    /// with the same builder.
    pub fn new(
        trunk: &Trunk,
        input: usize,
        residuals: Vec<Arc<Residual>>,
        norm: Option<Norm>,
        b: &Builder,
    ) -> Result<Self> {
        let h = trunk.hidden_size;
        let dense = || Linear::new(input, h, Activation::None, &b.under("input"));
        let dense = (input != h).then(dense).transpose()?;
        Self::reading(trunk, input, dense, residuals, norm, b)
    }

    /// [`new`](Self::new) with this dense layer before the residuals, or with none.
    pub(super) fn reading(
        trunk: &Trunk,
        input: usize,
        dense: Option<Linear>,
        residuals: Vec<Arc<Residual>>,
        norm: Option<Norm>,
        b: &Builder,
    ) -> Result<Self> {
        let norm_of = |wanted: bool| wanted.then(|| Norm::layer(input, &b.under("input_norm")));
        Ok(Stack {
            input_norm: norm_of(trunk.input_norm).transpose()?,
            input: dense,
            residuals,
            norm,
            place: None,
            dropout: trunk.dropout,
            input_dropout: trunk.input_dropout,
            width: trunk.hidden_size,
            weights: b.taken(),
        })
    }

    /// This stack with places after the input layer. It has no step form.
    pub(super) fn placed(
        self,
        place: impl Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static,
    ) -> Self {
        Stack { place: Some(Box::new(place)), ..self }
    }

    fn read(&self, x: &Tensor, context: &Context) -> Result<Tensor> {
        let mut x = match &self.input_norm {
            Some(norm) => norm.forward(x)?,
            None => x.clone(),
        };
        x = context.dropout_columns(&x, self.input_dropout, "input")?;
        if let Some(input) = &self.input {
            x = input.forward(&x)?;
        }
        match &self.place {
            Some(place) => place(&x),
            None => Ok(x),
        }
    }
}

/// Runs residuals `first..` and returns the parts of their next states.
fn run(
    residuals: &[Arc<Residual>],
    first: usize,
    dropout: f32,
    x: &Tensor,
    state: &[Tensor],
    context: &Context,
) -> Result<(Tensor, Vec<Tensor>)> {
    let mut x = x.clone();
    let (mut next, mut rest) = (Vec::with_capacity(state.len()), state);
    // The highest layer that looks back. All outputs of the layers below are needed, since it depends on every frame.
    let highest = residuals.iter().rposition(|residual| residual.looks_back).unwrap_or(0);
    for (i, residual) in residuals.iter().enumerate() {
        let (own, others) = rest.split_at(residual.parts);
        let own = State(own.to_vec());
        let within = context.under(first + i);
        let within = if i < highest { within.of_all() } else { within };
        let around = residual.norm.residual(context.dropping(dropout, &(first + i).to_string()));
        let after;
        (x, after) = residual.layer.residual(&x, &around, &own, &within)?;
        next.extend(after.0);
        rest = others;
    }
    Ok((x, next))
}

impl Backbone for Stack {
    fn zero_state(&self, batch: usize) -> Result<State> {
        let mut all = vec![];
        for residual in &self.residuals {
            all.extend(residual.layer.zero_state(batch)?.0);
        }
        Ok(State(all))
    }

    fn forward(&self, x: &Tensor, state: &State, context: &Context) -> Result<(Tensor, State)> {
        let parts = self.residuals.iter().map(|r| r.parts).sum::<usize>();
        if state.0.len() != parts {
            return Err(Error::mismatch("parts of a state", parts, state.0.len()));
        }
        let mut x = self.read(x, context)?;
        let mut next = vec![];
        match context.recompute_every() {
            None => (x, next) = run(&self.residuals, 0, self.dropout, &x, &state.0, context)?,
            Some(every) => {
                let mut rest = &state.0[..];
                for (group, residuals) in self.residuals.chunks(every).enumerate() {
                    let parts = residuals.iter().map(|r| r.parts).sum();
                    let (own, others) = rest.split_at(parts);
                    let (residuals, dropout) = (residuals.to_vec(), self.dropout);
                    let block = move |x: &Tensor, state: &State, context: &Context| {
                        run(&residuals, group * every, dropout, x, &state.0, context)
                            .map(|(x, next)| (x, State(next)))
                    };
                    let own = State(own.to_vec());
                    let (y, after) = recomputed(&x, &own, context, &self.weights, block)?;
                    x = y;
                    next.extend(after.0);
                    rest = others;
                }
            }
        }
        if let Some(norm) = &self.norm {
            x = norm.forward(&x)?;
        }
        Ok((x, State(next)))
    }

    fn pack(&self, packer: &mut Packer) -> Result<Box<dyn Step>> {
        let norm = |norm: &Option<Norm>, packer: &mut Packer| {
            norm.as_ref().map(|norm| norm.pack(packer)).transpose()
        };
        let input_norm = norm(&self.input_norm, packer)?;
        let input = self.input.as_ref().map(|input| input.pack(packer)).transpose()?;
        packer.holds(self.width);
        let mut residuals: Vec<(packed::Norm, Arc<dyn Step>)> = vec![];
        for (i, residual) in self.residuals.iter().enumerate() {
            // A layer that occurs several times is packed once.
            let before = self.residuals[..i].iter().position(|other| Arc::ptr_eq(other, residual));
            if let Some((norm, step)) = before.and_then(|j| residuals.get(j)).cloned() {
                residuals.push((norm, step));
                continue;
            }
            let norm = residual.norm.pack(packer)?;
            residuals.push((norm, residual.layer.pack(packer)?.into()));
        }
        let norm = norm(&self.norm, packer)?;
        Ok(Box::new(Packed { width: self.width, input_norm, input, residuals, norm }))
    }
}

/// A [`Stack`] packed for one frame at a time.
struct Packed {
    width: usize,
    input_norm: Option<packed::Norm>,
    input: Option<Matrix>,
    residuals: Vec<(packed::Norm, Arc<dyn Step>)>,
    norm: Option<packed::Norm>,
}

impl Step for Packed {
    fn state_len(&self) -> usize {
        self.residuals.iter().map(|(_, layer)| layer.state_len()).sum()
    }

    fn start(&self, arena: &[f32], state: &mut [f32], at: usize) {
        let mut at = at;
        for (_, layer) in &self.residuals {
            layer.start(arena, state, at);
            at += layer.state_len();
        }
    }

    fn changed(&self, state: &[f32], at: usize, steps: usize, each: &mut dyn FnMut(Range<usize>)) {
        let mut at = at;
        for (_, layer) in &self.residuals {
            layer.changed(state, at, steps, each);
            at += layer.state_len();
        }
    }

    fn kept(&self, state: &[f32], at: usize, steps: usize, each: &mut dyn FnMut(Range<usize>)) {
        let mut at = at;
        for (_, layer) in &self.residuals {
            layer.kept(state, at, steps, each);
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

/// A feed-forward layer without a state: `W_2 act(W_1 x)`.
pub struct FeedForward {
    up: Linear,
    down: Linear,
}

impl FeedForward {
    /// A feed-forward layer; `up` holds the activation.
    pub fn new(up: Linear, down: Linear) -> Self {
        FeedForward { up, down }
    }
}

impl Backbone for FeedForward {
    fn zero_state(&self, _batch: usize) -> Result<State> {
        Ok(State(vec![]))
    }

    fn forward(&self, x: &Tensor, state: &State, _context: &Context) -> Result<(Tensor, State)> {
        Ok((self.up.forward_then(x, &self.down)?, state.clone()))
    }

    fn residual(
        &self,
        x: &Tensor,
        residual: &ops::Residual,
        state: &State,
        _context: &Context,
    ) -> Result<(Tensor, State)> {
        Ok((self.up.residual_then(x, &self.down, residual)?, state.clone()))
    }

    fn pack(&self, packer: &mut Packer) -> Result<Box<dyn Step>> {
        let (up, down) = (self.up.pack(packer)?, self.down.pack(packer)?);
        let activation = self.up.activation();
        Ok(Box::new(PackedFeedForward { up, activation, down }))
    }
}

/// A [`FeedForward`] packed for one frame at a time.
struct PackedFeedForward {
    up: Matrix,
    activation: Activation,
    down: Matrix,
}

impl Step for PackedFeedForward {
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

/// A gated feed-forward layer without a state: `W_down (W_up x * act(W_gate x))`.
pub(super) struct PackedGatedFeedForward {
    up: Matrix,
    activation: Activation,
    down: Matrix,
}

impl PackedGatedFeedForward {
    /// `up` holds the rows of `W_up`, then those of `W_gate`.
    pub(super) fn new(up: Matrix, activation: Activation, down: Matrix) -> Self {
        PackedGatedFeedForward { up, activation, down }
    }
}

impl Step for PackedGatedFeedForward {
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
