//! Bounds of the sizes in a Spec.

use crate::{Error, Result};

/// Maximum of each width and of each number of heads, states, taps or frames. A product of four fits in 64 bits.
pub const MAX_SIZE: usize = 1 << 16;
/// Maximum number of heads of an action.
pub const MAX_PARTS: usize = 64;
/// Maximum number of layers of a backbone. A graph is walked and dropped recursively, so its depth must fit a stack.
pub const MAX_LAYERS: usize = 256;
/// Maximum number of f32 in the state of one game: 1 GiB.
pub const MAX_STATE: usize = 1 << 28;
/// Maximum number of inputs in a vector: slightly more than one second at 60 frames per second.
pub(crate) const MAX_QUEUE_DEPTH: usize = 64;
/// Maximum length of a head's name, in characters.
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
