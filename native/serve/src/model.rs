//! What sessions step by: a policy, and the same packed.

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

/// A policy, its plan if it can be packed, and what decisions cost here: all that its sessions share.
pub struct Model {
    policy: Arc<Policy>,
    plan: Option<Plan>,
    _held: Held,
    /// The state before any frame.
    zero: State,
    spec_digest: u64,
    costs: Mutex<Costs>,
}

/// Frames of a window that are measured.
const MEASURED: usize = 256;

/// What cheap calls are measured for.
const LEAST_MEASURED: Duration = Duration::from_millis(2);

/// Microseconds, measured once.
#[derive(Default)]
struct Costs {
    step: Option<f64>,
    game: Option<f64>,
    /// By the frames of a window.
    windows: Vec<(usize, f64)>,
}

/// Games whose common step is measured.
const COMPANY: usize = 32;

/// Measured on one thread: the least of a few calls, to which other work on the machine adds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Cost {
    /// A decision that steps the state by one frame.
    pub step_us: f64,
    /// A decision that looks at a whole window.
    pub window_us: f64,
}

/// Whoever has it last, on whatever thread, frees what it has on a card.
impl Drop for Model {
    fn drop(&mut self) {
        device::attach(self.policy.device());
    }
}

impl Model {
    /// Packs a policy where it can be. On another device than a CPU it is not, and has weights of one format.
    pub fn new(policy: Arc<Policy>, weights: Format) -> Result<Self> {
        if !policy.device().is_cpu() {
            return match weights {
                Format::F32 => Model::unpacked(policy),
                _ => Err(Error::Unavailable {
                    what: "weights of another format than f32".into(),
                    reason: "the policy is not on a CPU".into(),
                }),
            };
        }
        let plan = Plan::of(&policy, weights)?;
        let mut model = Model::unpacked(policy)?;
        model.plan = plan;
        Ok(model)
    }

    /// A policy that steps by its own ops.
    pub fn unpacked(policy: Arc<Policy>) -> Result<Self> {
        let (zero, spec_digest) = (policy.zero_state(1)?, spec_digest(policy.spec())?);
        let _held = Held::of(Owner::Sessions, &zero.0);
        Ok(Model { policy, plan: None, _held, zero, spec_digest, costs: Mutex::default() })
    }

    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    pub fn plan(&self) -> Option<&Plan> {
        self.plan.as_ref()
    }

    pub fn zero_state(&self) -> &State {
        &self.zero
    }

    /// Whether a decision depends on frames before its own.
    pub fn remembers(&self) -> bool {
        !self.zero.0.is_empty() || self.policy.spec().backbone.is_window_only()
    }

    /// What a decision costs, with windows of so many frames. The first caller measures; concurrent callers do not wait
    /// for it, and measure too.
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
        // Of a long window a part, which is as slow.
        let frames = window_size.min(MEASURED);
        let context = Context::default().forgetting();
        let window_us = self.pass_us(frames, 3, &context)? * (window_size as f64 / frames as f64);
        let mut costs = self.costs();
        if known(&costs).is_none() {
            costs.windows.push((window_size, window_us));
        }
        Ok(Cost { step_us, window_us })
    }

    /// What a decision by a step costs.
    pub fn step_us(&self) -> Result<f64> {
        let known = self.costs().step;
        let us = known.map_or_else(|| self.steps_us(1), Ok)?;
        Ok(*self.costs().step.get_or_insert(us))
    }

    /// What a step costs each of many games that are stepped at once, in microseconds; measured when it is first
    /// asked for.
    pub fn game_us(&self) -> Result<f64> {
        let known = self.costs().game;
        let us = known.map_or_else(|| self.steps_us(COMPANY), Ok)?;
        Ok(*self.costs().game.get_or_insert(us))
    }

    fn costs(&self) -> MutexGuard<'_, Costs> {
        self.costs.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// A frame to measure with. Half of its numbers are 0, which a plan steps over, as in a game's.
    fn frame(&self) -> EmbeddedFrame {
        let mut row = EmbeddedFrame::blank(self.policy.spec());
        let rng = Rng::new(0, "measure", 0);
        for (i, number) in row.continuous.iter_mut().enumerate().step_by(2) {
            *number = rng.uniform(i as u64) + 0.01;
        }
        row
    }

    /// A step of so many games at once, each.
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

    /// What is recorded to be played again is so by then: no decision waits for it.
    fn games_us(&self, games: usize) -> Result<f64> {
        let row = self.frame();
        let frames = window(std::iter::repeat_n(row.frame(), games));
        let frames = Frames { batch: games, time: 1, ..frames };
        let states = vec![&self.zero; games];
        let (sampling, rngs) = (Sampling::default(), [Rng::new(0, "measure", 0)]);
        let draws = vec![Draw { sampling: &sampling, rngs: &rngs, given: None }; games];
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
            let draw = Draw { sampling: &sampling, rngs: &rngs, given: None };
            let act = || self.policy.act(&frames, &self.zero, draw, context);
            pool::serial(act).map(drop)
        })
    }

    /// What tells the Spec from others, in snapshots.
    pub fn spec_digest(&self) -> u64 {
        self.spec_digest
    }

    /// A decision to write to.
    pub fn blank(&self) -> Decision {
        let heads = &self.policy.spec().heads;
        Decision {
            logits: vec![0.0; heads.num_logits()],
            choices: heads.least_labels(),
            confidence: vec![0.0; heads.parts.len()],
        }
    }
}

/// The least time of so many calls, or of those of two milliseconds, whose first ones warm the caches. Other work on
/// the machine makes calls longer and never shorter, so the least flaps least. Numbers that are not finite take their
/// time too.
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
