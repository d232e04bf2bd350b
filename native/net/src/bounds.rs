//! Bounds of the sizes in a declaration.

use crate::{Error, Result};

/// Maximum of each size: of an axis, a kernel, a stride, a padding or a number of channels.
pub const MAX_SIZE: usize = 1 << 16;
/// Maximum number of layers, those inside of other layers included.
pub const MAX_LAYERS: usize = 1024;
/// Maximum depth of layers inside of layers.
pub const MAX_DEPTH: usize = 16;
/// Maximum number of values between two layers, padding included: 256 MiB.
pub const MAX_VALUES: usize = 1 << 26;
/// Maximum number of weights of a network: 1 GiB.
pub const MAX_PARAMETERS: usize = 1 << 28;

/// Checks that a number is in a range.
pub(crate) fn within(field: &str, n: usize, min: usize, max: usize) -> Result<()> {
    match (min..=max).contains(&n) {
        true => Ok(()),
        false => Err(Error::out_of_range(field, n as f64, min as f64, max as f64)),
    }
}

/// The product of sizes, at most `max`.
pub(crate) fn product(field: &str, sizes: &[usize], max: usize) -> Result<usize> {
    let all = sizes.iter().try_fold(1usize, |n, size| n.checked_mul(*size));
    let all = all.unwrap_or(usize::MAX);
    within(field, all, 0, max)?;
    Ok(all)
}
