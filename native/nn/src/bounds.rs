//! What the numbers of a Spec may be.

use crate::{Error, Result};

/// Each width, each number of heads, states, taps or frames: of a product of four no 64 bits overflow.
pub const MAX_SIZE: usize = 1 << 16;
/// Heads of an action.
pub const MAX_PARTS: usize = 64;
/// Layers of a backbone. A graph is walked and dropped recursively: its depth must fit a stack.
pub const MAX_LAYERS: usize = 256;
/// Numbers that a backbone remembers of one game: 1 GiB.
pub const MAX_STATE: usize = 1 << 28;
/// Inputs that a vector may have: a second of them and some.
pub(crate) const MAX_QUEUE_DEPTH: usize = 64;
/// Letters of a head's name.
pub(crate) const MAX_HEAD_NAME: usize = 32;

pub(crate) fn within(field: &str, n: usize, min: usize, max: usize) -> Result<()> {
    if n < min || n > max {
        return Err(Error::out_of_range(field, n as f64, min as f64, max as f64));
    }
    Ok(())
}

pub(crate) fn size(field: &str, n: usize, min: usize) -> Result<()> {
    within(field, n, min, MAX_SIZE)
}
