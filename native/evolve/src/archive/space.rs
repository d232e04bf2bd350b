//! The division of all measures into cells.

use sconce_tensor::{Error, Result};
use serde::Deserialize;

use super::grid::Grid;
use super::voronoi::Voronoi;

/// A division of all measures into cells.
#[derive(Debug, Clone, PartialEq)]
pub enum Space {
    /// Cells of equal size.
    Grid(Grid),
    /// Cells of the points that are nearest to a centroid.
    Voronoi(Voronoi),
}

/// The description of a [`Space`].
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpaceOptions {
    /// [`Grid::new`].
    Grid {
        /// Cells along each measure.
        dimensions: Vec<usize>,
        /// Lowest and highest value of each measure.
        ranges: Vec<(f64, f64)>,
    },
    /// [`Voronoi::of_ranges`].
    Voronoi {
        /// Number of centroids.
        cells: usize,
        /// Lowest and highest value of each measure.
        ranges: Vec<(f64, f64)>,
        /// Uniform samples from which the centroids are computed.
        samples: usize,
        /// The seed of the samples.
        seed: u64,
    },
    /// [`Voronoi::new`].
    Centroids(Vec<Vec<f64>>),
}

impl Space {
    /// The space of a description.
    ///
    /// # Errors
    /// Those of the constructors that [`SpaceOptions`] names.
    pub fn new(options: &SpaceOptions) -> Result<Self> {
        match options {
            SpaceOptions::Grid { dimensions, ranges } => {
                Grid::new(dimensions, ranges).map(Space::Grid)
            }
            SpaceOptions::Voronoi { cells, ranges, samples, seed } => {
                Voronoi::of_ranges(*cells, ranges, *samples, *seed).map(Space::Voronoi)
            }
            SpaceOptions::Centroids(centroids) => {
                let measures = centroids.first().map_or(0, Vec::len);
                if let Some(other) = centroids.iter().find(|own| own.len() != measures) {
                    return Err(Error::mismatch("measures of a centroid", measures, other.len()));
                }
                Voronoi::new(measures, centroids.concat()).map(Space::Voronoi)
            }
        }
    }

    /// Number of cells.
    pub fn cells(&self) -> usize {
        match self {
            Space::Grid(grid) => grid.cells(),
            Space::Voronoi(voronoi) => voronoi.cells(),
        }
    }

    /// Number of measures.
    pub fn measures(&self) -> usize {
        match self {
            Space::Grid(grid) => grid.dimensions().len(),
            Space::Voronoi(voronoi) => voronoi.measures(),
        }
    }

    /// The cell of measures.
    #[inline]
    pub fn cell(&self, measures: &[f64]) -> usize {
        match self {
            Space::Grid(grid) => grid.cell(measures),
            Space::Voronoi(voronoi) => voronoi.cell(measures),
        }
    }
}
