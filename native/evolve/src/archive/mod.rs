//! Archives: the best solution that is known for each cell of a space of measures (MAP-Elites, Mouret & Clune 2015).

mod file;
mod grid;
mod novelty;
mod prune;
mod ranges;
mod raster;
mod space;
mod sum;
mod unstructured;
mod voronoi;

use sconce_tensor::rng::Rng;
use sconce_tensor::{Error, Result, memory, pool};
use serde::{Deserialize, Serialize};

pub use grid::Grid;
pub use raster::Raster;
pub use space::{Space, SpaceOptions};
use sum::Sum;
pub use unstructured::Unstructured;
pub use voronoi::Voronoi;

use crate::stop::{Stop, never};
use crate::{MOST, refused, unbounded};

/// Most numbers of a solution.
const MOST_SIZE: usize = 1 << 26;
/// Candidates whose cells a shard of parallel work finds.
const SHARD: usize = 1 << 12;
/// The slot of a cell without an elite, and the cell of measures that have none yet.
const EMPTY: u32 = u32::MAX;

/// Options of an [`Archive`].
#[derive(Debug, Clone, Deserialize)]
pub struct ArchiveOptions {
    /// The cells.
    pub space: SpaceOptions,
    /// Numbers of a solution.
    pub solution_size: usize,
    /// Share by which an accepted objective moves the threshold of its cell, as in CMA-MAE (Fontaine & Nikolaidis 2023);
    /// 1 makes the threshold the objective of the elite.
    pub learning_rate: f64,
    /// The threshold of an empty cell; `None` accepts every objective.
    pub threshold_min: Option<f64>,
    /// Subtracted from the objective of each elite in the QD score.
    pub offset: f64,
}

/// Candidates. Rows of `solutions` and `measures` belong to the objective at the same index.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// `[batch, solution_size]`.
    pub solutions: &'a [f32],
    /// `[batch]`.
    pub objectives: &'a [f64],
    /// `[batch, measures]`.
    pub measures: &'a [f64],
}

/// The fate of a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// The objective does not exceed the threshold of the cell.
    NotAdded = 0,
    /// The candidate has replaced an elite.
    Improved = 1,
    /// The candidate is the first elite of its cell.
    New = 2,
}

impl Status {
    /// Whether the candidate was stored.
    pub fn is_added(self) -> bool {
        self != Status::NotAdded
    }
}

/// The result of adding a batch.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Added {
    /// Fate of each candidate.
    pub status: Vec<Status>,
    /// Objective minus threshold of each candidate at its turn. In an empty cell without a threshold it is the objective,
    /// and where a full archive has no cell it is minus [`MOST`].
    pub improvements: Vec<f64>,
}

/// Figures that are kept up to date by each addition.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Stats {
    /// Number of cells with an elite.
    pub elites: usize,
    /// Number of cells.
    pub cells: usize,
    /// Share of cells with an elite.
    pub coverage: f64,
    /// Sum over elites of their objective minus the offset.
    pub qd_score: f64,
    /// Highest objective that was ever stored. With a learning rate below 1 a worse elite may have replaced it.
    pub best: Option<f64>,
}

/// The elites in the order in which their cells were first filled.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Elites {
    /// `[elites, solution_size]`.
    pub solutions: Vec<f32>,
    /// `[elites]`.
    pub objectives: Vec<f64>,
    /// `[elites, measures]`.
    pub measures: Vec<f64>,
    /// The cell of each elite.
    pub cells: Vec<u32>,
}

fn check_width(what: &str, got: usize, count: usize, width: usize) -> Result<()> {
    let expected = count.saturating_mul(width);
    match got == expected {
        true => Ok(()),
        false => {
            let what = format!("numbers in the {what} of {count} candidates");
            Err(Error::mismatch(what, expected, got))
        }
    }
}

/// Cells with at most one elite each.
///
/// 1. `slots[cell]` is the position of the cell's elite in `elites`, and `elites.cells` is the inverse.
/// 2. `bars[cell]` is the objective that a candidate must exceed. It never falls.
/// 3. `sum` is the sum of the objectives of all elites.
#[derive(Debug, Clone, PartialEq)]
pub struct Archive {
    space: Space,
    solution_size: usize,
    learning_rate: f64,
    threshold_min: Option<f64>,
    offset: f64,
    bars: Vec<f64>,
    slots: Vec<u32>,
    elites: Elites,
    sum: Sum,
    best: Option<f64>,
}

impl Archive {
    /// An empty archive.
    ///
    /// # Errors
    /// Those of [`Space::new`]; `OutOfRange` for other options; `OutOfMemory` for too many cells.
    pub fn new(options: &ArchiveOptions) -> Result<Self> {
        Archive::new_until(options, &never)
    }

    /// [`new`](Self::new) that ends early if `stop` says so: centroids of many samples take minutes.
    ///
    /// # Errors
    /// Those of `new`, and `Cancelled`.
    pub fn new_until(options: &ArchiveOptions, stop: Stop<'_>) -> Result<Self> {
        Archive::of_space(Space::new_until(&options.space, stop)?, options)
    }

    fn of_space(space: Space, options: &ArchiveOptions) -> Result<Self> {
        let &ArchiveOptions { solution_size, learning_rate, threshold_min, offset, .. } = options;
        if !(1..=MOST_SIZE).contains(&solution_size) {
            let (value, most) = (solution_size as f64, MOST_SIZE as f64);
            return Err(Error::out_of_range("solution_size", value, 1.0, most));
        }
        if !(0.0..=1.0).contains(&learning_rate) {
            return Err(Error::out_of_range("learning_rate", learning_rate, 0.0, 1.0));
        }
        if learning_rate < 1.0 && threshold_min.is_none() {
            let expected = "a number, because the learning rate is below 1";
            return Err(Error::mismatch("threshold_min", expected, "nothing"));
        }
        for (name, value) in [("threshold_min", threshold_min), ("offset", Some(offset))] {
            if let Some(value) = value.filter(|v| v.is_nan() || v.abs() > MOST) {
                return Err(refused(name.into(), value));
            }
        }
        let cells = space.cells();
        memory::room("cells of an archive", cells as u64 * 12)?;
        let bars = memory::caught(|| {
            let bar = threshold_min.unwrap_or(f64::NEG_INFINITY);
            Ok((memory::repeated(bar, cells), memory::repeated(EMPTY, cells)))
        });
        let (bars, slots) = bars?;
        let (elites, sum, best) = Default::default();
        Ok(Archive {
            space,
            solution_size,
            learning_rate,
            threshold_min,
            offset,
            bars,
            slots,
            elites,
            sum,
            best,
        })
    }

    /// The division into cells.
    pub fn space(&self) -> &Space {
        &self.space
    }

    /// Numbers of a solution.
    pub fn solution_size(&self) -> usize {
        self.solution_size
    }

    /// All elites.
    pub fn elites(&self) -> &Elites {
        &self.elites
    }

    /// The threshold of each cell: the objective that a candidate must exceed. An empty cell without a `threshold_min`
    /// has minus infinity.
    pub fn thresholds(&self) -> &[f64] {
        &self.bars
    }

    /// The figures. This takes no scan.
    pub fn stats(&self) -> Stats {
        let (elites, cells) = (self.elites.objectives.len(), self.space.cells());
        Stats {
            elites,
            cells,
            coverage: elites as f64 / cells as f64,
            qd_score: self.sum.value() - self.offset * elites as f64,
            best: self.best,
        }
    }

    /// Offers candidates to their cells.
    ///
    /// The result is that of adding them one by one in their order. A candidate replaces the elite of its cell if its
    /// objective exceeds the threshold; an equal objective does not. So of equal candidates the first one stays.
    ///
    /// # Errors
    /// `Mismatch` for other widths; `NonFinite` and `OutOfRange` for the first objective or measure that is not finite or
    /// exceeds [`MOST`], and for a solution that is not finite in a candidate that exceeds the present threshold. The
    /// archive then stays as it was.
    pub fn add(&mut self, batch: Batch<'_>) -> Result<Added> {
        let Batch { solutions, objectives, measures } = batch;
        let size = self.solution_size;
        check_width("solutions", solutions.len(), objectives.len(), size)?;
        let cells = self.cells_of(objectives, measures)?;
        self.offer(objectives, measures, &cells, |at| &solutions[at * size..][..size])
    }

    /// [`add`](Self::add) for solutions that are elsewhere. `read(candidates)` returns those of some candidates, which
    /// are all that can win.
    ///
    /// # Errors
    /// Those of `add` and of `read`.
    pub fn add_of(
        &mut self,
        objectives: &[f64],
        measures: &[f64],
        read: impl FnOnce(&[usize]) -> Result<Vec<f32>>,
    ) -> Result<Added> {
        let cells = self.cells_of(objectives, measures)?;
        let can_win = |at: &usize| objectives[*at] > self.bar(cells[*at]);
        let contenders: Vec<usize> = (0..cells.len()).filter(can_win).collect();
        let (size, solutions) = (self.solution_size, read(&contenders)?);
        check_width("solutions", solutions.len(), contenders.len(), size)?;
        let row = |at: usize| {
            let place = contenders.binary_search(&at).unwrap_or(0);
            &solutions[place * size..][..size]
        };
        self.offer(objectives, measures, &cells, row)
    }

    fn offer<'s>(
        &mut self,
        objectives: &[f64],
        measures: &[f64],
        cells: &[u32],
        solution: impl Fn(usize) -> &'s [f32],
    ) -> Result<Added> {
        let fresh = self.contenders(objectives, cells, &solution)?;
        let (count, width) = (cells.len(), self.space.measures());
        let row = 4 * self.solution_size + 16 * width + 64;
        memory::room("elites", fresh.saturating_mul(row) as u64)?;
        let mut added = memory::caught(|| {
            memory::reserve(&mut self.elites.solutions, fresh * self.solution_size);
            memory::reserve(&mut self.elites.measures, fresh * width);
            memory::reserve(&mut self.elites.objectives, fresh);
            memory::reserve(&mut self.elites.cells, fresh);
            let improvements = memory::with_capacity(count);
            Ok(Added { status: memory::with_capacity(count), improvements })
        })?;
        for (at, objective) in objectives.iter().enumerate() {
            let row = &measures[at * width..][..width];
            let number = |cell: Option<usize>| cell.map_or(EMPTY, |cell| cell as u32);
            let known = match cells[at] {
                EMPTY => number(self.space.cell(row)),
                known => known,
            };
            let bar = self.bars.get(known as usize).copied().unwrap_or(self.open_bar());
            let wins = *objective > bar;
            added.improvements.push(match bar {
                _ if known == EMPTY && self.space.is_full() => -MOST,
                f64::NEG_INFINITY => *objective,
                bar => objective - bar,
            });
            let cell = if wins && known == EMPTY { number(self.space.open(row)) } else { known };
            added.status.push(match wins && cell != EMPTY {
                true => self.store(solution(at), *objective, row, cell),
                false => Status::NotAdded,
            });
        }
        Ok(added)
    }

    /// Checks objectives and measures, and returns the cells.
    fn cells_of(&self, objectives: &[f64], measures: &[f64]) -> Result<Vec<u32>> {
        check_width("measures", measures.len(), objectives.len(), self.space.measures())?;
        if let Some((at, value)) = unbounded(objectives) {
            return Err(refused(format!("the objective of candidate {at}"), value));
        }
        self.located(measures, "candidate")
    }

    /// The cells of measures, which must be finite; `EMPTY` where there is none yet.
    fn located(&self, measures: &[f64], whose: &str) -> Result<Vec<u32>> {
        let width = self.space.measures();
        if let Some((at, value)) = unbounded(measures) {
            let (row, column) = (at / width, at % width);
            return Err(refused(format!("measure {column} of {whose} {row}"), value));
        }
        let mut cells = memory::caught(|| Ok(memory::repeated(0u32, measures.len() / width)))?;
        pool::for_each_rows(&mut cells, 1, SHARD, |first, cells| {
            let rows = measures[first * width..].chunks_exact(width);
            for (cell, row) in cells.iter_mut().zip(rows) {
                *cell = self.space.cell(row).map_or(EMPTY, |cell| cell as u32);
            }
        });
        Ok(cells)
    }

    /// Checks the solutions of candidates that exceed their threshold, and returns how many of these are in empty cells.
    /// Others cannot win, because thresholds never fall.
    fn contenders<'s>(
        &self,
        objectives: &[f64],
        cells: &[u32],
        solution: &impl Fn(usize) -> &'s [f32],
    ) -> Result<usize> {
        let mut fresh = 0;
        for (at, (objective, cell)) in objectives.iter().zip(cells).enumerate() {
            if *objective <= self.bar(*cell) {
                continue;
            }
            fresh += usize::from(self.slot(*cell).is_none());
            if let Some(value) = solution(at).iter().find(|v| !v.is_finite()) {
                let what = format!("the solution of candidate {at}");
                return Err(Error::NonFinite { what, value: f64::from(*value) });
            }
        }
        Ok(fresh.min(self.space.cells() - self.elites.cells.len()))
    }

    /// The threshold of a cell. A candidate without one makes its cell while there is room.
    fn bar(&self, cell: u32) -> f64 {
        match self.bars.get(cell as usize) {
            Some(bar) => *bar,
            None if self.space.is_full() => f64::INFINITY,
            None => self.open_bar(),
        }
    }

    /// The threshold of an empty cell.
    fn open_bar(&self) -> f64 {
        self.threshold_min.unwrap_or(f64::NEG_INFINITY)
    }

    /// The position of the elite of a cell.
    fn slot(&self, cell: u32) -> Option<u32> {
        self.slots.get(cell as usize).copied().filter(|slot| *slot != EMPTY)
    }

    fn store(&mut self, solution: &[f32], objective: f64, measures: &[f64], cell: u32) -> Status {
        let (size, width) = (self.solution_size, self.space.measures());
        self.raise(cell as usize, objective);
        self.sum.add(objective);
        self.best = Some(self.best.map_or(objective, |best| best.max(objective)));
        let elites = &mut self.elites;
        let slot = self.slots[cell as usize];
        if slot == EMPTY {
            self.slots[cell as usize] = elites.cells.len() as u32;
            elites.solutions.extend_from_slice(solution);
            elites.measures.extend_from_slice(measures);
            elites.objectives.push(objective);
            elites.cells.push(cell);
            return Status::New;
        }
        let slot = slot as usize;
        self.sum.add(-elites.objectives[slot]);
        elites.objectives[slot] = objective;
        elites.solutions[slot * size..][..size].copy_from_slice(solution);
        elites.measures[slot * width..][..width].copy_from_slice(measures);
        Status::Improved
    }

    /// Moves the threshold of a cell towards an objective above it.
    fn raise(&mut self, cell: usize, objective: f64) {
        let bar = &mut self.bars[cell];
        *bar = match self.learning_rate < 1.0 {
            true => *bar + self.learning_rate * (objective - *bar),
            false => objective,
        };
    }

    /// Offers the elites of another archive, in their order.
    ///
    /// # Errors
    /// `Mismatch` for another space or another size of solutions.
    pub fn merge(&mut self, other: &Archive) -> Result<Added> {
        self.check_alike(other)?;
        let Elites { solutions, objectives, measures, .. } = &other.elites;
        self.add(Batch { solutions, objectives, measures })
    }

    /// Returns an error unless both archives have the same cells and solutions of one size.
    ///
    /// # Errors
    /// `Mismatch`.
    pub fn check_alike(&self, other: &Archive) -> Result<()> {
        if self.solution_size != other.solution_size {
            let (own, given) = (self.solution_size, other.solution_size);
            return Err(Error::mismatch("numbers of a solution", own, given));
        }
        match self.space.is_like(&other.space) {
            true => Ok(()),
            false => Err(Error::mismatch("cells of the other archive", "the same", "others")),
        }
    }

    /// Positions of elites that are drawn uniformly, with replacement.
    ///
    /// # Errors
    /// `NotFound` for an empty archive.
    pub fn sample(&self, count: usize, seed: u64) -> Result<Vec<usize>> {
        let all = self.filled()? as u64;
        let rng = Rng::new(seed, "evolve.sample", 0);
        memory::room("a sample of elites", count.saturating_mul(8) as u64)?;
        Ok((0..count).map(|at| rng.below(at as u64, all) as usize).collect())
    }

    /// The position of the elite with the highest objective; of equal ones the first.
    ///
    /// # Errors
    /// `NotFound` for an empty archive.
    pub fn best(&self) -> Result<usize> {
        self.filled()?;
        let objectives = &self.elites.objectives;
        let better = |best, at| if objectives[at] > objectives[best] { at } else { best };
        Ok((0..objectives.len()).fold(0, better))
    }

    /// The number of elites, at least one.
    pub(crate) fn filled(&self) -> Result<usize> {
        match self.elites.cells.len() {
            0 => Err(Error::not_found("an elite (the archive is empty)")),
            count => Ok(count),
        }
    }

    /// The position of the elite in the cell of each row of measures `[rows, measures]`.
    ///
    /// # Errors
    /// `Mismatch` for another width, `NonFinite` for measures that are not finite.
    pub fn retrieve(&self, measures: &[f64]) -> Result<Vec<Option<usize>>> {
        self.check_rows(measures)?;
        let cells = self.located(measures, "row")?;
        Ok(cells.into_iter().map(|cell| self.slot(cell).map(|slot| slot as usize)).collect())
    }

    fn check_rows(&self, measures: &[f64]) -> Result<()> {
        let width = self.space.measures();
        match measures.len() % width {
            0 => Ok(()),
            _ => Err(Error::mismatch("measures", format!("rows of {width}"), measures.len())),
        }
    }
}
