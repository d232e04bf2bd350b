//! Searches: generations of a population that plays episodes, for an archive, a strategy or both.

mod emitter;
mod file;
mod run;
mod select;

use std::time::{Duration, Instant};

use sconce_env::rules_for_a_card;
use sconce_nn::Spec;
use sconce_tensor::rng::Rng;
use sconce_tensor::{Device, Error, Result};
use serde::{Deserialize, Serialize};

use emitter::Emitter;
pub use emitter::{EmitterOptions, Ranking};
pub use run::{Event, Report, RunOptions};
pub use select::Selection;

use crate::archive::{Added, Archive};
use crate::population::{Episodes, Evaluated, Population, PopulationOptions, Storage};
use crate::stop::{Stop, go_on};
use crate::strategy::StrategyOptions;
use crate::variation::Variation;

/// Most individuals of a generation.
const MOST_BATCH: usize = 1 << 20;

/// The source of the individuals of a generation.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Children of elites: MAP-Elites (Mouret & Clune 2015). The first generations are random, until the archive has an
    /// elite.
    Elites {
        /// The variation of pairs of parents.
        variation: Variation,
        /// The choice of parents.
        selection: Selection,
    },
    /// Strategies that move towards empty cells and better elites: CMA-ME (Fontaine et al. 2020) and CMA-MAE (Fontaine &
    /// Nikolaidis 2023). An emitter takes an equal part of the generation.
    Emitters(EmitterOptions),
    /// One strategy that maximises the return.
    Strategy(StrategyOptions),
}

/// Options of a [`Search`].
#[derive(Debug, Clone, Deserialize)]
pub struct SearchOptions {
    /// The source of individuals.
    pub source: Source,
    /// Individuals of a generation. A strategy has its own number.
    pub batch: usize,
    /// Type of stored weights.
    pub storage: Storage,
    /// Standard deviation of the numbers of random individuals.
    pub sigma: f32,
    /// Seed of individuals, parents and noise.
    pub seed: u64,
    /// Whether each generation begins in states of its own. Otherwise an individual has the same return in every
    /// generation.
    pub new_starts: bool,
}

/// Time of the stages of some generations.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Stages {
    /// Seconds of variation, or of a strategy's candidates and updates.
    pub variation_s: f64,
    /// Seconds of episodes.
    pub evaluation_s: f64,
    /// Seconds of additions to the archive.
    pub archive_s: f64,
}

/// The figures of some generations.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Progress {
    /// Finished generations since the begin of the search.
    pub generation: u64,
    /// Evaluated individuals since the begin of the search.
    pub evaluations: u64,
    /// Highest return since the begin of the search.
    pub best: Option<f64>,
    /// Mean return of the last generation.
    pub mean: f64,
    /// Candidates of these generations that were stored in the archive.
    pub added: u64,
    /// Decisions of these generations.
    pub decisions: u64,
    /// Time of these generations.
    pub stages: Stages,
}

/// A search. Results depend on its options alone, not on the number of threads or on pauses.
pub struct Search {
    options: SearchOptions,
    episodes: Episodes,
    population: Population,
    emitters: Vec<Emitter>,
    generation: u64,
    evaluations: u64,
    best: Option<f64>,
}

impl Search {
    /// A search with policies of a Spec. `archive` is the one of later calls; a strategy needs none.
    ///
    /// # Errors
    /// `OutOfRange` for options; `Mismatch` for a source that needs an archive, and for an archive of other solutions or
    /// measures; those of [`Population::new`], of [`Episodes::check`] and of the source.
    pub fn new(
        spec: &Spec,
        options: &SearchOptions,
        episodes: &Episodes,
        archive: Option<&Archive>,
    ) -> Result<Self> {
        let &SearchOptions { batch, storage, sigma, seed, .. } = options;
        if !(1..=MOST_BATCH).contains(&batch) {
            return Err(Error::out_of_range("batch", batch as f64, 1.0, MOST_BATCH as f64));
        }
        let size = crate::Network::of(spec)?.size();
        if let Source::Elites { variation, selection } = &options.source {
            variation.children(size, (seed, 0))?;
            selection.check()?;
        }
        let emitters = Emitter::all(&options.source, size, batch, seed)?;
        let count = match emitters.as_slice() {
            [] => batch,
            emitters => emitters.iter().map(|own| own.strategy.population()).sum(),
        };
        let made = PopulationOptions { count, storage, sigma, seed };
        let population = Population::new(spec, &made, None)?;
        episodes.check(population.network())?;
        let own = Search {
            options: options.clone(),
            episodes: episodes.clone(),
            population,
            emitters,
            generation: 0,
            evaluations: 0,
            best: None,
        };
        own.check_archive(archive)?;
        Ok(own)
    }

    /// The same search, whose episodes a device computes. Variation and the archive stay on the CPU.
    ///
    /// # Errors
    /// `Unavailable` on a card for an environment whose rules run on CPUs only.
    pub fn on(mut self, device: &Device) -> Result<Self> {
        if !device.is_cpu() {
            rules_for_a_card(&self.episodes.env)?;
        }
        self.population = self.population.on(device);
        Ok(self)
    }

    /// The individuals of the last generation, or of one that was stopped.
    pub fn population(&self) -> &Population {
        &self.population
    }

    /// The mean of the strategy, if the search has one.
    pub fn mean(&self) -> Option<Vec<f32>> {
        match (&self.options.source, self.emitters.as_slice()) {
            (Source::Strategy(_), [own]) => {
                Some(own.strategy.mean().iter().map(|v| *v as f32).collect())
            }
            _ => None,
        }
    }

    fn check_archive(&self, archive: Option<&Archive>) -> Result<()> {
        let Some(archive) = archive else {
            return match self.options.source {
                Source::Strategy(_) => Ok(()),
                _ => Err(Error::mismatch("archive", "one, for elites and emitters", "none")),
            };
        };
        let size = self.population.network().size();
        if archive.solution_size() != size {
            let got = archive.solution_size();
            return Err(Error::mismatch("numbers of a solution of the archive", size, got));
        }
        let (measures, wanted) = (self.episodes.measures.len(), archive.space().measures());
        if measures != wanted {
            return Err(Error::mismatch("measures", wanted, measures));
        }
        Ok(())
    }

    /// Runs generations until `stop` says so, which is asked often. A generation that is stopped does not count: the next
    /// call begins it anew, with the same result.
    ///
    /// # Errors
    /// Those of [`new`](Self::new) for another archive; `NonFinite` and `OutOfRange` for a return or a measure that is not
    /// finite or too large. The generation of the error is not counted.
    pub fn run(
        &mut self,
        mut archive: Option<&mut Archive>,
        generations: u64,
        stop: Stop<'_>,
    ) -> Result<Progress> {
        self.check_archive(archive.as_deref())?;
        let mut progress = Progress::default();
        for _ in 0..generations {
            match self.step(archive.as_deref_mut(), &mut progress, stop) {
                Err(Error::Cancelled) => break,
                other => other?,
            }
        }
        progress.generation = self.generation;
        progress.evaluations = self.evaluations;
        progress.best = self.best;
        Ok(progress)
    }

    /// A generation; `Cancelled` if `stop` ended it, before anything but the individuals has changed.
    fn step(
        &mut self,
        mut archive: Option<&mut Archive>,
        progress: &mut Progress,
        stop: Stop<'_>,
    ) -> Result<()> {
        go_on(stop)?;
        let mut clock = Clock::new();
        self.emit(archive.as_deref(), stop)?;
        progress.stages.variation_s += clock.lap();
        let evaluated = self.evaluate(stop)?;
        progress.stages.evaluation_s += clock.lap();
        let added = match &mut archive {
            Some(archive) => Some(self.add(archive, &evaluated)?),
            None => None,
        };
        progress.stages.archive_s += clock.lap();
        self.learn(archive.as_deref(), &evaluated, added.as_ref())?;
        progress.stages.variation_s += clock.lap();

        let count = evaluated.returns.len();
        self.best = self.best.into_iter().chain(evaluated.returns.iter().copied()).reduce(f64::max);
        self.generation += 1;
        self.evaluations += count as u64;
        progress.mean = evaluated.returns.iter().sum::<f64>() / count as f64;
        progress.decisions += evaluated.decisions;
        let stored = added.iter().flat_map(|own| &own.status).filter(|own| own.is_added());
        progress.added += stored.count() as u64;
        Ok(())
    }

    /// Writes the individuals of this generation.
    fn emit(&mut self, archive: Option<&Archive>, stop: Stop<'_>) -> Result<()> {
        let SearchOptions { seed, .. } = self.options;
        let stream = (seed, self.generation);
        if !self.emitters.is_empty() {
            let mut first = 0;
            for own in &self.emitters {
                let candidates = own.strategy.ask()?;
                let narrow: Vec<f32> = candidates.iter().map(|v| *v as f32).collect();
                self.population.write(first, &narrow)?;
                first += own.strategy.population();
            }
            return Ok(());
        }
        let Source::Elites { variation, selection } = &self.options.source else { return Ok(()) };
        match archive.filter(|archive| archive.stats().elites > 0) {
            None => self.population.renew(self.options.sigma, stream),
            Some(archive) => {
                let pairs = selection.pairs(archive, self.population.count(), stream, stop)?;
                self.population.vary_from(archive, variation, pairs.as_deref(), stream)
            }
        }
    }

    fn evaluate(&self, stop: Stop<'_>) -> Result<Evaluated> {
        if !self.options.new_starts {
            return self.population.episodes_until(&self.episodes, stop);
        }
        let mut episodes = self.episodes.clone();
        let rng = Rng::new(episodes.env.seed, "evolve.starts", self.generation);
        episodes.env.seed = u64::from(rng.u32(0)) << 32 | u64::from(rng.u32(1));
        self.population.episodes_until(&episodes, stop)
    }

    /// Offers the individuals of this generation to the archive. Only numbers of those that can win are copied.
    fn add(&self, archive: &mut Archive, evaluated: &Evaluated) -> Result<Added> {
        let Evaluated { returns, measures, .. } = evaluated;
        archive.add_of(returns, measures, |at| self.population.read(at))
    }

    /// Moves the strategies.
    fn learn(
        &mut self,
        archive: Option<&Archive>,
        evaluated: &Evaluated,
        added: Option<&Added>,
    ) -> Result<()> {
        let mut first = 0;
        for (at, own) in self.emitters.iter_mut().enumerate() {
            let part = first..first + own.strategy.population();
            first = part.end;
            match (&self.options.source, added, archive) {
                (Source::Emitters(options), Some(added), Some(archive)) => {
                    let stream = (self.options.seed, self.generation, at as u64);
                    own.rank(options, added, part, archive, stream)?;
                }
                _ => own.strategy.tell(&evaluated.returns[part])?,
            }
        }
        Ok(())
    }
}

struct Clock(Instant);

impl Clock {
    fn new() -> Self {
        Clock(Instant::now())
    }

    /// Seconds since the last call.
    fn lap(&mut self) -> f64 {
        let now = Instant::now();
        let spent: Duration = now - std::mem::replace(&mut self.0, now);
        spent.as_secs_f64()
    }
}
