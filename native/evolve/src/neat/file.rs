//! Populations as files.

use std::borrow::Cow;
use std::path::Path;

use sconce_tensor::{Result, memory};
use serde::{Deserialize, Serialize};

use super::genome::Genome;
use super::genomes::{Genes, Genomes};
use super::offspring::Innovations;
use super::options::{MOST_GENES, NeatOptions};
use super::order::Sorter;
use super::species::{Groups, Species};
use super::{Neat, Told, Work};
use crate::saved::{self, Numbers, Opened, Tensors};
use crate::unbounded;

const KIND: &str = "neat";
/// The version of the manifest.
const VERSION: u32 = 1;
/// Highest number of a generation or a species in a file.
const MOST_COUNT: u64 = 1 << 53;

#[derive(Serialize, Deserialize)]
struct Manifest {
    kind: String,
    version: u32,
    options: NeatOptions,
    generation: u64,
    threshold: f64,
    next_innovation: u32,
    next_node: u32,
    next_species: u64,
    species: Vec<Species>,
    told: Option<Told>,
    best: Option<(Genome, f64)>,
}

/// Names of the tensors of genomes: those of the population, and those of the representatives of species.
#[derive(Clone, Copy)]
struct Names {
    genes: &'static str,
    nodes: &'static str,
    innovation: &'static str,
    source: &'static str,
    target: &'static str,
    weight: &'static str,
    enabled: &'static str,
    hidden: &'static str,
}

const POPULATION: Names = Names {
    genes: "genes",
    nodes: "nodes",
    innovation: "innovation",
    source: "source",
    target: "target",
    weight: "weight",
    enabled: "enabled",
    hidden: "hidden",
};

const REPRESENTATIVES: Names = Names {
    genes: "representatives.genes",
    nodes: "representatives.nodes",
    innovation: "representatives.innovation",
    source: "representatives.source",
    target: "representatives.target",
    weight: "representatives.weight",
    enabled: "representatives.enabled",
    hidden: "representatives.hidden",
};

impl Neat {
    /// Writes the population to a file: the whole new file, or the old one stays.
    ///
    /// # Errors
    /// `Io` and `NotFound` if the system refuses.
    pub fn save(&self, path: &Path) -> Result<()> {
        let mut tensors = Tensors::new();
        put(&mut tensors, POPULATION, &self.genomes);
        put(&mut tensors, REPRESENTATIVES, &self.groups.representatives);
        tensors.insert("species", words(&self.groups.of));
        let manifest = Manifest {
            kind: KIND.into(),
            version: VERSION,
            options: self.options.clone(),
            generation: self.generation,
            threshold: self.threshold,
            next_innovation: self.innovations.next_innovation,
            next_node: self.innovations.next_node,
            next_species: self.groups.next_id,
            species: self.groups.all.clone(),
            told: self.told,
            best: self.best.clone(),
        };
        saved::save(path, &manifest, &tensors)
    }

    /// Reads the population of a file. It goes on with the same bits.
    ///
    /// # Errors
    /// `Corrupt` for a file that is cut, changed or has invalid content, `Mismatch` for another kind of file or another
    /// version, `NotFound` and `Io` if it cannot be read.
    pub fn load(path: &Path) -> Result<Neat> {
        let (manifest, opened): (Manifest, Opened) = saved::load(path, KIND, VERSION)?;
        manifest.options.check().map_err(|e| opened.corrupt(e))?;
        let options = &manifest.options;
        let mut reader = Reader { opened: &opened, manifest: &manifest, sorter: Sorter::default() };
        let genomes = reader.genomes(POPULATION, options.population)?;
        let representatives = reader.genomes(REPRESENTATIVES, manifest.species.len())?;
        let of = reader.species(options.population)?;
        reader.check()?;
        Ok(Neat {
            groups: Groups {
                all: manifest.species,
                representatives,
                of,
                next_id: manifest.next_species,
            },
            innovations: Innovations::new(manifest.next_innovation, manifest.next_node),
            generation: manifest.generation,
            threshold: manifest.threshold,
            best: manifest.best,
            told: manifest.told,
            genomes,
            options: manifest.options,
            work: Work::default(),
        })
    }
}

fn words<'a>(values: impl Into<Cow<'a, [u32]>>) -> Numbers<'a> {
    let values = values.into();
    Numbers::u32(&[values.len()], values)
}

fn put<'a>(tensors: &mut Tensors<'a>, names: Names, genomes: &'a Genomes) {
    let narrow = |values: &[usize]| words(values.iter().map(|v| *v as u32).collect::<Vec<_>>());
    let enabled: Vec<u32> = genomes.enabled.iter().map(|own| u32::from(*own)).collect();
    tensors.extend([
        (names.genes, narrow(&genomes.genes)),
        (names.nodes, narrow(&genomes.nodes)),
        (names.innovation, words(&genomes.innovation)),
        (names.source, words(&genomes.source)),
        (names.target, words(&genomes.target)),
        (names.weight, Numbers::f32(&[genomes.weight.len()], &genomes.weight)),
        (names.enabled, words(enabled)),
        (names.hidden, words(&genomes.hidden)),
    ]);
}

struct Reader<'a> {
    opened: &'a Opened,
    manifest: &'a Manifest,
    sorter: Sorter,
}

impl Reader<'_> {
    fn words(&self, name: &str) -> Result<Vec<u32>> {
        let shape = self.opened.shape(name)?;
        match *shape.as_slice() {
            [count] => self.opened.u32(name, &[count]),
            _ => Err(self.opened.corrupt(format!("{name} is no vector"))),
        }
    }

    /// Where each of `count` genomes begins, and the end of the last one.
    fn starts(&self, name: &str, count: usize) -> Result<Vec<usize>> {
        let starts = self.opened.u32(name, &[count + 1])?;
        let rises = starts.windows(2).all(|pair| pair[0] <= pair[1]);
        match rises && starts.first() == Some(&0) {
            true => Ok(starts.into_iter().map(|at| at as usize).collect()),
            false => Err(self.opened.corrupt(format!("{name} does not rise from 0"))),
        }
    }

    fn genomes(&mut self, names: Names, count: usize) -> Result<Genomes> {
        let ends = super::order::Ends {
            inputs: self.manifest.options.inputs,
            outputs: self.manifest.options.outputs,
        };
        let (genes, nodes) = (self.starts(names.genes, count)?, self.starts(names.nodes, count)?);
        let size = [genes[genes.len() - 1]];
        let column = |name: &str| self.opened.u32(name, &size);
        let (innovation, source) = (column(names.innovation)?, column(names.source)?);
        let (target, enabled) = (column(names.target)?, column(names.enabled)?);
        let weight = self.opened.f32(names.weight, &size)?;
        let hidden = self.words(names.hidden)?;
        if hidden.len() != nodes[nodes.len() - 1] {
            return Err(self.opened.corrupt(format!("{} has another length", names.hidden)));
        }
        let enabled: Vec<bool> = enabled.iter().map(|own| *own != 0).collect();
        let mut genomes = Genomes::new(ends);
        memory::room("genomes", (count * (4 * ends.outputs + 16) + 17 * size[0]) as u64)?;
        for at in 0..count {
            let own = genes[at]..genes[at + 1];
            let genes = Genes {
                innovation: &innovation[own.clone()],
                source: &source[own.clone()],
                target: &target[own.clone()],
                weight: &weight[own.clone()],
                enabled: &enabled[own],
                hidden: &hidden[nodes[at]..nodes[at + 1]],
                order: &[],
            };
            self.append(&mut genomes, &genes)
                .map_err(|reason| self.opened.corrupt(format!("genome {at}: {reason}")))?;
        }
        Ok(genomes)
    }

    /// Appends a genome if it is a network with numbers that were given.
    fn append(
        &mut self,
        genomes: &mut Genomes,
        genes: &Genes<'_>,
    ) -> std::result::Result<(), String> {
        let ends = genomes.ends;
        let nodes = ends.fixed() + genes.hidden.len();
        if genes.weight.len() > MOST_GENES || nodes > MOST_GENES + ends.fixed() {
            return Err("it is too large".into());
        }
        if !genes.innovation.windows(2).all(|pair| pair[0] < pair[1]) {
            return Err("innovations do not rise".into());
        }
        let given = |numbers: &[u32], from: usize, next: u32| {
            numbers.iter().all(|number| *number as usize >= from && *number < next)
        };
        let Manifest { next_innovation, next_node, .. } = *self.manifest;
        if !given(genes.innovation, 0, next_innovation)
            || !given(genes.hidden, ends.fixed(), next_node)
        {
            return Err("a number was never given".into());
        }
        if !given(genes.source, 0, nodes as u32)
            || !given(genes.target, ends.sources(), nodes as u32)
        {
            return Err("a connection has no node".into());
        }
        let mut numbers = genes.hidden.to_vec();
        numbers.sort_unstable();
        let pairs = genes.source.iter().zip(genes.target);
        let mut pairs: Vec<_> = pairs.collect();
        pairs.sort_unstable();
        if numbers.windows(2).any(|pair| pair[0] == pair[1])
            || pairs.windows(2).any(|pair| pair[0] == pair[1])
        {
            return Err("a node or a connection comes twice".into());
        }
        let limit = self.manifest.options.weight_limit;
        if genes.weight.iter().any(|weight| weight.is_nan() || weight.abs() > limit) {
            return Err("a weight exceeds the limit".into());
        }
        match self.sorter.sort(ends, genes.hidden.len(), genes.source, genes.target) {
            Some(order) => {
                genomes.push(&Genes { order, ..*genes });
                Ok(())
            }
            None => Err("it has a cycle".into()),
        }
    }

    /// The species of each genome.
    fn species(&self, count: usize) -> Result<Vec<u32>> {
        let of = self.opened.u32("species", &[count])?;
        let mut sizes = vec![0; self.manifest.species.len()];
        for at in &of {
            match sizes.get_mut(*at as usize) {
                Some(size) => *size += 1,
                None => return Err(self.opened.corrupt("a genome has no species")),
            }
        }
        let own = self.manifest.species.iter().map(|own| own.size);
        match own.eq(sizes.iter().copied()) && !sizes.contains(&0) {
            true => Ok(of),
            false => Err(self.opened.corrupt("another number of members of a species")),
        }
    }

    /// Refuses numbers of the manifest that no run gives.
    fn check(&self) -> Result<()> {
        let Manifest { threshold, species, told, best, generation, .. } = self.manifest;
        let scores = species.iter().filter_map(|own| own.best);
        let scores = scores.chain(told.iter().flat_map(|told| [told.best, told.mean]));
        let scores: Vec<f64> = scores.chain(best.iter().map(|(_, best)| *best)).collect();
        let late = |own: &Species| own.created > own.improved || own.improved > *generation;
        let number = |own: &Species| own.id >= self.manifest.next_species;
        let counts = [*generation, self.manifest.next_species];
        if counts.iter().any(|count| *count > MOST_COUNT)
            || unbounded(&scores).is_some()
            || !(0.0..=crate::MOST).contains(threshold)
        {
            return Err(self.opened.corrupt("a number of the manifest is out of range"));
        }
        if species.iter().any(|own| late(own) || number(own)) {
            return Err(self.opened.corrupt("a species of another run"));
        }
        if let Some((genome, _)) = best {
            let ends = super::order::Ends {
                inputs: self.manifest.options.inputs,
                outputs: self.manifest.options.outputs,
            };
            let mut genomes = Genomes::new(ends);
            genome
                .append(&mut genomes, &mut Sorter::default())
                .map_err(|e| self.opened.corrupt(e))?;
        }
        Ok(())
    }
}
