//! Results as terms: `{:ok, answer}` or an error. A panic is an error.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rustler::{Encoder, Env, Term};
use sconce_tensor::{Error, Result};

use super::value::{atom, map, to_term};

pub(super) mod atoms {
    rustler::atoms! { ok, error, event, sconce, kind, op, details, exception = "__exception__" }
}

/// Runs `work` and turns a panic into an error; a panic of a failed allocation becomes `OutOfMemory`. A panic may leave
/// values half changed, and these must not be used again: `work` owns all values that it changes.
pub(crate) fn guard<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| Err(Error::of_panic(payload)))
}

pub(super) fn outcome<'a>(env: Env<'a>, op: &str, result: Result<Term<'a>>) -> Term<'a> {
    match result {
        Ok(term) => (atoms::ok(), term).encode(env),
        Err(failure) => error(env, op, &failure),
    }
}

/// `{:error, %Sconce.Error{kind: kind, op: op, details: details}}`.
pub(crate) fn error<'a>(env: Env<'a>, op: &str, error: &Error) -> Term<'a> {
    let fields = [
        (rustler::types::atom::__struct__(), atom(env, "Elixir.Sconce.Error")),
        (atoms::exception(), true.encode(env)),
        (atoms::kind(), atom(env, error.kind().name())),
        (atoms::op(), atom(env, op)),
        (atoms::details(), to_term(env, &error.details())),
    ];
    let exception = map(env, fields.into_iter().map(|(key, value)| (key.to_term(env), value)));
    (atoms::error(), exception).encode(env)
}
