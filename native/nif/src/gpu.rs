//! Queries to the driver of NVIDIA's GPUs.
//!
//! One separate thread sends all queries and answers by message. A driver takes microseconds for most queries,
//! milliseconds for some, seconds if it must wake a card first, and never returns if a card hangs. Then only that
//! thread hangs, no scheduler and no worker; callers give up at their deadlines ([`gpu_abandon`]).

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rustler::{Env, Reference, Resource, ResourceArc, Term};
use sconce_cuda::{Cause, Driver, Drivers, RETRY};
use sconce_tensor::{Error, Result};
use serde::Serialize;

use crate::border::pool::LazyPool;
use crate::border::{Data, Reply, call, guard};
use crate::session::Ticket;

/// The libraries stay open for the life of the VM.
static DRIVERS: Mutex<Drivers> = Mutex::new(Drivers::new(RETRY));
static WATCH: LazyPool = LazyPool::new("sconce-nvml");

/// The path of the driver's library, if given, and the number of a GPU.
type At = (Option<String>, u32);

/// A query in flight.
pub(crate) struct Asked(Ticket);

#[rustler::resource_impl]
impl Resource for Asked {}

/// Gives up waiting: true if no answer will come, false if it is in flight or has arrived.
#[rustler::nif]
fn gpu_abandon(asked: ResourceArc<Asked>) -> bool {
    asked.0.claim()
}

#[rustler::nif]
fn gpu_versions<'a>(env: Env<'a>, reference: Reference<'a>, library: Option<String>) -> Term<'a> {
    ask(env, "versions", reference, library, Driver::versions)
}

#[rustler::nif]
fn gpu_count<'a>(env: Env<'a>, reference: Reference<'a>, library: Option<String>) -> Term<'a> {
    ask(env, "count", reference, library, Driver::count)
}

#[rustler::nif]
fn gpu_card<'a>(env: Env<'a>, reference: Reference<'a>, (library, index): At) -> Term<'a> {
    ask(env, "card", reference, library, move |driver| driver.card(index))
}

#[rustler::nif]
fn gpu_memory<'a>(env: Env<'a>, reference: Reference<'a>, (library, index): At) -> Term<'a> {
    ask(env, "memory", reference, library, move |driver| driver.memory(index))
}

#[rustler::nif]
fn gpu_utilization<'a>(env: Env<'a>, reference: Reference<'a>, (library, index): At) -> Term<'a> {
    ask(env, "utilization", reference, library, move |driver| driver.utilization(index))
}

#[rustler::nif]
fn gpu_temperature<'a>(env: Env<'a>, reference: Reference<'a>, (library, index): At) -> Term<'a> {
    ask(env, "temperature", reference, library, move |driver| driver.temperature(index))
}

#[rustler::nif]
fn gpu_power<'a>(env: Env<'a>, reference: Reference<'a>, (library, index): At) -> Term<'a> {
    ask(env, "power", reference, library, move |driver| driver.power(index))
}

#[rustler::nif]
fn gpu_clocks<'a>(env: Env<'a>, reference: Reference<'a>, (library, index): At) -> Term<'a> {
    ask(env, "clocks", reference, library, move |driver| driver.clocks(index))
}

#[rustler::nif]
fn gpu_throttle<'a>(env: Env<'a>, reference: Reference<'a>, (library, index): At) -> Term<'a> {
    ask(env, "throttle", reference, library, move |driver| driver.throttle(index))
}

#[rustler::nif]
fn gpu_processes<'a>(env: Env<'a>, reference: Reference<'a>, (library, index): At) -> Term<'a> {
    ask(env, "processes", reference, library, move |driver| driver.processes(index))
}

/// Returns `{:ok, asked}`; the answer comes by message.
fn ask<'a, T: Serialize>(
    env: Env<'a>,
    op: &'static str,
    reference: Reference<'a>,
    library: Option<String>,
    question: impl FnOnce(&Driver) -> sconce_cuda::Result<T> + Send + 'static,
) -> Term<'a> {
    call(env, op, || {
        let permit = WATCH.pool(1)?.permit()?;
        let ticket = Ticket::default();
        let asked = ResourceArc::new(Asked(ticket.clone()));
        let reply = Reply::new(env, op, reference);
        permit.submit(None, move |start| {
            let answer = guard(|| {
                start?;
                answer(library.as_deref(), question)
            });
            match ticket.claim() {
                true => reply.send(answer),
                false => reply.dismiss(),
            }
        });
        Ok(asked)
    })
}

fn answer<T>(
    library: Option<&str>,
    question: impl FnOnce(&Driver) -> sconce_cuda::Result<T>,
) -> Result<Data<T>> {
    let mut drivers = DRIVERS.lock().unwrap_or_else(PoisonError::into_inner);
    let driver = drivers.driver(library.map(Path::new));
    driver.and_then(question).map(Data).map_err(refused)
}

fn refused(error: sconce_cuda::Error) -> Error {
    let sconce_cuda::Error { what, cause, reason } = error;
    match cause {
        Cause::NoDevice => Error::not_found(format!("{what} ({reason})")),
        cause => Error::Driver { what, cause: cause.name(), reason },
    }
}
