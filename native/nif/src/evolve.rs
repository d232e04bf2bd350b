//! Evolution: archives, strategies, populations, searches and NEAT of `Sconce.Evolve`.

mod archive;
mod neat;
mod population;
mod search;
mod strategy;

use std::sync::atomic::Ordering;
use std::sync::{Mutex, TryLockError};

use rustler::{Binary, Encoder, Env, NewBinary, Reference, Term};
use sconce_evolve::Stop;
use sconce_tensor::pool::Class;
use sconce_tensor::{Error, Result};
use serde::Deserialize;

use crate::border::{Answer, Task, call, decode, from_binary, perform, pool, to_binary};

/// Bytes of a call up to which the threads of sessions work on it, for a few milliseconds.
const POOL_BYTES: usize = 256 << 10;

/// Runs work on a native thread, which sends the answer by message: on a thread of the sessions, or on one of its own in
/// the background if sessions would wait for it.
pub(crate) fn run<'a, T: Answer + Send + 'static>(
    env: Env<'a>,
    op: &'static str,
    reference: Reference<'a>,
    bytes: usize,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Term<'a> {
    if bytes <= POOL_BYTES {
        return perform(env, op, || pool::submit(env, op, reference, work));
    }
    background(env, op, reference, |_stop| work())
}

/// Runs work on a native thread of its own in the background, which sends the answer by message. `work` gets a stop that
/// says true once the caller is dead.
pub(crate) fn background<'a, T: Answer + Send + 'static>(
    env: Env<'a>,
    op: &'static str,
    reference: Reference<'a>,
    work: impl FnOnce(Stop<'_>) -> Result<T> + Send + 'static,
) -> Term<'a> {
    call(env, op, || {
        Task::start(env, op, reference, move |_events, cancelled| {
            Class::Background.enter();
            work(&|| cancelled.load(Ordering::Relaxed))
        })
    })
}

/// The name of the device among the options of a population or a search.
#[derive(Deserialize)]
struct Placed {
    device: String,
}

fn device_of(options: Term<'_>) -> Result<String> {
    decode::<Placed>(options).map(|own| own.device)
}

/// A value that any process may use, one call at a time. A second call never waits: it is `:busy`.
struct Locked<T>(Mutex<T>);

impl<T> Locked<T> {
    fn new(value: T) -> Self {
        Locked(Mutex::new(value))
    }

    fn with<R>(&self, what: &str, work: impl FnOnce(&mut T) -> Result<R>) -> Result<R> {
        match self.0.try_lock() {
            Ok(mut value) => work(&mut value),
            Err(TryLockError::WouldBlock) => Err(Error::Busy { what: what.into() }),
            // The panic may have left the value half changed.
            Err(TryLockError::Poisoned(_)) => {
                Err(Error::Panic { message: format!("an earlier call on the {what} panicked") })
            }
        }
    }
}

/// Numbers of an answer, as one binary.
pub(crate) enum Column {
    Bytes(Vec<u8>),
    U32(Vec<u32>),
    F32(Vec<f32>),
    F64(Vec<f64>),
}

impl Encoder for Column {
    fn encode<'a>(&self, env: Env<'a>) -> Term<'a> {
        match self {
            Column::Bytes(bytes) => NewBinary::from_slice(env, bytes).into(),
            Column::U32(numbers) => to_words(env, numbers, |v| v.to_le_bytes()),
            Column::F32(numbers) => to_binary(env, numbers),
            Column::F64(numbers) => to_words(env, numbers, |v| v.to_le_bytes()),
        }
    }
}

fn to_words<'a, T: Copy, const N: usize>(
    env: Env<'a>,
    numbers: &[T],
    bytes: impl Fn(T) -> [u8; N],
) -> Term<'a> {
    let mut binary = NewBinary::new(env, size_of_val(numbers));
    let (places, _) = binary.as_mut_slice().as_chunks_mut();
    for (place, number) in places.iter_mut().zip(numbers) {
        *place = bytes(*number);
    }
    binary.into()
}

/// The bytes of a binary, or of all binaries in a list.
pub(crate) fn length(term: Term<'_>) -> usize {
    match binaries(term) {
        Ok(all) => all.iter().map(|binary| binary.len()).sum(),
        Err(_) => Binary::from_term(term).map_or(0, |binary| binary.len()),
    }
}

/// The binaries of a call.
pub(crate) fn binaries(term: Term<'_>) -> Result<Vec<Binary<'_>>> {
    term.decode().map_err(|_| Error::not_found("binaries"))
}

pub(crate) fn part<'b>(binaries: &'b [Binary<'_>], at: usize) -> &'b [u8] {
    binaries.get(at).map(Binary::as_slice).unwrap_or_default()
}

pub(crate) fn wide(what: &str, bytes: &[u8]) -> Result<Vec<f64>> {
    from_binary(what, bytes, f64::from_le_bytes)
}
