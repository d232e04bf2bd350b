//! The state of a session, in the form of what steps it.

use std::cell::RefCell;

use sconce_core::backbone::State;
use sconce_core::heads::Decision;
use sconce_core::projection::Projection;
use sconce_core::sampling::Draw;
use sconce_core::{Error, Result};
use sconce_realtime::{Frame, Game, Plan, Scratch};

use crate::frames::View;

#[derive(Debug, Clone)]
pub enum Carried {
    /// Of core.
    Tensors(State),
    /// Of a plan: the numbers of all parts, one after the other.
    Numbers(Vec<f32>),
}

impl Carried {
    /// What `plan`, or core without one, goes on from.
    pub fn new(state: State, plan: Option<&Plan>) -> Result<Self> {
        match plan {
            Some(_) => Ok(Carried::Numbers(state.to_vec()?)),
            None => Ok(Carried::Tensors(state)),
        }
    }

    pub fn to_vec(&self) -> Result<Vec<f32>> {
        match self {
            Carried::Tensors(state) => state.to_vec(),
            Carried::Numbers(numbers) => Ok(numbers.clone()),
        }
    }

    pub fn bytes(&self) -> usize {
        match self {
            Carried::Tensors(State(parts)) => {
                parts.iter().map(|part| part.elem_count() * size_of::<f32>()).sum()
            }
            Carried::Numbers(numbers) => size_of_val(numbers.as_slice()),
        }
    }
}

thread_local! {
    /// Of whatever plan this thread steps: sessions come and go by the thousand.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// A decision of a plan, and the state after it.
pub fn step(
    plan: &Plan,
    row: View<'_>,
    state: &[f32],
    draw: Draw<'_>,
    projection: Option<&Projection>,
) -> Result<(Decision, Vec<f32>)> {
    let View { continuous, ids, previous } = row;
    let frame = Frame { continuous, ids, previous };
    let (mut state, mut decision) = (state.to_vec(), plan.blank());
    let [rng] = draw.rngs else {
        return Err(Error::mismatch("generators", 1, draw.rngs.len()));
    };
    let mut game = Game::new(frame, &mut state, draw.sampling, rng.clone(), &mut decision);
    (game.given, game.projection) = (draw.given, projection);
    SCRATCH.with_borrow_mut(|scratch| plan.step(std::slice::from_mut(&mut game), scratch));
    game.outcome?;
    Ok((decision, state))
}
