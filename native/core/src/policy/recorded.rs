//! Steps of many games at once on a card, each number of games recorded when it is first asked for.
//!
//! A step is one upload, one graph and one download, whatever the backbone. Words are uploaded: where the states of the
//! games lie, where those after the step go, and what the pass reads. The graph gathers the states, makes the pass,
//! puts the new states in their places and the logits in one answer.

use std::sync::{Mutex, PoisonError};

use candle_core::{DType, Device, Tensor};

use super::steps::{Stepped, last};
use super::{Frames, Placed, Policy};
use crate::backbone::State;
use crate::device::{self, Graph, Held, Owner};
use crate::ops::card::{Intake, end_step, overwrite, pointer, unwritten};
use crate::ops::tensor;
use crate::{Error, Result};

/// Games of one step; more are several.
const MOST: usize = 256;

/// Words of a place.
const PLACE: usize = 2;

/// Steps of this process that the card did not let be recorded, each counted once: they are slower.
pub fn unrecorded() -> usize {
    device::refusals().len()
}

/// Steps of a policy, which leave the card with it.
#[derive(Default)]
pub(super) struct Steps(Mutex<Vec<Recorded>>);

/// A step of games of `frames [b, 1]`, as [`Policy::step_games`].
pub(super) fn step(
    policy: &Policy,
    frames: &Frames,
    states: &[&State],
) -> Result<Vec<Result<Stepped>>> {
    let mut stepped = Vec::with_capacity(states.len());
    for first in (0..states.len()).step_by(MOST) {
        let rows = first..states.len().min(first + MOST);
        stepped.extend(some(policy, &frames.part(&rows, &(0..1)), &states[rows])?);
    }
    Ok(stepped)
}

/// No more than [`MOST`].
fn some(policy: &Policy, frames: &Frames, states: &[&State]) -> Result<Vec<Result<Stepped>>> {
    let batch = states.len().next_power_of_two();
    // Passes of a policy are made one after the other: nobody waits here.
    let mut all = policy.recorded.0.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(one) = all.iter().find(|one| one.batch == batch) {
        return one.step(policy, frames, states);
    }
    let buffers = Buffers::new(policy, batch)?;
    let asked = buffers.ask(policy, frames, states)?;
    let Device::Cuda(card) = policy.device() else {
        return Err(Error::mismatch("device", "a card", "another"));
    };
    // What cannot be recorded is launched one by one.
    let graph = Graph::record(card, |_| buffers.work(policy))?;
    let one = Recorded { graph, batch, buffers };
    one.play(policy)?;
    let stepped = one.buffers.answer(asked, states.len());
    all.push(one);
    stepped
}

/// A step of so many games of a policy.
struct Recorded {
    graph: Option<Graph>,
    batch: usize,
    buffers: Buffers,
}

impl Recorded {
    fn step(
        &self,
        policy: &Policy,
        frames: &Frames,
        states: &[&State],
    ) -> Result<Vec<Result<Stepped>>> {
        let asked = self.buffers.ask(policy, frames, states)?;
        self.play(policy)?;
        self.buffers.answer(asked, states.len())
    }

    fn play(&self, policy: &Policy) -> Result<()> {
        match &self.graph {
            Some(graph) => graph.play(),
            None => self.buffers.work(policy),
        }
    }
}

/// Whose places were uploaded: what is there stays until the answer has come.
struct Asked {
    before: Vec<Tensor>,
    /// Parts of the states after the step, of all games.
    after: Vec<Tensor>,
}

/// What a step reads and writes, at its fixed places.
struct Buffers {
    _held: Held,
    /// Places of each part of the states, of each game; places of each part after it, of all games; what the
    /// pass reads.
    words: Tensor,
    intake: Intake,
    placed: Placed,
    /// Gathered.
    state: State,
    /// `[batch, num_logits + 1]`: logits, and whether the state after them has a number that is not finite.
    answer: Tensor,
}

impl Buffers {
    fn new(policy: &Policy, batch: usize) -> Result<Self> {
        let blank = Frames {
            batch,
            time: 1,
            continuous: vec![0.0; batch * policy.continuous],
            ids: vec![0; batch * policy.slots.len()],
            previous: vec![crate::heads::NONE; batch * policy.spec.heads.num_labels()],
        };
        let placed = policy.place(&blank)?;
        let state = policy.zero_state(batch)?.hand_on()?;
        let width = policy.spec.heads.num_logits();
        let answer = unwritten((batch, width + 1), DType::F32, &policy.place)?;
        let places = PLACE * (batch + 1) * state.0.len();
        let words = Tensor::zeros(places + placed.len(), DType::U32, policy.device())?;
        let tensors: Vec<&Tensor> = placed.tensors().collect();
        let intake = Intake::new(batch, &state.0, &tensors, places)?;
        let _held = Held::of(Owner::Sessions, state.0.iter().chain([&words, &answer]));
        Ok(Buffers { _held, words, intake, placed, state, answer })
    }

    /// All that the card does.
    fn work(&self, policy: &Policy) -> Result<()> {
        let Buffers { words, intake, placed, state, answer, .. } = self;
        // SAFETY: these are places of parts of states that the caller holds.
        unsafe { intake.take(words, Some(answer)) }?;
        let (logits, next) = policy.forward_placed(placed, state, &last())?;
        let next =
            next.0.iter().map(Tensor::contiguous).collect::<candle_core::Result<Vec<_>>>()?;
        let after = PLACE * next.len() * answer.dim(0)?;
        // SAFETY: these are the places of tensors of that shape, which wait for the answer.
        unsafe { end_step(words, after, &next, &logits.contiguous()?, answer) }?;
        Ok(())
    }

    /// Uploads what a step reads. Games that are too few are followed by others like the first.
    fn ask(&self, policy: &Policy, frames: &Frames, states: &[&State]) -> Result<Asked> {
        let (batch, _) = self.answer.dims2()?;
        let mut before = vec![];
        let mut words: Vec<u32> = Vec::with_capacity(self.words.elem_count());
        let place = |words: &mut Vec<u32>, part: &Tensor| -> Result<()> {
            let place = pointer(part)?;
            words.extend([place as u32, (place >> 32) as u32]);
            Ok(())
        };
        for (i, own) in self.state.0.iter().enumerate() {
            for row in 0..batch {
                let State(parts) = states[if row < states.len() { row } else { 0 }];
                let part = parts.get(i).ok_or_else(|| Error::not_found("a part of a state"))?;
                tensor::check_shape("part of a state", &own.dims()[1..], &part.dims()[1..])?;
                let part = tensor::moved(part, own)?.contiguous()?;
                place(&mut words, &part)?;
                before.push(part);
            }
        }
        let fresh = |part: &Tensor| unwritten(part.shape(), DType::F32, part);
        let after: Vec<Tensor> =
            self.state.0.iter().map(fresh).collect::<candle_core::Result<_>>()?;
        after.iter().try_for_each(|part| place(&mut words, part))?;

        let row = |row: usize| if row < states.len() { row } else { 0 };
        policy.words(&padded(frames, batch, row), &mut words)?;
        overwrite(&self.words, &words)?;
        Ok(Asked { before, after })
    }

    /// What came of it, of the first `count` games.
    fn answer(&self, asked: Asked, count: usize) -> Result<Vec<Result<Stepped>>> {
        let answer = tensor::to_vec(&self.answer)?;
        let Asked { before, after } = asked;
        drop(before);
        let (_, width) = self.answer.dims2()?;
        let game = |(row, answer): (usize, &[f32])| {
            let (logits, spoilt) = answer.split_at(width - 1);
            super::check_logits(logits)?;
            if spoilt != [0.0] {
                return Err(Error::NonFinite { what: "state".into(), value: f64::NAN });
            }
            let parts = after.iter().map(|part| part.narrow(0, row, 1));
            let state = State(parts.collect::<candle_core::Result<_>>()?);
            Ok((logits.to_vec(), state))
        };
        Ok(answer.chunks_exact(width).take(count).enumerate().map(game).collect())
    }
}

/// Rows of frames, by their numbers.
fn padded(frames: &Frames, batch: usize, row: impl Fn(usize) -> usize) -> Frames {
    fn rows<T: Copy>(
        all: &[T],
        games: usize,
        batch: usize,
        row: impl Fn(usize) -> usize,
    ) -> Vec<T> {
        let width = all.len() / games.max(1);
        (0..batch).flat_map(|i| &all[row(i) * width..][..width]).copied().collect()
    }
    Frames {
        batch,
        time: 1,
        continuous: rows(&frames.continuous, frames.batch, batch, &row),
        ids: rows(&frames.ids, frames.batch, batch, &row),
        previous: rows(&frames.previous, frames.batch, batch, &row),
    }
}
