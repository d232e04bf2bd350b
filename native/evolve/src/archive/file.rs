//! Archives as files.

use std::path::Path;

use sconce_tensor::Result;
use serde::{Deserialize, Serialize};

use super::{Archive, ArchiveOptions, EMPTY, Elites, Grid, Space, SpaceOptions, Sum, Voronoi};
use crate::saved::{self, Numbers, Opened, Tensors};
use crate::unbounded;

const KIND: &str = "archive";
/// The version of the manifest.
const VERSION: u32 = 1;

/// The arguments of [`Grid::new`].
#[derive(Serialize, Deserialize)]
struct Sides {
    dimensions: Vec<usize>,
    ranges: Vec<(f64, f64)>,
}

#[derive(Serialize, Deserialize)]
struct Manifest {
    kind: String,
    version: u32,
    /// `None` for centroids, which are a tensor.
    grid: Option<Sides>,
    solution_size: usize,
    measures: usize,
    learning_rate: f64,
    threshold_min: Option<f64>,
    offset: f64,
    best: Option<f64>,
}

impl Archive {
    /// Writes the archive to a file: the whole new file, or the old one stays.
    ///
    /// # Errors
    /// `Io` and `NotFound` if the system refuses.
    pub fn save(&self, path: &Path) -> Result<()> {
        let Elites { solutions, objectives, measures, cells } = &self.elites;
        let (count, width) = (objectives.len(), self.space.measures());
        let mut tensors = Tensors::from([
            ("solutions", Numbers::f32(&[count, self.solution_size], solutions)),
            ("objectives", Numbers::f64(&[count], objectives)),
            ("measures", Numbers::f64(&[count, width], measures)),
            ("cells", Numbers::u32(&[count], cells)),
            ("sum", Numbers::f64(&[2], &[self.sum.high, self.sum.low])),
        ]);
        if self.learning_rate < 1.0 {
            let own = cells.iter().map(|cell| self.bars[*cell as usize]).collect::<Vec<_>>();
            tensors.insert("thresholds", Numbers::f64(&[count], &own));
        }
        let grid = match &self.space {
            Space::Grid(grid) => {
                let dimensions = grid.dimensions().iter().map(|size| *size as usize).collect();
                Some(Sides { dimensions, ranges: grid.ranges().to_vec() })
            }
            Space::Voronoi(own) => {
                tensors.insert("centroids", Numbers::f64(&[own.cells(), width], own.centroids()));
                None
            }
        };
        let manifest = Manifest {
            kind: KIND.into(),
            version: VERSION,
            grid,
            solution_size: self.solution_size,
            measures: width,
            learning_rate: self.learning_rate,
            threshold_min: self.threshold_min,
            offset: self.offset,
            best: self.best,
        };
        saved::save(path, &manifest, &tensors)
    }

    /// Reads the archive of a file, equal to the bit.
    ///
    /// # Errors
    /// `Corrupt` for a file that is cut, changed or has invalid content, `Mismatch` for another kind of file or another
    /// version, `NotFound` and `Io` if it cannot be read.
    pub fn load(path: &Path) -> Result<Archive> {
        let (manifest, opened): (Manifest, Opened) = saved::load(path, KIND, VERSION)?;
        let space = match &manifest.grid {
            Some(Sides { dimensions, ranges }) => Grid::new(dimensions, ranges).map(Space::Grid),
            None => {
                let cells = opened.shape("centroids")?.first().copied().unwrap_or(0);
                let centroids = opened.f64("centroids", &[cells, manifest.measures])?;
                Voronoi::new(manifest.measures, centroids).map(Space::Voronoi)
            }
        };
        let space = space.map_err(|e| opened.corrupt(e))?;
        if space.measures() != manifest.measures {
            return Err(opened.corrupt("another number of measures"));
        }
        let options = ArchiveOptions {
            // Replaced by the space above.
            space: SpaceOptions::Centroids(vec![]),
            solution_size: manifest.solution_size,
            learning_rate: manifest.learning_rate,
            threshold_min: manifest.threshold_min,
            offset: manifest.offset,
        };
        let empty = Archive::of_space(space, &options).map_err(|e| opened.corrupt(e))?;
        empty.filled_from(&opened, &manifest)
    }

    /// The archive with the elites of a file.
    fn filled_from(mut self, opened: &Opened, manifest: &Manifest) -> Result<Archive> {
        let count = opened.shape("cells")?.first().copied().unwrap_or(0);
        let (size, width) = (self.solution_size, self.space.measures());
        self.elites = Elites {
            solutions: opened.f32("solutions", &[count, size])?,
            objectives: opened.f64("objectives", &[count])?,
            measures: opened.f64("measures", &[count, width])?,
            cells: opened.u32("cells", &[count])?,
        };
        let thresholds = match self.learning_rate < 1.0 {
            true => opened.f64("thresholds", &[count])?,
            false => self.elites.objectives.clone(),
        };
        let Elites { solutions, objectives, measures, cells } = &self.elites;
        for numbers in [objectives, measures, &thresholds] {
            if unbounded(numbers).is_some() {
                return Err(opened.corrupt("a number that is not finite"));
            }
        }
        if solutions.iter().any(|v| !v.is_finite()) {
            return Err(opened.corrupt("a solution that is not finite"));
        }
        let rows = measures.chunks_exact(width).zip(cells).zip(&thresholds).enumerate();
        for (at, ((row, cell), threshold)) in rows {
            if self.space.cell(row) != *cell as usize {
                return Err(
                    opened.corrupt(format!("elite {at} is not in the cell of its measures"))
                );
            }
            let slot = &mut self.slots[*cell as usize];
            if *slot != EMPTY {
                return Err(opened.corrupt(format!("two elites in cell {cell}")));
            }
            *slot = at as u32;
            self.bars[*cell as usize] = *threshold;
        }
        self.sum = self.checked_sum(opened)?;
        let highest = objectives.iter().copied().reduce(f64::max);
        if highest.is_some() && manifest.best < highest
            || manifest.best.is_some() != highest.is_some()
        {
            return Err(opened.corrupt("a best objective below that of an elite"));
        }
        self.best = manifest.best;
        Ok(self)
    }

    /// The sum of a file, which must be that of its elites up to rounding.
    fn checked_sum(&self, opened: &Opened) -> Result<Sum> {
        let sum = match opened.f64("sum", &[2])?[..] {
            [high, low] => Sum { high, low },
            _ => Sum::default(),
        };
        let (mut scan, mut size) = (Sum::default(), 1.0);
        for objective in &self.elites.objectives {
            scan.add(*objective);
            size += objective.abs();
        }
        match (sum.value() - scan.value()).abs() <= 1e-6 * size {
            true => Ok(sum),
            false => Err(opened.corrupt("a sum of objectives that is not that of its elites")),
        }
    }
}
