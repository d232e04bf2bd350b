//! Archives as files.

use std::path::Path;

use sconce_tensor::Result;
use serde::{Deserialize, Serialize};

use super::{
    Archive, ArchiveOptions, EMPTY, Elites, Grid, Space, SpaceOptions, Sum, Unstructured, Voronoi,
};
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

/// The arguments of [`Unstructured::new`]. Its centers are a tensor.
#[derive(Serialize, Deserialize)]
struct Balls {
    distance: f64,
    most: usize,
}

#[derive(Serialize, Deserialize)]
struct Manifest {
    kind: String,
    version: u32,
    /// `None` for centroids, which are a tensor, and for balls.
    grid: Option<Sides>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    balls: Option<Balls>,
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
            ("sum", Numbers::f64(&[2], vec![self.sum.high, self.sum.low])),
        ]);
        if self.learning_rate < 1.0 {
            let own = cells.iter().map(|cell| self.bars[*cell as usize]).collect::<Vec<_>>();
            tensors.insert("thresholds", Numbers::f64(&[count], own));
        }
        let (mut grid, mut balls) = (None, None);
        match &self.space {
            Space::Grid(own) => {
                let dimensions = own.dimensions().iter().map(|size| *size as usize).collect();
                grid = Some(Sides { dimensions, ranges: own.ranges().to_vec() });
            }
            Space::Voronoi(own) => {
                tensors.insert("centroids", Numbers::f64(&[own.cells(), width], own.centroids()));
            }
            Space::Unstructured(own) => {
                tensors.insert("centers", Numbers::f64(&[count, width], own.centers()));
                balls = Some(Balls { distance: own.distance(), most: own.most() });
            }
        }
        let manifest = Manifest {
            kind: KIND.into(),
            version: VERSION,
            grid,
            balls,
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
        let space = space(&manifest, &opened)?.map_err(|e| opened.corrupt(e))?;
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
        if let Space::Unstructured(own) = &self.space {
            // One cell for each elite, in their order.
            let is_own = cells.iter().enumerate().all(|(at, cell)| *cell as usize == at);
            if own.centers().len() != count * width || !is_own {
                return Err(opened.corrupt("cells that are not those of its elites"));
            }
        }
        let rows = measures.chunks_exact(width).zip(cells).zip(&thresholds).enumerate();
        for (at, ((row, cell), threshold)) in rows {
            if self.space.cell(row) != Some(*cell as usize) {
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

/// The space of a file. The inner error is one of its content.
fn space(manifest: &Manifest, opened: &Opened) -> Result<Result<Space>> {
    let measures = manifest.measures;
    if let Some(Sides { dimensions, ranges }) = &manifest.grid {
        return Ok(Grid::new(dimensions, ranges).map(Space::Grid));
    }
    let rows = |name: &str| {
        let rows = opened.shape(name)?.first().copied().unwrap_or(0);
        opened.f64(name, &[rows, measures])
    };
    Ok(match &manifest.balls {
        Some(Balls { distance, most }) => {
            let centers = rows("centers")?;
            Unstructured::new(measures, *distance, *most)
                .and_then(|empty| empty.with(&centers))
                .map(Space::Unstructured)
        }
        None => Voronoi::new(measures, rows("centroids")?).map(Space::Voronoi),
    })
}
