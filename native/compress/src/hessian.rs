//! The Hessian of a layer's squared error: the second moments of the layer's inputs.

use std::sync::atomic::AtomicBool;

use sconce_tensor::{Error, Result, memory, pool};

use crate::dense::{axpy, wide};
use crate::matrix::Matrix;
use crate::stopped;

/// `2 X^T X / samples` of the inputs `X [samples, size]` of a linear layer (Frantar et al. 2023).
#[derive(Debug, Clone, PartialEq)]
pub struct Hessian {
    size: usize,
    values: Vec<f64>,
}

/// The sum of `x x^T` over the inputs x of a layer.
pub(crate) struct Moments {
    size: usize,
    samples: usize,
    /// The upper triangle.
    values: Vec<f64>,
}

impl Moments {
    /// Samples that are widened at once.
    pub(crate) const AT_ONCE: usize = 256;

    /// # Errors
    /// `OutOfMemory` for more inputs than fit.
    pub(crate) fn new(size: usize) -> Result<Self> {
        memory::room("the Hessian of a calibration", (size * size * size_of::<f64>()) as u64)?;
        Ok(Moments { size, samples: 0, values: memory::repeated(0.0, size * size) })
    }

    /// Adds samples `[n, size]`.
    pub(crate) fn add(&mut self, samples: &[f32]) {
        let size = self.size;
        self.samples += samples.len() / size;
        let samples = wide(samples);
        pool::for_each_rows(&mut self.values, size, 16, |first, rows| {
            for x in samples.chunks_exact(size) {
                for (i, row) in rows.chunks_exact_mut(size).enumerate() {
                    axpy(&mut row[first + i..], x[first + i], &x[first + i..]);
                }
            }
        });
    }

    pub(crate) fn finish(self) -> Hessian {
        let Moments { size, samples, mut values } = self;
        let factor = 2.0 / samples.max(1) as f64;
        for i in 0..size {
            for j in i..size {
                let value = values[i * size + j] * factor;
                (values[i * size + j], values[j * size + i]) = (value, value);
            }
        }
        Hessian { size, values }
    }
}

/// Largest difference of two mirrored numbers, relative to the largest number.
const SYMMETRIC: f64 = 1e-5;

impl Hessian {
    /// The Hessian of calibration inputs `[samples, size]`. One sample suffices.
    ///
    /// # Errors
    /// `OutOfMemory` for more inputs than fit; `Cancelled` soon after `cancelled` is set.
    pub fn of_inputs(inputs: &Matrix, cancelled: &AtomicBool) -> Result<Self> {
        let mut moments = Moments::new(inputs.cols())?;
        for samples in inputs.values().chunks(Moments::AT_ONCE * inputs.cols()) {
            stopped(cancelled)?;
            moments.add(samples);
        }
        Ok(moments.finish())
    }

    /// A Hessian that was computed elsewhere, `[size, size]`.
    ///
    /// # Errors
    /// `Mismatch` unless the matrix is square and symmetric with a diagonal that is nowhere below 0.
    pub fn of(matrix: &Matrix) -> Result<Self> {
        let size = matrix.rows();
        matrix.check("hessian", size, size)?;
        let values = wide(matrix.values());
        let most = values.iter().fold(0.0, |most: f64, v| most.max(v.abs()));
        for i in 0..size {
            if values[i * size + i] < 0.0 {
                let got = format!("{} in column {i}", values[i * size + i]);
                return Err(Error::mismatch("hessian", "a diagonal that is nowhere below 0", got));
            }
            for j in 0..i {
                if (values[i * size + j] - values[j * size + i]).abs() > SYMMETRIC * most {
                    let got = format!("other numbers at [{i}, {j}] and [{j}, {i}]");
                    return Err(Error::mismatch("hessian", "a symmetric matrix", got));
                }
            }
        }
        Ok(Hessian { size, values })
    }

    /// Number of inputs of the layer.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The numbers, row by row.
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// The Hessian with a little energy for inputs that never fired, so that their weights are rounded instead of removed: a
    /// calibration does not meet all situations.
    pub(crate) fn with_all_inputs(&self) -> Self {
        const LITTLE: f64 = 1e-6;
        let mean = self.diagonal().sum::<f64>() / self.size as f64;
        let mut values = self.values.clone();
        for own in values.iter_mut().step_by(self.size + 1).filter(|own| **own == 0.0) {
            *own = LITTLE * mean;
        }
        Hessian { size: self.size, values }
    }

    /// The numbers, with this part of the mean of the diagonal added to the diagonal.
    pub(crate) fn damped(&self, damping: f64) -> Vec<f64> {
        let damping = damping * self.diagonal().sum::<f64>() / self.size as f64;
        let mut values = memory::copied(&self.values);
        values.iter_mut().step_by(self.size + 1).for_each(|own| *own += damping);
        values
    }

    pub(crate) fn diagonal(&self) -> impl Iterator<Item = f64> {
        self.values.iter().step_by(self.size + 1).copied()
    }

    /// The mean over samples of twice the squared error of the layer's outputs, if `weight` is replaced by `other`:
    /// `trace((W - W') H (W - W')^T)`.
    ///
    /// # Errors
    /// `Mismatch` for other shapes.
    pub fn error(&self, weight: &Matrix, other: &[f32]) -> Result<f64> {
        weight.check("weight", weight.rows(), self.size)?;
        if other.len() != weight.values().len() {
            return Err(Error::mismatch("numbers", weight.values().len(), other.len()));
        }
        let mut errors = vec![0.0; weight.rows()];
        pool::for_each_rows(&mut errors, 1, 1, |first, error| {
            let own = first * self.size..(first + 1) * self.size;
            let pairs = weight.values()[own.clone()].iter().zip(&other[own]);
            let d: Vec<f64> = pairs.map(|(w, o)| f64::from(*w) - f64::from(*o)).collect();
            let mut image = vec![0.0; self.size];
            let rows = self.values.chunks_exact(self.size);
            rows.zip(&d).for_each(|(row, d)| axpy(&mut image, *d, row));
            error.iter_mut().for_each(|error| *error = crate::dense::dot(&image, &d));
        });
        Ok(errors.iter().sum())
    }
}
