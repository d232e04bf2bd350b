//! Work on several parts at once, with all results in order.

use std::sync::OnceLock;

use sconce_tensor::pool::Class;
use sconce_tensor::{Error, Result, pool};

/// The results of `work` for all parts, in their order, or the first error. A single part may use all threads. `what`
/// names a part in the error of a result that is missing.
pub(crate) fn side_by_side<P: Send, T: Send + Sync>(
    what: &str,
    parts: impl IntoIterator<Item = P>,
    work: impl Fn(P) -> Result<T> + Sync + Send,
) -> Result<Vec<T>> {
    let parts: Vec<P> = parts.into_iter().collect();
    let results: Vec<OnceLock<Result<T>>> = parts.iter().map(|_| OnceLock::new()).collect();
    pool::hand_out(parts, |i, part| {
        let _ = results[i].set(work(part));
    });
    let missing = || Err(Error::not_found(what));
    results.into_iter().map(|cell| cell.into_inner().unwrap_or_else(missing)).collect()
}

/// The results of both: `first` runs on a thread of its own beside `second`, or before it if the pool has one thread.
pub(crate) fn beside<A: Send, B>(
    first: impl FnOnce() -> Result<A> + Send,
    second: impl FnOnce() -> Result<B>,
) -> Result<(A, B)> {
    if !pool::is_shared() {
        return Ok((first()?, second()?));
    }
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("sconce-play".into());
        let thread = thread.spawn_scoped(scope, Class::inherit(first));
        let thread = thread
            .map_err(|e| Error::Unavailable { what: "a thread".into(), reason: e.to_string() })?;
        let second = second();
        let first = thread.join().unwrap_or_else(|payload| Err(Error::of_panic(payload)));
        Ok((first?, second?))
    })
}
