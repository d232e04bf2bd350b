//! Runs the work of a NIF, times it and turns the result into a term.

use std::time::{Duration, Instant};

use rustler::{Env, Term};
use sconce_tensor::Result;
use sconce_tensor::trace::{self, Kind};

use super::answer::Answer;
use super::outcome::{atoms, error, guard, outcome};

/// Returns `{:ok, answer}` or `{:error, %Sconce.Error{op: op}}`; a panic in `work` is an error of kind `:panic`.
pub(crate) fn call<'a, T: Answer>(
    env: Env<'a>,
    op: &'static str,
    work: impl FnOnce() -> Result<T>,
) -> Term<'a> {
    let _span = trace::span(Kind::Call, op);
    outcome(env, op, guard(|| work()?.into_term(env)))
}

/// Returns `:ok` or `{:error, %Sconce.Error{op: op}}`, for work without a result.
pub(crate) fn perform<'a>(
    env: Env<'a>,
    op: &'static str,
    work: impl FnOnce() -> Result<()>,
) -> Term<'a> {
    let _span = trace::span(Kind::Call, op);
    match guard(work) {
        Ok(()) => atoms::ok().to_term(env),
        Err(failure) => error(env, op, &failure),
    }
}

/// Runs [`call`] on the caller's scheduler. Reports its running time, so that the scheduler switches to other processes
/// after many such calls.
pub(crate) fn inline<'a, T: Answer>(
    env: Env<'a>,
    op: &'static str,
    work: impl FnOnce() -> Result<T>,
) -> Term<'a> {
    timed(env, || call(env, op, work))
}

/// Runs [`inline`] and counts its running time.
pub(crate) fn inline_counted<'a, T: Answer>(
    env: Env<'a>,
    op: &'static str,
    count: impl FnOnce(Duration),
    work: impl FnOnce() -> Result<T>,
) -> Term<'a> {
    timed_then(env, || call(env, op, work), count)
}

/// Runs `call` and reports its running time to the scheduler.
pub(crate) fn timed<'a>(env: Env<'a>, call: impl FnOnce() -> Term<'a>) -> Term<'a> {
    timed_then(env, call, |_| ())
}

fn timed_then<'a>(
    env: Env<'a>,
    call: impl FnOnce() -> Term<'a>,
    count: impl FnOnce(Duration),
) -> Term<'a> {
    let start = Instant::now();
    let term = call();
    let time = start.elapsed();
    count(time);
    // A timeslice is 4000 reductions: about 40 us of plain Elixir, seldom over 100. At two percent per microsecond
    // other processes wait about as long behind such calls as behind plain Elixir. The millisecond that the
    // documentation of `enif_consume_timeslice` names would make them wait twenty times as long.
    let percent = (2 * time.as_micros()).clamp(1, 100) as i32;
    rustler::schedule::consume_timeslice(env, percent);
    term
}

/// Ends the caller's timeslice: other processes of the scheduler run first after the present call.
pub(crate) fn next_turn(env: Env) {
    rustler::schedule::consume_timeslice(env, 100);
}
