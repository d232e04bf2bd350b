//! How vectors become memory.

mod compact;
mod context;
mod mlp;
pub mod recompute;
mod recurrent;
pub mod stack;

use std::sync::Arc;

use candle_core::Tensor;

pub use crate::ops::recurrence::Lengths;
use crate::ops::tensor::{tensor, to_vec};
use crate::weights::Builder;
use crate::{Error, Result, spec};
pub use context::Context;
pub use mlp::Mlp;
pub use recurrent::{Cell, Recurrent};

/// `true` for a frame that exists, `[b, t]`; a missing frame leaves the state as it was, and its output
/// is that of the frame before.
pub type Mask = Option<Arc<[bool]>>;

/// What a backbone remembers: tensors `[b, ..]`, in an order that is the backbone's own.
#[derive(Debug, Clone)]
pub struct State(pub Vec<Tensor>);

/// One contract for every memory: the sequence form and the step form agree to 1e-5.
pub trait Backbone: Send + Sync {
    /// The memory of `batch` games that have not begun.
    fn zero_state(&self, batch: usize) -> Result<State>;

    /// `x [b, t, d]` -> `(y [b, t, h], state after the last frame)`.
    fn forward(&self, x: &Tensor, state: &State, context: &Context) -> Result<(Tensor, State)>;

    /// One frame: `x [b, d]` -> `(y [b, h], state)`.
    fn step(&self, x: &Tensor, state: &State, context: &Context) -> Result<(Tensor, State)> {
        let (y, state) = self.forward(&x.unsqueeze(1)?, state, context)?;
        Ok((y.squeeze(1)?, state))
    }
}

/// Builds the backbone of a spec, which reads vectors of `input` numbers.
pub fn new(config: &spec::Backbone, input: usize, b: &Builder) -> Result<Box<dyn Backbone>> {
    use spec::Backbone::*;
    let net: Box<dyn Backbone> = match config {
        Mlp(c) => Box::new(mlp::Mlp::new(c, input, b)?),
        Lstm(c) => Box::new(Recurrent::new(Cell::Lstm, c, input, b)?),
        Gru(c) => Box::new(Recurrent::new(Cell::Gru, c, input, b)?),
        other => return Err(Error::not_found(format!("backbone {}", other.name()))),
    };
    Ok(Box::new(compact::Compact(net)))
}

impl State {
    /// The numbers of all parts, one after the other.
    pub fn to_vec(&self) -> Result<Vec<f32>> {
        let mut all = Vec::new();
        for part in &self.0 {
            all.extend(to_vec(part)?);
        }
        Ok(all)
    }

    /// The reverse of [`State::to_vec`], with the shapes of `self`.
    pub fn with_values(&self, values: &[f32]) -> Result<State> {
        let expected: usize = self.0.iter().map(Tensor::elem_count).sum();
        if values.len() != expected {
            return Err(Error::mismatch("numbers of a state", expected, values.len()));
        }
        let mut rest = values;
        let mut parts = Vec::with_capacity(self.0.len());
        for part in &self.0 {
            let (head, tail) = rest.split_at(part.elem_count());
            parts.push(tensor(head.to_vec(), part.shape())?);
            rest = tail;
        }
        Ok(State(parts))
    }

    /// Cuts the graph: what comes after does not reach back through this state.
    pub fn detach(&self) -> State {
        State(self.0.iter().map(Tensor::detach).collect())
    }

    /// Cut from the graph and from the memory of what it may be a part of: all that a chunk leaves to
    /// the next.
    pub fn hand_on(&self) -> Result<State> {
        let own = |part: &Tensor| Ok(tensor(to_vec(part)?, part.shape())?);
        self.0.iter().map(own).collect::<Result<_>>().map(State)
    }

    /// The states of games that begin, where `fresh [b]` says so, in the place of those that ended.
    pub fn renewed(&self, zero: &State, fresh: &[bool]) -> Result<State> {
        let pick = |(part, zero): (&Tensor, &Tensor)| -> Result<Tensor> {
            let (mut numbers, zero) = (to_vec(part)?, to_vec(zero)?);
            let width = numbers.len() / fresh.len().max(1);
            for (row, _) in fresh.iter().enumerate().filter(|(_, fresh)| **fresh) {
                let row = row * width..(row + 1) * width;
                numbers[row.clone()].copy_from_slice(&zero[row]);
            }
            Ok(tensor(numbers, part.shape())?)
        };
        for (part, zero) in self.0.iter().zip(&zero.0) {
            if part.dims() != zero.dims() || part.dim(0)? != fresh.len() {
                let expected = format!("{} rows of {:?}", fresh.len(), zero.dims());
                return Err(Error::mismatch("state", expected, format!("{:?}", part.dims())));
            }
        }
        self.0.iter().zip(&zero.0).map(pick).collect::<Result<_>>().map(State)
    }
}
