//! Decisions of many sessions at once.

use std::sync::Arc;

use sconce_core::{Error, Result};

use super::{INLINE_US, Lane, Overrides, SCRATCH, Session, Way, game};
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
/// by measure and they take too long together.
pub fn lane<'a>(sessions: impl Iterator<Item = &'a Session>) -> Lane {
    let (mut us, mut forced) = (0.0, true);
    for session in sessions {
        if session.next_lane() == Lane::Worker {
            return Lane::Worker;
        }
        us += session.next_us() + BORDER_US;
        forced &= session.options.lane.is_some();
    }
    if forced || us < INLINE_US { Lane::Inline } else { Lane::Worker }
}

/// [`Session::decide`] of each call; those that step by one plan do it together. What is wrong with one is its
/// outcome, and touches no other.
pub fn decide_many(calls: &mut [Call<'_>]) {
    for call in calls.iter_mut().filter(|call| !call.asked) {
        call.outcome = call.session.ask(call.raw, call.overrides);
    }
    let mut by_plan: Vec<&mut Call<'_>> = vec![];
    for call in calls.iter_mut().filter(|call| call.outcome.is_ok()) {
        match call.session.asked.way {
            Way::Made(_) => {}
            Way::Plan => by_plan.push(call),
            // Each alone: in company the kernels of core end in other bits.
            Way::Core => call.outcome = call.session.step_by_core(call.overrides),
        }
    }
    let model = |call: &&mut Call<'_>| Arc::as_ptr(&call.session.model);
    by_plan.sort_by_key(model);
    for calls in by_plan.chunk_by_mut(|a, b| model(a) == model(b)) {
        step(calls);
    }
    for call in calls.iter_mut().filter(|call| call.outcome.is_err()) {
        call.session.asked.way = Way::Made(0);
    }
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
