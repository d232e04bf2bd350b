//! How many frames the rows of a batch have.

use std::sync::Arc;

use crate::{Error, Result};

/// How many frames each row has, `[b]`; `None`: all of them. Frames from there on do not exist: their
/// outputs mean nothing, they give no gradient, and the state after the sequence is the one before them.
pub type Lengths = Option<Arc<[usize]>>;

/// Checks that there is a length for each row, and none beyond the sequence.
pub fn check_lengths(lengths: &Lengths, batch: usize, time: usize) -> Result<()> {
    let Some(lengths) = lengths else { return Ok(()) };
    if lengths.len() != batch {
        return Err(Error::mismatch("lengths of a batch", batch, lengths.len()));
    }
    match lengths.iter().find(|&&length| length > time) {
        Some(&n) => Err(Error::out_of_range("length of a row", n as f64, 0.0, time as f64)),
        None => Ok(()),
    }
}
