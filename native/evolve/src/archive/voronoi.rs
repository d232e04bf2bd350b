//! Cells of the points that are nearest to a centroid: centroidal Voronoi tessellations (Vassiliades et al. 2018).

use sconce_tensor::rng::Rng;
use sconce_tensor::{Error, Result, memory, pool};

use super::ranges::{checked_measures, checked_ranges};
use crate::stop::{Stop, go_on};
use crate::{refused, unbounded};

/// Most centroids.
const MOST_CENTROIDS: usize = 1 << 20;
/// Most samples for the computation of centroids.
const MOST_SAMPLES: usize = 1 << 24;
/// Most iterations of k-means. Later ones move centroids by less than their distance to a neighbour.
const ITERATIONS: usize = 50;
/// Samples that a shard of parallel work assigns.
const SHARD: usize = 1 << 10;

/// Centroids, with an index for the search of the nearest one.
#[derive(Debug, Clone)]
pub struct Voronoi {
    measures: usize,
    centroids: Vec<f64>,
    /// The measure along which the centroids are spread most.
    axis: usize,
    /// Number of each centroid, in ascending order of their measure `axis`.
    order: Vec<u32>,
    /// The centroids in that order, `[cells, measures]`.
    sorted: Vec<f64>,
}

impl PartialEq for Voronoi {
    fn eq(&self, other: &Self) -> bool {
        self.measures == other.measures && self.centroids == other.centroids
    }
}

impl Voronoi {
    /// The space of centroids `[cells, measures]`.
    ///
    /// # Errors
    /// `OutOfRange` without a centroid or a measure, and for too many; `NonFinite` for a centroid that is not finite.
    pub fn new(measures: usize, centroids: Vec<f64>) -> Result<Self> {
        checked_measures(measures)?;
        let cells = centroids.len() / measures;
        if !(1..=MOST_CENTROIDS).contains(&cells) {
            return Err(Error::out_of_range("cells", cells as f64, 1.0, MOST_CENTROIDS as f64));
        }
        if let Some((at, value)) = unbounded(&centroids) {
            return Err(refused(format!("centroid {}", at / measures), value));
        }
        Ok(Voronoi::indexed(measures, centroids))
    }

    fn indexed(measures: usize, centroids: Vec<f64>) -> Self {
        let spread = |axis: usize| {
            let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
            for value in centroids.iter().skip(axis).step_by(measures) {
                (low, high) = (low.min(*value), high.max(*value));
            }
            high - low
        };
        let mut axis = 0;
        for other in 1..measures {
            if spread(other) > spread(axis) {
                axis = other;
            }
        }
        let rows: Vec<&[f64]> = centroids.chunks_exact(measures).collect();
        let mut order: Vec<u32> = (0..rows.len() as u32).collect();
        order.sort_by(|a, b| rows[*a as usize][axis].total_cmp(&rows[*b as usize][axis]));
        let sorted = order.iter().flat_map(|at| rows[*at as usize]).copied().collect();
        Voronoi { measures, centroids, axis, order, sorted }
    }

    /// Centroids by k-means (Lloyd 1982) of uniform samples in a box. The first samples are the first centroids, and a
    /// centroid without samples stays.
    ///
    /// # Errors
    /// `OutOfRange` for too few or too many cells or samples, the errors of ranges, and `Cancelled` if `stop` says so.
    pub fn of_ranges(
        cells: usize,
        ranges: &[(f64, f64)],
        samples: usize,
        seed: u64,
        stop: Stop<'_>,
    ) -> Result<Self> {
        checked_ranges(ranges)?;
        if !(1..=MOST_CENTROIDS).contains(&cells) {
            return Err(Error::out_of_range("cells", cells as f64, 1.0, MOST_CENTROIDS as f64));
        }
        if !(cells..=MOST_SAMPLES).contains(&samples) {
            let (least, most) = (cells as f64, MOST_SAMPLES as f64);
            return Err(Error::out_of_range("samples", samples as f64, least, most));
        }
        let measures = ranges.len();
        memory::room("samples of the centroids", (samples * (measures + 1) * 8) as u64)?;
        let rng = Rng::new(seed, "evolve.centroids", 0);
        let sample = |at: usize| {
            let (low, high) = ranges[at % measures];
            low + (high - low) * f64::from(rng.uniform(at as u64))
        };
        let points: Vec<f64> = (0..samples * measures).map(sample).collect();
        Voronoi::clustered(measures, cells, &points, stop)
    }

    fn clustered(measures: usize, cells: usize, points: &[f64], stop: Stop<'_>) -> Result<Self> {
        let mut found = Voronoi::indexed(measures, points[..cells * measures].to_vec());
        let mut cell_of = vec![u32::MAX; points.len() / measures];
        for _ in 0..ITERATIONS {
            let before = cell_of.clone();
            found.assign(points, &mut cell_of, stop);
            go_on(stop)?;
            if before == cell_of {
                break;
            }
            let (mut sums, mut counts) = (vec![0.0; cells * measures], vec![0u32; cells]);
            for (point, cell) in points.chunks_exact(measures).zip(&cell_of) {
                let cell = *cell as usize;
                counts[cell] += 1;
                let sum = &mut sums[cell * measures..(cell + 1) * measures];
                sum.iter_mut().zip(point).for_each(|(sum, v)| *sum += v);
            }
            let mut centroids = found.centroids;
            let rows = centroids.chunks_exact_mut(measures).zip(sums.chunks_exact(measures));
            for ((row, sum), count) in rows.zip(&counts).filter(|(_, count)| **count > 0) {
                row.iter_mut().zip(sum).for_each(|(v, sum)| *v = sum / f64::from(*count));
            }
            found = Voronoi::indexed(measures, centroids);
        }
        Ok(found)
    }

    fn assign(&self, points: &[f64], cell_of: &mut [u32], stop: Stop<'_>) {
        let measures = self.measures;
        pool::for_each_rows(cell_of, 1, SHARD, |first, cells| {
            if stop() {
                return;
            }
            let points = points[first * measures..].chunks_exact(measures);
            cells.iter_mut().zip(points).for_each(|(cell, point)| *cell = self.cell(point) as u32);
        });
    }

    /// The centroids, `[cells, measures]`.
    pub fn centroids(&self) -> &[f64] {
        &self.centroids
    }

    /// Number of cells.
    pub fn cells(&self) -> usize {
        self.order.len()
    }

    /// Number of measures.
    pub fn measures(&self) -> usize {
        self.measures
    }

    /// The nearest centroid, of equally near ones the first. The search begins beside the point and goes on in both
    /// directions until the distance along the axis alone exceeds that of the nearest centroid, so it is exact.
    pub fn cell(&self, point: &[f64]) -> usize {
        let (width, axis) = (self.measures, self.axis);
        let Some(key) = point.get(axis).copied() else { return 0 };
        let row = |at: usize| &self.sorted[at * width..(at + 1) * width];
        let gap = |at: usize| (row(at)[axis] - key) * (row(at)[axis] - key);
        let mut right = first_after(self.order.len(), |at| row(at)[axis] < key);
        let mut left = right;
        let (mut nearest, mut least) = (u32::MAX, f64::INFINITY);
        loop {
            let before = (left > 0).then(|| gap(left - 1));
            let after = (right < self.order.len()).then(|| gap(right));
            let at = match (before, after) {
                (Some(a), Some(b)) if a <= b => left - 1,
                (Some(_), None) => left - 1,
                (_, Some(_)) => right,
                (None, None) => break,
            };
            if gap(at) > least {
                break;
            }
            if at < left {
                left = at;
            } else {
                right = at + 1;
            }
            let distance: f64 = row(at).iter().zip(point).map(|(a, b)| (a - b) * (a - b)).sum();
            if distance < least || (distance == least && self.order[at] < nearest) {
                (nearest, least) = (self.order[at], distance);
            }
        }
        nearest as usize
    }
}

/// The first of `count` positions that is not before a point; `is_before` holds for a prefix of them.
fn first_after(count: usize, is_before: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low + (high - low) / 2;
        if is_before(middle) { low = middle + 1 } else { high = middle }
    }
    low
}
