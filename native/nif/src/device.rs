//! Devices (`Sconce.Device`) and the memory of cards (`Sconce.GPU.Ledger`).

use rustler::{Env, Reference, Term};
use sconce_tensor::device::{self, Budget};

use crate::border::{Data, decode, perform, pool};

/// Returns `:ok` if policies can run on these cards.
// Dirty: a driver takes time to wake up.
#[rustler::nif(schedule = "DirtyIo")]
fn device_check(env: Env, ordinals: Vec<usize>) -> Term {
    perform(env, "device", || device::check(&ordinals))
}

/// Sets the memory of a card that this VM may use.
#[rustler::nif]
fn device_allow<'a>(env: Env<'a>, budget: Term<'a>) -> Term<'a> {
    perform(env, "device", || {
        device::allow(decode::<Budget>(budget)?);
        Ok(())
    })
}

/// Sends `{:ok, memory}` by message.
// On a worker: the driver may be busy with an allocation of another process.
#[rustler::nif]
fn device_memory<'a>(env: Env<'a>, reference: Reference<'a>, ordinal: usize) -> Term<'a> {
    perform(env, "ledger", || {
        pool::submit(env, "ledger", reference, move || device::memory(ordinal).map(Data))
    })
}

/// Returns free memory of a card to its driver. Sends `{:ok, bytes}` by message, once all work on the card is done.
#[rustler::nif]
fn device_release<'a>(env: Env<'a>, reference: Reference<'a>, ordinal: usize) -> Term<'a> {
    perform(env, "release", || {
        pool::submit(env, "release", reference, move || device::release(ordinal))
    })
}
