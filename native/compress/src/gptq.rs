//! Calibrated quantisation: GPTQ (Frantar et al. 2023).

use std::sync::atomic::AtomicBool;

use sconce_ops::Codes;
use sconce_tensor::{Error, Result, memory, pool};
use serde::{Deserialize, Serialize};

use crate::dense::{axpy, inverse_factor};
use crate::grid::{Fit, Grid, Per};
use crate::hessian::Hessian;
use crate::matrix::Matrix;
use crate::quantised::Quantised;
use crate::stopped;

/// The order in which columns are quantised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Their own.
    Given,
    /// By the diagonal of the Hessian, the largest first: inputs with much energy are rounded while many columns are
    /// left to compensate.
    Diagonal,
}

/// Options of GPTQ.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Gptq {
    /// The form of the grid.
    pub grid: Grid,
    /// This part of the mean of the Hessian's diagonal is added to the diagonal.
    pub damping: f64,
    /// The order of the columns. Groups are cut in this order.
    pub order: Order,
}

/// A calibrated matrix, and its error beside that of nearest rounding.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibrated {
    /// Codes and scales; `order` is set if the columns were not quantised in their own order.
    pub quantised: Quantised,
    /// The numbers that the codes stand for.
    pub dequantised: Vec<f32>,
    /// [`Hessian::error`] of these numbers.
    pub error: f64,
    /// [`Hessian::error`] of [`Quantised::nearest`] on a grid of the same form.
    pub nearest_error: f64,
}

/// Columns whose errors are spread over later columns at once.
const BLOCK: usize = 128;
/// Rows of a shard of parallel work.
const ROWS: usize = 8;

impl Gptq {
    /// Quantises column by column. Each rounding error is compensated by the columns that follow, so that the outputs of
    /// the layer change least on its calibration inputs.
    ///
    /// A column whose input never fires (a diagonal of 0) becomes 0, because no input tells its value.
    ///
    /// # Errors
    /// `OutOfRange` for bits, groups or a damping out of range; `Mismatch` for a Hessian of another width, of inputs that
    /// never fire, or that is not positive definite with the damping; `Cancelled` soon after `cancelled` is set.
    pub fn run(
        self,
        weight: &Matrix,
        hessian: &Hessian,
        cancelled: &AtomicBool,
    ) -> Result<Calibrated> {
        let (rows, cols) = (weight.rows(), weight.cols());
        if hessian.size() != cols {
            let expected = format!("inputs of width {cols}");
            return Err(Error::mismatch("calibration", expected, hessian.size()));
        }
        if !(0.0..=1.0).contains(&self.damping) {
            return Err(Error::out_of_range("damping", self.damping, 0.0, 1.0));
        }
        let codes = self.grid.codes()?;
        let groups = self.grid.per.groups(rows, cols)?;
        let dead: Vec<bool> = hessian.diagonal().map(|v| v == 0.0).collect();
        if dead.iter().all(|dead| *dead) {
            return Err(Error::mismatch("calibration", "inputs that fire", "zeros"));
        }
        let order = self.order(hessian);
        stopped(cancelled)?;
        // The damped Hessian, its factor, the inverse of that, and the weights with their errors.
        let bytes = 3 * cols * cols * size_of::<f64>() + 4 * rows * cols * size_of::<f64>();
        memory::room("GPTQ", bytes as u64)?;
        let factor = inverse_factor(&self.damped(hessian, &dead, &order), &order, cancelled)?;
        let alive = alive(weight, &dead)?;
        let mut work = Work {
            weights: picked(alive.each_row(), &order, rows * cols),
            codes: memory::repeated(0, rows * cols),
            fits: memory::repeated(Fit { scale: 1.0, zero: 0 }, rows * groups.per_row()),
        };
        let whole = (self.grid.per == Per::Tensor)
            .then(|| self.grid.fit(codes, work.weights.iter().copied()));
        let width = if let Per::Group(_) = self.grid.per { groups.sizes()[2] } else { cols };
        let pass = Pass { grid: self.grid, codes, width, whole, cols, factor: &factor };
        work.run(&pass, groups.per_row(), cancelled)?;
        let quantised = self.collect(weight, work, &order);
        let dequantised = quantised.dequantise()?;
        let nearest = Quantised::nearest(&alive, self.grid)?.dequantise()?;
        Ok(Calibrated {
            error: hessian.error(weight, &dequantised)?,
            nearest_error: hessian.error(weight, &nearest)?,
            dequantised,
            quantised,
        })
    }

    fn order(self, hessian: &Hessian) -> Vec<usize> {
        let mut order: Vec<usize> = (0..hessian.size()).collect();
        if self.order == Order::Diagonal {
            let diagonal: Vec<f64> =
                hessian.diagonal().map(|v| if v == 0.0 { 1.0 } else { v }).collect();
            order.sort_by(|a, b| diagonal[*b].total_cmp(&diagonal[*a]));
        }
        order
    }

    /// The Hessian in the order of the columns, with a diagonal of 1 at dead columns, plus the damping.
    fn damped(self, hessian: &Hessian, dead: &[bool], order: &[usize]) -> Vec<f64> {
        let size = hessian.size();
        let diagonal = hessian.diagonal().zip(dead).map(|(v, dead)| if *dead { 1.0 } else { v });
        let mean = diagonal.sum::<f64>() / size as f64;
        let row = |i: &usize| &hessian.values()[i * size..(i + 1) * size];
        let mut h = picked(order.iter().map(row), order, size * size);
        for (at, column) in order.iter().enumerate() {
            h[at * (size + 1)] += self.damping * mean + if dead[*column] { 1.0 } else { 0.0 };
        }
        h
    }

    /// Puts the codes back into the columns of the weight.
    fn collect(self, weight: &Matrix, work: Work, order: &[usize]) -> Quantised {
        let (rows, cols) = (weight.rows(), weight.cols());
        let mut codes = memory::repeated(0, rows * cols);
        for (to, from) in codes.chunks_exact_mut(cols).zip(work.codes.chunks_exact(cols)) {
            order.iter().zip(from).for_each(|(column, code)| to[*column] = *code);
        }
        let fits = if self.grid.per == Per::Tensor { &work.fits[..1] } else { &work.fits[..] };
        let mut quantised = Quantised::of_fits(self.grid, rows, cols, codes, fits);
        if self.order != Order::Given {
            quantised.order = order.to_vec();
        }
        quantised
    }
}

/// The weight with zeros in dead columns.
fn alive(weight: &Matrix, dead: &[bool]) -> Result<Matrix> {
    let row = |row: &[f32]| -> Vec<f32> {
        row.iter().zip(dead).map(|(w, dead)| if *dead { 0.0 } else { *w }).collect()
    };
    Matrix::new("weight", weight.rows(), weight.cols(), weight.each_row().flat_map(row).collect())
}

/// The rows with their columns in this order, `count` numbers.
fn picked<'a, T: Copy + Into<f64> + 'a>(
    rows: impl Iterator<Item = &'a [T]>,
    order: &[usize],
    count: usize,
) -> Vec<f64> {
    let mut all = memory::with_capacity(count);
    rows.for_each(|row| all.extend(order.iter().map(|at| row[*at].into())));
    all
}

/// Matrices in the order of the columns.
struct Work {
    weights: Vec<f64>,
    codes: Vec<i16>,
    fits: Vec<Fit>,
}

/// Arguments that all rows share.
struct Pass<'a> {
    grid: Grid,
    codes: Codes,
    /// Columns of a group.
    width: usize,
    /// The fit of all numbers, if they share one.
    whole: Option<Fit>,
    cols: usize,
    factor: &'a [f64],
}

impl Work {
    fn run(&mut self, pass: &Pass<'_>, per_row: usize, cancelled: &AtomicBool) -> Result<()> {
        let (cols, rows) = (pass.cols, ROWS);
        let weights = self.weights.chunks_mut(rows * cols);
        let codes = self.codes.chunks_mut(rows * cols);
        let fits = self.fits.chunks_mut(rows * per_row);
        let shards: Vec<_> = weights.zip(codes).zip(fits).collect();
        pool::hand_out(shards, |_, ((weights, codes), fits)| {
            // The result is dropped after a cancellation.
            if stopped(cancelled).is_ok() {
                pass.rows(weights, codes, fits, per_row);
            }
        });
        stopped(cancelled)
    }
}

impl Pass<'_> {
    /// Quantises rows block by block. A group begins after all earlier errors have reached it: a block is a multiple of
    /// the groups, or a group.
    fn rows(&self, weights: &mut [f64], codes: &mut [i16], fits: &mut [Fit], per_row: usize) {
        let width = self.width;
        let block = if width <= BLOCK { BLOCK / width * width } else { width };
        for begin in (0..self.cols).step_by(block) {
            let end = (begin + block).min(self.cols);
            let rows = weights.chunks_exact_mut(self.cols).zip(codes.chunks_exact_mut(self.cols));
            for ((weights, codes), fits) in rows.zip(fits.chunks_exact_mut(per_row)) {
                let errors = self.block(begin..end, weights, codes, fits);
                let (_, later) = weights.split_at_mut(end);
                for (j, error) in (begin..end).zip(errors) {
                    axpy(later, -error, &self.factor[j * self.cols + end..(j + 1) * self.cols]);
                }
            }
        }
    }

    /// Quantises the columns of a block of one row, and returns their errors over the diagonal of the factor.
    fn block(
        &self,
        columns: std::ops::Range<usize>,
        weights: &mut [f64],
        codes: &mut [i16],
        fits: &mut [Fit],
    ) -> Vec<f64> {
        let end = columns.end;
        let mut errors = Vec::with_capacity(columns.len());
        for j in columns {
            let group = j / self.width;
            if j % self.width == 0 {
                let numbers = weights[j..(j + self.width).min(self.cols)].iter().copied();
                fits[group] = self.whole.unwrap_or_else(|| self.grid.fit(self.codes, numbers));
            }
            let Fit { scale, zero } = fits[group];
            let (scale, zero) = (f64::from(scale), f64::from(zero));
            let [lo, hi] = [self.codes.lo, self.codes.hi].map(f64::from);
            let code = ((weights[j] / scale).round_ties_even() + zero).clamp(lo, hi);
            codes[j] = code as i16;
            let row = &self.factor[j * self.cols..(j + 1) * self.cols];
            let error = (weights[j] - (code - zero) * scale) / row[j];
            axpy(&mut weights[j + 1..end], -error, &row[j + 1..end]);
            errors.push(error);
        }
        errors
    }
}
