//! Backbones: networks that map a sequence of frame vectors to trunk vectors, with a state as memory.

pub mod attention;
mod compact;
pub(crate) mod config;
mod context;
mod exphil;
mod gated_ssm;
pub mod gla;
mod griffin;
mod hgrn;
pub mod jamba;
pub mod mamba;
pub mod mamba2;
mod min_rnn;
mod mlp;
pub mod recompute;
mod recurrent;
mod residual_lstm;
pub mod retnet;
mod rwkv;
pub mod s4d;
mod s5;
pub mod stack;
pub(crate) mod table;
pub mod xlstm;

use std::ops::Range;
use std::sync::Arc;

pub use context::Context;
pub use griffin::{GatedMlp, RecurrentBlock};
pub use min_rnn::{MinCell, MinRnn};
pub use mlp::Mlp;
pub use recurrent::{Cell, Recurrent};
use sconce_realtime::Packer;
use sconce_tensor::Tensor;
use sconce_tensor::simd::non_finite;
use sconce_tensor::tensor::{beside, moved, read, tensor, to_vec};

use crate::ops::arrange::add;
pub use crate::ops::lengths::Lengths;
use crate::packed::Step;
use crate::weights::Builder;
use crate::{Error, Result, device, memory, ops, spec};

/// `true` for each present frame, `[b, t]`. A missing frame leaves the state unchanged and repeats the output of the
/// frame before.
pub type Mask = Option<Arc<[bool]>>;

/// The memory of a backbone: tensors `[b, ..]`, in an order that each backbone defines.
#[derive(Debug, Clone)]
pub struct State(pub Vec<Tensor>);

/// The contract of every backbone: its sequence form and its step form agree to 1e-5.
pub trait Backbone: Send + Sync {
    /// The initial state of `batch` games.
    fn zero_state(&self, batch: usize) -> Result<State>;

    /// `x [b, t, d]` -> `(y [b, t, h], state after the last frame)`. y may be `[b, 1, h]`, the output of the last
    /// frame, if [no other output is needed](Context::of_last).
    fn forward(&self, x: &Tensor, state: &State, context: &Context) -> Result<(Tensor, State)>;

    /// `x + dropout(self(norm(x)))` for a layer `[b, t, h]` -> `[b, t, h]`, fused where possible.
    fn residual(
        &self,
        x: &Tensor,
        residual: &ops::Residual,
        state: &State,
        context: &Context,
    ) -> Result<(Tensor, State)> {
        residual_by_parts(self, x, residual, state, context)
    }

    /// Packs the weights for the CPU and returns the step form, which runs one frame at a time of one or several games.
    /// Never called for a backbone whose config declares it window-only.
    fn pack(&self, packer: &mut Packer) -> Result<Box<dyn Step>> {
        let _ = packer;
        let reason = "the backbone reads only whole windows".into();
        Err(Error::Unavailable { what: "a step".into(), reason })
    }

    /// One frame: `x [b, d]` -> `(y [b, h], state)`.
    fn step(&self, x: &Tensor, state: &State, context: &Context) -> Result<(Tensor, State)> {
        let (y, state) = self.forward(&x.unsqueeze(1)?, state, context)?;
        Ok((y.squeeze(1)?, state))
    }
}

/// [`Backbone::residual`] as separate ops.
fn residual_by_parts(
    layer: &(impl Backbone + ?Sized),
    x: &Tensor,
    residual: &ops::Residual,
    state: &State,
    context: &Context,
) -> Result<(Tensor, State)> {
    let (y, state) = layer.forward(&ops::row_norm(x, &residual.norm)?, state, context)?;
    let y = match residual.dropout {
        Some(dropout) => dropout.apply(&y)?,
        None => y,
    };
    Ok((add(&context.read_of(x)?, &context.read_of(&y)?)?, state))
}

/// Builds the backbone of a spec for vectors of width `input`.
pub fn new(config: &spec::Backbone, input: usize, b: &Builder) -> Result<Box<dyn Backbone>> {
    let net = config.build(input, b)?;
    Ok(Box::new(compact::Compact::new(net)?))
}

impl State {
    /// The parts of a state; an error unless there are exactly `N`.
    pub fn parts<const N: usize>(&self) -> Result<&[Tensor; N]> {
        <&[Tensor; N]>::try_from(&self.0[..])
            .map_err(|_| Error::mismatch("parts of a state", N, self.0.len()))
    }

    /// A state of zeros, one part `[batch, width]` for each of these widths.
    pub fn zeros(batch: usize, widths: &[usize]) -> Result<State> {
        let part = |&n: &usize| Ok(tensor(memory::zeros(batch * n), (batch, n))?);
        widths.iter().map(part).collect::<Result<_>>().map(State)
    }

    /// Moves the state to the device and type of `x`; no copy if both already match.
    pub fn beside(self, x: &Tensor) -> Result<State> {
        let part = |part: &Tensor| Ok(moved(part, x)?);
        self.0.iter().map(part).collect::<Result<_>>().map(State)
    }

    /// The values of all parts, one part after the other.
    pub fn to_vec(&self) -> Result<Vec<f32>> {
        let mut all = Vec::new();
        self.apart(|| {
            for part in &self.0 {
                all.extend(to_vec(part)?);
            }
            Ok(all)
        })
    }

    fn apart<R>(&self, work: impl FnOnce() -> R) -> R {
        match self.0.first() {
            Some(part) => device::apart(part.device(), work),
            None => work(),
        }
    }

    /// # Errors
    /// `NonFinite` for a part with a non-finite value, which would spoil all later steps.
    pub fn check_finite(&self) -> Result<()> {
        if self.is_finite_elsewhere()? {
            return Ok(());
        }
        for (i, part) in self.0.iter().enumerate() {
            if let Some(value) = read(part, |numbers| Ok(non_finite(numbers)))? {
                return Err(Error::NonFinite { what: format!("state[{i}]"), value: value.into() });
            }
        }
        Ok(())
    }

    /// True if the parts are on a device other than the CPU and all values are finite. Copies only one value to the
    /// host.
    fn is_finite_elsewhere(&self) -> Result<bool> {
        if self.0.iter().all(|part| part.device().is_cpu()) {
            return Ok(false);
        }
        // 0 times a non-finite number is NaN.
        let zeros = self.0.iter().map(|part| (part.contiguous()? * 0.0)?.sum_all());
        let zeros = Tensor::stack(&zeros.collect::<sconce_tensor::candle::Result<Vec<_>>>()?, 0)?;
        Ok(read(&zeros.sum_all()?, |sum| Ok(sum.iter().all(|v| *v == 0.0)))?)
    }

    /// The inverse of [`State::to_vec`], with the shapes of `self`.
    pub fn with_values(&self, values: &[f32]) -> Result<State> {
        let expected: usize = self.0.iter().map(Tensor::elem_count).sum();
        if values.len() != expected {
            return Err(Error::mismatch("numbers of a state", expected, values.len()));
        }
        let mut rest = values;
        let mut parts = Vec::with_capacity(self.0.len());
        self.apart(|| {
            for part in &self.0 {
                let (head, tail) = rest.split_at(part.elem_count());
                parts.push(beside(part, memory::copied(head), part.shape())?);
                rest = tail;
            }
            Ok(State(parts))
        })
    }

    /// Detaches the state from the graph: later gradients do not pass through this state.
    pub fn detach(&self) -> State {
        State(self.0.iter().map(Tensor::detach).collect())
    }

    /// A detached copy in memory of its own, which does not keep a larger tensor alive. Each chunk of a window passes
    /// such a copy to the next chunk.
    pub fn hand_on(&self) -> Result<State> {
        self.0.iter().map(sconce_tensor::tensor::copy).collect::<Result<_>>().map(State)
    }

    /// The states of the windows `rows`.
    pub fn rows(&self, rows: &Range<usize>) -> Result<State> {
        // Slicing does not copy, so zeros expanded to many games remain one stored value.
        let cut = |part: &Tensor| Ok(part.narrow(0, rows.start, rows.len())?);
        self.0.iter().map(cut).collect::<Result<_>>().map(State)
    }

    /// Concatenates states of consecutive rows, the inverse of [`State::rows`].
    pub fn joined(parts: &[State]) -> Result<State> {
        let [first, rest @ ..] = parts else { return Ok(State(vec![])) };
        if rest.is_empty() {
            return Ok(first.clone());
        }
        let join = |i: usize| -> Result<Tensor> {
            let all: Vec<&Tensor> = parts.iter().filter_map(|part| part.0.get(i)).collect();
            sconce_tensor::tensor::granted(&all);
            Ok(Tensor::cat(&all, 0)?)
        };
        (0..first.0.len()).map(join).collect::<Result<_>>().map(State)
    }

    /// The states of these rows in this order, detached; a row may occur several times.
    ///
    /// # Errors
    /// `OutOfRange` for a row that the state does not have.
    pub fn picked(&self, rows: &[u32]) -> Result<State> {
        let pick = |part: &Tensor| -> Result<Tensor> {
            let last = part.dim(0)? as f64 - 1.0;
            if let Some(row) = rows.iter().find(|&&row| f64::from(row) > last) {
                return Err(Error::out_of_range("row of a state", f64::from(*row), 0.0, last));
            }
            let at = Tensor::new(rows, part.device())?;
            Ok(part.detach().contiguous()?.index_select(&at, 0)?)
        };
        self.0.iter().map(pick).collect::<Result<_>>().map(State)
    }

    /// Replaces the states of games that begin, marked in `fresh [b]`, by `zero`.
    pub fn renewed(&self, zero: &State, fresh: &[bool]) -> Result<State> {
        // The rows of the state, followed by the rows of the zeros.
        let row = |(row, begins): (usize, &bool)| (row + usize::from(*begins) * fresh.len()) as u32;
        let rows: Vec<u32> = fresh.iter().enumerate().map(row).collect();
        let pick = |(part, zero): (&Tensor, &Tensor)| -> Result<Tensor> {
            let rows = Tensor::new(&rows[..], part.device())?;
            Ok(Tensor::cat(&[part.detach(), zero.detach()], 0)?.index_select(&rows, 0)?)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picked_rows_are_those_of_the_state_in_the_given_order() -> Result<()> {
        let part = |width: usize| {
            let numbers = (0..3 * width).map(|i| i as f32).collect();
            Ok::<_, Error>(tensor(numbers, (3, width))?)
        };
        let state = State(vec![part(2)?, part(1)?]);
        let picked = state.picked(&[2, 0, 2, 1])?;
        assert_eq!(to_vec(&picked.0[0])?, [4.0, 5.0, 0.0, 1.0, 4.0, 5.0, 2.0, 3.0]);
        assert_eq!(to_vec(&picked.0[1])?, [2.0, 0.0, 2.0, 1.0]);
        assert_eq!(state.picked(&[1])?.to_vec()?, state.rows(&(1..2))?.to_vec()?);
        // Zeros that are expanded to many games, and a state without parts.
        let zeros = State(vec![tensor(vec![0.0], (1, 1))?.broadcast_as((3, 2))?]);
        assert_eq!(zeros.picked(&[1, 1])?.to_vec()?, [0.0; 4]);
        assert!(State(vec![]).picked(&[7])?.0.is_empty());
        let said = state.picked(&[0, 3]).err().map(|e| e.to_string());
        assert_eq!(said.as_deref(), Some("row of a state: 3 is outside 0..2"));
        Ok(())
    }
}
