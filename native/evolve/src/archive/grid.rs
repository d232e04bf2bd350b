//! Cells of equal size along each measure.

use sconce_tensor::{Error, Result};

use super::ranges::{MOST_CELLS, checked_ranges};

/// A grid over a box of measures. A measure outside of the box belongs to the nearest cell of the border.
#[derive(Debug, Clone, PartialEq)]
pub struct Grid {
    dimensions: Vec<u32>,
    ranges: Vec<(f64, f64)>,
    cells: usize,
}

impl Grid {
    /// A grid with `dimensions[i]` cells along measure `i`, whose range is `ranges[i]`.
    ///
    /// # Errors
    /// `Mismatch` for other numbers of ranges, `OutOfRange` for empty ranges and for too few or too many cells.
    pub fn new(dimensions: &[usize], ranges: &[(f64, f64)]) -> Result<Self> {
        checked_ranges(ranges)?;
        if dimensions.len() != ranges.len() {
            return Err(Error::mismatch("ranges of the grid", dimensions.len(), ranges.len()));
        }
        let mut cells = 1usize;
        for size in dimensions {
            cells = cells.saturating_mul(*size);
        }
        if !(1..=MOST_CELLS).contains(&cells) {
            return Err(Error::out_of_range("cells", cells as f64, 1.0, MOST_CELLS as f64));
        }
        let dimensions = dimensions.iter().map(|size| *size as u32).collect();
        Ok(Grid { dimensions, ranges: ranges.to_vec(), cells })
    }

    /// Cells along each measure.
    pub fn dimensions(&self) -> &[u32] {
        &self.dimensions
    }

    /// The range of each measure.
    pub fn ranges(&self) -> &[(f64, f64)] {
        &self.ranges
    }

    /// Number of cells.
    pub fn cells(&self) -> usize {
        self.cells
    }

    /// The cell of measures: `floor((m - low) / (high - low) * size)` of each one, the last measure fastest.
    #[inline]
    pub fn cell(&self, measures: &[f64]) -> usize {
        let mut cell = 0;
        for ((m, (low, high)), size) in measures.iter().zip(&self.ranges).zip(&self.dimensions) {
            let place = (m - low) / (high - low) * f64::from(*size);
            cell = cell * *size as usize + place.clamp(0.0, f64::from(size - 1)) as usize;
        }
        cell
    }
}
