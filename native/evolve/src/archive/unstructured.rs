//! Cells that are made where candidates land: balls of one radius around the measures of their first elite.

use std::collections::HashMap;

use sconce_tensor::{Error, Result};

use super::ranges::{MOST_CELLS, checked_measures};
use crate::{MOST, refused, unbounded};

/// The smallest distance: its square is a normal number.
const LEAST_DISTANCE: f64 = 1e-150;
/// Measures that the index divides into buckets. A lookup reads the neighbours along each.
const AXES: usize = 3;

type Bucket = [i64; AXES];

/// Balls around centers, in the order in which they were made. Measures belong to the first ball that contains them, so
/// that a new one changes no other.
#[derive(Debug, Clone)]
pub struct Unstructured {
    measures: usize,
    distance: f64,
    most: usize,
    /// `[balls, measures]`.
    centers: Vec<f64>,
    /// The balls whose centers are in a bucket, ascending.
    buckets: HashMap<Bucket, Vec<u32>>,
}

impl PartialEq for Unstructured {
    fn eq(&self, other: &Self) -> bool {
        self.is_like(other) && self.centers == other.centers
    }
}

impl Unstructured {
    /// A space without balls, with room for `most`, whose radius is `distance`.
    ///
    /// # Errors
    /// `OutOfRange` and `NonFinite` for sizes.
    pub fn new(measures: usize, distance: f64, most: usize) -> Result<Self> {
        checked_measures(measures)?;
        if !distance.is_finite() {
            return Err(refused("distance".into(), distance));
        }
        if !(LEAST_DISTANCE..=MOST).contains(&distance) {
            return Err(Error::out_of_range("distance", distance, LEAST_DISTANCE, MOST));
        }
        if !(1..=MOST_CELLS).contains(&most) {
            return Err(Error::out_of_range("cells", most as f64, 1.0, MOST_CELLS as f64));
        }
        Ok(Unstructured { measures, distance, most, centers: Vec::new(), buckets: HashMap::new() })
    }

    /// The empty space with balls around `centers` `[balls, measures]`.
    ///
    /// # Errors
    /// `OutOfRange` and `NonFinite` for centers that are not finite or too many, `Mismatch` for one within another ball.
    pub(super) fn with(mut self, centers: &[f64]) -> Result<Self> {
        if let Some((at, value)) = unbounded(centers) {
            return Err(refused(format!("center {}", at / self.measures), value));
        }
        for center in centers.chunks_exact(self.measures) {
            if self.cell(center).is_some() {
                return Err(Error::mismatch(
                    "a center",
                    "one outside of other cells",
                    "one inside",
                ));
            }
            if self.open(center).is_none() {
                let count = centers.len() / self.measures;
                return Err(Error::out_of_range("centers", count as f64, 0.0, self.most as f64));
            }
        }
        Ok(self)
    }

    /// Whether both have balls of one radius, measures of one width, and room for as many.
    pub fn is_like(&self, other: &Self) -> bool {
        (self.measures, self.distance, self.most) == (other.measures, other.distance, other.most)
    }

    /// Number of measures.
    pub fn measures(&self) -> usize {
        self.measures
    }

    /// The radius of a ball.
    pub fn distance(&self) -> f64 {
        self.distance
    }

    /// Most balls.
    pub fn most(&self) -> usize {
        self.most
    }

    /// The centers of all balls, `[balls, measures]`.
    pub fn centers(&self) -> &[f64] {
        &self.centers
    }

    /// Whether no ball can be made.
    pub fn is_full(&self) -> bool {
        self.centers.len() == self.most * self.measures
    }

    /// The first ball that contains a point.
    pub fn cell(&self, point: &[f64]) -> Option<usize> {
        let middle = self.bucket(point);
        let reach = |axis: usize| if axis < self.measures { -1..=1 } else { 0..=0 };
        let mut first = None::<u32>;
        for x in reach(0) {
            for y in reach(1) {
                for z in reach(2) {
                    let near = [(0, x), (1, y), (2, z)];
                    let bucket = near.map(|(axis, step)| middle[axis].saturating_add(step));
                    let Some(balls) = self.buckets.get(&bucket) else { continue };
                    let before = first.unwrap_or(u32::MAX);
                    let mut own = balls.iter().take_while(|ball| **ball < before);
                    first = own.find(|ball| self.contains(**ball, point)).copied().or(first);
                }
            }
        }
        first.map(|ball| ball as usize)
    }

    /// Makes a ball around a point that none contains, and returns its number; `None` if there is no room.
    pub(super) fn open(&mut self, point: &[f64]) -> Option<usize> {
        if self.is_full() {
            return None;
        }
        let ball = self.centers.len() / self.measures;
        self.centers.extend_from_slice(point);
        self.buckets.entry(self.bucket(point)).or_default().push(ball as u32);
        Some(ball)
    }

    /// Removes all balls but these, which are in ascending order and keep it.
    pub(super) fn keep(&mut self, balls: &[u32]) {
        let old = std::mem::take(&mut self.centers);
        self.buckets.clear();
        for ball in balls {
            self.open(&old[*ball as usize * self.measures..][..self.measures]);
        }
    }

    /// Buckets are twice as wide as a ball's radius: what is within reach lies in a neighbour, also after rounding.
    fn bucket(&self, point: &[f64]) -> Bucket {
        let mut bucket = [0; AXES];
        for (place, value) in bucket.iter_mut().zip(point) {
            *place = (value / (2.0 * self.distance)).floor() as i64;
        }
        bucket
    }

    fn contains(&self, ball: u32, point: &[f64]) -> bool {
        let center = &self.centers[ball as usize * self.measures..][..self.measures];
        let square: f64 = center.iter().zip(point).map(|(a, b)| (a - b) * (a - b)).sum();
        square <= self.distance * self.distance
    }
}
