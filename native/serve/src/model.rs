//! A policy with its packed form, shared by its sessions.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use sconce_nn::Policy;
use sconce_nn::backbone::{Context, State};
use sconce_nn::heads::Decision;
use sconce_nn::packed::{Game, Plan};
use sconce_nn::policy::Frames;
use sconce_nn::sampling::{Draw, Sampling};
use sconce_realtime::{Format, Scratch};
use sconce_tensor::device::{self, Held, Owner};
use sconce_tensor::rng::Rng;
use sconce_tensor::{Error, Result, pool};
use serde::Serialize;

use crate::digest::spec_digest;
use crate::frames::{EmbeddedFrame, window};

/// A policy, its plan if the policy can be packed, and the measured cost of a decision. Sessions share a model.
pub struct Model {
    policy: Arc<Policy>,
    plan: Option<Arc<Plan>>,
    _held: Held,
    /// The state before the first frame.
    zero: State,
    spec_digest: u64,
    /// Version of the weights in a run that learns from play, from the policy's notes.
    version: u64,
    costs: Mutex<Costs>,
}

/// Maximum number of frames that are measured; the cost of a longer window is extrapolated.
const MEASURED: usize = 256;

/// Minimum total time of the measured calls.
const LEAST_MEASURED: Duration = Duration::from_millis(2);

/// Costs in microseconds, each measured once.
#[derive(Default)]
struct Costs {
    step: Option<f64>,
    game: Option<f64>,
    /// Pairs of a window size in frames and its cost.
    windows: Vec<(usize, f64)>,
}

/// Batch size, in games, of the step whose cost per game is measured.
const COMPANY: usize = 32;

/// Cost of a decision, measured on one thread: the minimum of a few calls, which other load on the machine hardly
/// raises.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Cost {
    /// Microseconds of a decision that steps the state by one frame.
    pub step_us: f64,
    /// Microseconds of a decision that reads a whole window.
    pub window_us: f64,
}

/// The last reference may be dropped on any thread; that thread frees the memory on the card.
impl Drop for Model {
    fn drop(&mut self) {
        device::attach(self.policy.device());
    }
}

impl Model {
    /// Packs a policy where possible. On a device other than a CPU the policy is not packed, and its weights are f32.
    ///
    /// # Errors
    /// `Unavailable` for a format other than f32 on such a device.
    pub fn new(policy: Arc<Policy>, weights: Format) -> Result<Self> {
        if !policy.device().is_cpu() {
            return match weights {
                Format::F32 | Format::Stored => Model::unpacked(policy),
                _ => Err(Error::Unavailable {
                    what: "weights of another format than f32".into(),
                    reason: "the policy is not on a CPU".into(),
                }),
            };
        }
        let plan = Plan::of(&policy, weights)?;
        let mut model = Model::unpacked(policy)?;
        model.plan = plan.map(Arc::new);
        Ok(model)
    }

    /// A policy without values of weights ([`Policy::outline`]) and its plan, which makes all decisions.
    pub fn of_plan(outline: Arc<Policy>, plan: Arc<Plan>) -> Result<Self> {
        let mut model = Model::unpacked(outline)?;
        // The outline has no values of a stored initial state.
        model.zero = model.zero.with_values(plan.zero_state())?;
        model.plan = Some(plan);
        Ok(model)
    }

    /// A policy without a plan, stepped by its own ops.
    pub fn unpacked(policy: Arc<Policy>) -> Result<Self> {
        let (zero, spec_digest) = (policy.zero_state(1)?, spec_digest(policy.spec())?);
        let _held = Held::of(Owner::Sessions, &zero.0);
        let version = policy.noted("version").unwrap_or(0) as u64;
        let costs = Mutex::default();
        Ok(Model { policy, plan: None, _held, zero, spec_digest, version, costs })
    }

    /// The policy, as loaded.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The packed policy; `None` if it is stepped by its own ops.
    pub fn plan(&self) -> Option<&Plan> {
        self.plan.as_deref()
    }

    /// Version of the weights in a run that learns from play; 0 for others.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The state of one game before its first frame.
    pub fn zero_state(&self) -> &State {
        &self.zero
    }

    /// Whether a decision depends on frames before its own.
    pub fn remembers(&self) -> bool {
        !self.zero.0.is_empty() || self.policy.spec().is_window_only()
    }

    /// Cost of a decision, with windows of `window_size` frames. The first caller measures it; concurrent callers do
    /// not wait for the result and measure as well.
    pub fn cost(&self, window_size: usize) -> Result<Cost> {
        let step_us = self.step_us()?;
        if !self.remembers() {
            return Ok(Cost { step_us, window_us: step_us });
        }
        let known =
            |costs: &Costs| costs.windows.iter().find(|of| of.0 == window_size).map(|of| of.1);
        if let Some(window_us) = known(&self.costs()) {
            return Ok(Cost { step_us, window_us });
        }
        if self.policy.is_outline() {
            return Ok(Cost { step_us, window_us: step_us * window_size as f64 });
        }
        // Only a part of a long window is measured, because the cost per frame is constant.
        let frames = window_size.min(MEASURED);
        let context = Context::default().forgetting();
        let window_us = self.pass_us(frames, 3, &context)? * (window_size as f64 / frames as f64);
        let mut costs = self.costs();
        if known(&costs).is_none() {
            costs.windows.push((window_size, window_us));
        }
        Ok(Cost { step_us, window_us })
    }

    /// Microseconds of a decision that steps the state by one frame.
    pub fn step_us(&self) -> Result<f64> {
        let known = self.costs().step;
        let us = known.map_or_else(|| self.steps_us(1), Ok)?;
        Ok(*self.costs().step.get_or_insert(us))
    }

    /// Microseconds of a decision that steps the state by one frame, measured anew at each call.
    pub fn measure_step_us(&self) -> Result<f64> {
        self.steps_us(1)
    }

    /// Microseconds per game of a step of many games together. The first call measures them.
    pub fn game_us(&self) -> Result<f64> {
        let known = self.costs().game;
        let us = known.map_or_else(|| self.steps_us(COMPANY), Ok)?;
        Ok(*self.costs().game.get_or_insert(us))
    }

    fn costs(&self) -> MutexGuard<'_, Costs> {
        self.costs.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// A frame for measurements. Half of its values are 0, as in a real frame, because a plan skips zeros.
    fn frame(&self) -> EmbeddedFrame {
        let mut row = EmbeddedFrame::blank(self.policy.spec());
        let rng = Rng::new(0, "measure", 0);
        for (i, number) in row.continuous.iter_mut().enumerate().step_by(2) {
            *number = rng.uniform(i as u64) + 0.01;
        }
        row
    }

    /// Microseconds per game of a step of `games` games together.
    fn steps_us(&self, games: usize) -> Result<f64> {
        let Some(plan) = &self.plan else {
            return match self.policy.steps_games() {
                true => self.games_us(games),
                false => self.pass_us(1, 9, &Context::default()),
            };
        };
        let (row, sampling) = (self.frame(), Sampling::default());
        let mut scratch = Scratch::default();
        let mut of_games = vec![(plan.zero_state().to_vec(), plan.blank()); games];
        let us = least_us(9, || {
            let (frame, rng) = (row.frame(), Rng::new(0, "measure", 0));
            let game = |(state, decision)| Game::new(frame, state, &sampling, rng, decision);
            let mut steps: Vec<Game> = of_games.iter_mut().map(|(s, d)| game((s, d))).collect();
            plan.step(&mut steps, &mut scratch);
            let outcomes: Result<Vec<()>> = steps.into_iter().map(|game| game.outcome).collect();
            if outcomes.is_err() {
                of_games.iter_mut().for_each(|(state, _)| state.copy_from_slice(plan.zero_state()));
            }
            outcomes.map(drop)
        })?;
        Ok(us / games as f64)
    }

    /// Microseconds per game of a step of `games` games by the policy's own ops. A device that records its launches
    /// records this step here, so no decision waits for the recording.
    fn games_us(&self, games: usize) -> Result<f64> {
        let row = self.frame();
        let frames = window(std::iter::repeat_n(row.frame(), games));
        let frames = Frames { batch: games, time: 1, ..frames };
        let states = vec![&self.zero; games];
        let (sampling, rngs) = (Sampling::default(), [Rng::new(0, "measure", 0)]);
        let draws = vec![Draw { sampling: &sampling, rngs: &rngs, given: None, mask: None }; games];
        let us = least_us(9, || {
            let stepped = self.policy.step_games(&frames, &states, &draws)?;
            stepped.into_iter().try_for_each(|one| one.map(drop))
        })?;
        Ok(us / games as f64)
    }

    fn pass_us(&self, frames: usize, calls: usize, context: &Context) -> Result<f64> {
        let (row, sampling) = (self.frame(), Sampling::default());
        let frames = window(std::iter::repeat_n(row.frame(), frames));
        least_us(calls, || {
            let rngs = [Rng::new(0, "measure", 0)];
            let draw = Draw { sampling: &sampling, rngs: &rngs, given: None, mask: None };
            let act = || self.policy.act(&frames, &self.zero, draw, context);
            pool::serial(act).map(drop)
        })
    }

    /// Digest by which a snapshot identifies the Spec.
    pub fn spec_digest(&self) -> u64 {
        self.spec_digest
    }

    /// A decision with the shapes of this policy, to be overwritten.
    pub fn blank(&self) -> Decision {
        let heads = &self.policy.spec().heads;
        Decision {
            logits: vec![0.0; heads.num_logits()],
            choices: heads.least_labels(),
            confidence: vec![0.0; heads.parts.len()],
        }
    }
}

/// The minimum time of a call in microseconds, over more than `calls` calls and at least [`LEAST_MEASURED`]. The first
/// calls warm the caches. Other load on the machine only makes calls longer, so the minimum is the most stable figure.
/// A call that fails because its values are not finite counts as well.
fn least_us(calls: usize, mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut call = || match call() {
        Err(Error::NonFinite { .. }) => Ok(()),
        called => called,
    };
    let (mut least, mut made) = (f64::INFINITY, 0);
    let begin = Instant::now();
    while made <= calls || begin.elapsed() < LEAST_MEASURED {
        let start = Instant::now();
        call()?;
        least = least.min(start.elapsed().as_secs_f64() * 1e6);
        made += 1;
    }
    Ok(least)
}
