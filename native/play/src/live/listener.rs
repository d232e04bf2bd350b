//! A teacher that reads the segments of live games.

use std::sync::Arc;

use sconce_nn::backbone::{Context, State};
use sconce_nn::policy::Frames;
use sconce_nn::{Policy, Spec};
use sconce_tensor::{Error, Result};

use crate::learner::Tutor;
use crate::segment::{Heard, Segment};

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
    pub(crate) fn new(Tutor { policy, name, .. }: &Tutor, spec: &Spec) -> Result<Self> {
        let (own, reads) = (&spec.embedding, &policy.spec().embedding);
        if !reads.is_alike(own) {
            let (expected, got) = (format!("{:?}", own.plain()), format!("{reads:?}"));
            return Err(Error::mismatch(format!("embedding of {name}"), expected, got));
        }
        policy.spec().check_carried()?;
        Ok(Listener { policy: policy.clone(), zero: policy.zero_state(1)? })
    }

    /// Records what the teacher sees of a segment for a learner of `spec`, unless it sees the learner's frames, and its
    /// memories. The frames of the segment are not normalised yet. Takes the memory before the segment from `memories`,
    /// which is empty at the start of an episode, and returns the memory after it.
    ///
    /// # Errors
    /// Those of [`Policy::trunk`].
    pub(super) fn listen(
        &self,
        spec: &Spec,
        segment: &mut Segment,
        memories: &mut &[f32],
    ) -> Result<Vec<f32>> {
        let embedding = &self.policy.spec().embedding;
        let mut seen = segment.continuous.clone();
        embedding.normalise(&mut seen);
        let (mut heard, mut after) = (Heard::default(), vec![]);
        if !self.zero.0.is_empty() {
            let state = self.before(memories)?;
            (heard.states, after) = self.remember(&seen, segment, state)?;
        }
        if *embedding != spec.embedding {
            heard.seen = seen;
        }
        segment.heard.push(heard);
        Ok(after)
    }

    /// The first of `memories`, which the others follow; that of a start if there are none.
    fn before(&self, memories: &mut &[f32]) -> Result<State> {
        let size: usize = self.zero.0.iter().map(sconce_tensor::Tensor::elem_count).sum();
        match memories.split_at_checked(size) {
            Some((own, others)) => {
                *memories = others;
                self.zero.with_values(own)
            }
            None => Ok(self.zero.clone()),
        }
    }

    /// The memories before every `stride`-th step, and that after the segment.
    fn remember(
        &self,
        seen: &[f32],
        segment: &Segment,
        mut state: State,
    ) -> Result<(Vec<State>, Vec<f32>)> {
        let (steps, mut all) = (segment.steps, vec![]);
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
            all.push(std::mem::replace(&mut state, after));
        }
        Ok((all, state.to_vec()?))
    }
}

/// Some steps of a column.
fn part<T: Clone>(column: &[T], steps: usize, of: std::ops::Range<usize>) -> Vec<T> {
    let width = column.len() / steps.max(1);
    column[of.start * width..of.end * width].to_vec()
}
