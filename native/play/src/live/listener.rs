//! A teacher that reads the segments of live games.

use std::sync::Arc;

use sconce_nn::backbone::{Context, State};
use sconce_nn::policy::Frames;
use sconce_nn::{Policy, Spec};
use sconce_tensor::{Error, Result};

use crate::segment::Segment;

/// A teacher that reads the segments of live games.
pub(crate) struct Listener {
    policy: Arc<Policy>,
    /// Its memory at the start of an episode.
    zero: State,
}

impl Listener {
    /// A teacher of policies of `spec`.
    ///
    /// # Errors
    /// `Mismatch` for one that reads other frames, or whose memory cannot be carried from segment to segment.
    pub(crate) fn new(policy: &Arc<Policy>, spec: &Spec) -> Result<Self> {
        let (own, reads) = (&spec.embedding, &policy.spec().embedding);
        if !reads.is_alike(own) {
            let (expected, got) = (format!("{:?}", own.plain()), format!("{reads:?}"));
            return Err(Error::mismatch("embedding of the teacher", expected, got));
        }
        policy.spec().check_carried()?;
        Ok(Listener { policy: policy.clone(), zero: policy.zero_state(1)? })
    }

    /// Records what the teacher sees of a segment for a learner of `spec`, unless it sees the learner's frames, and its
    /// memories. The frames of the segment are not normalised yet. `memory` is that before the segment, empty at the
    /// start of an episode, and becomes that after it.
    ///
    /// # Errors
    /// Those of [`Policy::trunk`].
    pub(super) fn listen(
        &self,
        spec: &Spec,
        segment: &mut Segment,
        memory: &mut Vec<f32>,
    ) -> Result<()> {
        let embedding = &self.policy.spec().embedding;
        let mut seen = segment.continuous.clone();
        embedding.normalise(&mut seen);
        if !self.zero.0.is_empty() {
            self.remember(&seen, segment, memory)?;
        }
        if *embedding != spec.embedding {
            segment.seen = seen;
        }
        Ok(())
    }

    /// Records the memories before every `stride`-th step.
    fn remember(&self, seen: &[f32], segment: &mut Segment, memory: &mut Vec<f32>) -> Result<()> {
        let mut state = match memory.is_empty() {
            true => self.zero.clone(),
            false => self.zero.with_values(memory)?,
        };
        let steps = segment.steps;
        for from in (0..steps).step_by(segment.stride) {
            let to = steps.min(from + segment.stride);
            let frames = Frames {
                batch: 1,
                time: to - from,
                continuous: part(seen, steps, from..to),
                ids: part(&segment.ids, steps, from..to),
                previous: part(&segment.previous, steps, from..to),
            };
            let after = self.policy.trunk(&frames, &state, &Context::default())?.1;
            segment.teacher_states.push(std::mem::replace(&mut state, after));
        }
        *memory = state.to_vec()?;
        Ok(())
    }
}

/// Some steps of a column.
fn part<T: Clone>(column: &[T], steps: usize, of: std::ops::Range<usize>) -> Vec<T> {
    let width = column.len() / steps.max(1);
    column[of.start * width..of.end * width].to_vec()
}
