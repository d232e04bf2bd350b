//! Decisions of many sessions at once.

use std::sync::Arc;

use sconce_core::Result;
use sconce_core::backbone::Context;
use sconce_core::heads::Decision;
use sconce_core::policy::Frames;
use sconce_core::pool;
use sconce_core::rng::Rng;
use sconce_core::sampling::Draw;
use sconce_realtime::Game;

use super::carried::Carried;
use super::{INLINE_US, Lane, Overrides, SCRATCH, Session, Way};
use crate::model::Model;

/// A session, what it is asked, and what becomes of it.
pub struct Call<'a> {
    pub session: &'a mut Session,
    /// `[raw_width]`
    pub raw: &'a [f32],
    pub overrides: &'a Overrides,
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
        us += session.next_us();
        forced &= session.options.lane.is_some();
    }
    if forced || us < INLINE_US { Lane::Inline } else { Lane::Worker }
}

/// [`Session::decide`] of each call; those that step by one plan do it together, and so do alike windows. What is wrong with one is its
/// outcome, and touches no other.
pub fn decide_many(calls: &mut [Call<'_>]) {
    for call in &mut *calls {
        call.outcome = call.session.ask(call.raw, call.overrides);
    }
    let (mut by_plan, mut by_core): (Vec<&mut Call<'_>>, Vec<&mut Call<'_>>) = (vec![], vec![]);
    for call in calls.iter_mut().filter(|call| call.outcome.is_ok()) {
        match call.session.asked.way {
            Way::Made(_) => {}
            Way::Plan => by_plan.push(call),
            Way::Core => by_core.push(call),
        }
    }
    let model = |call: &&mut Call<'_>| Arc::as_ptr(&call.session.model);
    by_plan.sort_by_key(model);
    for calls in by_plan.chunk_by_mut(|a, b| model(&a) == model(&b)) {
        step(calls);
    }
    by_core.sort_by_key(model);
    for calls in by_core.chunk_by_mut(|a, b| model(&a) == model(&b) && alike(a, b)) {
        step_by_core(calls);
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
    let (mut games, mut outcomes): (Vec<Game<'_>>, Vec<&mut Result<()>>) = calls
        .iter_mut()
        .filter_map(|call| Some((call.session.game(call.overrides)?, &mut call.outcome)))
        .unzip();
    SCRATCH.with_borrow_mut(|scratch| plan.step(&mut games, scratch));
    for (outcome, game) in outcomes.iter_mut().zip(games) {
        **outcome = game.outcome;
    }
}

/// Whether core can decide two calls in one pass: windows of one length, drawn in one way.
fn alike(a: &Call<'_>, b: &Call<'_>) -> bool {
    let plain = |call: &Call<'_>| {
        let (session, overrides) = (&call.session, &call.overrides);
        let alone = overrides.choices.is_some() || session.asked.projection.is_some();
        session.looks_back() && !alone
    };
    let (of_a, of_b) = (&a.session, &b.session);
    plain(a)
        && plain(b)
        && of_a.options.window_size == of_b.options.window_size
        && of_a.asked.sampling == of_b.asked.sampling
}

/// Decides alike calls of one model in one pass.
fn step_by_core(calls: &mut [&mut Call<'_>]) {
    // Which of them an error speaks of is not said: then each finds out for itself.
    let made = if calls.len() > 1 { windows(calls).ok() } else { None };
    match made {
        Some(all) => {
            for (call, (decision, state)) in calls.iter_mut().zip(all) {
                let (_, next) = call.session.moments.next();
                (next.decision, next.state) = (decision, state);
            }
        }
        None => {
            for call in calls {
                call.outcome = call.session.step_by_core(call.overrides);
            }
        }
    }
}

fn windows(calls: &[&mut Call<'_>]) -> Result<Vec<(Decision, Carried)>> {
    let Some(first) = calls.first() else { return Ok(vec![]) };
    let (model, sampling) = (first.session.model.clone(), &first.session.asked.sampling);
    let mut frames = Frames::default();
    for call in calls {
        let window = call.session.window(&call.session.asked.row);
        (frames.batch, frames.time) = (frames.batch + 1, window.time);
        frames.continuous.extend(window.continuous);
        frames.ids.extend(window.ids);
        frames.previous.extend(window.previous);
    }
    let rngs: Vec<Rng> = calls.iter().map(|call| call.session.asked.rng.clone()).collect();
    let draw = Draw { sampling, rngs: &rngs, given: None };
    let (policy, batch) = (model.policy(), calls.len());
    let zero = policy.zero_state(batch)?;
    let act = || policy.act(&frames, &zero, draw, &Context::default());
    let (all, state) = match first.session.next_lane() {
        Lane::Inline => pool::serial(act),
        Lane::Worker => act(),
    }?;
    let part = |row: usize| {
        let state = Carried::new(state.rows(&(row..row + 1))?.hand_on()?, model.plan())?;
        let decision = Decision {
            logits: own(&all.logits, row, batch),
            choices: own(&all.choices, row, batch),
            confidence: own(&all.confidence, row, batch),
        };
        Ok((decision, state))
    };
    (0..batch).map(part).collect()
}

/// A row of so many.
fn own<T: Copy>(numbers: &[T], row: usize, rows: usize) -> Vec<T> {
    let width = numbers.len() / rows.max(1);
    numbers[row * width..][..width].to_vec()
}
