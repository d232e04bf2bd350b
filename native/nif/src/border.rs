//! What every file of this crate shares: running the work of a NIF, errors as terms, data as terms,
//! and answers from threads of our own.
//!
//! A NIF decodes its arguments, says what to do inside [`call`] and returns what `call` gave:
//!
//! ```ignore
//! #[rustler::nif(schedule = "DirtyIo")]
//! fn policy_load<'a>(env: Env<'a>, path: String, options: Term<'a>) -> Term<'a> {
//!     call(env, "load", || {
//!         let options: LoadOptions = decode(options)?;
//!         Ok(ResourceArc::new(PolicyHandle(Policy::load(&path, &options)?)))
//!     })
//! }
//! ```

mod binary;
mod events;
mod handle;
pub mod pool;
mod reply;
mod task;
mod value;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use rustler::{Atom, Encoder, Env, NewBinary, Term};
use sconce_core::{Error, Result};
use serde::Serialize;

pub use binary::{from_binary, to_binary};
pub use events::Events;
#[cfg(feature = "fixtures")]
pub use events::{MOST_EVENTS, MOST_PROGRESS};
pub use handle::{Handle, Handled};
pub use reply::Reply;
pub use task::{REPLIES, Task};
pub use value::{decode, encode};

mod atoms {
    rustler::atoms! { ok, error, event, sconce, kind, op, details, exception = "__exception__" }
}

/// What work may answer with: whatever rustler encodes (numbers, strings, handles, terms), [`Data`]
/// and [`Bytes`].
pub trait Answer {
    fn into_term(self, env: Env<'_>) -> Result<Term<'_>>;
}

impl<T: Encoder> Answer for T {
    fn into_term(self, env: Env<'_>) -> Result<Term<'_>> {
        Ok(self.encode(env))
    }
}

/// Any serialisable value, as [`encode`] turns it into a term.
pub struct Data<T>(pub T);

impl<T: Serialize> Answer for Data<T> {
    fn into_term(self, env: Env<'_>) -> Result<Term<'_>> {
        encode(env, &self.0)
    }
}

/// Bytes that become one binary, where a `Vec<u8>` would become a list. Copies: for more than some
/// 100 KB let a resource own the bytes and use `ResourceArc::make_binary`.
pub struct Bytes<T>(pub T);

impl<T: AsRef<[u8]>> Answer for Bytes<T> {
    fn into_term(self, env: Env<'_>) -> Result<Term<'_>> {
        Ok(NewBinary::from_slice(env, self.0.as_ref()).into())
    }
}

/// `{:ok, answer}` or `{:error, %Sconce.Error{op: op}}`; a panic inside is an error of kind `:panic`.
pub fn call<'a, T: Answer>(env: Env<'a>, op: &str, work: impl FnOnce() -> Result<T>) -> Term<'a> {
    outcome(env, op, guard(|| work()?.into_term(env)))
}

/// `:ok` or `{:error, %Sconce.Error{op: op}}`, for work that is done for its effect.
pub fn perform<'a>(env: Env<'a>, op: &str, work: impl FnOnce() -> Result<()>) -> Term<'a> {
    match guard(work) {
        Ok(()) => atoms::ok().to_term(env),
        Err(failure) => error(env, op, &failure),
    }
}

/// [`call`] on the caller's own scheduler, which is told how much of its time went by, so that
/// many such calls in a row do not hold it.
pub fn inline<'a, T: Answer>(env: Env<'a>, op: &str, work: impl FnOnce() -> Result<T>) -> Term<'a> {
    timed(env, || call(env, op, work))
}

/// A call of whatever kind, whose time the scheduler is told.
pub fn timed<'a>(env: Env<'a>, call: impl FnOnce() -> Term<'a>) -> Term<'a> {
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
pub fn next_turn(env: Env) {
    rustler::schedule::consume_timeslice(env, 100);
}

/// Runs `work` and turns a panic into an error, that of a refused buffer into `OutOfMemory`. Values that the panic left
/// half-changed must not be used again, so work owns what it changes.
pub fn guard<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| Err(Error::of_panic(payload)))
}

fn outcome<'a>(env: Env<'a>, op: &str, result: Result<Term<'a>>) -> Term<'a> {
    match result {
        Ok(term) => (atoms::ok(), term).encode(env),
        Err(failure) => error(env, op, &failure),
    }
}

/// `{:error, %Sconce.Error{kind: kind, op: op, details: details}}`.
pub fn error<'a>(env: Env<'a>, op: &str, error: &Error) -> Term<'a> {
    let fields = [
        (rustler::types::atom::__struct__(), atom(env, "Elixir.Sconce.Error")),
        (atoms::exception(), true.encode(env)),
        (atoms::kind(), atom(env, error.kind().name())),
        (atoms::op(), atom(env, op)),
        (atoms::details(), value::to_term(env, &error.details())),
    ];
    let exception = map(env, fields.into_iter().map(|(key, value)| (key.to_term(env), value)));
    (atoms::error(), exception).encode(env)
}

/// An atom for a name of ours. A text that cannot be an atom (beyond Latin-1 or 255 bytes, which no
/// name of ours is) stays a binary.
fn atom<'a>(env: Env<'a>, name: &str) -> Term<'a> {
    Atom::from_str(env, name).map_or_else(|_| name.encode(env), |atom| atom.to_term(env))
}

/// A map of distinct keys.
fn map<'a>(env: Env<'a>, pairs: impl Iterator<Item = (Term<'a>, Term<'a>)>) -> Term<'a> {
    let (keys, values): (Vec<_>, Vec<_>) = pairs.unzip();
    // It fails only for a key given twice.
    Term::map_from_term_arrays(env, &keys, &values).unwrap_or_else(|_| Term::map_new(env))
}
