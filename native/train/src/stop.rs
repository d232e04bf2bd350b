//! Work that is asked to end.

use std::sync::atomic::{AtomicBool, Ordering};

use sconce_tensor::{Error, Result};

/// Of work that nothing stops.
pub(crate) static NEVER: AtomicBool = AtomicBool::new(false);

/// # Errors
/// `Cancelled` once the flag is set.
pub(crate) fn go_on(cancel: &AtomicBool) -> Result<()> {
    match cancel.load(Ordering::Relaxed) {
        true => Err(Error::Cancelled),
        false => Ok(()),
    }
}
