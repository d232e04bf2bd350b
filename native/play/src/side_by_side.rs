//! Work on several parts at once, with all results in order.

use std::sync::OnceLock;

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
