//! The memory of one running game over a policy.
//!
//! A decision is made in two parts: [`Session::decide`] only reads, [`Session::commit`] makes its
//! result the session's own. A frame that is refused, a decision that came too late or whose numbers are
//! not finite, or a panic on the way so leaves the session as it was.

mod carried;
mod past;
mod ring;
mod snapshot;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use sconce_core::backbone::{Context, State};
use sconce_core::embedding::melee;
use sconce_core::heads::{Decision, NONE};
use sconce_core::policy::Frames;
use sconce_core::pool;
use sconce_core::projection::Projection;
use sconce_core::rng::Rng;
use sconce_core::sampling::{Draw, Sampling};
use sconce_core::spec::Embedding;
use sconce_core::{Error, Policy, Result};
use sconce_realtime::{Format, Plan};
use serde::{Deserialize, Serialize};

use crate::frames::{Row, check_labels, delay_of, window};
use carried::Carried;
use past::Past;
use ring::Ring;

/// How much of the past a decision sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The whole game, its state carried through.
    Carry,
    /// The last `window_size` frames from a zero state, padded at the start with copies of the first.
    Window,
    /// Carried, but every so many frames the state is that of `Window`.
    Resync(u64),
}

/// Where a call runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lane {
    /// On the caller's thread alone: it waits for no other.
    Inline,
    /// On a thread of ours.
    Worker,
}

/// What steps the state by one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Path {
    /// The ops of core, tensor by tensor.
    Core,
    /// The weights packed for this CPU.
    Packed,
}

/// More frames than a game of four minutes has are no window.
const MAX_WINDOW: usize = 1 << 14;
/// A quarter of the millisecond that a call on a scheduler of the VM may take.
const INLINE_US: f64 = 250.0;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    pub mode: Mode,
    pub window_size: usize,
    pub sampling: Sampling,
    pub seed: u64,
    /// How a plan has the weights.
    #[serde(default)]
    pub weights: Format,
    /// None: as measured.
    pub lane: Option<Lane>,
    /// Frames until an input shows beyond the next. None: as the policy was trained.
    pub frame_delay: Option<usize>,
    /// Directions `[n, trunk width]` that the heads do not see.
    #[serde(skip)]
    pub project_out: Option<Vec<f32>>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            mode: Mode::Carry,
            window_size: 60,
            sampling: Sampling::default(),
            seed: 0,
            weights: Format::F32,
            lane: None,
            frame_delay: None,
            project_out: None,
        }
    }
}

impl Options {
    fn validate(&self) -> Result<()> {
        let bounded = |field: &str, n: u64, max: u64| match n {
            n if (1..=max).contains(&n) => Ok(()),
            n => Err(Error::out_of_range(field, n as f64, 1.0, max as f64)),
        };
        bounded("window_size", self.window_size as u64, MAX_WINDOW as u64)?;
        if let Mode::Resync(every) = self.mode {
            bounded("resync", every, u64::from(u32::MAX))?;
        }
        self.sampling.validate()
    }
}

/// What one call changes about one decision.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Overrides {
    pub temperature: Option<f32>,
    pub deterministic: Option<bool>,
    pub deterministic_buttons: Option<bool>,
    pub press_threshold: Option<f32>,
    pub release_threshold: Option<f32>,
    pub seed: Option<u64>,
    /// Labels of the action that led to the frame.
    pub previous: Option<Vec<u16>>,
    /// Labels of the inputs that were given last, the newest first; [`NONE`] for
    /// one that the session shall know itself.
    pub queue: Option<Vec<u16>>,
    /// Labels of an action to score: it becomes the decision, and nothing is drawn.
    pub choices: Option<Vec<u16>>,
    /// Instead of those of the session; none if empty.
    #[serde(skip)]
    pub project_out: Option<Vec<f32>>,
}

impl Overrides {
    fn apply(&self, base: &Sampling) -> Result<Sampling> {
        let sampling = Sampling {
            temperature: self.temperature.unwrap_or(base.temperature),
            deterministic: self.deterministic.unwrap_or(base.deterministic),
            deterministic_buttons: self.deterministic_buttons.unwrap_or(base.deterministic_buttons),
            press_threshold: self.press_threshold.unwrap_or(base.press_threshold),
            release_threshold: self.release_threshold.unwrap_or(base.release_threshold),
        };
        sampling.validate()?;
        Ok(sampling)
    }
}

/// Measured at the opening on one thread, medians of a few calls.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Cost {
    /// A decision that steps the state by one frame.
    pub step_us: f64,
    /// A decision that looks at a whole window.
    pub window_us: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Info {
    pub mode: Mode,
    pub window_size: usize,
    pub frame_delay: usize,
    pub seed: u64,
    /// Decisions made since the session was opened or reset.
    pub frames: u64,
    /// Bytes of the state and of the frames that are kept, without the weights.
    pub bytes: usize,
    /// Where a decision by a step runs, and one by a window.
    pub lane: Lane,
    pub window_lane: Lane,
    /// What makes most decisions; a window is core's.
    pub path: Path,
    /// How the weights of that are written.
    pub weights: Format,
    pub cost: Cost,
}

/// A decision that the session does not know of yet.
#[derive(Debug)]
pub struct Step {
    decision: Decision,
    state: Carried,
    row: Row,
    /// The inputs before the decision.
    past: Past,
}

impl Step {
    pub fn decision(&self) -> &Decision {
        &self.decision
    }
}

/// A decision, and which one it is since the session began, from 1.
#[derive(Debug, Clone, PartialEq)]
pub struct Act {
    pub decision: Decision,
    pub frame: u64,
}

pub struct Session {
    policy: Arc<Policy>,
    /// The policy packed, if it can be.
    plan: Option<Arc<Plan>>,
    options: Options,
    /// The input that led to a frame is so many before the newest.
    delay: usize,
    projection: Option<Arc<Projection>>,
    /// The state before any frame.
    zero: State,
    cost: Cost,
    memory: Memory,
    _live: Live,
}

/// All that changes from one frame to the next.
#[derive(Debug)]
struct Memory {
    seed: u64,
    frames: u64,
    state: Carried,
    /// The latest inputs: the session's decisions, unless a frame or its caller knew better.
    past: Past,
    ring: Ring,
}

impl Session {
    /// A session at the start of a game, with a plan of its own.
    pub fn open(policy: Arc<Policy>, options: Options) -> Result<Self> {
        let plan = Plan::of(&policy, options.weights)?.map(Arc::new);
        Session::with_plan(policy, plan, options)
    }

    /// A session at the start of a game that steps by `plan`, which is of this policy, or without one by
    /// core. Takes a few decisions' time to measure what they cost.
    pub fn with_plan(
        policy: Arc<Policy>,
        plan: Option<Arc<Plan>>,
        options: Options,
    ) -> Result<Self> {
        options.validate()?;
        options.validate()?;
        let cost = measure(&policy, plan.as_deref(), &policy.zero_state(1)?, &options)?;
        Session::with_cost(policy, plan, options, cost)
    }

    /// As [`Session::with_plan`], where it is known what decisions cost.
    pub fn with_cost(
        policy: Arc<Policy>,
        plan: Option<Arc<Plan>>,
        options: Options,
        cost: Cost,
    ) -> Result<Self> {
        options.validate()?;
        let delay = delay_of(&policy, options.frame_delay)?;
        let zero = policy.zero_state(1)?;
        let memory = Memory::new(&policy, plan.as_deref(), &zero, &options, delay)?;
        let projection = projection(&policy, options.project_out.as_deref())?;
        let _live = Live::new();
        Ok(Session { policy, plan, options, delay, projection, zero, cost, memory, _live })
    }

    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Goes on with other weights of the same Spec, and with the memory as it is.
    pub fn adopt(&mut self, policy: &Arc<Policy>, plan: Option<&Arc<Plan>>) -> Result<()> {
        if Arc::ptr_eq(&self.policy, policy) {
            return Ok(());
        }
        if self.policy.spec() != policy.spec() {
            return Err(Error::mismatch("policy", "weights of the session's Spec", "another Spec"));
        }
        if self.plan.is_some() != plan.is_some() {
            let state = self.zero.with_values(&self.memory.state.to_vec()?)?;
            self.memory.state = Carried::new(state, plan.map(Arc::as_ref))?;
        }
        self.policy = policy.clone();
        self.plan = plan.cloned();
        Ok(())
    }

    /// One decision for one raw row.
    ///
    /// # Shapes
    /// `raw [raw_width]`.
    pub fn act(&mut self, raw: &[f32], overrides: &Overrides) -> Result<Act> {
        let step = self.decide(raw, overrides)?;
        Ok(self.commit(step))
    }

    /// What the session would decide; it stays as it is.
    pub fn decide(&self, raw: &[f32], overrides: &Overrides) -> Result<Step> {
        let sampling = overrides.apply(&self.options.sampling)?;
        let past = self.past(raw, overrides)?;
        let row = self.read(raw, overrides, &past)?;
        let seed = overrides.seed.unwrap_or(self.memory.seed);
        // The number of the decision keys the stream: a seed that is given anew with every call does
        // not draw the same numbers at every frame.
        let rng = Rng::new(seed, "act", self.memory.frames);
        let given = overrides.choices.as_deref();
        if let Some(labels) = given {
            check_labels(&self.policy.spec().heads, labels)?;
        }
        let draw = Draw { sampling: &sampling, rngs: &[rng], given };
        let projection = match &overrides.project_out {
            Some(vectors) => projection(&self.policy, Some(vectors))?,
            None => self.projection.clone(),
        };
        let (decision, state) = self.step(&row, draw, projection)?;
        Ok(Step { decision, state, row, past })
    }

    /// Decides on a row behind the state, or on the window that ends with it.
    fn step(
        &self,
        row: &Row,
        draw: Draw<'_>,
        projection: Option<Arc<Projection>>,
    ) -> Result<(Decision, Carried)> {
        let plan = self.plan.as_deref();
        let (frames, state) = match (self.looks_back(), plan, &self.memory.state) {
            (false, Some(plan), Carried::Numbers(state)) => {
                let projection = projection.as_deref();
                let (decision, state) = carried::step(plan, row.view(), state, draw, projection)?;
                return Ok((decision, Carried::Numbers(state)));
            }
            (false, _, Carried::Tensors(state)) => (window(std::iter::once(row.view())), state),
            _ => (self.window(row), &self.zero),
        };
        let context = Context::default().projecting(projection);
        let act = || self.policy.act(&frames, state, draw, &context);
        let (decision, state) = match self.next_lane() {
            Lane::Inline => pool::serial(act),
            Lane::Worker => act(),
        }?;
        Ok((decision, Carried::new(state, plan)?))
    }

    /// Makes a decision of [`Session::decide`] the session's last one. Cannot fail halfway.
    pub fn commit(&mut self, step: Step) -> Act {
        let Step { decision, state, row, past } = step;
        self.memory.ring.push(row.view());
        self.memory.state = state;
        self.memory.past = past;
        self.memory.past.push(&decision.choices);
        self.memory.frames = self.memory.frames.saturating_add(1);
        Act { decision, frame: self.memory.frames }
    }

    /// Back to the start of a game, with the same seed or another.
    pub fn reset(&mut self, seed: Option<u64>) {
        self.memory.seed = seed.unwrap_or(self.memory.seed);
        self.memory.frames = 0;
        self.memory.state = match &self.plan {
            Some(plan) => Carried::Numbers(vec![0.0; plan.state_len()]),
            None => Carried::Tensors(self.zero.clone()),
        };
        self.memory.past.clear();
        self.memory.ring.clear();
    }

    /// Where the next decision runs.
    pub fn next_lane(&self) -> Lane {
        self.lane(if self.looks_back() { self.cost.window_us } else { self.cost.step_us })
    }

    pub fn info(&self) -> Info {
        Info {
            mode: self.options.mode,
            window_size: self.options.window_size,
            frame_delay: self.delay,
            seed: self.memory.seed,
            frames: self.memory.frames,
            bytes: self.memory.bytes(),
            lane: self.lane(self.cost.step_us),
            window_lane: self.lane(self.cost.window_us),
            path: self.path(),
            weights: self.weights(),
            cost: self.cost,
        }
    }

    fn path(&self) -> Path {
        let windows = self.options.mode == Mode::Window && !self.zero.0.is_empty();
        if self.plan.is_some() && !windows { Path::Packed } else { Path::Core }
    }

    fn weights(&self) -> Format {
        let packed = self.plan.as_ref().filter(|_| self.path() == Path::Packed);
        packed.map_or(Format::F32, |plan| plan.format())
    }

    fn lane(&self, cost_us: f64) -> Lane {
        let measured = if cost_us < INLINE_US { Lane::Inline } else { Lane::Worker };
        self.options.lane.unwrap_or(measured)
    }

    /// The inputs before a raw row. The one that led to it is what the call gives, else the row's own;
    /// the others are what the call gives, else what the session decided.
    fn past(&self, raw: &[f32], overrides: &Overrides) -> Result<Past> {
        let spec = self.policy.spec();
        let mut past = self.memory.past.clone();
        if self.has_own(raw)? {
            let mut labels = vec![0; spec.heads.num_labels()];
            spec.embedding.previous_labels(raw, &spec.heads, &mut labels)?;
            past.set(self.delay, &labels);
        }
        if let Some(queue) = &overrides.queue {
            past.give(queue, &spec.heads)?;
        }
        if let Some(labels) = &overrides.previous {
            check_labels(&spec.heads, labels)?;
            past.set(self.delay, labels);
        }
        Ok(past)
    }

    /// Whether a raw row says what led to it, and the heads can read that.
    fn has_own(&self, raw: &[f32]) -> Result<bool> {
        Ok(self.reads_controllers() && melee::previous(melee::row(raw)?).is_some())
    }

    fn reads_controllers(&self) -> bool {
        let spec = self.policy.spec();
        matches!(spec.embedding, Embedding::Melee(_)) && spec.heads.is_controller()
    }

    /// Embeds a raw row behind these inputs.
    fn read(&self, raw: &[f32], overrides: &Overrides, past: &Past) -> Result<Row> {
        let spec = self.policy.spec();
        let depth = spec.embedding.queue_depth();
        let says = |queue: &Vec<u16>| {
            let mut inputs = queue.chunks(spec.heads.num_labels().max(1));
            inputs.nth(self.delay).is_some_and(|input| input.iter().any(|label| *label != NONE))
        };
        let given = overrides.previous.is_some() || overrides.queue.as_ref().is_some_and(says);
        let mut row = match past.get(self.delay) {
            // A frame's own stick need not stand in the middle of a bucket.
            Some(_) if self.has_own(raw)? && !given => Row::embed(spec, raw)?,
            Some(labels) if self.reads_controllers() => {
                let mut controller = [0.0; melee::CONTROLLER_WIDTH];
                melee::controller(labels, &spec.heads, &mut controller)?;
                let mut raw = raw.to_vec();
                melee::set_previous(&mut raw, &controller)?;
                Row::embed(spec, &raw)?
            }
            Some(labels) => Row { previous: labels.to_vec(), ..Row::embed(spec, raw)? },
            None => Row::embed(spec, raw)?,
        };
        if depth > 1 {
            row.write_queue(spec, past.newest(depth))?;
        }
        spec.embedding.write_delay(self.delay, &mut row.continuous)?;
        Ok(row)
    }

    /// Whether the next decision looks at a whole window from a zero state. The first one always does:
    /// a window full of copies of the first frame is how a cold state is warmed.
    fn looks_back(&self) -> bool {
        let remembers = !self.zero.0.is_empty();
        remembers
            && match self.options.mode {
                Mode::Carry => self.memory.frames == 0,
                Mode::Window => true,
                Mode::Resync(every) => self.memory.frames.is_multiple_of(every),
            }
    }

    /// The window that ends with `row`.
    fn window(&self, row: &Row) -> Frames {
        let kept = &self.memory.ring;
        let first = kept.rows().next().unwrap_or_else(|| row.view());
        let missing = (self.options.window_size - 1).saturating_sub(kept.len());
        let rows = std::iter::repeat_n(first, missing).chain(kept.rows());
        window(rows.chain(std::iter::once(row.view())))
    }
}

impl Memory {
    fn new(
        policy: &Policy,
        plan: Option<&Plan>,
        zero: &State,
        options: &Options,
        delay: usize,
    ) -> Result<Self> {
        let spec = policy.spec();
        let ring = Ring::new(kept_frames(zero, options), &Row::blank(spec))?;
        // Those that the policy reads, and back to the one that led to the frame.
        let inputs = spec.embedding.queue_depth().max(delay + 1);
        let past = Past::new(inputs, spec.heads.num_labels());
        let state = Carried::new(zero.clone(), plan)?;
        Ok(Memory { seed: options.seed, frames: 0, state, past, ring })
    }

    fn bytes(&self) -> usize {
        self.state.bytes() + size_of_val(self.past.labels()) + self.ring.bytes()
    }
}

/// Directions for the heads of `policy`; no vectors are none.
fn projection(policy: &Policy, vectors: Option<&[f32]>) -> Result<Option<Arc<Projection>>> {
    match vectors {
        None | Some([]) => Ok(None),
        Some(vectors) => Projection::new(vectors, policy.trunk_width()).map(|p| Some(Arc::new(p))),
    }
}

/// Frames that must be kept besides the present one.
fn kept_frames(zero: &State, options: &Options) -> usize {
    match options.mode {
        _ if zero.0.is_empty() => 0,
        Mode::Carry => 0,
        Mode::Window | Mode::Resync(_) => options.window_size - 1,
    }
}

/// Times decisions on a blank frame, beside any session.
fn measure(policy: &Policy, plan: Option<&Plan>, zero: &State, options: &Options) -> Result<Cost> {
    let blank = Row::blank(policy.spec());
    let cold = zero.to_vec()?;
    let cost = |frames: usize, calls: usize| -> Result<f64> {
        let plan = plan.filter(|_| frames == 1);
        let frames = window(std::iter::repeat_n(blank.view(), frames));
        let mut times = Vec::with_capacity(calls);
        // The first call warms the caches and is not counted.
        for call in 0..=calls {
            let start = Instant::now();
            let rng = Rng::new(options.seed, "measure", 0);
            let draw = Draw { sampling: &options.sampling, rngs: &[rng], given: None };
            match plan {
                Some(plan) => {
                    carried::step(plan, blank.view(), &cold, draw, None)?;
                }
                None => {
                    pool::serial(|| policy.act(&frames, zero, draw, &Context::default()))?;
                }
            }
            if call > 0 {
                times.push(start.elapsed().as_secs_f64() * 1e6);
            }
        }
        times.sort_by(f64::total_cmp);
        Ok(times.get(times.len() / 2).copied().unwrap_or(f64::INFINITY))
    };
    let step_us = cost(1, 9)?;
    let window_us = if zero.0.is_empty() { step_us } else { cost(options.window_size, 3)? };
    Ok(Cost { step_us, window_us })
}

static LIVE: AtomicUsize = AtomicUsize::new(0);

/// Sessions that hold memory at this moment, in the whole process.
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
