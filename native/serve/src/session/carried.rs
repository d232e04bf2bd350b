//! The state of a session, in the form of what steps it.

use std::mem;

use sconce_nn::backbone::State;
use sconce_nn::packed::Plan;
use sconce_tensor::Result;
use sconce_tensor::device::{self, Held, Owner};

#[derive(Debug, Clone)]
pub(super) enum Carried {
    /// Of the policy's own ops, in the ledger of its card.
    Tensors { _held: Held, state: State },
    /// Of a plan: the numbers of all parts, one after the other.
    Numbers(Vec<f32>),
}

/// Other sessions may be the first to step by their number meanwhile, which is recorded.
impl Drop for Carried {
    fn drop(&mut self) {
        let Carried::Tensors { _held, state } = self else { return };
        let State(parts) = state;
        if let Some(device) = parts.first().map(|part| part.device().clone()) {
            device::apart(&device, || drop((mem::take(_held), mem::take(parts))));
        }
    }
}

impl Carried {
    /// What `plan`, or the policy's own ops without one, goes on from.
    pub(super) fn new(state: State, plan: Option<&Plan>) -> Result<Self> {
        match plan {
            Some(_) => Ok(Carried::Numbers(state.to_vec()?)),
            None => Ok(Carried::tensors(state)),
        }
    }

    /// Of the policy's own ops.
    pub(super) fn tensors(state: State) -> Self {
        Carried::Tensors { _held: Held::of(Owner::Sessions, &state.0), state }
    }

    pub(super) fn to_vec(&self) -> Result<Vec<f32>> {
        match self {
            Carried::Tensors { state, .. } => state.to_vec(),
            Carried::Numbers(numbers) => Ok(numbers.clone()),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        match self {
            Carried::Tensors { state: State(parts), .. } => {
                parts.iter().map(|part| part.elem_count() * size_of::<f32>()).sum()
            }
            Carried::Numbers(numbers) => size_of_val(numbers.as_slice()),
        }
    }
}
