//! A session over a model: its fields, its start and its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sconce_nn::Policy;
use sconce_nn::projection::Projection;
use sconce_tensor::rng::Rng;
use sconce_tensor::{Error, Result, device};

use super::carried::Carried;
use super::moments::{Moment, Moments};
use super::options::{Lane, Mode, Options, check_inline};
use super::past::Past;
use super::query::{Query, Way};
use super::recorder::Recorder;
use super::ring::Ring;
use crate::frames::{EmbeddedFrame, delay_of};
use crate::model::{Cost, Model};

/// The memory of one running game over a [`Model`].
pub struct Session {
    pub(super) model: Arc<Model>,
    pub(super) options: Options,
    /// Index of the input that led to a frame, counted back from the newest input.
    pub(super) delay: usize,
    pub(super) projection: Option<Arc<Projection>>,
    pub(super) cost: Cost,
    pub(super) seed: u64,
    pub(super) moments: Moments,
    pub(super) ring: Ring,
    pub(super) asked: Query,
    pub(super) recorder: Option<Box<Recorder>>,
    _live: Live,
}

impl Session {
    /// A session at the start of a game, with its own packed copy of the policy.
    pub fn open(policy: Arc<Policy>, options: Options) -> Result<Self> {
        let model = Model::new(policy, options.weights)?;
        Session::over(Arc::new(model), options)
    }

    /// A session at the start of a game. The first session over a model measures the cost of a decision, which takes
    /// the time of a few decisions.
    pub fn over(model: Arc<Model>, options: Options) -> Result<Self> {
        options.validate()?;
        let policy = model.policy();
        if options.lane == Some(Lane::Inline) && !policy.device().is_cpu() {
            let reason = "the policy is not on a CPU".into();
            return Err(Error::Unavailable { what: "lane inline".into(), reason });
        }
        let (spec, delay) = (policy.spec(), delay_of(policy, options.frame_delay)?);
        if options.mode != Mode::Window {
            spec.check_carried()?;
        }
        let cost = model.cost(options.window_size)?;
        let windows = options.mode == Mode::Window && model.remembers();
        check_inline(options.lane, if windows { cost.window_us } else { cost.step_us })?;
        let projection = projection(policy, options.project_out.as_deref())?;
        let row = EmbeddedFrame::blank(spec);
        let ring = Ring::new(kept_frames(&model, &options), &row)?;
        let moments = Moments::new(beginning(&model, delay)?, options.rollback)?;
        let asked = Query {
            way: Way::Made(0),
            reads_inputs: spec.embedding.reads_inputs(&spec.heads),
            row,
            raw: Vec::with_capacity(spec.embedding.raw_width()),
            sampling: options.sampling.clone(),
            rng: Rng::new(options.seed, "act", 0),
            projection: None,
        };
        let (seed, _live) = (options.seed, Live::new());
        let recorder = None;
        Ok(Session {
            model,
            options,
            delay,
            projection,
            cost,
            seed,
            moments,
            ring,
            asked,
            recorder,
            _live,
        })
    }

    /// The policy that decides.
    pub fn policy(&self) -> &Policy {
        self.model.policy()
    }

    /// Whether the session uses this model.
    pub fn is_of(&self, model: &Arc<Model>) -> bool {
        Arc::ptr_eq(&self.model, model)
    }

    /// Continues with the weights and statistics of another model of the same Spec. Returns true if the model differs from the
    /// present one; a pending [`ask`](Self::ask) is then dropped.
    pub fn adopt(&mut self, model: &Arc<Model>) -> Result<bool> {
        if self.is_of(model) {
            return Ok(false);
        }
        if !self.policy().spec().is_alike(model.policy().spec()) {
            return Err(Error::mismatch("Spec of the new weights", "the session's", "another"));
        }
        if self.model.plan().is_some() != model.plan().is_some() {
            let now = self.moments.now().clone();
            let state = model.zero_state().with_values(&now.state.to_vec()?)?;
            let state = Carried::new(state, model.plan())?;
            // Earlier moments have states in the form of the old model and are dropped.
            self.moments = Moments::new(Moment { state, ..now }, self.options.rollback)?;
            self.cost = model.cost(self.options.window_size)?;
        }
        (self.model, self.asked.way) = (model.clone(), Way::Made(0));
        Ok(true)
    }

    /// Drops the session. A session on a card is dropped on another thread, because freeing waits for the driver.
    pub fn leave(self: Box<Self>) {
        device::leave(self.policy().device().clone(), self);
    }

    /// Returns to the start of a game, with the same seed or another.
    pub fn reset(&mut self, seed: Option<u64>) -> Result<()> {
        let first = beginning(&self.model, self.delay)?;
        self.seed = seed.unwrap_or(self.seed);
        self.moments.begin(first);
        self.forget_recorded();
        self.ring.clear();
        self.asked.way = Way::Made(0);
        Ok(())
    }
}

/// The moment before the first frame.
fn beginning(model: &Model, delay: usize) -> Result<Moment> {
    let spec = model.policy().spec();
    // Keeps the inputs that the policy reads, and the one that led to the frame.
    let inputs = spec.embedding.queue_depth().max(delay + 1);
    let past = Past::new(inputs, spec.heads.num_labels());
    let state = Carried::new(model.zero_state().clone(), model.plan())?;
    let decision = model.blank();
    Ok(Moment { frames: 0, game_frame: None, state, past, decision, run: None })
}

/// A projection for the heads of `policy`; `None` if there are no vectors.
pub(super) fn projection(
    policy: &Policy,
    vectors: Option<&[f32]>,
) -> Result<Option<Arc<Projection>>> {
    match vectors {
        None | Some([]) => Ok(None),
        Some(vectors) => Projection::new(vectors, policy.trunk_width()).map(|p| Some(Arc::new(p))),
    }
}

/// Number of frames kept besides the present one.
pub(super) fn kept_frames(model: &Model, options: &Options) -> usize {
    match options.mode {
        _ if !model.remembers() => 0,
        Mode::Carry => 0,
        Mode::Window | Mode::Resync(_) => options.window_size - 1 + options.rollback,
    }
}

static LIVE: AtomicUsize = AtomicUsize::new(0);

/// Number of sessions alive in this process.
pub fn live() -> usize {
    LIVE.load(Ordering::Acquire)
}

struct Live;

impl Live {
    fn new() -> Self {
        LIVE.fetch_add(1, Ordering::AcqRel);
        Live
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        LIVE.fetch_sub(1, Ordering::AcqRel);
    }
}
