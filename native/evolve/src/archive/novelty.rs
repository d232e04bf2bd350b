//! Novelty: the distance of measures to those of the nearest elites (Lehman & Stanley 2011).

use sconce_tensor::{Error, Result, memory, pool};

use super::Archive;
use crate::stop::{Stop, go_on, never};
use crate::{refused, unbounded};

/// Numbers that a shard of parallel work compares.
const SHARD: usize = 1 << 16;

impl Archive {
    /// Mean Euclidean distance of each row of measures `[rows, measures]` to those of the `nearest` elites, or of all
    /// elites if there are fewer. All elites are compared.
    ///
    /// # Errors
    /// `NotFound` for an empty archive, `OutOfRange` for a `nearest` of 0, `Mismatch` for another width, `NonFinite` for
    /// measures that are not finite.
    pub fn novelty(&self, measures: &[f64], nearest: usize) -> Result<Vec<f64>> {
        self.novelty_until(measures, nearest, &never)
    }

    /// [`novelty`](Self::novelty) that ends early if `stop` says so.
    ///
    /// # Errors
    /// Those of `novelty`, and `Cancelled`.
    pub fn novelty_until(
        &self,
        measures: &[f64],
        nearest: usize,
        stop: Stop<'_>,
    ) -> Result<Vec<f64>> {
        let elites = self.filled()?;
        if nearest == 0 {
            return Err(Error::out_of_range("nearest", 0.0, 1.0, elites as f64));
        }
        self.check_rows(measures)?;
        let width = self.space.measures();
        if let Some((at, value)) = unbounded(measures) {
            return Err(refused(format!("measure {} of row {}", at % width, at / width), value));
        }
        let rows = measures.len() / width;
        let mut found = memory::caught(|| Ok(memory::repeated(0.0, rows)))?;
        let per_shard = (SHARD / (elites * width)).max(1);
        pool::for_each_rows(&mut found, 1, per_shard, |first, found| {
            let rows = measures[first * width..].chunks_exact(width);
            let mut squares = Vec::with_capacity(elites);
            for (found, row) in found.iter_mut().zip(rows) {
                if stop() {
                    return;
                }
                *found = mean_distance(row, &self.elites.measures, nearest, &mut squares);
            }
        });
        go_on(stop)?;
        Ok(found)
    }
}

fn mean_distance(row: &[f64], all: &[f64], nearest: usize, squares: &mut Vec<f64>) -> f64 {
    let square = |other: &[f64]| row.iter().zip(other).map(|(a, b)| (a - b) * (a - b)).sum::<f64>();
    squares.clear();
    squares.extend(all.chunks_exact(row.len()).map(square));
    let nearest = nearest.min(squares.len());
    if nearest < squares.len() {
        squares.select_nth_unstable_by(nearest - 1, f64::total_cmp);
    }
    // Sorted, so that the order of elites does not change the sum.
    let least = &mut squares[..nearest];
    least.sort_unstable_by(f64::total_cmp);
    least.iter().map(|square| square.sqrt()).sum::<f64>() / nearest as f64
}
