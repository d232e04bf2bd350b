//! Forward passes of callers who keep the state themselves.

use std::sync::Arc;

use sconce_core::backbone::Context;
use sconce_core::ops::tensor::to_vec;
use sconce_core::projection::Projection;
use sconce_core::{Error, Policy, Result};
use serde::Deserialize;

use crate::frames::{self, Beyond, delay_of};

/// One forward pass, and what of it is wanted.
///
/// # Shapes
/// `rows [batch, time, raw_width]`, `labels [batch, time, num_labels]`,
/// `queue [batch, time, queue_depth, num_labels]`, `state` as `backbone::State::to_vec` lays it out,
/// `project_out [n, trunk_width]`.
#[derive(Debug, Clone, Default)]
pub struct Pass {
    pub rows: Vec<f32>,
    pub batch: usize,
    pub time: usize,
    pub labels: Option<Vec<u16>>,
    pub queue: Option<Vec<u16>>,
    pub state: Option<Vec<f32>>,
    pub project_out: Option<Vec<f32>>,
    pub look: Look,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Look {
    /// Logits of all frames, or of the last of each game alone.
    pub return_sequences: bool,
    /// None: as the policy was trained.
    pub frame_delay: Option<usize>,
    pub taps: Taps,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Taps {
    /// All there are, or none.
    All(bool),
    Named(Vec<String>),
}

impl Default for Look {
    fn default() -> Self {
        Look { return_sequences: true, frame_delay: None, taps: Taps::All(false) }
    }
}

/// What a pass gives.
#[derive(Debug, Clone, PartialEq)]
pub struct Forward {
    /// `[batch, time, num_logits]`, or `[batch, num_logits]`.
    pub logits: Vec<f32>,
    /// After the last frame.
    pub state: Vec<f32>,
    /// Name, shape and numbers.
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

    pub fn run(&self, policy: &Policy) -> Result<Forward> {
        let (batch, time) = (self.batch, self.time);
        let spec = policy.spec();
        let delay = delay_of(policy, self.look.frame_delay)?;
        let beyond = Beyond { queue: self.queue.as_deref(), delay };
        let frames = frames::embed(spec, &self.rows, batch, time, beyond)?;
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
        let (logits, state) = match self.look.return_sequences {
            true => policy.forward(&frames, labels, &state, &context)?,
            false => {
                let last = labels.map(|labels| last_labels(labels, batch, spec.heads.num_labels()));
                policy.forward_last(&frames, last.as_deref(), &state, &context)?
            }
        };
        let taps = context.taps()?.into_iter().map(|(name, value)| {
            let dims = value.dims().to_vec();
            Ok((name, dims, to_vec(&value)?))
        });
        Ok(Forward {
            logits: to_vec(&logits)?,
            state: state.to_vec()?,
            taps: taps.collect::<Result<_>>()?,
        })
    }
}

/// [`Pass::run`] of each. Those that are alike are one pass of core, whose numbers may differ by their last bits
/// from those of each alone. What is wrong with one is its own matter.
pub fn run_many(policy: &Policy, passes: &[&Pass]) -> Vec<Result<Forward>> {
    let mut made: Vec<Option<Result<Forward>>> = passes.iter().map(|_| None).collect();
    for i in 0..passes.len() {
        if made[i].is_some() {
            continue;
        }
        let kin: Vec<usize> = (i..passes.len())
            .filter(|j| made[*j].is_none() && alike(passes[i], passes[*j]))
            .collect();
        let together: Vec<&Pass> = kin.iter().map(|j| passes[*j]).collect();
        match run_together(policy, &together) {
            Ok(all) => kin.iter().zip(all).for_each(|(j, forward)| made[*j] = Some(Ok(forward))),
            // Which of them an error speaks of is not said: then each finds out for itself.
            Err(_) => made[i] = Some(passes[i].run(policy)),
        }
    }
    made.into_iter().flatten().collect()
}

/// Whether two can be one pass: of as many frames, with as much given, and without a look inside.
fn alike(a: &Pass, b: &Pass) -> bool {
    std::ptr::eq(a, b)
        || a.time == b.time
            && a.look == b.look
            && a.look.taps == Taps::All(false)
            && a.labels.is_some() == b.labels.is_some()
            && a.queue.is_some() == b.queue.is_some()
            && a.project_out == b.project_out
}

fn run_together(policy: &Policy, passes: &[&Pass]) -> Result<Vec<Forward>> {
    if let [alone] = passes {
        return Ok(vec![alone.run(policy)?]);
    }
    let widths: Vec<usize> = policy.zero_state(1)?.0.iter().map(|part| part.elem_count()).collect();
    let joined = join(policy, passes, &widths)?.run(policy)?;
    Ok(split(&joined, passes, &widths))
}

/// All games of them as the games of one pass.
fn join(policy: &Policy, passes: &[&Pass], widths: &[usize]) -> Result<Pass> {
    let first = passes.first().copied().cloned().unwrap_or_default();
    let width = policy.spec().embedding.raw_width();
    let game: usize = widths.iter().sum();
    for pass in passes {
        let expected = pass.batch * pass.time * width;
        let state = pass.state.as_ref().map_or(pass.batch * game, Vec::len);
        if pass.rows.len() != expected || state != pass.batch * game {
            return Err(Error::mismatch("numbers of a pass", expected, pass.rows.len()));
        }
    }
    let mut state = Vec::new();
    for (before, width) in offsets(widths) {
        for pass in passes {
            let part = pass.batch * before..pass.batch * (before + width);
            match &pass.state {
                Some(numbers) => state.extend_from_slice(&numbers[part]),
                None => state.resize(state.len() + part.len(), 0.0),
            }
        }
    }
    let labels = |of: fn(&Pass) -> Option<&Vec<u16>>| {
        of(&first).map(|_| passes.iter().filter_map(|pass| of(pass)).flatten().copied().collect())
    };
    Ok(Pass {
        rows: passes.iter().flat_map(|pass| &pass.rows).copied().collect(),
        batch: passes.iter().map(|pass| pass.batch).sum(),
        labels: labels(|pass| pass.labels.as_ref()),
        queue: labels(|pass| pass.queue.as_ref()),
        state: Some(state),
        ..first
    })
}

/// Each one's own of what they gave together.
fn split(joined: &Forward, passes: &[&Pass], widths: &[usize]) -> Vec<Forward> {
    let games: usize = passes.iter().map(|pass| pass.batch).sum();
    let logits = joined.logits.len() / games.max(1);
    let mut before = 0;
    let part = |pass: &&Pass| {
        let own = before..before + pass.batch;
        before = own.end;
        let state = offsets(widths).flat_map(|(at, width)| {
            let from = games * at + own.start * width;
            &joined.state[from..from + pass.batch * width]
        });
        Forward {
            logits: joined.logits[own.start * logits..own.end * logits].to_vec(),
            state: state.copied().collect(),
            taps: vec![],
        }
    };
    passes.iter().map(part).collect()
}

/// Of each part of a game's state the numbers before it, and its own.
fn offsets(widths: &[usize]) -> impl Iterator<Item = (usize, usize)> {
    widths.iter().scan(0, |before, width| {
        let at = *before;
        *before += width;
        Some((at, *width))
    })
}

/// Of `labels [b, t, n]` those of the last frames, `[b, n]`.
fn last_labels(labels: &[u16], batch: usize, width: usize) -> Vec<u16> {
    let game = labels.len() / batch.max(1);
    labels.chunks_exact(game.max(1)).flat_map(|game| &game[game.len() - width..]).copied().collect()
}
