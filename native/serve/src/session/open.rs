//! The memory of one running game over a policy.
//!
//! A decision is made in two parts: [`Session::decide`] makes the next moment beside the present one,
//! [`Session::commit`] makes it the present. A frame that is refused, a decision that came too late or whose
//! numbers are not finite, or a panic on the way so leaves the session as it was.

mod carried;
mod many;
mod moments;
mod past;
mod ring;
mod snapshot;

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sconce_core::backbone::Context;
use sconce_core::device;
use sconce_core::embedding::melee;
use sconce_core::heads::{Decision, NONE};
use sconce_core::policy::{Frames, Stepped};
use sconce_core::pool;
use sconce_core::projection::Projection;
use sconce_core::rng::Rng;
use sconce_core::sampling::{Draw, Sampling};
use sconce_core::spec::{Embedding, Spec};
use sconce_core::{Error, Policy, Result};
use sconce_realtime::{Encoding, Format, Game, Packed, Plan, Scratch};
use serde::{Deserialize, Serialize};

use crate::frames::{Row, check_labels, delay_of, window};
use crate::model::{Cost, Model};
use carried::Carried;
pub use many::{Call, decide_many, lane};
use moments::{Moment, Moments};
use past::Past;
use ring::Ring;
pub use snapshot::spec_digest;

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
/// A second of a game, and the moment before a decision that came too late for a caller on another node.
const MAX_ROLLBACK: usize = 61;
/// A quarter of the millisecond that a call on a scheduler of the VM may take.
pub(crate) const INLINE_US: f64 = 250.0;
/// That millisecond: no decision that takes longer runs on a scheduler, whatever lane was asked for. Decisions of
/// 2.5 ms there delayed all other processes of the VM by 33 ms.
pub const MAX_INLINE_US: f64 = 1000.0;

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
    /// None: as measured. Inline is refused for decisions beyond [`MAX_INLINE_US`]; a window beyond it, of a session
    /// that steps otherwise, runs on a worker.
    pub lane: Option<Lane>,
    /// Decisions that may be taken back.
    #[serde(default)]
    pub rollback: usize,
    /// Frames until an input shows beyond the next. None: as the policy was trained.
    pub frame_delay: Option<usize>,
    /// Directions `[n, trunk width]` that the heads do not see.
    #[serde(skip)]
    pub project_out: Option<Vec<f32>>,
}

impl Options {
    fn validate(&self) -> Result<()> {
        let bounded = |field: &str, n: u64, max: u64| match n {
            n if (1..=max).contains(&n) => Ok(()),
            n => Err(Error::out_of_range(field, n as f64, 1.0, max as f64)),
        };
        bounded("window_size", self.window_size as u64, MAX_WINDOW as u64)?;
        if self.rollback > MAX_ROLLBACK {
            let max = MAX_ROLLBACK as f64;
            return Err(Error::out_of_range("rollback", self.rollback as f64, 0.0, max));
        }
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
    /// The game's number of the frame, which rises: asked again for one that the session remembers, it answers
    /// what it decided.
    pub game_frame: Option<i64>,
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

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Info {
    pub mode: Mode,
    pub window_size: usize,
    pub frame_delay: usize,
    pub seed: u64,
    /// Decisions made since the session was opened or reset.
    pub frames: u64,
    pub rollback: usize,
    /// Bytes of the state and of the frames that are kept, without the weights.
    pub bytes: usize,
    /// Where a decision by a step runs, and one by a window.
    pub lane: Lane,
    pub window_lane: Lane,
    /// What makes most decisions; a window is core's.
    pub path: Path,
    /// How the weights of that are written.
    pub weights: Encoding,
    /// How each matrix of that is.
    pub matrices: Vec<Packed>,
    pub cost: Cost,
}

/// A decision, and which one it is since the session began, from 1.
#[derive(Debug, Clone, PartialEq)]
pub struct Act {
    pub decision: Decision,
    pub frame: u64,
}

pub struct Session {
    model: Arc<Model>,
    options: Options,
    /// The input that led to a frame is so many before the newest.
    delay: usize,
    projection: Option<Arc<Projection>>,
    cost: Cost,
    seed: u64,
    moments: Moments,
    ring: Ring,
    asked: Asked,
    _live: Live,
}

/// What the decision that is being made was asked for.
struct Asked {
    way: Way,
    row: Row,
    /// A raw row whose previous action was put in its place.
    raw: Vec<f32>,
    sampling: Sampling,
    rng: Rng,
    projection: Option<Arc<Projection>>,
}

/// How a decision is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// None is being made: the answer is the decision so many before the present one.
    Made(usize),
    /// By a step of the plan.
    Plan,
    /// By a step together with other games, on a card.
    Games,
    /// By core, behind the state or on a window.
    Core,
}

thread_local! {
    /// Of whatever plan this thread steps: sessions come and go by the thousand.
    pub(crate) static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl Session {
    /// A session at the start of a game, with a plan of its own.
    pub fn open(policy: Arc<Policy>, options: Options) -> Result<Self> {
        let model = Model::new(policy, options.weights)?;
        Session::over(Arc::new(model), options)
    }

    /// A session at the start of a game. The first over a model takes a few decisions' time to measure what they
    /// cost.
    pub fn over(model: Arc<Model>, options: Options) -> Result<Self> {
        options.validate()?;
        let policy = model.policy();
        if options.lane == Some(Lane::Inline) && !policy.device().is_cpu() {
            let reason = "the policy is not on a CPU".into();
            return Err(Error::Unavailable { what: "lane inline".into(), reason });
        }
        let (spec, delay) = (policy.spec(), delay_of(policy, options.frame_delay)?);
        let cost = model.cost(options.window_size)?;
        let windows = options.mode == Mode::Window && model.remembers();
        check_inline(options.lane, if windows { cost.window_us } else { cost.step_us })?;
        let projection = projection(policy, options.project_out.as_deref())?;
        let row = Row::blank(spec);
        let ring = Ring::new(kept_frames(&model, &options), &row)?;
        let moments = Moments::new(beginning(&model, delay)?, options.rollback)?;
        let asked = Asked {
            way: Way::Made(0),
            row,
            raw: Vec::with_capacity(spec.embedding.raw_width()),
            sampling: options.sampling.clone(),
            rng: Rng::new(options.seed, "act", 0),
            projection: None,
        };
        let (seed, _live) = (options.seed, Live::new());
        Ok(Session { model, options, delay, projection, cost, seed, moments, ring, asked, _live })
    }

    pub fn policy(&self) -> &Policy {
        self.model.policy()
    }

    /// Whether it decides by this model.
    pub fn is_of(&self, model: &Arc<Model>) -> bool {
        Arc::ptr_eq(&self.model, model)
    }

    /// Goes on with the weights of another model of the same Spec; true if it is another. What the session was
    /// [asked](Self::ask) is forgotten then.
    pub fn adopt(&mut self, model: &Arc<Model>) -> Result<bool> {
        if self.is_of(model) {
            return Ok(false);
        }
        if self.policy().spec() != model.policy().spec() {
            return Err(Error::mismatch("Spec of the new weights", "the session's", "another"));
        }
        if self.model.plan().is_some() != model.plan().is_some() {
            let now = self.moments.now().clone();
            let state = model.zero_state().with_values(&now.state.to_vec()?)?;
            let state = Carried::new(state, model.plan())?;
            // Those before are in the form of the model before.
            self.moments = Moments::new(Moment { state, ..now }, self.options.rollback)?;
            self.cost = model.cost(self.options.window_size)?;
        }
        (self.model, self.asked.way) = (model.clone(), Way::Made(0));
        Ok(true)
    }

    /// Ends it where that may take its time.
    pub fn leave(self: Box<Self>) {
        device::leave(self.policy().device().clone(), self);
    }

    /// One decision for one raw row.
    ///
    /// # Shapes
    /// `raw [raw_width]`.
    pub fn act(&mut self, raw: &[f32], overrides: &Overrides) -> Result<Act> {
        self.decide(raw, overrides)?;
        self.commit();
        let (decision, frame) = self.last();
        Ok(Act { decision: decision.clone(), frame })
    }

    /// Makes the next decision; until [`Session::commit`] the session does not know of it. A step of a plan takes
    /// no memory, unless directions come with the call.
    pub fn decide(&mut self, raw: &[f32], overrides: &Overrides) -> Result<()> {
        self.ask(raw, overrides)?;
        let made = match self.asked.way {
            Way::Made(_) => return Ok(()),
            Way::Plan => self.step(overrides),
            Way::Games => many::decide_one(self, overrides),
            Way::Core => self.step_by_core(overrides),
        };
        made.inspect_err(|_| self.asked.way = Way::Made(0))
    }

    /// Reads what a decision needs; after it the way is known. Who asks here decides by [`decide_many`], with
    /// [`Call::asked`].
    pub fn ask(&mut self, raw: &[f32], overrides: &Overrides) -> Result<()> {
        self.asked.way = Way::Made(0);
        if let Some(behind) = self.made(overrides.game_frame)? {
            self.asked.way = Way::Made(behind);
            return Ok(());
        }
        self.asked.sampling = overrides.apply(&self.options.sampling)?;
        if let Some(labels) = overrides.choices.as_deref() {
            check_labels(&self.policy().spec().heads, labels)?;
        }
        self.asked.projection = match &overrides.project_out {
            Some(vectors) => projection(self.policy(), Some(vectors))?,
            None => self.projection.clone(),
        };
        self.read_past(raw, overrides)?;
        self.read(raw, overrides)?;
        // The number of the decision keys the stream: a seed that is given anew with every call does
        // not draw the same numbers at every frame.
        let seed = overrides.seed.unwrap_or(self.seed);
        self.asked.rng = Rng::new(seed, "act", self.moments.now().frames);
        self.asked.way = match self.looks_back() {
            false if self.model.plan().is_some() => Way::Plan,
            false if self.asked.projection.is_none() && self.policy().steps_games() => Way::Games,
            _ => Way::Core,
        };
        Ok(())
    }

    /// How many decisions ago that of a game's frame was made, if it was.
    fn made(&self, game_frame: Option<i64>) -> Result<Option<usize>> {
        let (Some(asked), Some(last)) = (game_frame, self.moments.now().game_frame) else {
            return Ok(None);
        };
        if asked > last {
            return Ok(None);
        }
        // Decisions without a number go with the one before them.
        let made = self.moments.latest().enumerate().filter(|(_, m)| m.game_frame == Some(asked));
        match made.last() {
            Some((behind, _)) => Ok(Some(behind)),
            None => Err(self.not_kept(asked)),
        }
    }

    /// The error for a frame of a game whose decision cannot be had any more.
    fn not_kept(&self, game_frame: i64) -> Error {
        let numbers = self.moments.latest().filter_map(|moment| moment.game_frame);
        let what = format!("decision for the game's frame {game_frame}");
        let kept: Vec<String> = numbers.map(|frame| frame.to_string()).collect();
        let reason = format!("the session keeps those for {}, see rollback", kept.join(", "));
        Error::not_found(format!("{what} ({reason})"))
    }

    /// A step of the plan, once it was [asked](Self::ask) for.
    fn step(&mut self, overrides: &Overrides) -> Result<()> {
        let Session { model, moments, asked, .. } = self;
        let Some(plan) = model.plan() else { return Err(Error::not_found("plan")) };
        let Some(mut game) = game(plan, moments, asked, overrides) else {
            return Err(Error::not_found("plan"));
        };
        SCRATCH.with_borrow_mut(|scratch| plan.step(std::slice::from_mut(&mut game), scratch));
        game.outcome
    }

    /// How what was [asked](Self::ask) is drawn.
    fn draw<'a>(&'a self, overrides: &'a Overrides) -> Draw<'a> {
        let Asked { sampling, rng, .. } = &self.asked;
        let given = overrides.choices.as_deref();
        Draw { sampling, rngs: std::slice::from_ref(rng), given }
    }

    /// What a [step with others](Way::Games) gave.
    fn stepped(&mut self, (decision, state): Stepped) {
        let (_, next) = self.moments.next();
        (next.decision, next.state) = (decision, Carried::tensors(state));
    }

    /// A decision by core, on the row behind the state or on the window that ends with it.
    fn step_by_core(&mut self, overrides: &Overrides) -> Result<()> {
        let draw = self.draw(overrides);
        let mut context = Context::default().projecting(self.asked.projection.clone());
        let windows = self.windows();
        if windows {
            context = context.forgetting();
        }
        let (policy, row) = (self.model.policy(), &self.asked.row);
        let (frames, state) = match &self.moments.now().state {
            Carried::Tensors { state, .. } if !self.looks_back() => {
                (window(std::iter::once(row.view())), state)
            }
            _ => (self.window(row), self.model.zero_state()),
        };
        let act = || policy.act(&frames, state, draw, &context);
        let (decision, state) = match self.next_lane() {
            Lane::Inline => pool::serial(act),
            Lane::Worker => act(),
        }?;
        // Each window begins anew: what it ends with is nothing to the next.
        let state = (!windows).then(|| Carried::new(state, self.model.plan())).transpose()?;
        let (_, next) = self.moments.next();
        next.decision = decision;
        if let Some(state) = state {
            next.state = state;
        }
        Ok(())
    }

    /// Makes a decision of [`Session::decide`] the session's last one. Cannot fail halfway.
    pub fn commit(&mut self) {
        if matches!(self.asked.way, Way::Made(_)) {
            return;
        }
        let (now, next) = self.moments.next();
        next.frames = now.frames.saturating_add(1);
        next.past.push(&next.decision.choices);
        self.moments.advance(self.asked.way == Way::Plan);
        self.ring.push(self.asked.row.view());
        self.asked.way = Way::Made(0);
    }

    /// The answer to the last call, and which decision it was, from 1; 0 if there is none.
    pub fn last(&self) -> (&Decision, u64) {
        let behind = match self.asked.way {
            Way::Made(behind) => behind,
            Way::Plan | Way::Games | Way::Core => 0,
        };
        let moment = self.moments.latest().nth(behind).unwrap_or(self.moments.now());
        (&moment.decision, moment.frames)
    }

    /// Takes back the decisions of a game's frame and of those after it, and says how many. They are drawn again
    /// with the same numbers.
    ///
    /// # Errors
    /// `NotFound` for a frame before the last `rollback` decisions.
    pub fn rollback(&mut self, game_frame: i64) -> Result<usize> {
        let after = |moment: &&Moment| moment.game_frame.is_some_and(|frame| frame >= game_frame);
        let count = self.moments.latest().take_while(after).count();
        if count == self.moments.latest().count() {
            return Err(self.not_kept(game_frame));
        }
        self.take_back(count);
        Ok(count)
    }

    /// Takes back what was decided after the first `frames` decisions, for a caller that never heard of it.
    pub fn back_to(&mut self, frames: u64) -> Result<()> {
        let now = self.moments.now().frames;
        let oldest = now - (self.moments.latest().count() as u64 - 1).min(now);
        if frames < oldest {
            let (asked, oldest, now) = (frames as f64, oldest as f64, now as f64);
            return Err(Error::out_of_range("frames", asked, oldest, now));
        }
        self.take_back(now.saturating_sub(frames) as usize);
        Ok(())
    }

    fn take_back(&mut self, count: usize) {
        self.moments.back(count);
        self.ring.forget(count);
        self.asked.way = Way::Made(0);
    }

    /// Back to the start of a game, with the same seed or another.
    pub fn reset(&mut self, seed: Option<u64>) -> Result<()> {
        let first = beginning(&self.model, self.delay)?;
        self.seed = seed.unwrap_or(self.seed);
        self.moments.begin(first);
        self.ring.clear();
        self.asked.way = Way::Made(0);
        Ok(())
    }

    /// Whether the next decision is a step of the plan.
    pub fn steps(&self) -> bool {
        self.model.plan().is_some() && !self.looks_back()
    }

    /// Where the next decision runs.
    pub fn next_lane(&self) -> Lane {
        self.lane(self.next_us())
    }

    /// What the next decision costs.
    fn next_us(&self) -> f64 {
        if self.looks_back() { self.cost.window_us } else { self.cost.step_us }
    }

    pub fn info(&self) -> Info {
        Info {
            mode: self.options.mode,
            window_size: self.options.window_size,
            frame_delay: self.delay,
            seed: self.seed,
            frames: self.moments.now().frames,
            rollback: self.options.rollback,
            bytes: self.moments.bytes() + self.ring.bytes(),
            lane: self.lane(self.cost.step_us),
            window_lane: self.lane(self.cost.window_us),
            path: self.path(),
            weights: self.packed().map_or(Encoding::F32, Plan::encoding),
            matrices: self.packed().map_or(vec![], |plan| plan.matrices().to_vec()),
            cost: self.cost,
        }
    }

    fn path(&self) -> Path {
        let packed = self.model.plan().is_some() && !self.windows();
        if packed { Path::Packed } else { Path::Core }
    }

    /// Whether every decision looks at a window, and nothing is remembered but its frames.
    fn windows(&self) -> bool {
        self.options.mode == Mode::Window && self.model.remembers()
    }

    /// What makes most decisions, if it is a plan.
    fn packed(&self) -> Option<&Plan> {
        self.model.plan().filter(|_| self.path() == Path::Packed)
    }

    fn lane(&self, cost_us: f64) -> Lane {
        // A scheduler never waits for a card.
        let most = match self.options.lane {
            Some(Lane::Inline) if self.policy().device().is_cpu() => MAX_INLINE_US,
            None if self.policy().device().is_cpu() => INLINE_US,
            _ => 0.0,
        };
        if cost_us < most { Lane::Inline } else { Lane::Worker }
    }

    /// Writes to the next moment the inputs before a raw row. The one that led to it is what the call gives, else
    /// the row's own; the others are what the call gives, else what the session decided.
    fn read_past(&mut self, raw: &[f32], overrides: &Overrides) -> Result<()> {
        let Session { model, moments, delay, .. } = self;
        let (spec, delay) = (model.policy().spec(), *delay);
        let (now, next) = moments.next();
        let past = &mut next.past;
        past.copy(&now.past);
        next.game_frame = overrides.game_frame.or(now.game_frame);
        if has_own(spec, raw)? {
            past.set_from(delay, |labels| {
                spec.embedding.previous_labels(raw, &spec.heads, labels).map(drop)
            })?;
        }
        if let Some(queue) = &overrides.queue {
            past.give(queue, &spec.heads)?;
        }
        if let Some(labels) = &overrides.previous {
            check_labels(&spec.heads, labels)?;
            past.set(delay, labels);
        }
        Ok(())
    }

    /// Embeds a raw row behind the inputs of the next moment.
    fn read(&mut self, given_raw: &[f32], overrides: &Overrides) -> Result<()> {
        let Session { model, moments, delay, asked, .. } = self;
        let Asked { row, raw, .. } = asked;
        let (spec, delay) = (model.policy().spec(), *delay);
        let past = &moments.next().1.past;
        let depth = spec.embedding.queue_depth();
        let says = |queue: &Vec<u16>| {
            let mut inputs = queue.chunks(spec.heads.num_labels().max(1));
            inputs.nth(delay).is_some_and(|input| input.iter().any(|label| *label != NONE))
        };
        let given = overrides.previous.is_some() || overrides.queue.as_ref().is_some_and(says);
        match past.get(delay) {
            // A frame's own stick need not stand in the middle of a bucket.
            Some(_) if has_own(spec, given_raw)? && !given => row.read(spec, given_raw)?,
            Some(labels) if reads_controllers(spec) => {
                let mut controller = [0.0; melee::CONTROLLER_WIDTH];
                melee::controller(labels, &spec.heads, &mut controller)?;
                raw.clear();
                raw.extend_from_slice(given_raw);
                melee::set_previous(raw, &controller)?;
                row.read(spec, raw)?;
            }
            Some(labels) => {
                row.read(spec, given_raw)?;
                row.previous.copy_from_slice(labels);
            }
            None => row.read(spec, given_raw)?,
        }
        if depth > 1 {
            row.write_queue(spec, past.newest(depth))?;
        }
        spec.embedding.write_delay(delay, &mut row.continuous)
    }

    /// Whether the next decision looks at a whole window from a zero state. The first one always does:
    /// a window full of copies of the first frame is how a cold state is warmed.
    fn looks_back(&self) -> bool {
        let frames = self.moments.now().frames;
        self.model.remembers()
            && match self.options.mode {
                Mode::Carry => frames == 0,
                Mode::Window => true,
                Mode::Resync(every) => frames.is_multiple_of(every),
            }
    }

    /// The window that ends with `row`.
    fn window(&self, row: &Row) -> Frames {
        let before = self.options.window_size - 1;
        let mut kept = self.ring.newest(before).peekable();
        let first = kept.peek().copied().unwrap_or_else(|| row.view());
        let missing = before.saturating_sub(self.ring.len());
        let rows = std::iter::repeat_n(first, missing).chain(kept);
        window(rows.chain(std::iter::once(row.view())))
    }
}

/// The game of a step of the plan, from the present state to the next moment.
fn game<'a>(
    plan: &Plan,
    moments: &'a mut Moments,
    asked: &'a Asked,
    overrides: &'a Overrides,
) -> Option<Game<'a>> {
    let (now, next) = moments.next();
    let steps = next.steps_to(now);
    next.run = None;
    let Moment { state, decision, .. } = next;
    let (Carried::Numbers(now), Carried::Numbers(state)) = (&now.state, state) else {
        return None;
    };
    match steps {
        // Of a state that was some steps before, what they changed.
        Some(steps) => plan.catch_up(state, now, steps),
        None => state.copy_from_slice(now),
    }
    let frame = asked.row.view().frame();
    let mut game = Game::new(frame, state, &asked.sampling, asked.rng, decision);
    game.given = overrides.choices.as_deref();
    game.projection = asked.projection.as_deref();
    Some(game)
}

/// Whether a raw row says what led to it, and the heads can read that.
fn has_own(spec: &Spec, raw: &[f32]) -> Result<bool> {
    Ok(reads_controllers(spec) && melee::previous(melee::row(raw)?).is_some())
}

fn reads_controllers(spec: &Spec) -> bool {
    matches!(spec.embedding, Embedding::Melee(_)) && spec.heads.is_controller()
}

/// The moment before the first frame.
fn beginning(model: &Model, delay: usize) -> Result<Moment> {
    let spec = model.policy().spec();
    // Those that the policy reads, and back to the one that led to the frame.
    let inputs = spec.embedding.queue_depth().max(delay + 1);
    let past = Past::new(inputs, spec.heads.num_labels());
    let state = Carried::new(model.zero_state().clone(), model.plan())?;
    let decision = model.blank();
    Ok(Moment { frames: 0, game_frame: None, state, past, decision, run: None })
}

/// Directions for the heads of `policy`; no vectors are none.
fn projection(policy: &Policy, vectors: Option<&[f32]>) -> Result<Option<Arc<Projection>>> {
    match vectors {
        None | Some([]) => Ok(None),
        Some(vectors) => Projection::new(vectors, policy.trunk_width()).map(|p| Some(Arc::new(p))),
    }
}

/// Frames that must be kept besides the present one.
fn kept_frames(model: &Model, options: &Options) -> usize {
    match options.mode {
        _ if !model.remembers() => 0,
        Mode::Carry => 0,
        Mode::Window | Mode::Resync(_) => options.window_size - 1 + options.rollback,
    }
}

/// Refuses the inline lane for decisions that cost more than [`MAX_INLINE_US`].
pub(crate) fn check_inline(lane: Option<Lane>, cost_us: f64) -> Result<()> {
    match lane {
        Some(Lane::Inline) if cost_us >= MAX_INLINE_US => {
            let what = "microseconds of a decision (lane: inline)";
            Err(Error::out_of_range(what, cost_us.round(), 0.0, MAX_INLINE_US))
        }
        _ => Ok(()),
    }
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
