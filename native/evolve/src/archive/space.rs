//! The division of all measures into cells.

use sconce_tensor::{Error, Result};
use serde::Deserialize;

use super::grid::Grid;
use super::unstructured::Unstructured;
use super::voronoi::Voronoi;
use crate::stop::{Stop, never};

/// A division of all measures into cells.
#[derive(Debug, Clone, PartialEq)]
pub enum Space {
    /// Cells of equal size.
    Grid(Grid),
    /// Cells of the points that are nearest to a centroid.
    Voronoi(Voronoi),
    /// Cells that are made where candidates land.
    Unstructured(Unstructured),
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
    /// [`Unstructured::new`].
    Unstructured {
        /// Number of measures.
        measures: usize,
        /// The radius of a cell.
        distance: f64,
        /// Most cells.
        cells: usize,
    },
}

impl Space {
    /// The space of a description.
    ///
    /// # Errors
    /// Those of the constructors that [`SpaceOptions`] names.
    pub fn new(options: &SpaceOptions) -> Result<Self> {
        Space::new_until(options, &never)
    }

    /// [`new`](Self::new) that is `Cancelled` if `stop` ends the computation of centroids.
    pub(super) fn new_until(options: &SpaceOptions, stop: Stop<'_>) -> Result<Self> {
        match options {
            SpaceOptions::Grid { dimensions, ranges } => {
                Grid::new(dimensions, ranges).map(Space::Grid)
            }
            SpaceOptions::Voronoi { cells, ranges, samples, seed } => {
                Voronoi::of_ranges(*cells, ranges, *samples, *seed, stop).map(Space::Voronoi)
            }
            SpaceOptions::Centroids(centroids) => {
                let measures = centroids.first().map_or(0, Vec::len);
                if let Some(other) = centroids.iter().find(|own| own.len() != measures) {
                    return Err(Error::mismatch("measures of a centroid", measures, other.len()));
                }
                Voronoi::new(measures, centroids.concat()).map(Space::Voronoi)
            }
            SpaceOptions::Unstructured { measures, distance, cells } => {
                Unstructured::new(*measures, *distance, *cells).map(Space::Unstructured)
            }
        }
    }

    /// Number of cells, those that can still be made included.
    pub fn cells(&self) -> usize {
        match self {
            Space::Grid(grid) => grid.cells(),
            Space::Voronoi(voronoi) => voronoi.cells(),
            Space::Unstructured(own) => own.most(),
        }
    }

    /// Number of measures.
    pub fn measures(&self) -> usize {
        match self {
            Space::Grid(grid) => grid.dimensions().len(),
            Space::Voronoi(voronoi) => voronoi.measures(),
            Space::Unstructured(own) => own.measures(),
        }
    }

    /// The cell of measures; `None` if it has not been made yet.
    #[inline]
    pub fn cell(&self, measures: &[f64]) -> Option<usize> {
        match self {
            Space::Grid(grid) => Some(grid.cell(measures)),
            Space::Voronoi(voronoi) => Some(voronoi.cell(measures)),
            Space::Unstructured(own) => own.cell(measures),
        }
    }

    /// Whether elites of one can be offered to an archive of the other as they are.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Space::Unstructured(own), Space::Unstructured(other)) => own.is_like(other),
            _ => self == other,
        }
    }

    /// Whether no cell can be made.
    pub(super) fn is_full(&self) -> bool {
        match self {
            Space::Unstructured(own) => own.is_full(),
            _ => true,
        }
    }

    /// Makes the cell of measures that have none, if there is room.
    pub(super) fn open(&mut self, measures: &[f64]) -> Option<usize> {
        match self {
            Space::Unstructured(own) => own.open(measures),
            _ => None,
        }
    }
}
