//! Matrices as integer codes.

use sconce_ops::{Codes, Groups};
use sconce_tensor::simd::dispatch;
use sconce_tensor::{Error, Result, memory, pool};

use crate::grid::{Fit, Grid, Per, Scale};
use crate::matrix::{Matrix, finite};

/// A matrix as integer codes, scales and zero points.
#[derive(Debug, Clone, PartialEq)]
pub struct Quantised {
    /// The form of the grid.
    pub grid: Grid,
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub cols: usize,
    /// The codes, row by row.
    pub codes: Vec<i16>,
    /// The scales: one, or one for each row, or `[rows, groups of a row]`.
    pub scales: Vec<f32>,
    /// A zero point beside each scale; empty without zero points.
    pub zeros: Vec<i16>,
    /// The columns in the order in which they form groups; empty for their own order.
    pub order: Vec<usize>,
}

/// Numbers of a shard of parallel work.
const SHARD: usize = 1 << 14;

dispatch! {
    fn encode(codes: &mut [i16], numbers: &[f32], fit: Fit, range: Codes) {
        let [zero, lo, hi] = [i32::from(fit.zero), range.lo, range.hi].map(|v| v as f32);
        for (code, w) in codes.iter_mut().zip(numbers) {
            // The sum is a whole number between two of 16 bits.
            *code = ((w / fit.scale).round_ties_even() + zero).clamp(lo, hi) as i16;
        }
    }
}

dispatch! {
    fn decode(numbers: &mut [f32], codes: &[i16], fit: Fit) {
        for (w, code) in numbers.iter_mut().zip(codes) {
            *w = number(*code, fit);
        }
    }
}

/// The number of a code. At the ends of the range of f32 a grid may reach beyond it.
#[inline(always)]
fn number(code: i16, fit: Fit) -> f32 {
    (fit.scale * f32::from(code - fit.zero)).clamp(f32::MIN, f32::MAX)
}

/// Calls `work(part of all, its first number, group)` for each group, in parallel.
fn each_group<T: Send>(
    groups: Groups,
    all: &mut [T],
    work: impl Fn(&mut [T], usize, usize) + Sync + Send,
) {
    let [_, cols, _] = groups.sizes();
    pool::for_each_rows(all, cols, (SHARD / cols).max(1), |first, rows| {
        let mut from = first * cols;
        for (at, part) in groups.of_mut(rows).enumerate() {
            let count = part.len();
            work(part, from, first * groups.per_row() + at);
            from += count;
        }
    });
}

impl Quantised {
    /// Rounds each number to the nearest code, half to even.
    ///
    /// # Errors
    /// `OutOfRange` for bits or groups out of range.
    pub fn nearest(weight: &Matrix, grid: Grid) -> Result<Self> {
        let (rows, cols) = (weight.rows(), weight.cols());
        let (range, groups) = (grid.codes()?, grid.per.groups(rows, cols)?);
        let fits: Vec<Fit> = groups
            .of(weight.values())
            .map(|group| grid.fit(range, group.iter().map(|w| f64::from(*w))))
            .collect();
        let mut codes = memory::repeated(0i16, rows * cols);
        each_group(groups, &mut codes, |codes, from, group| {
            encode(codes, &weight.values()[from..from + codes.len()], fits[group], range);
        });
        Ok(Quantised::of_fits(grid, rows, cols, codes, &fits))
    }

    /// Codes with the fits of their groups.
    pub(crate) fn of_fits(
        grid: Grid,
        rows: usize,
        cols: usize,
        codes: Vec<i16>,
        fits: &[Fit],
    ) -> Self {
        let zeros = if grid.zero_point { fits } else { &[] };
        Quantised {
            grid,
            rows,
            cols,
            codes,
            scales: fits.iter().map(|fit| fit.scale).collect(),
            zeros: zeros.iter().map(|fit| fit.zero).collect(),
            order: vec![],
        }
    }

    /// Checks codes, scales and zero points that come from a caller.
    ///
    /// # Errors
    /// `Mismatch` for other counts or an order that is none, `OutOfRange` for codes and zero points out of range and
    /// scales that are not above 0, `NonFinite` for scales that are not finite.
    pub fn checked(self) -> Result<Self> {
        let range = self.grid.codes()?;
        if self.rows.checked_mul(self.cols) != Some(self.codes.len()) {
            let expected = format!("[{}, {}]", self.rows, self.cols);
            return Err(Error::mismatch("codes", expected, self.codes.len()));
        }
        let groups = self.groups()?;
        let zeros = if self.grid.zero_point { groups.count() } else { 0 };
        let counts =
            [("scales", groups.count(), self.scales.len()), ("zeros", zeros, self.zeros.len())];
        for (what, expected, got) in counts {
            if expected != got {
                return Err(Error::mismatch(what, expected, got));
            }
        }
        for (what, all) in [("code", &self.codes), ("zero", &self.zeros)] {
            if let Some(out) = all.iter().find(|v| !(range.lo..=range.hi).contains(&i32::from(**v)))
            {
                let [out, lo, hi] = [i32::from(*out), range.lo, range.hi].map(f64::from);
                return Err(Error::out_of_range(what, out, lo, hi));
            }
        }
        finite("scale", &self.scales)?;
        let both_signs = !self.grid.zero_point && self.grid.scale == Scale::Search;
        let wrong = |scale: &&f32| **scale == 0.0 || (**scale < 0.0 && !both_signs);
        if let Some(scale) = self.scales.iter().find(wrong) {
            let least = f64::MIN_POSITIVE;
            return Err(Error::out_of_range("scale", f64::from(*scale), least, f64::MAX));
        }
        self.check_order()?;
        Ok(self)
    }

    fn check_order(&self) -> Result<()> {
        let expected = || format!("each of {} columns once", self.cols);
        let count = self.order.len();
        if count != 0 && count != self.cols {
            return Err(Error::mismatch("order", expected(), format!("{count} columns")));
        }
        let mut seen = vec![false; count];
        for column in &self.order {
            match seen.get_mut(*column) {
                Some(seen) if !*seen => *seen = true,
                Some(_) => {
                    return Err(Error::mismatch("order", expected(), format!("{column} twice")));
                }
                None => return Err(Error::mismatch("order", expected(), column)),
            }
        }
        Ok(())
    }

    fn groups(&self) -> Result<Groups> {
        self.grid.per.groups(self.rows, self.cols)
    }

    fn fit(&self, group: usize) -> Fit {
        let zero = self.zeros.get(group).copied().unwrap_or(0);
        Fit { scale: self.scales[group], zero }
    }

    /// The numbers that the codes stand for, row by row: `scale (code - zero)`.
    ///
    /// # Errors
    /// `OutOfRange` for groups of 0 columns.
    pub fn dequantise(&self) -> Result<Vec<f32>> {
        let groups = self.groups()?;
        let mut numbers = memory::zeros(self.codes.len());
        if let (Per::Group(width), false) = (self.grid.per, self.order.is_empty()) {
            self.decode_ordered(width, groups.per_row(), &mut numbers);
        } else {
            each_group(groups, &mut numbers, |numbers, from, group| {
                decode(numbers, &self.codes[from..from + numbers.len()], self.fit(group));
            });
        }
        Ok(numbers)
    }

    fn decode_ordered(&self, width: usize, per_row: usize, numbers: &mut [f32]) {
        let mut group_of = vec![0; self.cols];
        for (place, column) in self.order.iter().enumerate() {
            group_of[*column] = place / width;
        }
        let codes = self.codes.chunks_exact(self.cols);
        for (row, (numbers, codes)) in numbers.chunks_exact_mut(self.cols).zip(codes).enumerate() {
            for ((w, code), group) in numbers.iter_mut().zip(codes).zip(&group_of) {
                *w = number(*code, self.fit(row * per_row + group));
            }
        }
    }

    /// The relative error of the codes: `|w - w'| / |w|` in Frobenius norms, 0 for a matrix of zeros.
    ///
    /// # Errors
    /// `Mismatch` for a matrix of another shape.
    pub fn error(&self, weight: &Matrix) -> Result<f64> {
        weight.check("weight", self.rows, self.cols)?;
        Ok(weight.relative_error(&self.dequantise()?))
    }

    /// Bytes of the packed matrix: codes of `bits` bits, scales of 4 bytes, zero points of one.
    pub fn bytes(&self) -> usize {
        (self.codes.len() * self.grid.bits as usize).div_ceil(8)
            + size_of_val(&self.scales[..])
            + self.zeros.len()
    }
}
