//! The range of integer codes, and the groups that share a grid.

use crate::{Error, Result};

/// The lowest and the highest integer code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Codes {
    /// The lowest code.
    pub lo: i32,
    /// The highest code; above 0.
    pub hi: i32,
}

impl Codes {
    /// Fewest and most bits of a code.
    pub const BITS: [u32; 2] = [2, 8];

    /// `-hi..hi` with `hi = 2^(bits - 1) - 1`, so that a number and its negative have opposite codes.
    ///
    /// # Errors
    /// `OutOfRange` unless there are 2 to 8 bits.
    pub fn symmetric(bits: u32) -> Result<Self> {
        let hi = (1 << (checked(bits)? - 1)) - 1;
        Ok(Codes { lo: -hi, hi })
    }

    /// `-2^(bits - 1)..2^(bits - 1) - 1`: all codes of two's complement.
    ///
    /// # Errors
    /// As [`symmetric`](Self::symmetric).
    pub fn full(bits: u32) -> Result<Self> {
        let Codes { lo, hi } = Codes::symmetric(bits)?;
        Ok(Codes { lo: lo - 1, hi })
    }

    /// `0..2^bits - 1`, for grids with a zero point.
    ///
    /// # Errors
    /// As [`symmetric`](Self::symmetric).
    pub fn unsigned(bits: u32) -> Result<Self> {
        Ok(Codes { lo: 0, hi: (1 << checked(bits)?) - 1 })
    }
}

fn checked(bits: u32) -> Result<u32> {
    let [least, most] = Codes::BITS;
    match (least..=most).contains(&bits) {
        true => Ok(bits),
        false => {
            Err(Error::out_of_range("bits", f64::from(bits), f64::from(least), f64::from(most)))
        }
    }
}

/// A matrix whose rows are cut into groups of consecutive columns; the last group of a row may be shorter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Groups {
    rows: usize,
    cols: usize,
    width: usize,
}

impl Groups {
    /// Groups of `width` columns.
    ///
    /// # Errors
    /// `OutOfRange` for a width of 0, and `Mismatch` for a matrix without numbers.
    pub fn new(rows: usize, cols: usize, width: usize) -> Result<Self> {
        if rows == 0 || cols == 0 {
            return Err(Error::mismatch("matrix", "numbers", format!("[{rows}, {cols}]")));
        }
        if width == 0 {
            return Err(Error::out_of_range("group", 0.0, 1.0, f64::MAX));
        }
        Ok(Groups { rows, cols, width: width.min(cols) })
    }

    /// One group for each row.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn rows(rows: usize, cols: usize) -> Result<Self> {
        Groups::new(rows, cols, cols.max(1))
    }

    /// One group for all numbers.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn whole(numbers: usize) -> Result<Self> {
        Groups::rows(1, numbers)
    }

    /// Number of rows, columns, and columns of a group.
    pub fn sizes(self) -> [usize; 3] {
        [self.rows, self.cols, self.width]
    }

    /// Number of groups in a row.
    pub fn per_row(self) -> usize {
        self.cols.div_ceil(self.width)
    }

    /// Number of groups.
    pub fn count(self) -> usize {
        self.rows * self.per_row()
    }

    /// Number of numbers.
    pub fn numbers(self) -> usize {
        self.rows * self.cols
    }

    /// Numbers in each group of a row.
    pub fn lengths(self) -> impl Iterator<Item = usize> {
        let Groups { cols, width, .. } = self;
        (0..self.per_row()).map(move |at| width.min(cols - at * width))
    }

    /// The numbers of each group, row by row. Ignores an incomplete last row.
    pub fn of<T>(self, numbers: &[T]) -> impl Iterator<Item = &[T]> {
        numbers.chunks_exact(self.cols).flat_map(move |row| row.chunks(self.width))
    }

    /// [`of`](Self::of) for numbers that change.
    pub fn of_mut<T>(self, numbers: &mut [T]) -> impl Iterator<Item = &mut [T]> {
        numbers.chunks_exact_mut(self.cols).flat_map(move |row| row.chunks_mut(self.width))
    }

    /// Rows of a shard of parallel work.
    pub(super) fn shard(self) -> usize {
        const NUMBERS: usize = 1 << 14;
        (NUMBERS / self.cols).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_cut_rows_and_never_span_two() {
        let groups = Groups::new(2, 5, 2).unwrap();
        let numbers: Vec<u32> = (0..10).collect();
        let cut: Vec<&[u32]> = groups.of(&numbers).collect();
        assert_eq!(cut, [&[0, 1][..], &[2, 3], &[4], &[5, 6], &[7, 8], &[9]]);
        assert_eq!((groups.count(), groups.lengths().collect::<Vec<_>>()), (6, vec![2, 2, 1]));
        assert_eq!(Groups::whole(10).unwrap().of(&numbers).collect::<Vec<_>>(), [&numbers[..]]);
        assert_eq!(Groups::new(2, 5, 99).unwrap(), Groups::rows(2, 5).unwrap());
    }

    #[test]
    fn bits_groups_and_matrices_out_of_range_are_errors() {
        for bits in [0, 1, 9, 40] {
            for codes in [Codes::symmetric(bits), Codes::full(bits), Codes::unsigned(bits)] {
                assert!(codes.unwrap_err().to_string().starts_with("bits: "), "{bits}");
            }
        }
        assert!(Groups::new(2, 5, 0).unwrap_err().to_string().starts_with("group: "));
        for [rows, cols] in [[0, 5], [5, 0]] {
            assert!(Groups::rows(rows, cols).unwrap_err().to_string().starts_with("matrix: "));
        }
        let codes = [Codes::symmetric(4), Codes::full(4), Codes::unsigned(4)];
        assert_eq!(
            codes.map(|codes| codes.unwrap()).map(|c| (c.lo, c.hi)),
            [(-7, 7), (-8, 7), (0, 15)]
        );
    }
}
