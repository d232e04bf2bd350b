//! Forward passes whose callers keep the state themselves.

use std::sync::Arc;

use sconce_nn::backbone::{Context, State};
use sconce_nn::heads::{Decision, NONE};
use sconce_nn::packed::{Frame, Game, Plan};
use sconce_nn::policy::Frames;
use sconce_nn::projection::Projection;
use sconce_nn::sampling::Sampling;
use sconce_nn::spec::HeadsKind;
use sconce_nn::{Policy, Spec};
use sconce_tensor::device::Foreign;
use sconce_tensor::rng::Rng;
use sconce_tensor::tensor::{read, to_vec};
use sconce_tensor::{Error, Result, Tensor};
use serde::Deserialize;

use crate::frames::{self, Beyond, delay_of};
use crate::model::Model;
use crate::session::SCRATCH;

/// One forward pass, and the outputs that it returns.
///
/// # Shapes
/// `rows [batch, time, raw_width]`, `labels [batch, time, num_labels]`,
/// `queue [batch, time, queue_depth, num_labels]`, `state` as `backbone::State::to_vec` lays it out,
/// `project_out [n, trunk_width]`.
#[derive(Debug, Clone, Default)]
pub struct Pass {
    /// Raw frames.
    pub rows: Vec<f32>,
    /// Number of games.
    pub batch: usize,
    /// Frames of each game.
    pub time: usize,
    /// Labels of actions, which autoregressive heads read.
    pub labels: Option<Vec<f32>>,
    /// Inputs before each frame, as in [`Beyond::queue`].
    pub queue: Option<Vec<f32>>,
    /// The state before the first frame; `None` is the zero state.
    pub state: Option<Vec<f32>>,
    /// Directions that the heads do not see.
    pub project_out: Option<Vec<f32>>,
    /// Outputs to return, and the frame delay.
    pub look: Look,
}

/// Outputs of a pass to return, and its frame delay.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Look {
    /// Whether to return the logits of all frames, or only of the last frame of each game.
    pub return_sequences: bool,
    /// Frame delay; `None` is that of the training.
    pub frame_delay: Option<usize>,
    /// Activations to return.
    pub taps: Taps,
}

/// Activations that a pass returns.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Taps {
    /// All taps, or none.
    All(bool),
    /// The taps with these names.
    Named(Vec<String>),
}

impl Default for Look {
    fn default() -> Self {
        Look { return_sequences: true, frame_delay: None, taps: Taps::All(false) }
    }
}

/// Outputs of a pass.
#[derive(Debug, Clone, PartialEq)]
pub struct Forward {
    /// Logits, `[batch, time, num_logits]` or `[batch, num_logits]`.
    pub logits: Vec<f32>,
    /// State after the last frame.
    pub state: Vec<f32>,
    /// Activations: name, shape and values of each.
    pub taps: Vec<(String, Vec<usize>, Vec<f32>)>,
}

impl Pass {
    fn context(&self, policy: &Policy) -> Result<Context> {
        let project = |vectors: &Vec<f32>| Projection::new(vectors, policy.trunk_width());
        let context = match &self.look.taps {
            Taps::All(true) => Context::tapped(),
            Taps::All(false) => Context::default(),
            Taps::Named(names) => Context::default().tapping(names.iter().cloned()),
        };
        let projection = self.project_out.as_ref().map(project).transpose()?;
        Ok(context.projecting(projection.map(Arc::new)))
    }

    /// Runs the pass by the policy's own ops.
    pub fn run(&self, policy: &Policy) -> Result<Forward> {
        let (logits, made) = self.made(policy, &self.frames(policy, &self.rows)?, None)?;
        Ok(Forward { logits: to_vec(&logits)?, ..made })
    }

    /// [`run`](Self::run) with rows and logits in memory of another library on the policy's card. The logits of the
    /// answer are empty. Rows that are the vector itself stay on the card; other rows are embedded by the CPU.
    ///
    /// # Safety
    /// The rows have been written. Until this function returns, the memory of both is not freed, the rows are not
    /// written, and nothing else reads or writes the logits.
    pub unsafe fn run_between(
        &self,
        policy: &Policy,
        rows: &Foreign,
        logits: &Foreign,
    ) -> Result<Forward> {
        let (spec, numbers) = (policy.spec(), self.batch * self.time);
        let there = match spec.embedding.is_vector() && self.queue.is_none() {
            // SAFETY: the caller guarantees the memory.
            true => Some(unsafe { rows.read((numbers, spec.embedding.raw_width())) }?),
            false => None,
        };
        let (made, rest) = match there {
            Some(there) if is_finite(&there)? => {
                delay_of(policy, self.look.frame_delay)?;
                let previous = vec![NONE; numbers * spec.heads.num_labels()];
                let sizes =
                    Frames { batch: self.batch, time: self.time, previous, ..Frames::default() };
                self.made(policy, &sizes, Some(&there))?
            }
            // The check of the CPU names a number that is not finite.
            // SAFETY: the caller guarantees the memory.
            _ => self.made(policy, &self.frames(policy, &unsafe { rows.to_vec() }?)?, None)?,
        };
        // SAFETY: the caller guarantees the memory.
        unsafe { logits.write(&made) }?;
        Ok(rest)
    }

    /// Counts of numbers in the rows and in the logits of this pass.
    ///
    /// # Errors
    /// `Mismatch` for a pass without frames, or with more than memory could hold.
    pub fn numbers(&self, spec: &Spec) -> Result<(usize, usize)> {
        let frames = self.batch.checked_mul(self.time).filter(|frames| *frames > 0);
        let logits = if self.look.return_sequences { frames } else { Some(self.batch) };
        let rows = frames.and_then(|n| n.checked_mul(spec.embedding.raw_width()));
        let logits = logits.and_then(|n| n.checked_mul(spec.heads.num_logits()));
        rows.zip(logits).ok_or_else(|| {
            let got = format!("{} x {}", self.batch, self.time);
            Error::mismatch("frames", "games of at least one frame", got)
        })
    }

    fn frames(&self, policy: &Policy, rows: &[f32]) -> Result<Frames> {
        let delay = delay_of(policy, self.look.frame_delay)?;
        let beyond = Beyond { queue: self.queue.as_deref(), delay };
        frames::embed(policy.spec(), rows, self.batch, self.time, beyond)
    }

    /// The logits, and the other outputs. With `there` the features of the frames are on the policy's device.
    fn made(
        &self,
        policy: &Policy,
        frames: &Frames,
        there: Option<&Tensor>,
    ) -> Result<(Tensor, Forward)> {
        let (batch, time) = (self.batch, self.time);
        let spec = policy.spec();
        let labels = self.labels.as_deref();
        if let Some(labels) = labels {
            frames::check_actions(&spec.heads, labels, batch * time)?;
        }
        let zero = policy.zero_state(batch)?;
        let state = match &self.state {
            Some(numbers) => zero.with_values(numbers)?,
            None => zero,
        };
        let context = self.context(policy)?;
        let all = self.look.return_sequences;
        let last = labels.filter(|_| !all);
        let last = last.map(|labels| last_labels(labels, batch, spec.heads.num_labels()));
        let labels = last.as_deref().or(labels);
        let (logits, state) = match there {
            Some(numbers) => {
                policy.forward_numbers((numbers, frames), labels, &state, &context, !all)?
            }
            None if all => policy.forward(frames, labels, &state, &context)?,
            None => policy.forward_last(frames, labels, &state, &context)?,
        };
        let taps = context.taps()?.into_iter().map(|(name, value)| {
            let dims = value.dims().to_vec();
            Ok((name, dims, to_vec(&value)?))
        });
        let taps = taps.collect::<Result<_>>()?;
        Ok((logits, Forward { logits: vec![], state: state.to_vec()?, taps }))
    }
}

/// Runs every pass; an error in one does not affect the others. Passes of one frame are steps of the plan, batched with
/// results bit-identical to separate steps. Of the rest, similar passes are joined to one pass of the policy's own
/// ops, whose values may differ by rounding error from those of separate passes.
pub fn run_many(model: &Model, passes: &[&Pass]) -> Vec<Result<Forward>> {
    let made: Vec<Option<Forward>> = match model.plan() {
        Some(plan) => step(model, plan, passes),
        None => passes.iter().map(|_| None).collect(),
    };
    let mut made: Vec<Option<Result<Forward>>> =
        made.into_iter().map(|made| made.map(Ok)).collect();
    let policy = model.policy();
    for i in 0..passes.len() {
        let mut frames = 0;
        let left = |j: &usize| made[*j].is_none() && alike(passes[i], passes[*j]);
        let fits = |j: &usize| {
            frames += passes[*j].batch.saturating_mul(passes[*j].time);
            *j == i || frames <= TOGETHER
        };
        let kin: Vec<usize> = (i..passes.len()).filter(left).take_while(fits).collect();
        let together: Vec<&Pass> = kin.iter().map(|j| passes[*j]).collect();
        let all = match together.len() {
            0 | 1 => None,
            _ => run_together(policy, &together).ok(),
        };
        match all {
            Some(all) => kin.iter().zip(all).for_each(|(j, one)| made[*j] = Some(Ok(one))),
            // The error does not say which pass caused it, so each runs alone.
            None => kin.iter().for_each(|j| made[*j] = Some(passes[*j].run(policy))),
        }
    }
    passes.iter().zip(made).map(|(pass, made)| made.unwrap_or_else(|| pass.run(policy))).collect()
}

/// Maximum number of frames in one joined pass: more frames save no time but take memory.
const TOGETHER: usize = 4096;

/// Whether two passes can be joined: the same number of frames, the same optional inputs, and no taps.
fn alike(a: &Pass, b: &Pass) -> bool {
    a.time == b.time
        && a.look == b.look
        && a.look.taps == Taps::All(false)
        && a.labels.is_some() == b.labels.is_some()
        && a.queue.is_some() == b.queue.is_some()
        && a.project_out == b.project_out
}

fn run_together(policy: &Policy, passes: &[&Pass]) -> Result<Vec<Forward>> {
    let widths = widths(policy)?;
    let joined = join(policy, passes, &widths)?.run(policy)?;
    let games: usize = passes.iter().map(|pass| pass.batch).sum();
    let logits = joined.logits.len() / games.max(1);
    let (mut logits_left, mut states_left) =
        (joined.logits.as_slice(), split(&joined.state, games, &widths));
    let part = |pass: &&Pass| {
        let (own, rest) = logits_left.split_at(pass.batch * logits);
        logits_left = rest;
        let states: Vec<Vec<f32>> = states_left.drain(..pass.batch).collect();
        Forward { logits: own.to_vec(), state: merge(&states, &widths), taps: vec![] }
    };
    Ok(passes.iter().map(part).collect())
}

/// One pass with the games of all `passes`.
fn join(policy: &Policy, passes: &[&Pass], widths: &[usize]) -> Result<Pass> {
    let width = policy.spec().embedding.raw_width();
    let (zero, mut states) = (policy.zero_state(1)?, Vec::new());
    for pass in passes {
        let expected = pass.batch * pass.time * width;
        if pass.rows.len() != expected {
            return Err(Error::mismatch("numbers of frames", expected, pass.rows.len()));
        }
        let actions = pass.batch * pass.time * policy.spec().heads.num_labels();
        let queues = actions * policy.spec().embedding.queue_depth();
        for (what, given, expected) in
            [("labels", &pass.labels, actions), ("queue", &pass.queue, queues)]
        {
            if let Some(given) = given.as_ref().filter(|given| given.len() != expected) {
                return Err(Error::mismatch(what, expected, given.len()));
            }
        }
        states.extend(pass.states(&zero, widths)?);
    }
    let first = passes.first().copied().cloned().unwrap_or_default();
    let labels = |of: fn(&Pass) -> Option<&Vec<f32>>| {
        of(&first).map(|_| passes.iter().filter_map(|pass| of(pass)).flatten().copied().collect())
    };
    Ok(Pass {
        rows: passes.iter().flat_map(|pass| &pass.rows).copied().collect(),
        batch: passes.iter().map(|pass| pass.batch).sum(),
        labels: labels(|pass| pass.labels.as_ref()),
        queue: labels(|pass| pass.queue.as_ref()),
        state: Some(merge(&states, widths)),
        ..first
    })
}

/// The games of one pass, stepped by a plan.
struct Steps {
    games: usize,
    frames: Frames,
    states: Vec<Vec<f32>>,
    decisions: Vec<Decision>,
}

/// Runs all passes that are steps in one call. `None` for other passes and for passes that fail: the policy's own ops
/// then return the error.
fn step(model: &Model, plan: &Plan, passes: &[&Pass]) -> Vec<Option<Forward>> {
    let policy = model.policy();
    let Ok(widths) = widths(policy) else { return passes.iter().map(|_| None).collect() };
    let steps = passes.iter().map(|pass| pass.steps(model, &widths).ok().flatten());
    let mut all: Vec<Option<Steps>> = steps.collect();
    let sampling = Sampling { deterministic: true, ..Sampling::default() };
    let mut games: Vec<Game> = all.iter_mut().flatten().flat_map(|s| s.games(&sampling)).collect();
    SCRATCH.with_borrow_mut(|scratch| plan.step(&mut games, scratch));
    let mut outcomes = games.into_iter().map(|game| game.outcome).collect::<Vec<_>>().into_iter();
    let mut end = |steps: Steps| {
        let failed = outcomes.by_ref().take(steps.states.len()).filter(|o| o.is_err()).count();
        let logits = steps.decisions.iter().flat_map(|decision| &decision.logits).copied();
        let state = merge(&steps.states, &widths);
        (failed == 0).then(|| Forward { logits: logits.collect(), state, taps: vec![] })
    };
    all.into_iter().map(|steps| steps.and_then(&mut end)).collect()
}

impl Pass {
    /// The state of each game; `zero` is that of a new game.
    fn states(&self, zero: &State, widths: &[usize]) -> Result<Vec<Vec<f32>>> {
        let game: usize = widths.iter().sum();
        let expected = self.batch.saturating_mul(game);
        match &self.state {
            Some(state) if state.len() == expected => Ok(split(state, self.batch, widths)),
            Some(state) => Err(Error::mismatch("numbers of a state", expected, state.len())),
            None => Ok(vec![zero.to_vec()?; self.batch]),
        }
    }

    /// The steps of this pass. `None` if it has several frames of a game, or needs the policy's own ops.
    fn steps(&self, model: &Model, widths: &[usize]) -> Result<Option<Steps>> {
        let (policy, given) = (model.policy(), self.labels.is_some() || self.queue.is_some());
        let spec = policy.spec();
        let plain = self.look.taps == Taps::All(false) && self.project_out.is_none() && !given;
        // Logits of heads that are not independent depend on an action.
        if self.time != 1 || !plain || spec.heads.kind != HeadsKind::Independent {
            return Ok(None);
        }
        let beyond = Beyond { queue: None, delay: delay_of(policy, self.look.frame_delay)? };
        Ok(Some(Steps {
            games: self.batch,
            frames: frames::embed(spec, &self.rows, self.batch, 1, beyond)?,
            states: self.states(model.zero_state(), widths)?,
            decisions: vec![model.blank(); self.batch],
        }))
    }
}

impl Steps {
    fn games<'a>(&'a mut self, sampling: &'a Sampling) -> impl Iterator<Item = Game<'a>> {
        let Steps { games, frames, states, decisions } = self;
        let (games, frames) = ((*games).max(1), &*frames);
        let part = move |len: usize, game: usize| len / games * game..len / games * (game + 1);
        states.iter_mut().zip(decisions).enumerate().map(move |(game, (state, decision))| {
            let frame = Frame {
                continuous: &frames.continuous[part(frames.continuous.len(), game)],
                ids: &frames.ids[part(frames.ids.len(), game)],
                previous: &frames.previous[part(frames.previous.len(), game)],
            };
            Game::new(frame, state, sampling, Rng::new(0, "act", 0), decision)
        })
    }
}

/// Count of values in each part of a game's state.
fn widths(policy: &Policy) -> Result<Vec<usize>> {
    Ok(policy.zero_state(1)?.0.iter().map(|part| part.elem_count()).collect())
}

/// The state of each game, from parts of all games.
fn split(state: &[f32], games: usize, widths: &[usize]) -> Vec<Vec<f32>> {
    let mut all = vec![Vec::with_capacity(widths.iter().sum()); games];
    let mut left = state;
    for width in widths {
        for own in &mut all {
            let (part, rest) = left.split_at(*width);
            own.extend_from_slice(part);
            left = rest;
        }
    }
    all
}

/// The reverse of [`split`].
fn merge(states: &[Vec<f32>], widths: &[usize]) -> Vec<f32> {
    let mut all = Vec::with_capacity(states.iter().map(Vec::len).sum());
    let mut at = 0;
    for width in widths {
        states.iter().for_each(|state| all.extend_from_slice(&state[at..at + width]));
        at += width;
    }
    all
}

/// Whether every number of a contiguous tensor is finite. Copies one number to the host.
fn is_finite(numbers: &Tensor) -> Result<bool> {
    // 0 times a number that is not finite is NaN.
    Ok(read(&(numbers * 0.0)?.sum_all()?, |sum| Ok(sum.iter().all(|v| *v == 0.0)))?)
}

/// The labels of the last frames, `[b, n]`, from `labels [b, t, n]`.
fn last_labels(labels: &[f32], batch: usize, width: usize) -> Vec<f32> {
    let game = labels.len() / batch.max(1);
    labels.chunks_exact(game.max(1)).flat_map(|game| &game[game.len() - width..]).copied().collect()
}
