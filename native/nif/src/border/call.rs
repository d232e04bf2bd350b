//! A NIF's work: run, timed and turned into a term.

use std::time::Instant;

use rustler::{Env, Term};
use sconce_tensor::Result;

use super::answer::Answer;
use super::outcome::{atoms, error, guard, outcome};

/// `{:ok, answer}` or `{:error, %Sconce.Error{op: op}}`; a panic inside is an error of kind `:panic`.
pub(crate) fn call<'a, T: Answer>(
    env: Env<'a>,
    op: &str,
    work: impl FnOnce() -> Result<T>,
) -> Term<'a> {
    outcome(env, op, guard(|| work()?.into_term(env)))
}

/// `:ok` or `{:error, %Sconce.Error{op: op}}`, for work that is done for its effect.
pub(crate) fn perform<'a>(env: Env<'a>, op: &str, work: impl FnOnce() -> Result<()>) -> Term<'a> {
    match guard(work) {
        Ok(()) => atoms::ok().to_term(env),
        Err(failure) => error(env, op, &failure),
    }
}

/// [`call`] on the caller's own scheduler. It reports the time that it took, so that the scheduler turns to other
/// processes after many such calls in a row.
pub(crate) fn inline<'a, T: Answer>(
    env: Env<'a>,
    op: &str,
    work: impl FnOnce() -> Result<T>,
) -> Term<'a> {
    timed(env, || call(env, op, work))
}

/// Any call; it reports the time that it took to the scheduler.
pub(crate) fn timed<'a>(env: Env<'a>, call: impl FnOnce() -> Term<'a>) -> Term<'a> {
    let start = Instant::now();
    let term = call();
    // A timeslice is 4000 reductions: some 40 us of plain Elixir, and seldom over 100. At two percent for
    // each microsecond whoever waits behind such calls waits about as long as behind anybody else. By the
    // millisecond of the documentation of `enif_consume_timeslice` it would be twenty times that.
    let percent = (2 * start.elapsed().as_micros()).clamp(1, 100) as i32;
    rustler::schedule::consume_timeslice(env, percent);
    term
}

/// Lets other processes of the scheduler go on before the caller, once the present call has returned.
pub(crate) fn next_turn(env: Env) {
    rustler::schedule::consume_timeslice(env, 100);
}
