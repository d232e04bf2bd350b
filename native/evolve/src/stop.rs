//! The end of long work before it is done.

use sconce_tensor::{Error, Result};

/// A question that long work asks often, on any thread. The answer true ends the work with [`Error::Cancelled`],
/// and stays true.
pub type Stop<'a> = &'a (dyn Fn() -> bool + Sync);

/// The answer of a caller that waits as long as it takes.
pub(crate) fn never() -> bool {
    false
}

/// Returns `Cancelled` if the work has to end.
pub(crate) fn go_on(stop: Stop<'_>) -> Result<()> {
    if stop() { Err(Error::Cancelled) } else { Ok(()) }
}
