//! The objectives of an archive of two measures as the pixels of a picture.

use std::cmp::Ordering;

use sconce_tensor::{Error, Result};
use serde::Serialize;

use super::{Archive, EMPTY, Grid, Space, Unstructured, Voronoi};

/// Most pixels along a side.
const MOST_PIXELS: usize = 200;

/// Pixels over two measures.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Raster {
    /// Rows of pixels, the lowest second measure first; in a row the lowest first measure comes first. `None` has no
    /// elite. If a pixel covers several cells of a grid, it has their highest objective.
    pub rows: Vec<Vec<Option<f64>>>,
    /// Lowest and highest value of both measures.
    pub ranges: [(f64, f64); 2],
}

impl Archive {
    /// The objectives as a picture.
    ///
    /// # Errors
    /// `Mismatch` unless the archive has two measures.
    pub fn raster(&self) -> Result<Raster> {
        match (&self.space, self.space.measures()) {
            (Space::Grid(grid), 2) => Ok(self.of_grid(grid)),
            (Space::Voronoi(voronoi), 2) => Ok(self.of_centroids(voronoi)),
            (Space::Unstructured(own), 2) => Ok(self.of_balls(own)),
            (_, other) => Err(Error::mismatch("measures of a picture", 2, other)),
        }
    }

    fn of_grid(&self, grid: &Grid) -> Raster {
        let [across, up] = [0, 1].map(|at| grid.dimensions()[at] as usize);
        let (width, height) = (across.min(MOST_PIXELS), up.min(MOST_PIXELS));
        let mut rows = vec![vec![None; width]; height];
        for (cell, objective) in self.elites.cells.iter().zip(&self.elites.objectives) {
            let (x, y) = (*cell as usize / up, *cell as usize % up);
            let pixel: &mut Option<f64> = &mut rows[y * height / up][x * width / across];
            *pixel = Some(pixel.map_or(*objective, |best| best.max(*objective)));
        }
        Raster { rows, ranges: [0, 1].map(|at| grid.ranges()[at]) }
    }

    fn of_centroids(&self, voronoi: &Voronoi) -> Raster {
        let ranges = [0, 1].map(|at| {
            let (low, high) = range(voronoi.centroids(), at);
            let border = (high - low) / (2.0 * (voronoi.cells() as f64).sqrt());
            wide(low - border, high + border)
        });
        self.sampled(ranges, |point| Some(voronoi.cell(point)))
    }

    /// Balls that are smaller than a pixel have the one of their center.
    fn of_balls(&self, own: &Unstructured) -> Raster {
        let ranges = [0, 1].map(|at| {
            let (low, high) = range(own.centers(), at);
            wide(low - own.distance(), high + own.distance())
        });
        let mut raster = self.sampled(ranges, |point| own.cell(point));
        for (center, objective) in own.centers().chunks_exact(2).zip(&self.elites.objectives) {
            let [x, y] = [0, 1].map(|at| {
                let (low, high) = ranges[at];
                let place = (center[at] - low) / (high - low) * MOST_PIXELS as f64;
                (place as usize).min(MOST_PIXELS - 1)
            });
            let pixel = &mut raster.rows[y][x];
            *pixel = Some(pixel.map_or(*objective, |best| best.max(*objective)));
        }
        raster
    }

    /// The objective at the middle of each pixel.
    fn sampled(&self, ranges: [(f64, f64); 2], cell: impl Fn(&[f64]) -> Option<usize>) -> Raster {
        let middle = |at: usize, pixel: usize| {
            let (low, high): (f64, f64) = ranges[at];
            low + (high - low) * (pixel as f64 + 0.5) / MOST_PIXELS as f64
        };
        let pixel = |x: usize, y: usize| {
            let slot = self.slots[cell(&[middle(0, x), middle(1, y)])?];
            (slot != EMPTY).then(|| self.elites.objectives[slot as usize])
        };
        let row = |y: usize| (0..MOST_PIXELS).map(|x| pixel(x, y)).collect();
        Raster { rows: (0..MOST_PIXELS).map(row).collect(), ranges }
    }
}

/// A range that is not empty: that around one point, or -1 to 1 around none.
fn wide(low: f64, high: f64) -> (f64, f64) {
    match low.partial_cmp(&high) {
        Some(Ordering::Less) => (low, high),
        Some(Ordering::Equal) => (low - 1.0, high + 1.0),
        _ => (-1.0, 1.0),
    }
}

/// The lowest and the highest value of points `[points, 2]` along a measure.
fn range(points: &[f64], at: usize) -> (f64, f64) {
    let own = || points.iter().skip(at).step_by(2).copied();
    (own().fold(f64::INFINITY, f64::min), own().fold(f64::NEG_INFINITY, f64::max))
}
