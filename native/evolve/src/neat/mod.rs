//! NEAT: networks whose weights and connections evolve (Stanley & Miikkulainen 2002).

mod distance;
mod file;
mod genome;
mod genomes;
mod network;
mod offspring;
mod options;
mod order;
mod species;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use sconce_tensor::rng::Rng;
use sconce_tensor::{Error, Result, memory};
use serde::{Deserialize, Serialize};

use crate::{refused, unbounded};
pub use distance::{Compatibility, Differences, Rule};
pub use genome::{Connection, Genome, Node, NodeKind};
use genomes::Genomes;
use network::Activations;
use offspring::{Innovations, Nursery, Word, Words};
pub use options::{Activation, NeatOptions};
use order::{Ends, Sorter};
use species::{Groups, Scratch, apportion};
pub use species::{Species, assign_species};

/// Fewest members of a species whose best ones stay unchanged; the best genome of all stays too, unless elitism is 0.
const ELITE_SPECIES: usize = 5;

/// The fitness of the last finished generation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Told {
    best: f64,
    mean: f64,
}

/// Figures of a population.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NeatStats {
    /// Number of finished generations.
    pub generation: u64,
    /// All species, in the order in which they began.
    pub species: Vec<Species>,
    /// Distance below which a genome joins a species.
    pub threshold: f64,
    /// Highest fitness so far.
    pub best: Option<f64>,
    /// Highest fitness of the last finished generation.
    pub generation_best: Option<f64>,
    /// Mean fitness of that generation.
    pub generation_mean: Option<f64>,
    /// Mean number of hidden nodes of a genome.
    pub hidden_nodes: f64,
    /// Mean number of enabled connections of a genome.
    pub enabled_connections: f64,
    /// Mean number of connections of a genome.
    pub connections: f64,
}

/// The result of [`Neat::fit`].
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Fit {
    /// Populations that were evaluated.
    pub generations: u64,
    /// The highest fitness of this call.
    pub best: f64,
    /// Whether it is at least `stop_at`.
    pub reached: bool,
    /// Seconds of evaluation.
    pub evaluation: f64,
    /// Seconds of selection, crossover and mutations.
    pub variation: f64,
    /// Seconds of the assignment to species.
    pub species: f64,
}

/// Buffers that hold nothing between two generations.
#[derive(Debug, Clone, Default)]
struct Work {
    sorter: Sorter,
    scratch: Scratch,
    words: Words,
    outputs: Vec<f32>,
    /// The children of the current call; later the old genomes.
    next: Option<Genomes>,
}

/// A population in ask-and-tell form. A higher fitness is better.
#[derive(Debug, Clone)]
pub struct Neat {
    options: NeatOptions,
    genomes: Genomes,
    groups: Groups,
    innovations: Innovations,
    generation: u64,
    threshold: f64,
    best: Option<(Genome, f64)>,
    told: Option<Told>,
    work: Work,
}

impl PartialEq for Neat {
    fn eq(&self, other: &Self) -> bool {
        self.options == other.options
            && self.genomes == other.genomes
            && self.groups == other.groups
            && self.innovations.next_innovation == other.innovations.next_innovation
            && self.innovations.next_node == other.innovations.next_node
            && (self.generation, self.threshold) == (other.generation, other.threshold)
            && (&self.best, self.told) == (&other.best, other.told)
    }
}

impl Neat {
    /// A population of networks that connect each input and the bias node with each output, with random weights.
    ///
    /// # Errors
    /// `OutOfRange` for options out of range, `OutOfMemory` for too many connections.
    pub fn new(options: &NeatOptions) -> Result<Self> {
        options.check()?;
        let &NeatOptions { inputs, outputs, population, .. } = options;
        let ends = Ends { inputs, outputs };
        let genes = options.first_genes();
        let genome = 17 * genes + 4 * outputs + 16;
        memory::room("genomes", (2 * population).saturating_mul(genome) as u64)?;
        let mut genomes = Genomes::new(ends);
        let innovation: Vec<u32> = (0..genes as u32).collect();
        let source: Vec<u32> = innovation.iter().map(|at| at / outputs as u32).collect();
        let first = ends.sources() as u32;
        let target: Vec<u32> = innovation.iter().map(|at| first + at % outputs as u32).collect();
        let order: Vec<u32> = (first..ends.fixed() as u32).collect();
        let rng = Rng::new(options.seed, "evolve.neat.init", 0);
        for at in 0..population {
            let weight = |gene| {
                let uniform = rng.uniform((at * genes + gene) as u64);
                options.weight_range * (2.0 * uniform - 1.0)
            };
            genomes.push(&genomes::Genes {
                innovation: &innovation,
                source: &source,
                target: &target,
                weight: &(0..genes).map(weight).collect::<Vec<f32>>(),
                enabled: &vec![true; genes],
                hidden: &[],
                order: &order,
            });
        }
        let mut neat = Neat {
            options: options.clone(),
            groups: Groups::new(Genomes::new(ends)),
            innovations: Innovations::new(genes as u32, ends.fixed() as u32),
            generation: 0,
            threshold: options.threshold,
            best: None,
            told: None,
            genomes,
            work: Work::default(),
        };
        neat.assign();
        Ok(neat)
    }

    /// The options.
    pub fn options(&self) -> &NeatOptions {
        &self.options
    }

    /// Number of finished generations.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The best genome of all generations that were told, and its fitness.
    pub fn best(&self) -> Option<(&Genome, f64)> {
        self.best.as_ref().map(|(genome, fitness)| (genome, *fitness))
    }

    /// Bytes of the genomes.
    pub fn bytes(&self) -> usize {
        self.genomes.bytes()
    }

    fn activations(&self) -> Activations {
        let NeatOptions { hidden_activation, output_activation, .. } = self.options;
        Activations { hidden: hidden_activation, output: output_activation }
    }

    /// A genome of this generation.
    ///
    /// # Errors
    /// `OutOfRange` for an index that is not below the population.
    pub fn genome(&self, at: usize) -> Result<Genome> {
        if at >= self.genomes.count() {
            let most = self.genomes.count() as f64 - 1.0;
            return Err(Error::out_of_range("genome", at as f64, 0.0, most));
        }
        Ok(Genome::of(self.genomes.ends, self.activations(), &self.genomes.get(at)))
    }

    /// The outputs of all genomes on the same inputs `[patterns, inputs]`: `[genomes, patterns, outputs]`.
    ///
    /// # Errors
    /// `Mismatch` for inputs of another size, `NonFinite` and `OutOfRange` for inputs that are not finite or exceed 1e18,
    /// `OutOfMemory` for too many outputs.
    pub fn forward(&self, inputs: &[f32], patterns: usize) -> Result<Vec<f32>> {
        genome::check_inputs(inputs, self.options.inputs, patterns)?;
        let mut out = vec![];
        network::forward(&self.genomes, self.activations(), (inputs, patterns), &mut out)?;
        Ok(out)
    }

    /// Ends a generation with the fitness of each genome: the children of the fittest take the place of all.
    ///
    /// # Errors
    /// `Mismatch` for another number of values, `NonFinite` and `OutOfRange` for a fitness that is not finite or exceeds
    /// [`MOST`](crate::MOST), `OutOfRange` if numbers of innovations end. The population then stays as it was.
    pub fn tell(&mut self, fitness: &[f64]) -> Result<()> {
        self.check(fitness)?;
        self.note(fitness);
        self.reproduce(fitness);
        self.assign();
        Ok(())
    }

    /// Evolves a population that shall map inputs `[patterns, inputs]` to targets `[patterns, outputs]`. The fitness of a
    /// genome is the number of targets minus the sum of squared errors. The call ends after `generations`, or with the
    /// population in which a fitness reaches `stop_at`.
    ///
    /// # Errors
    /// Those of [`Neat::forward`] and [`Neat::tell`], the same for targets, `Cancelled` if `cancelled` is set. The finished
    /// generations stay.
    pub fn fit(
        &mut self,
        (inputs, targets): (&[f32], &[f32]),
        generations: u64,
        stop_at: f64,
        cancelled: &AtomicBool,
    ) -> Result<Fit> {
        let outputs = self.options.outputs;
        let patterns = targets.len() / outputs;
        if patterns == 0 || targets.len() != patterns * outputs {
            let expected = format!("rows of {outputs}");
            return Err(Error::mismatch("targets", expected, targets.len()));
        }
        genome::check_inputs(inputs, self.options.inputs, patterns)?;
        let wide: Vec<f64> = targets.iter().copied().map(f64::from).collect();
        if let Some((at, value)) = unbounded(&wide) {
            return Err(refused(format!("target {at}"), value));
        }
        let mut fit = Fit { best: f64::NEG_INFINITY, ..Fit::default() };
        let mut fitness = vec![];
        while fit.generations < generations && !fit.reached {
            if cancelled.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
            let start = Instant::now();
            let (own, out) = (self.activations(), &mut self.work.outputs);
            network::forward(&self.genomes, own, (inputs, patterns), out)?;
            fitness.clear();
            fitness.extend(out.chunks_exact(targets.len()).map(|row| score(row, targets)));
            let evaluated = Instant::now();
            self.check(&fitness)?;
            self.note(&fitness);
            fit.generations += 1;
            fit.best = fitness.iter().copied().fold(fit.best, f64::max);
            fit.reached = fit.best >= stop_at;
            fit.evaluation += (evaluated - start).as_secs_f64();
            if !fit.reached {
                self.reproduce(&fitness);
                let varied = Instant::now();
                self.assign();
                fit.variation += (varied - evaluated).as_secs_f64();
                fit.species += varied.elapsed().as_secs_f64();
            }
        }
        Ok(fit)
    }

    fn check(&self, fitness: &[f64]) -> Result<()> {
        let count = self.genomes.count();
        if fitness.len() != count {
            return Err(Error::mismatch("fitness", count, fitness.len()));
        }
        if let Some((at, value)) = unbounded(fitness) {
            return Err(refused(format!("the fitness of genome {at}"), value));
        }
        // A child takes at most three numbers. The highest one is not given.
        let most = (u32::MAX as usize - 1).saturating_sub(3 * count);
        let next = self.innovations.next_innovation.max(self.innovations.next_node);
        if next as usize > most {
            return Err(Error::out_of_range("innovations", next.into(), 0.0, most as f64));
        }
        memory::room("genomes", 2 * self.genomes.bytes() as u64)
    }

    /// Notes a fitness that [`Neat::check`] has accepted: the best genome, the progress of species.
    fn note(&mut self, fitness: &[f64]) {
        self.groups.note(fitness, self.generation);
        let champion = champion(fitness);
        let best = fitness[champion];
        let mean = fitness.iter().map(|v| v / fitness.len() as f64).sum();
        self.told = Some(Told { best, mean });
        if self.best.as_ref().is_none_or(|(_, known)| best > *known) {
            let genes = self.genomes.get(champion);
            self.best = Some((Genome::of(self.genomes.ends, self.activations(), &genes), best));
        }
    }

    /// Replaces all genomes by children.
    fn reproduce(&mut self, fitness: &[f64]) {
        let Neat { options, genomes, groups, innovations, generation, work, .. } = self;
        let count = genomes.count();
        let champion = champion(fitness);
        let first = groups.of[champion] as usize;
        let fertile = groups.fertile(options, *generation, champion);
        let children = apportion(&shares(fitness, groups, &fertile), &fertile, count, first);
        let ranked = Ranked::new(fitness, groups);
        let mut next = work.next.take().unwrap_or_else(|| Genomes::new(genomes.ends));
        next.clear();
        innovations.begin();
        let rng = Rng::new(options.seed, "evolve.neat", *generation);
        let mut nursery = Nursery { options, rng, innovations, sorter: &mut work.sorter };
        let words = &mut work.words;
        for (at, children) in children.iter().enumerate() {
            let members = ranked.members(at);
            let kept = match members.len() >= ELITE_SPECIES || at == first {
                true => options.elitism.min(*children).min(members.len()),
                false => 0,
            };
            members[..kept].iter().for_each(|genome| next.push(&genomes.get(*genome as usize)));
            let parents = (options.survival * members.len() as f64).ceil() as usize;
            let parents = &members[..parents.clamp(usize::from(*children > 0), members.len())];
            for _ in kept..*children {
                words.draw(&nursery.rng, next.count());
                let one = parents[words.below(Word::First, parents.len())] as usize;
                let two = words.event(Word::Crossover, options.crossover).then(|| {
                    match words.event(Word::Interspecies, options.interspecies) {
                        true => words.below(Word::Other, count),
                        false => parents[words.below(Word::Second, parents.len())] as usize,
                    }
                });
                let (fitter, other) = match two {
                    Some(two) if two != one => ordered(genomes, fitness, one, two),
                    _ => (one, None),
                };
                let (fitter, other) = (genomes.get(fitter), other.map(|at| genomes.get(at)));
                words.extend(&nursery.rng, fitter.weight.len());
                nursery.child(&mut next, &fitter, other.as_ref(), words);
            }
        }
        groups.keep(|species| children[species] > 0);
        work.next = Some(std::mem::replace(genomes, next));
        *generation += 1;
    }

    /// Assigns all genomes to species, and moves the threshold.
    fn assign(&mut self) {
        let Neat { options, genomes, groups, generation, threshold, work, .. } = self;
        groups.assign(
            genomes,
            &options.compatibility,
            (*threshold, *generation),
            &mut work.scratch,
        );
        let step = match groups.all.len().cmp(&options.target_species) {
            std::cmp::Ordering::Less => -options.threshold_step,
            std::cmp::Ordering::Equal => 0.0,
            std::cmp::Ordering::Greater => options.threshold_step,
        };
        // A threshold of 0 would make each genome a species.
        *threshold = (*threshold + step).max(options.threshold_step);
    }

    /// Figures of the population.
    pub fn stats(&self) -> NeatStats {
        let genomes = &self.genomes;
        let mean = |total: usize| total as f64 / genomes.count() as f64;
        NeatStats {
            generation: self.generation,
            species: self.groups.all.clone(),
            threshold: self.threshold,
            best: self.best().map(|(_, fitness)| fitness),
            generation_best: self.told.map(|told| told.best),
            generation_mean: self.told.map(|told| told.mean),
            hidden_nodes: mean(genomes.hidden.len()),
            enabled_connections: mean(genomes.enabled.iter().filter(|own| **own).count()),
            connections: mean(genomes.innovation.len()),
        }
    }
}

/// The number of targets minus the sum of squared errors.
fn score(outputs: &[f32], targets: &[f32]) -> f64 {
    let error = |(out, target): (&f32, &f32)| (f64::from(*out) - f64::from(*target)).powi(2);
    targets.len() as f64 - outputs.iter().zip(targets).map(error).sum::<f64>()
}

/// The first genome with the highest fitness.
fn champion(fitness: &[f64]) -> usize {
    let better = |best: usize, at: usize| if fitness[at] > fitness[best] { at } else { best };
    (0..fitness.len()).fold(0, better)
}

/// The fitter of two parents, then the other one. Of equally fit ones the one with fewer connections is first.
fn ordered(genomes: &Genomes, fitness: &[f64], a: usize, b: usize) -> (usize, Option<usize>) {
    let size = |at: usize| genomes.get(at).innovation.len();
    match fitness[a].total_cmp(&fitness[b]).then(size(b).cmp(&size(a))) {
        std::cmp::Ordering::Less => (b, Some(a)),
        _ => (a, Some(b)),
    }
}

/// Shared fitness: the mean of each species, less the lowest fitness of all.
fn shares(fitness: &[f64], groups: &Groups, fertile: &[bool]) -> Vec<f64> {
    let least = fitness.iter().copied().fold(f64::INFINITY, f64::min);
    let mut shares = vec![0.0; fertile.len()];
    for (of, fitness) in groups.of.iter().zip(fitness) {
        let of = *of as usize;
        if fertile[of] {
            shares[of] += (fitness - least) / groups.all[of].size as f64;
        }
    }
    shares
}

/// Members of each species in descending order of fitness.
struct Ranked {
    order: Vec<u32>,
    starts: Vec<usize>,
}

impl Ranked {
    fn new(fitness: &[f64], groups: &Groups) -> Self {
        let mut order: Vec<u32> = (0..fitness.len() as u32).collect();
        order.sort_unstable_by(|a, b| {
            let (left, right) = (*a as usize, *b as usize);
            let species = groups.of[left].cmp(&groups.of[right]);
            species.then(fitness[right].total_cmp(&fitness[left])).then(a.cmp(b))
        });
        let mut starts = vec![0];
        for own in &groups.all {
            starts.push(starts[starts.len() - 1] + own.size);
        }
        Ranked { order, starts }
    }

    fn members(&self, species: usize) -> &[u32] {
        &self.order[self.starts[species]..self.starts[species + 1]]
    }
}
