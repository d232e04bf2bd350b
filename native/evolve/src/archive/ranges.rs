//! Checks of the sizes and the ranges of a space.

use sconce_tensor::{Error, Result};

use crate::{MOST, refused};

/// Most cells of an archive. Each takes 12 bytes.
pub(super) const MOST_CELLS: usize = 1 << 26;
/// Most measures of a solution.
const MOST_MEASURES: usize = 64;

/// Checks the number of measures.
pub(super) fn checked_measures(measures: usize) -> Result<()> {
    match (1..=MOST_MEASURES).contains(&measures) {
        true => Ok(()),
        false => Err(Error::out_of_range("measures", measures as f64, 1.0, MOST_MEASURES as f64)),
    }
}

/// Checks that each range is finite and not empty.
pub(super) fn checked_ranges(ranges: &[(f64, f64)]) -> Result<()> {
    checked_measures(ranges.len())?;
    for (at, (low, high)) in ranges.iter().enumerate() {
        for value in [low, high] {
            if value.is_nan() || value.abs() > MOST {
                return Err(refused(format!("the range of measure {at}"), *value));
            }
        }
        if low >= high {
            return Err(Error::mismatch(
                format!("the range of measure {at}"),
                format!("a number above {low}"),
                high,
            ));
        }
    }
    Ok(())
}
