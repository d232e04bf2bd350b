//! The threads that calls hand their work to.

use std::sync::OnceLock;

use rustler::{Env, Reference};
use sconce_core::{Error, Result, pool};
use sconce_serve::Pool;

use super::{Answer, Reply};

/// Calls that may wait at one time; the next one is `:busy`.
const QUEUE: usize = 4096;

/// The pool of this VM, started by the first call that needs it. As many threads as the native side
/// computes with.
pub fn shared() -> Result<&'static Pool> {
    static POOL: OnceLock<std::result::Result<Pool, String>> = OnceLock::new();
    let pool = POOL.get_or_init(|| {
        Pool::new("sconce-worker", pool::threads(), QUEUE).map_err(|e| e.to_string())
    });
    pool.as_ref().map_err(|reason| Error::Unavailable {
        what: "worker threads".into(),
        reason: reason.clone(),
    })
}

/// Queues `work`, whose result answers `reference`; [`Error::Busy`] when too much is queued.
pub fn submit<T: Answer>(
    env: Env,
    op: &'static str,
    reference: Reference,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<()> {
    let permit = shared()?.permit()?;
    let reply = Reply::new(env, op, reference);
    permit.submit(None, move |start| reply.run(|| start.and_then(|()| work())));
    Ok(())
}
