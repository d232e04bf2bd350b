//! Forward passes of callers who keep the state themselves.

use std::sync::Arc;

use sconce_core::backbone::Context;
use sconce_core::ops::tensor::to_vec;
use sconce_core::projection::Projection;
use sconce_core::{Policy, Result};
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

/// Of `labels [b, t, n]` those of the last frames, `[b, n]`.
fn last_labels(labels: &[u16], batch: usize, width: usize) -> Vec<u16> {
    let game = labels.len() / batch.max(1);
    labels.chunks_exact(game.max(1)).flat_map(|game| &game[game.len() - width..]).copied().collect()
}
