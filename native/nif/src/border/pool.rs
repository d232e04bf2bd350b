//! Thread pools for the work of calls.

use std::sync::OnceLock;

use rustler::{Env, Reference};
use sconce_serve::Pool;
use sconce_tensor::{Error, Result, pool};

use super::answer::Answer;
use super::reply::Reply;

/// Maximum number of queued calls; the next call is `:busy`.
const QUEUE: usize = 4096;

/// A pool that starts its threads at the first call.
pub(crate) struct LazyPool {
    name: &'static str,
    pool: OnceLock<std::result::Result<Pool, String>>,
}

impl LazyPool {
    pub(crate) const fn new(name: &'static str) -> Self {
        LazyPool { name, pool: OnceLock::new() }
    }

    pub(crate) fn pool(&self, threads: usize) -> Result<&Pool> {
        let started = || Pool::new(self.name, threads, QUEUE).map_err(|e| e.to_string());
        self.pool.get_or_init(started).as_ref().map_err(|reason| Error::Unavailable {
            what: "worker threads".into(),
            reason: reason.clone(),
        })
    }
}

static SHARED: LazyPool = LazyPool::new("sconce-worker");

/// The pool of this VM, with as many threads as native computation uses.
pub(crate) fn shared() -> Result<&'static Pool> {
    SHARED.pool(pool::threads())
}

/// Number of calls that wait for a thread of [`shared`].
pub(crate) fn waiting() -> usize {
    let started = SHARED.pool.get().and_then(|pool| pool.as_ref().ok());
    started.map_or(0, Pool::waiting)
}

/// Queues `work`, whose result answers `reference`. Returns [`Error::Busy`] if the queue is full.
pub(crate) fn submit<T: Answer>(
    env: Env,
    op: &'static str,
    reference: Reference,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<()> {
    submit_to(shared()?, env, op, reference, work)
}

/// Like [`submit`], for another pool.
pub(crate) fn submit_to<T: Answer>(
    pool: &Pool,
    env: Env,
    op: &'static str,
    reference: Reference,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<()> {
    let permit = pool.permit()?;
    let reply = Reply::new(env, op, reference);
    permit.submit(None, move |start| reply.run(|| start.and_then(|()| work())));
    Ok(())
}
