//! Cancellation of work.

use std::sync::atomic::{AtomicBool, Ordering};

use sconce_tensor::{Error, Result};

/// Flag of work that is never cancelled.
pub(crate) static NEVER: AtomicBool = AtomicBool::new(false);

/// Checks the flag of work that may be cancelled.
///
/// # Errors
/// `Cancelled` once the flag is set.
pub(crate) fn go_on(cancel: &AtomicBool) -> Result<()> {
    match cancel.load(Ordering::Relaxed) {
        true => Err(Error::Cancelled),
        false => Ok(()),
    }
}
