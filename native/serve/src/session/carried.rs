//! The state of a session, in the form that its plan or its ops step.

use std::mem;

use sconce_nn::backbone::State;
use sconce_nn::packed::Plan;
use sconce_tensor::Result;
use sconce_tensor::device::{self, Held, Owner};

/// The state of a session.
#[derive(Debug, Clone)]
pub(super) enum Carried {
    /// State of the policy's own ops, counted in the ledger of its card.
    Tensors { _held: Held, state: State },
    /// State of a plan: the values of all its parts, concatenated.
    Numbers(Vec<f32>),
}

/// Memory on a card is freed while no other thread records launches, as sessions that step together may.
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
    /// The state in the form that `plan` steps or, without a plan, that the policy's own ops step.
    pub(super) fn new(state: State, plan: Option<&Plan>) -> Result<Self> {
        match plan {
            Some(_) => Ok(Carried::Numbers(state.to_vec()?)),
            None => Ok(Carried::tensors(state)),
        }
    }

    /// The state in the form that a plan steps.
    pub(super) fn numbers(state: Vec<f32>) -> Self {
        Carried::Numbers(state)
    }

    /// The state in the form that the policy's own ops step.
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
