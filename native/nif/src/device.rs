//! Where work is done: `Sconce.Device`, and what of a card's memory: `Sconce.GPU.Ledger`.

use rustler::{Env, Reference, Term};
use sconce_tensor::device::{self, Budget};

use crate::border::{Data, decode, perform, pool};

/// `:ok` where policies run on these cards.
// A driver takes its time to wake up.
#[rustler::nif(schedule = "DirtyIo")]
fn device_check(env: Env, ordinals: Vec<usize>) -> Term {
    perform(env, "device", || device::check(&ordinals))
}

/// What all of this VM may take of a card's memory.
#[rustler::nif]
fn device_allow<'a>(env: Env<'a>, budget: Term<'a>) -> Term<'a> {
    perform(env, "device", || {
        device::allow(decode::<Budget>(budget)?);
        Ok(())
    })
}

/// `{:ok, memory}` by message.
// The driver may be busy with an allocation of somebody else's.
#[rustler::nif]
fn device_memory<'a>(env: Env<'a>, reference: Reference<'a>, ordinal: usize) -> Term<'a> {
    perform(env, "ledger", || {
        pool::submit(env, "ledger", reference, move || device::memory(ordinal).map(Data))
    })
}

/// `{:ok, bytes}` by message, once all work on the card is done.
#[rustler::nif]
fn device_release<'a>(env: Env<'a>, reference: Reference<'a>, ordinal: usize) -> Term<'a> {
    perform(env, "release", || {
        pool::submit(env, "release", reference, move || device::release(ordinal))
    })
}
