//! Species: groups of similar genomes that share their fitness.

use sconce_tensor::Result;
use sconce_tensor::simd::LANES;
use serde::{Deserialize, Serialize};

use super::distance::{Compatibility, Rule, Table};
use super::genome::Genome;
use super::genomes::Genomes;
use super::options::NeatOptions;
use super::order::Sorter;

/// The genome has no species yet.
const NONE: u32 = u32::MAX;

/// A species.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Species {
    /// Its number, which no other species ever gets.
    pub id: u64,
    /// The generation in which it began.
    pub created: u64,
    /// The generation in which `best` last rose.
    pub improved: u64,
    /// The highest fitness of any member so far; `None` before the first fitness.
    pub best: Option<f64>,
    /// Number of members.
    pub size: usize,
}

/// The species of a population.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Groups {
    pub(super) all: Vec<Species>,
    /// A genome of each species, from the generation in which members were last assigned.
    pub(super) representatives: Genomes,
    /// The species of each genome, as an index into `all`.
    pub(super) of: Vec<u32>,
    pub(super) next_id: u64,
}

/// Buffers of [`Groups::assign`].
#[derive(Debug, Clone, Default)]
pub(super) struct Scratch {
    table: Table,
    distances: Vec<[f64; LANES]>,
    /// The genome that represents each species from now on.
    chosen: Vec<usize>,
    nearest: Vec<f64>,
}

impl Groups {
    pub(super) fn new(representatives: Genomes) -> Self {
        Groups { all: vec![], representatives, of: vec![], next_id: 1 }
    }

    /// Assigns each genome to a species.
    ///
    /// The genome nearest to the representative of a species is the next representative, for one species after the
    /// other. Each other genome joins the species of the nearest representative if the distance is below `threshold`, or
    /// begins a species. Of equal distances the first counts. Species without a member end. (neat-python has this rule.)
    pub(super) fn assign(
        &mut self,
        genomes: &Genomes,
        compatibility: &Compatibility,
        (threshold, generation): (f64, u64),
        scratch: &mut Scratch,
    ) {
        let count = genomes.count();
        let Scratch { table, distances, chosen, nearest } = scratch;
        self.of.clear();
        self.of.resize(count, NONE);
        chosen.clear();
        let tabled = compatibility.rule == Rule::Paper;
        if tabled {
            let old = &self.representatives;
            table.fill(genomes, (0..old.count()).map(|at| old.get(at)));
        }
        for at in 0..self.all.len().min(count) {
            let own = self.representatives.get(at);
            let mut best = (f64::INFINITY, NONE as usize);
            if tabled {
                table.distances(compatibility, &own, genomes, distances);
                let all = distances.as_flattened().iter().zip(&self.of).enumerate();
                for (genome, (distance, of)) in all {
                    if *of == NONE && *distance < best.0 {
                        best = (*distance, genome);
                    }
                }
            } else {
                for genome in (0..count).filter(|genome| self.of[*genome] == NONE) {
                    let distance = compatibility.between(genomes.ends, &own, &genomes.get(genome));
                    if distance < best.0 {
                        best = (distance, genome);
                    }
                }
            }
            self.of[best.1] = at as u32;
            chosen.push(best.1);
        }
        self.all.truncate(chosen.len());
        nearest.clear();
        nearest.resize(count, f64::INFINITY);
        let mut joins = std::mem::take(&mut self.of);
        let kept: Vec<usize> = chosen.clone();
        if tabled {
            table.fill(genomes, kept.iter().map(|at| genomes.get(*at)));
        }
        for (at, genome) in kept.iter().enumerate() {
            let own = genomes.get(*genome);
            if tabled {
                table.distances(compatibility, &own, genomes, distances);
                let all = distances.as_flattened().iter().zip(nearest.iter_mut()).zip(&mut joins);
                for ((distance, nearest), join) in all {
                    if *distance < *nearest {
                        (*nearest, *join) = (*distance, at as u32);
                    }
                }
            } else {
                for other in 0..count {
                    let distance = compatibility.between(genomes.ends, &own, &genomes.get(other));
                    if distance < nearest[other] {
                        (nearest[other], joins[other]) = (distance, at as u32);
                    }
                }
            }
        }
        // The representatives stay in their own species, also where another is as near.
        for (at, genome) in kept.iter().enumerate() {
            (nearest[*genome], joins[*genome]) = (f64::NEG_INFINITY, at as u32);
        }
        for genome in 0..count {
            if nearest[genome] < threshold {
                continue;
            }
            let at = self.all.len() as u32;
            let own = genomes.get(genome);
            (nearest[genome], joins[genome]) = (f64::NEG_INFINITY, at);
            for other in genome + 1..count {
                let distance = compatibility.between(genomes.ends, &own, &genomes.get(other));
                if distance < nearest[other] {
                    (nearest[other], joins[other]) = (distance, at);
                }
            }
            chosen.push(genome);
            let (id, created) = (self.next_id, generation);
            self.next_id += 1;
            self.all.push(Species { id, created, improved: created, best: None, size: 0 });
        }
        self.of = joins;
        self.representatives.clear();
        chosen.iter().for_each(|genome| self.representatives.push(&genomes.get(*genome)));
        self.all.iter_mut().for_each(|own| own.size = 0);
        self.of.iter().for_each(|at| self.all[*at as usize].size += 1);
    }

    /// Ends all other species. Call [`Groups::assign`] next.
    pub(super) fn keep(&mut self, lives: impl Fn(usize) -> bool) {
        let mut kept = Genomes::new(self.representatives.ends);
        let living: Vec<usize> = (0..self.all.len()).filter(|at| lives(*at)).collect();
        living.iter().for_each(|at| kept.push(&self.representatives.get(*at)));
        self.representatives = kept;
        self.all = living.iter().map(|at| self.all[*at].clone()).collect();
    }

    /// Notes the fitness of all members: the best of each species, and when it last rose.
    pub(super) fn note(&mut self, fitness: &[f64], generation: u64) {
        for (of, fitness) in self.of.iter().zip(fitness) {
            let own = &mut self.all[*of as usize];
            if own.best.is_none_or(|best| *fitness > best) {
                (own.best, own.improved) = (Some(*fitness), generation);
            }
        }
    }

    /// Whether each species may have children: `protected_species` with the highest best fitness always, the species of
    /// the `champion` too, and others until they stagnate.
    pub(super) fn fertile(
        &self,
        options: &NeatOptions,
        generation: u64,
        champion: usize,
    ) -> Vec<bool> {
        let mut order: Vec<usize> = (0..self.all.len()).collect();
        let best = |at: usize| self.all[at].best.unwrap_or(f64::NEG_INFINITY);
        order.sort_by(|a, b| best(*b).total_cmp(&best(*a)));
        let mut fertile: Vec<bool> = self
            .all
            .iter()
            .map(|own| generation.saturating_sub(own.improved) < options.stagnation)
            .collect();
        order.iter().take(options.protected_species).for_each(|at| fertile[*at] = true);
        fertile[self.of[champion] as usize] = true;
        fertile
    }
}

/// Numbers of children in proportion to `shares`, with the sum `total` (the largest remainders are rounded up). Shares
/// that are all 0 count as equal, where `allowed`. The species `first` gets at least one child.
pub(super) fn apportion(
    shares: &[f64],
    allowed: &[bool],
    total: usize,
    first: usize,
) -> Vec<usize> {
    let sum: f64 = shares.iter().sum();
    let even = allowed.iter().filter(|own| **own).count() as f64;
    let quota = |at: usize| match (allowed[at], sum > 0.0) {
        (false, _) => 0.0,
        (true, true) => shares[at] / sum * total as f64,
        (true, false) => total as f64 / even,
    };
    let mut counts: Vec<usize> = (0..shares.len()).map(|at| quota(at) as usize).collect();
    let mut order: Vec<usize> = (0..shares.len()).filter(|at| allowed[*at]).collect();
    order.sort_by(|a, b| quota(*b).fract().total_cmp(&quota(*a).fract()));
    let given: usize = counts.iter().sum();
    for at in order.iter().cycle().take(total.saturating_sub(given)) {
        counts[*at] += 1;
    }
    // Rounding errors of the quotas may give one child too many.
    let mut over = given.saturating_sub(total);
    if counts[first] == 0 {
        counts[first] = 1;
        over += 1;
    }
    while over > 0 {
        let others = (0..counts.len()).rev().filter(|at| *at != first);
        let most = others.max_by_key(|at| counts[*at]).filter(|at| counts[*at] > 0);
        counts[most.unwrap_or(first)] -= 1;
        over -= 1;
    }
    counts
}

/// The species of genomes, as indices: first those of `representatives` of an earlier generation, then new ones.
///
/// # Errors
/// Those of [`Genome::distance`].
pub fn assign_species(
    genomes: &[Genome],
    representatives: &[Genome],
    compatibility: &Compatibility,
    threshold: f64,
) -> Result<Vec<u32>> {
    compatibility.check()?;
    let Some(ends) = genomes.first().map(Genome::ends).transpose()? else { return Ok(vec![]) };
    let mut sorter = Sorter::default();
    let (mut own, mut old) = (Genomes::new(ends), Genomes::new(ends));
    genomes.iter().try_for_each(|genome| genome.append(&mut own, &mut sorter))?;
    representatives.iter().try_for_each(|genome| genome.append(&mut old, &mut sorter))?;
    let mut groups = Groups::new(old);
    let species = |id| Species { id, created: 0, improved: 0, best: None, size: 0 };
    groups.all = (0..representatives.len() as u64).map(species).collect();
    groups.assign(&own, compatibility, (threshold, 0), &mut Scratch::default());
    Ok(groups.of)
}
