//! How vectors become memory.

pub mod attention;
mod compact;
mod griffin;
mod hgrn;
pub mod mamba;
mod min_rnn;
mod mlp;
mod recurrent;
mod residual_lstm;
mod rwkv;
pub mod s4d;
mod s5;
pub mod stack;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use candle_core::Tensor;

pub use crate::ops::recurrence::Lengths;
use crate::ops::tensor::{tensor, to_vec};
use crate::rng::Rng;
use crate::weights::Builder;
use crate::{Error, Result, ops, spec};
pub use griffin::{GatedMlp, RecurrentBlock};
pub use min_rnn::{MinCell, MinRnn};
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
        MinGru(c) => Box::new(min_rnn::stack(MinCell::Gru, c, input, b)?),
        MinLstm(c) => Box::new(min_rnn::stack(MinCell::Lstm, c, input, b)?),
        Griffin(c) => Box::new(griffin::griffin(c, input, b)?),
        Hawk(c) => Box::new(griffin::hawk(c, input, b)?),
        Hgrn(c) => Box::new(hgrn::stack(c, input, b)?),
        Rwkv(c) => Box::new(rwkv::stack(c, input, b)?),
        S5(c) => Box::new(s5::stack(c, input, b)?),
        SlidingWindow(c) | DecisionTransformer(c) => Box::new(attention::transformer(c, input, b)?),
        LstmHybrid(c) => Box::new(attention::LstmHybrid::new(c, input, b)?),
        ResLstm(c) => Box::new(residual_lstm::res_lstm(c, input, b)?),
        TxLike(c) => Box::new(residual_lstm::tx_like(c, input, b)?),
        Mamba(c) => Box::new(mamba::mamba(c, input, b)?),
        Jamba(c) => Box::new(mamba::jamba(c, input, b)?),
        Zamba(c) => Box::new(mamba::zamba(c, input, b)?),
        GatedSsm(c) => Box::new(mamba::gated_ssm(c, input, b)?),
        S4d(c) => Box::new(s4d::s4d(c, input, b)?),
        other => return Err(Error::not_found(format!("backbone {}", other.name()))),
    };
    Ok(Box::new(compact::Compact(net)))
}

/// What surrounds one forward pass: dropout in training, missing frames, taps on request.
#[derive(Default, Clone)]
pub struct Context {
    dropout: Option<(u64, u64)>,
    mask: Mask,
    lengths: Lengths,
    taps: Option<Rc<RefCell<BTreeMap<String, Tensor>>>>,
}

impl Context {
    /// A pass of training step `step`: dropout fires, drawn from `seed`.
    pub fn training(seed: u64, step: u64) -> Self {
        Context { dropout: Some((seed, step)), ..Context::default() }
    }

    /// A pass over windows of which some frames are missing.
    pub fn masked(mask: Mask) -> Self {
        Context { mask, ..Context::default() }
    }

    /// How many frames each row has. Backbones see no missing frames before present ones.
    pub fn lengths(&self) -> Lengths {
        self.lengths.clone()
    }

    /// Keeps the named activations of this pass.
    pub fn tapped() -> Self {
        Context { taps: Some(Rc::default()), ..Context::default() }
    }

    pub fn taps(self) -> BTreeMap<String, Tensor> {
        self.taps.map(|taps| taps.take()).unwrap_or_default()
    }

    pub fn tap(&self, name: &str, value: &Tensor) {
        if let Some(taps) = &self.taps {
            taps.borrow_mut().insert(name.to_string(), value.clone());
        }
    }

    /// Whether taps were asked for, so that what an op would hide has to be shown.
    pub fn is_tapped(&self) -> bool {
        self.taps.is_some()
    }

    /// As [`Context::tap`] for what has to be computed first: it is if taps were asked for.
    pub fn tap_with(&self, name: &str, value: impl FnOnce() -> Result<Tensor>) -> Result<()> {
        if self.taps.is_some() {
            self.tap(name, &value()?);
        }
        Ok(())
    }

    fn rng(&self, name: &str) -> Option<Rng> {
        self.dropout.map(|(seed, step)| Rng::new(seed, &format!("dropout.{name}"), step))
    }

    /// Drops numbers of `x` with probability `p`, in training only.
    pub fn dropout(&self, x: &Tensor, p: f32, name: &str) -> Result<Tensor> {
        match self.rng(name) {
            Some(rng) => ops::dropout(x, p, rng),
            None => Ok(x.clone()),
        }
    }

    /// Drops whole columns of each window of `x [b, t, d]`, in training only.
    pub fn dropout_columns(&self, x: &Tensor, p: f32, name: &str) -> Result<Tensor> {
        match self.rng(name) {
            Some(rng) => ops::dropout_columns(x, p, rng),
            None => Ok(x.clone()),
        }
    }
}

impl State {
    /// The parts of a state that has `N`.
    pub fn parts<const N: usize>(&self) -> Result<&[Tensor; N]> {
        <&[Tensor; N]>::try_from(&self.0[..])
            .map_err(|_| Error::mismatch("parts of a state", N, self.0.len()))
    }

    /// Zeros of these widths for each of `batch` rows.
    pub fn zeros(batch: usize, widths: &[usize]) -> Result<State> {
        let part = |&n: &usize| Ok(tensor(vec![0.0; batch * n], (batch, n))?);
        widths.iter().map(part).collect::<Result<_>>().map(State)
    }

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
}
