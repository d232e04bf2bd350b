//! Decisions of many sessions at once.

use std::sync::Arc;

use sconce_core::backbone::State;
use sconce_core::policy::{Frames, Stepped};
use sconce_core::sampling::Draw;
use sconce_core::{Error, Result};

use super::{Carried, INLINE_US, Lane, MAX_INLINE_US, Overrides, SCRATCH, Session, Way, game};
use crate::frames::window;
use crate::model::Model;

/// What a game costs beside its decision: reading its frame, encoding its answer.
const BORDER_US: f64 = 3.0;

/// A session, what it is asked, and what becomes of it.
pub struct Call<'a> {
    pub session: &'a mut Session,
    /// `[raw_width]`
    pub raw: &'a [f32],
    pub overrides: &'a Overrides,
    /// Whether the session was [asked](Session::ask) this already.
    pub asked: bool,
    pub outcome: Result<()>,
}

/// Where the next decisions of these sessions run, made in one call: where each of them does, unless that is inline
/// and they take too long together.
pub fn lane<'a>(sessions: impl Iterator<Item = &'a Session>) -> Lane {
    let (mut us, mut forced) = (0.0, true);
    for session in sessions {
        if session.next_lane() == Lane::Worker {
            return Lane::Worker;
        }
        us += session.next_us() + BORDER_US;
        forced &= session.options.lane.is_some();
    }
    let most = if forced { MAX_INLINE_US } else { INLINE_US };
    if us < most { Lane::Inline } else { Lane::Worker }
}

/// [`Session::decide`] of each call; those that step by one plan do it together. What is wrong with one is its
/// outcome, and touches no other.
pub fn decide_many(calls: &mut [Call<'_>]) {
    for call in calls.iter_mut().filter(|call| !call.asked) {
        call.outcome = call.session.ask(call.raw, call.overrides);
    }
    let (mut by_plan, mut by_games) = (vec![], vec![]);
    for call in calls.iter_mut().filter(|call| call.outcome.is_ok()) {
        match call.session.asked.way {
            Way::Made(_) => {}
            Way::Plan => by_plan.push(call),
            Way::Games => by_games.push(call),
            // Each alone: in company the kernels of core end in other bits.
            Way::Core => call.outcome = call.session.step_by_core(call.overrides),
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

/// Steps the sessions of one model together, on a card. Which of them an error of all speaks of is not said: then
/// each finds out for itself.
fn step_games(calls: &mut [&mut Call<'_>]) {
    match games(calls) {
        Ok(stepped) => {
            for (call, stepped) in calls.iter_mut().zip(stepped) {
                call.outcome = stepped.map(|one| call.session.stepped(one));
            }
        }
        Err(_) => {
            for call in calls {
                call.outcome = call.session.step_by_core(call.overrides);
            }
        }
    }
}

fn games(calls: &[&mut Call<'_>]) -> Result<Vec<Result<Stepped>>> {
    let Some(first) = calls.first() else { return Ok(vec![]) };
    let policy = first.session.policy();
    let rows = calls.iter().map(|call| call.session.asked.row.view());
    let frames = Frames { batch: calls.len(), time: 1, ..window(rows) };
    let state = |call: &&'_ mut Call<'_>| match &call.session.moments.now().state {
        Carried::Tensors { state, .. } => Ok(state.clone()),
        Carried::Numbers(_) => Err(Error::not_found("state on the card")),
    };
    let states = calls.iter().map(state).collect::<Result<Vec<State>>>()?;
    let draws: Vec<Draw> = calls.iter().map(|call| call.session.draw(call.overrides)).collect();
    policy.step_games(&frames, &states.iter().collect::<Vec<_>>(), &draws)
}

/// The decision of a session that [steps with others](Way::Games), alone.
pub(super) fn decide_one(session: &mut Session, overrides: &Overrides) -> Result<()> {
    let mut call = Call { session, raw: &[], overrides, asked: true, outcome: Ok(()) };
    step_games(&mut [&mut call]);
    call.outcome
}

/// Steps the sessions of one model.
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
