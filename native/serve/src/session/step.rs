//! One decision: by a step of the plan, by the policy's own ops, or by the plan's steps of a window.

use std::cell::RefCell;

use sconce_nn::backbone::Context;
use sconce_nn::packed::{Frame, Game, Plan};
use sconce_nn::policy::{Frames, Stepped};
use sconce_nn::sampling::Draw;
use sconce_realtime::Scratch;
use sconce_tensor::{Error, Result, pool};

use super::carried::Carried;
use super::moments::{Moment, Moments};
use super::open::Session;
use super::options::{Lane, Overrides};
use super::query::Query;
use crate::frames::window;

thread_local! {
    /// Scratch memory of this thread, for any plan: there are too many sessions for one each.
    pub(crate) static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl Session {
    /// Runs a step of the plan, after [`ask`](Self::ask).
    pub(super) fn step(&mut self, overrides: &Overrides) -> Result<()> {
        let Session { model, moments, asked, .. } = self;
        let Some(plan) = model.plan() else { return Err(Error::not_found("plan")) };
        let Some(mut game) = game(plan, moments, asked, overrides) else {
            return Err(Error::not_found("plan"));
        };
        SCRATCH.with_borrow_mut(|scratch| plan.step(std::slice::from_mut(&mut game), scratch));
        game.outcome
    }

    /// The sampling of the decision in progress.
    pub(super) fn draw<'a>(&'a self, overrides: &'a Overrides) -> Draw<'a> {
        let Query { sampling, rng, .. } = &self.asked;
        let given = overrides.choices.as_deref();
        let mask = overrides.mask.as_deref();
        Draw { sampling, rngs: std::slice::from_ref(rng), given, mask }
    }

    /// Stores the result of a step of several games in the next moment.
    pub(super) fn stepped(&mut self, (decision, state): Stepped) {
        let (_, next) = self.moments.next();
        (next.decision, next.state) = (decision, Carried::tensors(state));
    }

    /// Decides by [`step_by_ops`](Self::step_by_ops) or, if the model has a plan only, by the plan.
    pub(super) fn step_back(&mut self, overrides: &Overrides) -> Result<()> {
        match self.policy().is_outline() {
            true => self.step_window(overrides),
            false => self.step_by_ops(overrides),
        }
    }

    /// Decides by steps of the plan through the window that ends with the row, from the state before the first frame.
    fn step_window(&mut self, overrides: &Overrides) -> Result<()> {
        let (model, frames) = (self.model.clone(), self.window());
        let Some(plan) = model.plan() else { return Err(Error::not_found("plan")) };
        let is_mode = self.windows();
        let mut state = plan.zero_state().to_vec();
        let mut decision = plan.blank();
        let part =
            |len: usize, time: usize| len / frames.time * time..len / frames.time * (time + 1);
        for time in 0..frames.time {
            let frame = Frame {
                continuous: &frames.continuous[part(frames.continuous.len(), time)],
                ids: &frames.ids[part(frames.ids.len(), time)],
                previous: &frames.previous[part(frames.previous.len(), time)],
            };
            let sampling = &self.asked.sampling;
            let mut game = Game::new(frame, &mut state, sampling, self.asked.rng, &mut decision);
            game.projection = self.asked.projection.as_deref();
            if time + 1 == frames.time {
                game.given = overrides.choices.as_deref();
                game.mask = overrides.mask.as_deref();
            }
            SCRATCH.with_borrow_mut(|scratch| plan.step(std::slice::from_mut(&mut game), scratch));
            game.outcome?;
        }
        let (_, next) = self.moments.next();
        next.decision = decision;
        // Each window begins at a zero state, so its last state is not kept.
        if !is_mode {
            next.state = Carried::numbers(state);
        }
        Ok(())
    }

    /// Decides by the policy's own ops, from the state and the row or from the window that ends with the row.
    pub(super) fn step_by_ops(&mut self, overrides: &Overrides) -> Result<()> {
        let draw = self.draw(overrides);
        let mut context = Context::default().projecting(self.asked.projection.clone());
        let windows = self.windows();
        if windows {
            context = context.forgetting();
        }
        let (policy, row) = (self.model.policy(), &self.asked.row);
        let (frames, state) = match &self.moments.now().state {
            Carried::Tensors { state, .. } if !self.looks_back() => {
                (window(std::iter::once(row.frame())), state)
            }
            _ => (self.window(), self.model.zero_state()),
        };
        let act = || policy.act(&frames, state, draw, &context);
        let (decision, state) = match self.next_lane() {
            Lane::Inline => pool::serial(act),
            Lane::Worker => act(),
        }?;
        // Each window begins at a zero state, so its last state is not kept.
        let state = (!windows).then(|| Carried::new(state, self.model.plan())).transpose()?;
        let (_, next) = self.moments.next();
        next.decision = decision;
        if let Some(state) = state {
            next.state = state;
        }
        Ok(())
    }

    /// The window that ends with the frame of the decision in progress.
    fn window(&self) -> Frames {
        let embedding = &self.policy().spec().embedding;
        let row = self.asked.plain(embedding);
        let before = self.options.window_size - 1;
        let mut kept = self.ring.newest(before).peekable();
        let first = kept.peek().copied().unwrap_or(row);
        let missing = before.saturating_sub(self.ring.len());
        let rows = std::iter::repeat_n(first, missing).chain(kept);
        let mut frames = window(rows.chain(std::iter::once(row)));
        embedding.normalise(&mut frames.continuous);
        frames
    }
}

/// One game of a step of the plan: reads the present state and writes the next moment.
pub(super) fn game<'a>(
    plan: &Plan,
    moments: &'a mut Moments,
    asked: &'a Query,
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
        // An older state of the same run: only the parts changed since are copied, without those that a step replaces.
        Some(steps) => plan.prepare(state, now, steps),
        None => state.copy_from_slice(now),
    }
    let frame = asked.row.frame();
    let mut game = Game::new(frame, state, &asked.sampling, asked.rng, decision);
    game.before = Some(now);
    game.given = overrides.choices.as_deref();
    game.mask = overrides.mask.as_deref();
    game.projection = asked.projection.as_deref();
    Some(game)
}
