//! The objectives of an archive of two measures as the pixels of a picture.

use sconce_tensor::{Error, Result};
use serde::Serialize;

use super::{Archive, EMPTY, Grid, Space, Voronoi};

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
        let ranges = [0, 1].map(|at| range(voronoi, at));
        let middle = |at: usize, pixel: usize| {
            let (low, high): (f64, f64) = ranges[at];
            low + (high - low) * (pixel as f64 + 0.5) / MOST_PIXELS as f64
        };
        let pixel = |x: usize, y: usize| {
            let slot = self.slots[voronoi.cell(&[middle(0, x), middle(1, y)])];
            (slot != EMPTY).then(|| self.elites.objectives[slot as usize])
        };
        let row = |y: usize| (0..MOST_PIXELS).map(|x| pixel(x, y)).collect();
        Raster { rows: (0..MOST_PIXELS).map(row).collect(), ranges }
    }
}

/// The range of centroids along a measure, with a border of half of their mean distance.
fn range(voronoi: &Voronoi, at: usize) -> (f64, f64) {
    let own = || voronoi.centroids().iter().skip(at).step_by(2).copied();
    let (low, high) =
        (own().fold(f64::INFINITY, f64::min), own().fold(f64::NEG_INFINITY, f64::max));
    let border = (high - low) / (2.0 * (voronoi.cells() as f64).sqrt());
    match high > low {
        true => (low - border, high + border),
        false => (low - 1.0, high + 1.0),
    }
}
