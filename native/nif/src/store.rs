//! Tensors in tiers of memory: `Sconce.Store`.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};

use rustler::{Binary, Encoder, Env, Reference, Resource, ResourceArc, Term};
use sconce_store::{Dtype, Part, Rows, Store, StoreOptions};
use sconce_tensor::{Error, Result};

use crate::border::pool::{self, LazyPool};
use crate::border::{
    Answer, Data, Given, Handle, Handled, Task, call, decode, error, inline, perform, timed,
};

mod atoms {
    rustler::atoms! { queued }
}

/// Threads that read for callers. They wait for disks, so they are not those of sessions.
const READERS: usize = 4;

static POOL: LazyPool = LazyPool::new("sconce-reader");

/// Threads that put for callers. A put may wait until packs have been rewritten, for which no reader waits.
const WRITERS: usize = 2;

static PUTS: LazyPool = LazyPool::new("sconce-writer");

/// A store, until it is closed.
struct StoreHandle(RwLock<Option<Arc<Store>>>);

#[rustler::resource_impl]
impl Resource for StoreHandle {}

impl Handled for StoreHandle {
    const NOUN: &'static str = "store";
}

impl StoreHandle {
    fn get(handle: Handle<StoreHandle>) -> Result<Arc<Store>> {
        let own = handle.get()?;
        let store = own.0.read().unwrap_or_else(PoisonError::into_inner).clone();
        store.ok_or_else(|| Error::not_found("store (it was closed)"))
    }
}

/// Bytes of a block that binaries refer to.
struct PartHandle(Part);

#[rustler::resource_impl]
impl Resource for PartHandle {}

/// Bytes that were copied because several blocks hold them.
struct Copied(Vec<u8>);

#[rustler::resource_impl]
impl Resource for Copied {}

/// Rows as `{type, shape, binary}`. The binary refers to the block that holds all rows, if there is one.
struct Found(Rows);

impl Encoder for Found {
    fn encode<'a>(&self, env: Env<'a>) -> Term<'a> {
        let Found(rows) = self;
        let binary = match &rows.parts[..] {
            [part] => {
                let part = ResourceArc::new(PartHandle(part.clone()));
                part.make_binary(env, |part| part.0.bytes())
            }
            _ => ResourceArc::new(Copied(rows.to_vec())).make_binary(env, |copied| &copied.0),
        };
        (rows.tensor.dtype.name(), &rows.tensor.shape, binary).encode(env)
    }
}

/// Runs work that waits for a disk on a thread of its own.
fn long<'a, T: Answer + Send + 'static>(
    env: Env<'a>,
    op: &'static str,
    store: Handle<StoreHandle>,
    reference: Reference<'a>,
    work: impl FnOnce(&Store) -> Result<T> + Send + 'static,
) -> Term<'a> {
    call(env, op, || {
        let store = StoreHandle::get(store)?;
        Task::start(env, op, reference, move |_events, _cancelled| work(&store))
    })
}

/// Opens a store. Sends `{:ok, {handle, fault}}` by message.
#[rustler::nif]
fn store_open<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    path: String,
    options: Term<'a>,
) -> Term<'a> {
    call(env, "open", || {
        let options: StoreOptions = decode(options)?;
        Task::start(env, "open", reference, move |_events, _cancelled| {
            let store = Store::open(Path::new(&path), options)?;
            let fault = store.fault().map(str::to_owned);
            Ok((ResourceArc::new(StoreHandle(RwLock::new(Some(Arc::new(store))))), fault))
        })
    })
}

/// Puts tensors `{name, type, shape, binary}`, which may lose something once they are cold if `lossy` says so, and commits if
/// asked to. Sends `{:ok, true}` by message.
#[rustler::nif(schedule = "DirtyCpu")]
fn store_put<'a>(
    env: Env<'a>,
    store: Handle<StoreHandle>,
    reference: Reference<'a>,
    tensors: Term<'a>,
    lossy: bool,
    commit: bool,
) -> Term<'a> {
    let given = Given::new(env, tensors);
    let store = match StoreHandle::get(store) {
        Ok(store) => store,
        Err(failure) => return error(env, "put", &failure),
    };
    perform(env, "put", || {
        let pool = PUTS.pool(WRITERS)?;
        pool::submit_to(pool, env, "put", reference, move || put(&store, &given, lossy, commit))
    })
}

fn put(store: &Store, given: &Given, lossy: bool, commit: bool) -> Result<bool> {
    given.read(|tensors| {
        type Tensor<'t> = (String, String, Vec<u64>, Binary<'t>);
        let tensors: Vec<Tensor> = tensors
            .decode()
            .map_err(|_| Error::mismatch("tensors to put", "names and data", "others"))?;
        tensors.iter().try_for_each(|(name, dtype, shape, bytes)| {
            let dtype = Dtype::named(dtype)?;
            match lossy {
                true => store.put_lossy(name, dtype, shape, bytes),
                false => store.put(name, dtype, shape, bytes),
            }
        })
    })?;
    if commit {
        store.commit()?;
    }
    Ok(true)
}

/// Rows of a tensor, or all: at once if they are in RAM, otherwise `:queued` and a message.
#[rustler::nif]
fn store_get<'a>(
    env: Env<'a>,
    store: Handle<StoreHandle>,
    reference: Reference<'a>,
    name: String,
    rows: Option<(u64, u64)>,
    stream: u64,
) -> Term<'a> {
    let store = match StoreHandle::get(store) {
        Ok(store) => store,
        Err(failure) => return error(env, "get", &failure),
    };
    match store.resident(&name, rows, stream) {
        Ok(Some(found)) => timed(env, || call(env, "get", || Ok(Found(found)))),
        // Rows of several blocks are copied, which takes too long for a scheduler.
        Ok(None) => {
            let queued = POOL.pool(READERS).and_then(|pool| {
                let work = move || store.read(&name, rows, stream).map(Found);
                pool::submit_to(pool, env, "get", reference, work)
            });
            match queued {
                Ok(()) => atoms::queued().encode(env),
                Err(failure) => error(env, "get", &failure),
            }
        }
        Err(failure) => error(env, "get", &failure),
    }
}

/// Removes a tensor.
#[rustler::nif]
fn store_delete<'a>(
    env: Env<'a>,
    store: Handle<StoreHandle>,
    reference: Reference<'a>,
    names: Vec<String>,
    commit: bool,
) -> Term<'a> {
    long(env, "delete", store, reference, move |store| {
        names.iter().try_for_each(|name| store.delete(name))?;
        if commit {
            store.commit()?;
        }
        Ok(true)
    })
}

/// Makes durable what was put and deleted. Sends `{:ok, true}` by message.
#[rustler::nif]
fn store_commit<'a>(
    env: Env<'a>,
    store: Handle<StoreHandle>,
    reference: Reference<'a>,
) -> Term<'a> {
    long(env, "commit", store, reference, |store| store.commit().map(|()| true))
}

/// Rewrites packs of which little is used. Sends `{:ok, bytes}` by message.
#[rustler::nif]
fn store_compact<'a>(
    env: Env<'a>,
    store: Handle<StoreHandle>,
    reference: Reference<'a>,
    share: f64,
) -> Term<'a> {
    call(env, "compact", || {
        let store = StoreHandle::get(store)?;
        Task::start(env, "compact", reference, move |_events, cancelled| {
            store.compact(share, &|| cancelled.load(Ordering::Relaxed))
        })
    })
}

/// Checks all blocks. Sends `{:ok, damaged}` by message.
#[rustler::nif]
fn store_verify<'a>(
    env: Env<'a>,
    store: Handle<StoreHandle>,
    reference: Reference<'a>,
) -> Term<'a> {
    long(env, "verify", store, reference, |store| Ok(Data(store.verify())))
}

/// Takes up what the process that writes has committed. Sends `{:ok, true}` by message.
#[rustler::nif]
fn store_refresh<'a>(
    env: Env<'a>,
    store: Handle<StoreHandle>,
    reference: Reference<'a>,
) -> Term<'a> {
    long(env, "refresh", store, reference, |store| store.refresh().map(|()| true))
}

/// The names in order.
#[rustler::nif(schedule = "DirtyCpu")]
fn store_names<'a>(env: Env<'a>, store: Handle<StoreHandle>) -> Term<'a> {
    call(env, "names", || Ok(StoreHandle::get(store)?.names()))
}

/// The type and the shape of a tensor, its blocks, whether it may lose something, and the blocks that have.
#[rustler::nif]
fn store_tensor<'a>(env: Env<'a>, store: Handle<StoreHandle>, name: String) -> Term<'a> {
    inline(env, "info", || {
        let store = StoreHandle::get(store)?;
        let (tensor, lossy_blocks) = store.described(&name)?;
        let (shape, blocks) = (tensor.shape.clone(), tensor.blocks.len());
        Ok((tensor.dtype.name(), shape, blocks, tensor.lossy, lossy_blocks))
    })
}

/// The contents of the store, and their places.
#[rustler::nif(schedule = "DirtyCpu")]
fn store_stats<'a>(env: Env<'a>, store: Handle<StoreHandle>) -> Term<'a> {
    call(env, "stats", || Ok(Data(StoreHandle::get(store)?.stats())))
}

/// Commits and closes. Sends `{:ok, true}` by message.
#[rustler::nif]
fn store_close<'a>(env: Env<'a>, store: Handle<StoreHandle>, reference: Reference<'a>) -> Term<'a> {
    call(env, "close", || {
        let handle = store.get()?;
        let open = handle.0.read().unwrap_or_else(PoisonError::into_inner).clone();
        Task::start(env, "close", reference, move |_events, _cancelled| {
            // After an error the store stays open, for another try.
            open.map_or(Ok(()), |store| store.close())?;
            handle.0.write().unwrap_or_else(PoisonError::into_inner).take();
            Ok(true)
        })
    })
}
