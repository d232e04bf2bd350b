//! Decisions of one session or of many together: made next to the present moment, then committed.

use std::sync::Arc;

use sconce_nn::backbone::State;
use sconce_nn::heads::Decision;
use sconce_nn::policy::{Frames, Stepped};
use sconce_nn::sampling::Draw;
use sconce_tensor::metrics::METRICS;
use sconce_tensor::trace::{self, Kind};
use sconce_tensor::{Error, Result};

use super::carried::Carried;
use super::open::Session;
use super::options::Overrides;
use super::query::Way;
use super::step::{SCRATCH, game};
use crate::frames::window;
use crate::model::Model;

/// A committed decision.
#[derive(Debug, Clone, PartialEq)]
pub struct Act {
    /// Logits, choices and confidence.
    pub decision: Decision,
    /// Number of the decision since the session began, from 1.
    pub frame: u64,
}

impl Session {
    /// Decides for one raw row and commits.
    ///
    /// # Shapes
    /// `raw [raw_width]`.
    pub fn act(&mut self, raw: &[f32], overrides: &Overrides) -> Result<Act> {
        self.decide(raw, overrides)?;
        self.commit();
        let (decision, frame) = self.last();
        Ok(Act { decision: decision.clone(), frame })
    }

    /// Makes the next decision; the session is unchanged until [`Session::commit`]. A step of a plan allocates no
    /// memory, unless the call brings directions.
    pub fn decide(&mut self, raw: &[f32], overrides: &Overrides) -> Result<()> {
        let _span = trace::span(Kind::Decision, "decide");
        self.ask(raw, overrides)?;
        let made = match self.asked.way {
            Way::Made(_) => return Ok(()),
            Way::Plan => self.step(overrides),
            Way::Games => decide_one(self, overrides),
            Way::Ops => self.step_back(overrides),
        };
        made.inspect_err(|_| self.asked.way = Way::Made(0))
    }

    /// Makes the decision of [`Session::decide`] the session's last one. Cannot fail.
    pub fn commit(&mut self) {
        if matches!(self.asked.way, Way::Made(_)) {
            return;
        }
        let (now, next) = self.moments.next();
        next.frames = now.frames.saturating_add(1);
        let frame = self.asked.plain(&self.model.policy().spec().embedding);
        if let Some(recorder) = &mut self.recorder {
            recorder.note(&now.state, frame, &next.decision, self.model.version());
        }
        next.past.push(&next.decision.choices);
        self.moments.advance(self.asked.way == Way::Plan);
        self.ring.push(frame);
        self.asked.way = Way::Made(0);
        METRICS.decisions.add(1);
    }

    /// The decision that answers the last call, and its number from 1; the number is 0 if there is no decision.
    pub fn last(&self) -> (&Decision, u64) {
        let behind = match self.asked.way {
            Way::Made(behind) => behind,
            Way::Plan | Way::Games | Way::Ops => 0,
        };
        let moment = self.moments.latest().nth(behind).unwrap_or(self.moments.now());
        (&moment.decision, moment.frames)
    }
}

/// One decision of [`decide_many`].
pub struct Call<'a> {
    /// The session that decides.
    pub session: &'a mut Session,
    /// Raw frame, `[raw_width]`.
    pub raw: &'a [f32],
    /// Overrides of this decision.
    pub overrides: &'a Overrides,
    /// Whether [`Session::ask`] has already read this frame.
    pub asked: bool,
    /// The error of this decision, if any.
    pub outcome: Result<()>,
}

/// Runs [`Session::decide`] for each call; calls with the same plan step together. An error is the outcome of its own
/// call and does not affect the others.
pub fn decide_many(calls: &mut [Call<'_>]) {
    let _span = trace::span(Kind::Decision, "decide many");
    for call in calls.iter_mut().filter(|call| !call.asked) {
        call.outcome = call.session.ask(call.raw, call.overrides);
    }
    let (mut by_plan, mut by_games) = (vec![], vec![]);
    for call in calls.iter_mut().filter(|call| call.outcome.is_ok()) {
        match call.session.asked.way {
            Way::Made(_) => {}
            Way::Plan => by_plan.push(call),
            Way::Games => by_games.push(call),
            // Each call runs alone, because batched matrix products round differently.
            Way::Ops => call.outcome = call.session.step_back(call.overrides),
        }
    }
    by_model(&mut by_plan, step);
    by_model(&mut by_games, step_games);
    for call in calls.iter_mut().filter(|call| call.outcome.is_err()) {
        call.session.asked.way = Way::Made(0);
    }
}

fn by_model<'a, 'b>(calls: &mut [&'a mut Call<'b>], step: fn(&mut [&'a mut Call<'b>])) {
    let model = |call: &&mut Call<'_>| Arc::as_ptr(&call.session.model);
    calls.sort_by_key(model);
    calls.chunk_by_mut(|a, b| model(a) == model(b)).for_each(step);
}

/// Steps the sessions of one model together, on a card. An error of the whole step does not say which session caused
/// it, so each then steps alone.
fn step_games(calls: &mut [&mut Call<'_>]) {
    match games(calls) {
        Ok(stepped) => {
            for (call, stepped) in calls.iter_mut().zip(stepped) {
                call.outcome = stepped.map(|one| call.session.stepped(one));
            }
        }
        Err(_) => {
            for call in calls {
                call.outcome = call.session.step_by_ops(call.overrides);
            }
        }
    }
}

fn games(calls: &[&mut Call<'_>]) -> Result<Vec<Result<Stepped>>> {
    let Some(first) = calls.first() else { return Ok(vec![]) };
    let policy = first.session.policy();
    let rows = calls.iter().map(|call| call.session.asked.row.frame());
    let frames = Frames { batch: calls.len(), time: 1, ..window(rows) };
    let state = |call: &&'_ mut Call<'_>| match &call.session.moments.now().state {
        Carried::Tensors { state, .. } => Ok(state.clone()),
        Carried::Numbers(_) => Err(Error::not_found("state on the card")),
    };
    let states = calls.iter().map(state).collect::<Result<Vec<State>>>()?;
    let draws: Vec<Draw> = calls.iter().map(|call| call.session.draw(call.overrides)).collect();
    policy.step_games(&frames, &states.iter().collect::<Vec<_>>(), &draws)
}

/// Decides for one session whose way is [`Way::Games`].
fn decide_one(session: &mut Session, overrides: &Overrides) -> Result<()> {
    let mut call = Call { session, raw: &[], overrides, asked: true, outcome: Ok(()) };
    step_games(&mut [&mut call]);
    call.outcome
}

/// Steps the sessions of one model by its plan.
fn step(calls: &mut [&mut Call<'_>]) {
    let Some(first) = calls.first() else { return };
    let model: Arc<Model> = first.session.model.clone();
    let Some(plan) = model.plan() else { return };
    let mut games = Vec::with_capacity(calls.len());
    let mut outcomes = Vec::with_capacity(calls.len());
    for call in calls {
        let Session { moments, asked, .. } = &mut *call.session;
        match game(plan, moments, asked, call.overrides) {
            Some(game) => {
                games.push(game);
                outcomes.push(&mut call.outcome);
            }
            None => call.outcome = Err(Error::not_found("plan")),
        }
    }
    SCRATCH.with_borrow_mut(|scratch| plan.step(&mut games, scratch));
    for (outcome, game) in outcomes.into_iter().zip(games) {
        *outcome = game.outcome;
    }
}
