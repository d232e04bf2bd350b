//! Layers on top of each other, each added to what it reads: `x + layer(norm(x))`.

use std::sync::Arc;

use sconce_tensor::Tensor;

use super::recompute::recomputed;
use super::{Backbone, Context, State};
use crate::layer::{Linear, Norm};
use crate::ops::{self, Activation};
use crate::spec::Trunk;
use crate::weights::{Builder, Weight};
use crate::{Error, Result};

/// `x + dropout(layer(norm(x)))`, pre-norm (Xiong et al. 2020). A layer reads and gives `[b, t, h]`;
/// feed-forward layers are layers without a state.
pub struct Residual {
    norm: Norm,
    layer: Box<dyn Backbone>,
    /// Parts of the layer's state.
    parts: usize,
}

impl Residual {
    pub fn new(norm: Norm, layer: impl Backbone + 'static) -> Result<Self> {
        // The memory of no game: as many tensors, and no numbers in them.
        let parts = layer.zero_state(0)?.0.len();
        Ok(Residual { norm, layer: Box::new(layer), parts })
    }
}

/// `norm(x) -> dense to h -> residuals -> norm`; the input norm is an option, the dense layer stands
/// where the widths differ, the last norm where the family has one.
///
/// State: those of the layers, in their order. A layer that stands twice has two states. Taps of
/// layer `i` are named `i.NAME`.
pub struct Stack {
    input_norm: Option<Norm>,
    input: Option<Linear>,
    residuals: Vec<Arc<Residual>>,
    norm: Option<Norm>,
    dropout: f32,
    input_dropout: f32,
    /// All that the residuals may use.
    weights: Arc<[Weight]>,
}

impl Stack {
    /// Weights `input_norm`, `input`; those of the residuals and of the norm are their own, handed out
    /// by the same builder before.
    pub fn new(
        trunk: &Trunk,
        input: usize,
        residuals: Vec<Arc<Residual>>,
        norm: Option<Norm>,
        b: &Builder,
    ) -> Result<Self> {
        let h = trunk.hidden_size;
        let norm_of = |wanted: bool| wanted.then(|| Norm::layer(input, &b.under("input_norm")));
        let dense = || Linear::new(input, h, Activation::None, &b.under("input"));
        Ok(Stack {
            input_norm: norm_of(trunk.input_norm).transpose()?,
            input: (input != h).then(dense).transpose()?,
            residuals,
            norm,
            dropout: trunk.dropout,
            input_dropout: trunk.input_dropout,
            weights: b.taken(),
        })
    }

    fn read(&self, x: &Tensor, context: &Context) -> Result<Tensor> {
        let mut x = match &self.input_norm {
            Some(norm) => norm.forward(x)?,
            None => x.clone(),
        };
        x = context.dropout_columns(&x, self.input_dropout, "input")?;
        match &self.input {
            Some(input) => input.forward(&x),
            None => Ok(x),
        }
    }
}

/// Residuals `first..` one after the other; gives the parts of their next states.
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
    // Of a layer below it a memory reads all outputs.
    let highest = residuals.iter().rposition(|residual| residual.parts > 0).unwrap_or(0);
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
}

/// `W_2 act(W_1 x)`: no memory.
pub struct FeedForward {
    up: Linear,
    down: Linear,
}

impl FeedForward {
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
}
