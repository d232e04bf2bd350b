//! Cancellation of work.

use std::sync::atomic::{AtomicBool, Ordering};

use sconce_tensor::{Error, Result};

/// A flag for work that is never cancelled.
pub(crate) static NEVER: AtomicBool = AtomicBool::new(false);

/// Checks the flag of cancellable work.
///
/// # Errors
/// `Cancelled` once the flag is set.
pub(crate) fn go_on(cancel: &AtomicBool) -> Result<()> {
    match cancel.load(Ordering::Relaxed) {
        true => Err(Error::Cancelled),
        false => Ok(()),
    }
}
