//! Long runs of a search: events, saves, and a stop with the state saved.

use std::path::Path;
use std::time::{Duration, Instant};

use sconce_tensor::{Error, Result};
use serde::{Deserialize, Serialize};

use super::{Progress, Search, Stages};
use crate::archive::{Archive, Stats};
use crate::stop::Stop;

/// Time between two events.
const TELL: Duration = Duration::from_millis(200);

/// Options of a run.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct RunOptions {
    /// Generations of the whole search, those before a resume included.
    pub generations: u64,
    /// Seconds between saves.
    pub save_seconds: f64,
}

/// The state of a run after a generation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Event {
    /// `generation`.
    pub event: &'static str,
    /// Finished generations.
    pub step: u64,
    /// Generations of the whole search.
    pub steps: u64,
    /// Evaluated individuals.
    pub evaluations: u64,
    /// Evaluated individuals a second, since the begin of the run.
    pub evaluations_per_second: f64,
    /// Highest return.
    pub best_return: Option<f64>,
    /// Mean return of the generation.
    pub mean_return: f64,
    /// Cells of the archive with an elite.
    pub elites: Option<usize>,
    /// Their share.
    pub coverage: Option<f64>,
    /// The archive's QD score.
    pub qd_score: Option<f64>,
    /// Seconds until the end at the present speed.
    pub left_s: f64,
}

/// The result of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Figures of the whole search; decisions, additions and stages are those of this run.
    pub progress: Progress,
    /// Figures of the archive.
    pub archive: Option<Stats>,
    /// Seconds of this run.
    pub wall_s: f64,
    /// Evaluated individuals a second in this run.
    pub evaluations_per_second: f64,
    /// Numbers of individuals that were evaluated a second: evaluations times the numbers of a solution.
    pub numbers_per_second: f64,
    /// `done`, or `stopped` before the last generation.
    pub stopped: &'static str,
}

impl Search {
    /// Runs to the last generation, or until `stop` says so, and saves the state into a folder: from time to time, and at
    /// the end.
    ///
    /// # Errors
    /// Those of [`run`](Self::run) and [`save`](Self::save), and `OutOfRange` for options. After an error of a generation
    /// the state is saved without it; if its candidates were in the archive already, they stay there.
    pub fn execute(
        &mut self,
        mut archive: Option<&mut Archive>,
        folder: &Path,
        options: &RunOptions,
        tell: impl Fn(Event),
        stop: Stop<'_>,
    ) -> Result<Report> {
        let &RunOptions { generations, save_seconds } = options;
        if !(0.0..=1e9).contains(&save_seconds) {
            return Err(Error::out_of_range("save_seconds", save_seconds, 0.0, 1e9));
        }
        self.check_archive(archive.as_deref())?;
        let _lock = Search::lock(folder)?;
        let (begun, first) = (Instant::now(), (self.generation, self.evaluations));
        let (mut told, mut saved) = (begun, begun);
        let mut progress = Progress::default();
        let mut stopped = "done";
        while self.generation < generations {
            match self.step(archive.as_deref_mut(), &mut progress, stop) {
                Ok(()) => {}
                Err(Error::Cancelled) => {
                    stopped = "stopped";
                    break;
                }
                Err(error) => {
                    // The first error says more than one of the disk.
                    let _ = self.write(folder, archive.as_deref());
                    return Err(error);
                }
            }
            let is_last = self.generation == generations;
            if is_last || told.elapsed() >= TELL {
                told = Instant::now();
                tell(self.event(archive.as_deref(), generations, begun, first, progress.mean));
            }
            if !is_last && saved.elapsed().as_secs_f64() >= save_seconds {
                self.write(folder, archive.as_deref())?;
                saved = Instant::now();
            }
        }
        self.write(folder, archive.as_deref())?;
        progress.generation = self.generation;
        progress.evaluations = self.evaluations;
        progress.best = self.best;
        let wall_s = begun.elapsed().as_secs_f64();
        let rate = (self.evaluations - first.1) as f64 / wall_s;
        Ok(Report {
            progress,
            archive: archive.map(|archive| archive.stats()),
            wall_s,
            evaluations_per_second: rate,
            numbers_per_second: rate * self.population.network().size() as f64,
            stopped,
        })
    }

    fn event(
        &self,
        archive: Option<&Archive>,
        steps: u64,
        begun: Instant,
        (generation, evaluations): (u64, u64),
        mean: f64,
    ) -> Event {
        let stats = archive.map(Archive::stats);
        let spent = begun.elapsed().as_secs_f64();
        let per_generation = spent / (self.generation - generation).max(1) as f64;
        Event {
            event: "generation",
            step: self.generation,
            steps,
            evaluations: self.evaluations,
            evaluations_per_second: (self.evaluations - evaluations) as f64 / spent,
            best_return: self.best,
            mean_return: mean,
            elites: stats.map(|own| own.elites),
            coverage: stats.map(|own| own.coverage),
            qd_score: stats.map(|own| own.qd_score),
            left_s: per_generation * (steps - self.generation) as f64,
        }
    }
}

impl Stages {
    /// Shares of variation, evaluation and archive in their sum.
    pub fn shares(&self) -> [f64; 3] {
        let all = [self.variation_s, self.evaluation_s, self.archive_s];
        let sum: f64 = all.iter().sum();
        all.map(|own| if sum > 0.0 { own / sum } else { 0.0 })
    }
}
