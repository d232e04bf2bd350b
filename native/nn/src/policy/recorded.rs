//! Steps of several games on a card. The first step with a given number of games is recorded as a graph.
//!
//! A step is one CUDA graph for every backbone. The graph reads words (u32) from memory shared with the host and writes
//! its answer to such memory. The words hold the addresses of the games' states before and after the step, and the
//! inputs of the pass. The graph gathers the states, runs the pass, and writes the new states to their addresses and
//! the logits to the answer. Autoregressive heads choose on the card; in the answer, the choices follow the logits.

use std::sync::{Mutex, PoisonError};

use sconce_tensor::{DType, Device, Tensor, pool, tensor};

use super::stepped::{Stepped, last};
use super::{Frames, Placed, Policy};
use crate::backbone::State;
use crate::device::launch::{pointer, unwritten};
use crate::device::{self, Graph, Held, Owner, Shared, Workspace};
use crate::heads::card::{Rows, Table};
use crate::ops::rows::{Intake, end_step};
use crate::sampling::Draw;
use crate::{Error, Result};

/// Maximum number of games in one step. More games take several steps.
const MOST: usize = 256;

/// Games whose answers one thread reads.
const SHARD: usize = 4;

/// Number of u32 words in an address.
const PLACE: usize = 2;

/// Number of distinct steps in this process that the card refused to record. Such steps run slower.
pub fn unrecorded() -> usize {
    device::refusals().len()
}

/// Recorded steps of a policy. Their memory on the card is freed with the policy.
#[derive(Default)]
pub(super) struct Steps(Mutex<Vec<Recorded>>);

/// Steps the games of `frames [b, 1]`, as [`Policy::step_games`] does.
pub(super) fn step(
    policy: &Policy,
    frames: &Frames,
    states: &[&State],
    draws: &[Draw<'_>],
) -> Result<Vec<Result<Stepped>>> {
    if states.len() <= MOST {
        return some(policy, Games { frames, states, draws });
    }
    let mut stepped = Vec::with_capacity(states.len());
    for first in (0..states.len()).step_by(MOST) {
        let rows = first..states.len().min(first + MOST);
        let games = Games {
            frames: &frames.part(&rows, &(0..1)),
            states: &states[rows.clone()],
            draws: &draws[rows],
        };
        stepped.extend(some(policy, games)?);
    }
    Ok(stepped)
}

/// Inputs of a step.
#[derive(Clone, Copy)]
struct Games<'a> {
    frames: &'a Frames,
    states: &'a [&'a State],
    draws: &'a [Draw<'a>],
}

/// Steps at most [`MOST`] games.
fn some(policy: &Policy, games: Games<'_>) -> Result<Vec<Result<Stepped>>> {
    let batch = games.states.len().next_power_of_two();
    // Passes of a policy run one at a time, so the lock is not contended.
    let mut all = policy.recorded.0.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(one) = all.iter().find(|one| one.batch == batch) {
        return one.step(policy, games);
    }
    let buffers = Buffers::new(policy, batch)?;
    let asked = buffers.ask(policy, games)?;
    let Device::Cuda(card) = policy.device() else {
        return Err(Error::mismatch("device", "a card", "another"));
    };
    // A step that cannot be recorded is launched op by op.
    let mut memory = Workspace::default();
    let graph = Graph::record(card, |recording| match recording {
        true => memory.reuse(|| buffers.work(policy)),
        false => memory.keep(|| buffers.work(policy)),
    })?;
    let _memory = graph.is_some().then_some(memory);
    let _held = Held::of(Owner::Sessions, _memory.iter().flat_map(Workspace::tensors));
    let one = Recorded { graph, _held, _memory, batch, buffers };
    one.play(policy)?;
    let stepped = one.buffers.answer(policy, asked, games);
    all.push(one);
    stepped
}

/// The recorded step of `batch` games of a policy.
struct Recorded {
    graph: Option<Graph>,
    _held: Held,
    /// Workspace of the graph.
    _memory: Option<Workspace>,
    batch: usize,
    buffers: Buffers,
}

impl Recorded {
    fn step(&self, policy: &Policy, games: Games<'_>) -> Result<Vec<Result<Stepped>>> {
        let asked = self.buffers.ask(policy, games)?;
        // After a failure, work in flight may still read the words. Wait for it, because the next step overwrites the
        // words.
        self.play(policy).inspect_err(|_| drop(policy.device().synchronize()))?;
        self.buffers.answer(policy, asked, games)
    }

    fn play(&self, policy: &Policy) -> Result<()> {
        match &self.graph {
            Some(graph) => graph.play(),
            None => self.buffers.work(policy),
        }
    }
}

/// Tensors whose addresses were given to the card. They live until the answer has arrived.
struct Asked {
    before: Vec<Tensor>,
    /// The states after the step, part by part; each part holds the rows of all games.
    after: Tensor,
}

/// Inputs and outputs of a step, at fixed addresses.
struct Buffers {
    _held: Held,
    /// Address of each part of each game's state, address of each part of the states after the step, then the inputs
    /// of the pass.
    words: Shared,
    intake: Intake,
    placed: Placed,
    /// Present if the heads choose on the card.
    heads: Option<(Table, Rows)>,
    /// The gathered states of all games.
    state: State,
    /// f32 `[batch, width + 1]`: logits, choices made on the card, and a flag that is not 0 if the state after the step
    /// has a non-finite value.
    answer: Shared,
    batch: usize,
    width: usize,
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
        let (logits, labels) = (policy.spec.heads.num_logits(), policy.spec.heads.num_labels());
        let heads = match policy.heads.table(&policy.place)? {
            Some(table) => Some((table, Rows::zeros(batch, labels, &policy.place)?)),
            None => None,
        };
        let (placed, width) = match heads {
            None => (policy.place(&blank)?, logits),
            Some(_) => (policy.input(&blank)?, logits + labels),
        };
        let state = policy.zero_state(batch)?.hand_on()?;
        let answer = Shared::zeros(policy.device(), batch * (width + 1))?;
        let places = PLACE * (batch + 1) * state.0.len();
        let of_heads = heads.iter().flat_map(|(_, rows)| rows.tensors());
        let tensors: Vec<&Tensor> = placed.tensors().chain(of_heads).collect();
        let read: usize = tensors.iter().map(|tensor| tensor.elem_count()).sum();
        let words = Shared::zeros(policy.device(), places + read)?;
        let intake = Intake::new(batch, &state.0, &tensors, places)?;
        let _held = Held::of(Owner::Sessions, state.0.iter());
        Ok(Buffers { _held, words, intake, placed, heads, state, answer, batch, width })
    }

    /// Launches all work of the step on the card.
    fn work(&self, policy: &Policy) -> Result<()> {
        let Buffers { words, intake, placed, heads, state, answer, .. } = self;
        let (words, answer) = (words.place(), answer.place());
        // SAFETY: these are addresses of parts of states that the caller holds.
        unsafe { intake.take(words, Some((answer, self.width))) }?;
        let (given, next) = match heads {
            None => policy.forward_placed(placed, None, state, &last())?,
            Some((table, rows)) => {
                let (trunk, next) = policy.trunk_placed(placed, state, &last())?;
                (policy.heads.decided(&trunk.vectors, table, rows)?, next)
            }
        };
        let next = next.0.iter().map(tensor::contiguous).collect::<Result<Vec<_>>>()?;
        let after = words + (size_of::<u64>() * next.len() * self.batch) as u64;
        // SAFETY: these are the addresses of tensors of that shape, which live until the answer has arrived.
        unsafe { end_step(after, &next, &tensor::contiguous(&given)?, answer) }?;
        Ok(())
    }

    /// Writes the inputs of a step. Rows beyond the last game, up to `batch`, are copies of the first game.
    fn ask(&self, policy: &Policy, games: Games<'_>) -> Result<Asked> {
        let (batch, Games { frames, states, draws }) = (self.batch, games);
        let mut before = vec![];
        let mut words: Vec<u32> = vec![];
        let put = |words: &mut Vec<u32>, place| words.extend([place as u32, (place >> 32) as u32]);
        for (i, own) in self.state.0.iter().enumerate() {
            for row in 0..batch {
                let State(parts) = states[if row < states.len() { row } else { 0 }];
                let part = parts.get(i).ok_or_else(|| Error::not_found("a part of a state"))?;
                tensor::check_shape("part of a state", &own.dims()[1..], &part.dims()[1..])?;
                let part = tensor::contiguous(&tensor::moved(part, own)?)?;
                put(&mut words, pointer(&part)?);
                before.push(part);
            }
        }
        let size = self.state.0.iter().map(Tensor::elem_count).sum::<usize>();
        let after = unwritten(size, DType::F32, &policy.place)?;
        let mut place = pointer(&after)?;
        for part in &self.state.0 {
            put(&mut words, place);
            place += (size_of::<f32>() * part.elem_count()) as u64;
        }

        let row = |row: usize| if row < states.len() { row } else { 0 };
        let filled = (frames.batch < batch).then(|| padded(frames, batch, row));
        let frames = filled.as_ref().unwrap_or(frames);
        let (numbers, mut others) = match self.heads {
            None => policy.words(frames)?,
            Some(_) => policy.input_words(frames)?,
        };
        if self.heads.is_some() {
            let draws: Vec<Draw<'_>> = (0..batch).map(|i| draws[row(i)]).collect();
            policy.heads.row_words(&draws, &frames.previous, &mut others)?;
        }
        words.extend_from_slice(numbers);
        words.extend_from_slice(&others);
        // SAFETY: one step runs at a time, and it has ended when its answer has arrived or it has failed.
        unsafe { self.words.write(&words) }?;
        Ok(Asked { before, after })
    }

    /// Waits for the answer and splits it by game.
    fn answer(
        &self,
        policy: &Policy,
        asked: Asked,
        games: Games<'_>,
    ) -> Result<Vec<Result<Stepped>>> {
        asked.after.device().synchronize()?;
        let Asked { before, after } = asked;
        drop(before);
        // SAFETY: the card has finished its work.
        let answer: Vec<f32> =
            unsafe { self.answer.read() }.into_iter().map(f32::from_bits).collect();
        let (mut parts, mut first) = (vec![], 0);
        for part in &self.state.0 {
            parts.push(after.narrow(0, first, part.elem_count())?.reshape(part.shape())?);
            first += part.elem_count();
        }
        let labels = policy.spec.heads.num_labels();
        let (width, by_card) = (self.width, self.heads.is_some());
        let game = |row: usize, answer: &[f32]| {
            let (given, spoilt) = answer.split_at(width);
            let previous = games.frames.previous.get(row * labels..(row + 1) * labels);
            let decision = match by_card {
                true => policy.heads.read(given),
                false => {
                    let previous = previous.unwrap_or_default();
                    policy.heads.decide(given.to_vec(), previous, games.draws[row])?
                }
            };
            super::check_logits(&decision.logits)?;
            if spoilt != [0.0] {
                return Err(Error::NonFinite { what: "state".into(), value: f64::NAN });
            }
            let parts = parts.iter().map(|part| part.narrow(0, row, 1));
            let state = State(parts.collect::<sconce_tensor::candle::Result<_>>()?);
            Ok((decision, state))
        };
        let answers: Vec<&[f32]> =
            answer.chunks_exact(width + 1).take(games.states.len()).collect();
        let mut stepped: Vec<Option<Result<Stepped>>> = answers.iter().map(|_| None).collect();
        // The games' choices take longer than the card's work.
        pool::for_each_rows(&mut stepped, 1, SHARD, |first, stepped| {
            for (row, stepped) in (first..).zip(stepped) {
                *stepped = Some(game(row, answers[row]));
            }
        });
        stepped.into_iter().map(|one| one.ok_or_else(|| Error::not_found("a game"))).collect()
    }
}

/// Copies rows of `frames`; `row` maps each of the `batch` output rows to a source row.
fn padded(frames: &Frames, batch: usize, row: impl Fn(usize) -> usize) -> Frames {
    fn rows<T: Copy>(
        all: &[T],
        games: usize,
        batch: usize,
        row: impl Fn(usize) -> usize,
    ) -> Vec<T> {
        let (width, mut rows) = (all.len() / games.max(1), vec![]);
        (0..batch).for_each(|i| rows.extend_from_slice(&all[row(i) * width..][..width]));
        rows
    }
    Frames {
        batch,
        time: 1,
        continuous: rows(&frames.continuous, frames.batch, batch, &row),
        ids: rows(&frames.ids, frames.batch, batch, &row),
        previous: rows(&frames.previous, frames.batch, batch, &row),
    }
}
