//! The inputs of a policy's matrices while it reads recorded games.

use std::collections::BTreeMap;
use std::mem;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use sconce_data::{Reader, View};
use sconce_nn::packed::{Frame, Game, Plan};
use sconce_nn::policy::Frames;
use sconce_nn::sampling::Sampling;
use sconce_nn::{Policy, Spec};
use sconce_realtime::{Format, Scratch};
use sconce_tensor::rng::Rng;
use sconce_tensor::{Error, Result};

use crate::hessian::{Hessian, Moments};
use crate::stopped;

/// Frames that fill the memory of a policy before its inputs count.
const WARM_UP: usize = 60;

/// The second moments of the inputs of each matrix of a policy, by the name of its weight.
pub type Hessians = BTreeMap<String, Arc<Hessian>>;

/// The samples of a matrix that are not added yet, and the sum of the others.
struct Samples {
    waiting: Vec<f32>,
    moments: Moments,
}

/// Frames of a game that are in memory at once.
const AT_ONCE: usize = 512;

/// Second moments while the policy reads about `frames` frames, from the middle of each game. The memory is carried, and
/// the recorded actions are given. Frames without an answer do not count.
///
/// # Errors
/// `Unavailable` for a policy without packed steps, `Mismatch` for games without frames, `OutOfMemory` and `Cancelled`.
pub fn hessians(
    policy: &Policy,
    views: &[View],
    frame_delay: usize,
    frames: usize,
    cancelled: &AtomicBool,
) -> Result<Hessians> {
    let plan = Plan::of(policy, Format::F32)?.ok_or_else(|| Error::Unavailable {
        what: "a calibration of this policy".into(),
        reason: "its backbone reads whole windows, or a weight is not finite".into(),
    })?;
    let samples = |inputs: usize| Ok(Samples { waiting: vec![], moments: Moments::new(inputs)? });
    let all = plan.matrices().iter().map(|matrix| samples(matrix.inputs));
    let all = Arc::new(Mutex::new(all.collect::<Result<Vec<_>>>()?));
    let counted = Arc::new(AtomicBool::new(false));
    let mut scratch = Scratch::default();
    let (taken, counts) = (all.clone(), counted.clone());
    scratch.listen(Box::new(move |place, x| {
        if counts.load(std::sync::atomic::Ordering::Relaxed) {
            taken.lock().unwrap_or_else(|e| e.into_inner())[place].take(x);
        }
    }));
    let spec = policy.spec();
    let each = frames.div_ceil(views.len().max(1));
    let mut read = 0;
    for view in views {
        stopped(cancelled)?;
        let answered = view.answered(frame_delay);
        let length = answered.len();
        let begin = (length.saturating_sub(each + WARM_UP)) / 2;
        let end = length.min(begin + each + WARM_UP);
        let run = Run { plan: &plan, spec, view, frame_delay, cancelled };
        read += run.play(&answered[begin..end], &mut scratch, &counted)?;
    }
    if read == 0 {
        return Err(Error::mismatch("calibration", "games with frames", "none"));
    }
    drop(scratch);
    let mut all = all.lock().unwrap_or_else(|e| e.into_inner());
    let mut hessians = Hessians::new();
    for (matrix, samples) in plan.matrices().iter().zip(mem::take(&mut *all)) {
        stopped(cancelled)?;
        let hessian = Arc::new(samples.finish());
        hessians.extend(matrix.parts.iter().map(|name| (name.clone(), hessian.clone())));
    }
    Ok(hessians)
}

impl Samples {
    fn take(&mut self, x: &[f32]) {
        self.waiting.extend_from_slice(x);
        if self.waiting.len() >= Moments::AT_ONCE * x.len() {
            self.moments.add(&self.waiting);
            self.waiting.clear();
        }
    }

    fn finish(mut self) -> Hessian {
        self.moments.add(&self.waiting);
        self.moments.finish()
    }
}

/// A game that is read.
struct Run<'a> {
    plan: &'a Plan,
    spec: &'a Spec,
    view: &'a View,
    frame_delay: usize,
    cancelled: &'a AtomicBool,
}

impl Run<'_> {
    /// Steps from the first to the last of these answered frames. Returns the number of frames that counted. The
    /// policy's memory reads the frames between them that have no answer.
    fn play(
        &self,
        answered: &[usize],
        scratch: &mut Scratch,
        counted: &AtomicBool,
    ) -> Result<usize> {
        let Spec { embedding, heads, .. } = self.spec;
        let reader = Reader::new(embedding.clone(), heads.clone(), self.frame_delay);
        let (continuous, ids, previous) =
            (embedding.continuous_width(), embedding.id_slots().len(), heads.num_labels());
        let (mut state, mut decision) = (self.plan.zero_state().to_vec(), self.plan.blank());
        let (sampling, rng) = (Sampling::default(), Rng::new(0, "calibration", 0));
        let mut labels = vec![0.0; heads.num_labels()];
        let mut frames = Frames::default();
        let (Some(first), Some(last)) = (answered.first(), answered.last()) else { return Ok(0) };
        let range = *first..last + 1;
        let (_, counting) = answered.split_at(WARM_UP.min(answered.len() / 2));
        let mut next = counting.iter().peekable();
        for (at, t) in range.clone().enumerate() {
            let counts = next.next_if_eq(&&t).is_some();
            counted.store(counts, std::sync::atomic::Ordering::Relaxed);
            let i = at % AT_ONCE;
            if i == 0 {
                stopped(self.cancelled)?;
                frames = reader.sequence(self.view, t..range.end.min(t + AT_ONCE))?.frames;
            }
            self.view.labels(t, self.frame_delay, false, heads, &mut labels)?;
            let frame = Frame {
                continuous: &frames.continuous[i * continuous..][..continuous],
                ids: &frames.ids[i * ids..][..ids],
                previous: &frames.previous[i * previous..][..previous],
            };
            let mut game = Game::new(frame, &mut state, &sampling, rng, &mut decision);
            game.given = Some(&labels);
            self.plan.step(std::slice::from_mut(&mut game), scratch);
            game.outcome?;
        }
        self.view.verify()?;
        Ok(counting.len())
    }
}
