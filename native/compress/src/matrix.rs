//! A matrix of finite numbers.

use sconce_tensor::{Error, Result};

/// A matrix with at least one number. All numbers are finite.
#[derive(Debug, Clone, PartialEq)]
pub struct Matrix {
    rows: usize,
    cols: usize,
    values: Vec<f32>,
}

impl Matrix {
    /// A matrix of row-major numbers; `what` names it in errors.
    ///
    /// # Errors
    /// `Mismatch` without numbers or for another count of them, `NonFinite` for NaN and infinities.
    pub fn new(what: &str, rows: usize, cols: usize, values: Vec<f32>) -> Result<Self> {
        let shape = format!("[{rows}, {cols}]");
        if rows == 0 || cols == 0 {
            return Err(Error::mismatch(what, "a matrix with numbers", shape));
        }
        if rows.checked_mul(cols) != Some(values.len()) {
            return Err(Error::mismatch(what, format!("{shape} numbers"), values.len()));
        }
        finite(what, &values)?;
        Ok(Matrix { rows, cols, values })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The numbers, row by row.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// The rows.
    pub fn each_row(&self) -> impl Iterator<Item = &[f32]> {
        self.values.chunks_exact(self.cols)
    }

    /// Returns `Mismatch` unless the matrix has this shape.
    pub(crate) fn check(&self, what: &str, rows: usize, cols: usize) -> Result<()> {
        match (self.rows, self.cols) == (rows, cols) {
            true => Ok(()),
            false => {
                let [expected, got] =
                    [(rows, cols), (self.rows, self.cols)].map(|(m, n)| format!("[{m}, {n}]"));
                Err(Error::mismatch(what, expected, got))
            }
        }
    }

    /// Relative error of an approximation: `|w - w'| / |w|` in Frobenius norms, 0 if there is no difference.
    pub(crate) fn relative_error(&self, other: &[f32]) -> f64 {
        let square = |x: f64| x * x;
        let norm: f64 = self.values.iter().map(|w| square(f64::from(*w))).sum();
        let pairs = self.values.iter().zip(other);
        let error: f64 = pairs.map(|(w, o)| square(f64::from(*w) - f64::from(*o))).sum();
        if error == 0.0 { 0.0 } else { (error / norm).sqrt() }
    }
}

/// Returns `NonFinite` for the first number that is NaN or infinite.
pub(crate) fn finite(what: &str, values: &[f32]) -> Result<()> {
    match sconce_tensor::simd::non_finite(values) {
        None => Ok(()),
        Some(value) => Err(Error::NonFinite { what: what.into(), value: f64::from(value) }),
    }
}
