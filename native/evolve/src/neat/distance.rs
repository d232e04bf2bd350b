//! The distance between genomes.

use std::collections::{HashMap, HashSet};

use sconce_tensor::simd::LANES;
use sconce_tensor::{Error, Result, dispatch};
use serde::{Deserialize, Serialize};

use super::genomes::{Genes, Genomes};
use super::order::Ends;

/// Largest coefficient.
const MOST_COEFFICIENT: f64 = 1e6;

/// The formula of a distance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// Equation 1 of Stanley & Miikkulainen 2002: `(excess E + disjoint D) / N + weights W`, where `E` and `D` count
    /// connections, `N` is the size of the larger genome and `W` the mean difference of matching weights.
    Paper,
    /// That of neat-python 2.0.0: the sum of a distance of nodes and one of connections, each divided by the larger
    /// count. Connections match by their nodes, and a connection that is enabled in only one genome counts 1. It takes
    /// a hundred times as long as [`Rule::Paper`].
    NeatPython,
}

/// How distances are computed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Compatibility {
    /// The formula.
    pub rule: Rule,
    /// Coefficient of excess connections; [`Rule::NeatPython`] does not read it.
    pub excess: f64,
    /// Coefficient of disjoint connections.
    pub disjoint: f64,
    /// Coefficient of differences of weights.
    pub weights: f64,
    /// `N` is 1 if both genomes have fewer connections than this.
    pub small_genome: usize,
}

/// Two genomes side by side: the numbers in [`Rule::Paper`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Differences {
    /// Connections beyond the last innovation of the other genome.
    pub excess: usize,
    /// Other connections without a partner.
    pub disjoint: usize,
    /// Connections that both have.
    pub matching: usize,
    /// Mean magnitude of the difference of matching weights; 0 if none match.
    pub weight: f64,
}

impl Differences {
    /// Compares connections `(innovations, weights)` in ascending order of their innovations.
    pub fn new<T: Copy + Into<f64>>(a: (&[u32], &[T]), b: (&[u32], &[T])) -> Self {
        let (mut i, mut j, mut sum) = (0, 0, 0.0);
        let (mut matching, mut alone) = (0, 0);
        while let (Some(left), Some(right)) = (a.0.get(i), b.0.get(j)) {
            if left == right {
                if let (Some(x), Some(y)) = (a.1.get(i), b.1.get(j)) {
                    sum += (Into::<f64>::into(*x) - Into::<f64>::into(*y)).abs();
                }
                matching += 1;
            } else {
                alone += 1;
            }
            i += usize::from(left <= right);
            j += usize::from(right <= left);
        }
        let excess = a.0.len() - i + b.0.len() - j;
        let weight = if matching == 0 { 0.0 } else { sum / matching as f64 };
        Differences { excess, disjoint: alone, matching, weight }
    }
}

impl Compatibility {
    /// Refuses coefficients out of range.
    pub(super) fn check(&self) -> Result<()> {
        let most = MOST_COEFFICIENT;
        for (name, value) in
            [("excess", self.excess), ("disjoint", self.disjoint), ("weights", self.weights)]
        {
            if !(0.0..=most).contains(&value) {
                return Err(Error::out_of_range(name, value, 0.0, most));
            }
        }
        Ok(())
    }

    /// The distance by [`Rule::Paper`] of genomes with these differences, the larger of which has `most` connections.
    pub fn distance(&self, own: &Differences, most: usize) -> f64 {
        let alone = (self.excess * own.excess as f64, self.disjoint * own.disjoint as f64);
        (alone.0 + alone.1) / self.divisor(most) as f64 + self.weights * own.weight
    }

    fn divisor(&self, most: usize) -> usize {
        if most < self.small_genome { 1 } else { most.max(1) }
    }

    /// The distance of two genomes.
    pub(super) fn between(&self, ends: Ends, a: &Genes<'_>, b: &Genes<'_>) -> f64 {
        match self.rule {
            Rule::Paper => {
                let own = Differences::new((a.innovation, a.weight), (b.innovation, b.weight));
                self.distance(&own, a.innovation.len().max(b.innovation.len()))
            }
            Rule::NeatPython => self.by_nodes(ends, a, b),
        }
    }

    fn by_nodes(&self, ends: Ends, a: &Genes<'_>, b: &Genes<'_>) -> f64 {
        let hidden: HashSet<u32> = a.hidden.iter().copied().collect();
        let shared = b.hidden.iter().filter(|number| hidden.contains(number)).count();
        let share = |sum: f64, a: usize, b: usize| sum / a.max(b).max(1) as f64;
        let single = (a.hidden.len() + b.hidden.len() - 2 * shared) as f64;
        let [nodes, others] = [a, b].map(|genes| genes.hidden.len() + ends.outputs);
        let node_part = share(self.disjoint * single, nodes, others);
        let key = |genes: &Genes<'_>, at: usize| {
            (genes.number(ends, genes.source[at]), genes.number(ends, genes.target[at]))
        };
        let places: HashMap<_, _> = (0..b.weight.len()).map(|at| (key(b, at), at)).collect();
        let (mut difference, mut matching) = (0.0, 0);
        for at in 0..a.weight.len() {
            if let Some(other) = places.get(&key(a, at)) {
                let weights = f64::from(a.weight[at]) - f64::from(b.weight[*other]);
                let enabled = f64::from(u8::from(a.enabled[at] != b.enabled[*other]));
                difference += self.weights * (weights.abs() + enabled);
                matching += 1;
            }
        }
        let single = (a.weight.len() + b.weight.len() - 2 * matching) as f64;
        node_part + share(difference + self.disjoint * single, a.weight.len(), b.weight.len())
    }
}

/// The place of an innovation among those of a [`Table`]: a hash table with linear probing.
#[derive(Debug, Clone, Default)]
struct Places {
    /// Innovation and place; a place of `u32::MAX` is free.
    slots: Vec<(u32, u32)>,
    shift: u32,
    count: u32,
}

impl Places {
    fn clear(&mut self, most: usize) {
        let size = (2 * most).next_power_of_two().max(16);
        self.shift = 32 - size.trailing_zeros();
        self.slots.clear();
        self.slots.resize(size, (0, u32::MAX));
        self.count = 0;
    }

    #[inline(always)]
    fn slot(&self, innovation: u32) -> usize {
        let mut at = (innovation.wrapping_mul(0x9E37_79B1) >> self.shift) as usize;
        loop {
            let (own, place) = self.slots[at];
            if place == u32::MAX || own == innovation {
                return at;
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
    }

    fn insert(&mut self, innovation: u32) {
        let at = self.slot(innovation);
        if self.slots[at].1 == u32::MAX {
            self.slots[at] = (innovation, self.count);
            self.count += 1;
        }
    }

    #[inline(always)]
    fn get(&self, innovation: u32) -> Option<u32> {
        if self.slots.is_empty() {
            return None;
        }
        let place = self.slots[self.slot(innovation)].1;
        (place != u32::MAX).then_some(place)
    }
}

/// Weights of a population by innovation, for distances to a few representatives: one lane is one genome.
#[derive(Debug, Clone, Default)]
pub(super) struct Table {
    places: Places,
    /// `[innovations, blocks]`.
    columns: Vec<Column>,
    /// Connections of each genome; 0 in unused lanes.
    sizes: Vec<[f64; LANES]>,
    /// Places and weights of the representative.
    own: Vec<(u32, f32)>,
}

/// An innovation in the genomes of a block.
#[derive(Debug, Clone, Copy)]
struct Column {
    /// 0 for genomes without it.
    weights: [f32; LANES],
    /// 1 for genomes with it, 0 for others: the loop over lanes has no branch.
    present: [f32; LANES],
}

/// An innovation that no genome has.
const ABSENT: Column = Column { weights: [0.0; LANES], present: [0.0; LANES] };

impl Table {
    /// Prepares distances of `genomes` to these representatives. Only their innovations have places.
    pub(super) fn fill<'a>(
        &mut self,
        genomes: &Genomes,
        representatives: impl Iterator<Item = Genes<'a>> + Clone,
    ) {
        let most: usize = representatives.clone().map(|genes| genes.innovation.len()).sum();
        self.places.clear(most);
        for genes in representatives {
            genes.innovation.iter().for_each(|innovation| self.places.insert(*innovation));
        }
        let blocks = genomes.count().div_ceil(LANES);
        self.columns.clear();
        self.columns.resize(self.places.count as usize * blocks, ABSENT);
        self.sizes.clear();
        self.sizes.resize(blocks, [0.0; LANES]);
        for genome in 0..genomes.count() {
            let genes = genomes.get(genome);
            let (block, lane) = (genome / LANES, genome % LANES);
            self.sizes[block][lane] = genes.innovation.len() as f64;
            for (innovation, weight) in genes.innovation.iter().zip(genes.weight) {
                if let Some(place) = self.places.get(*innovation) {
                    let column = &mut self.columns[place as usize * blocks + block];
                    (column.weights[lane], column.present[lane]) = (*weight, 1.0);
                }
            }
        }
    }

    /// Distances of a representative to all genomes by [`Rule::Paper`], `[blocks, LANES]`.
    pub(super) fn distances(
        &mut self,
        own: &Compatibility,
        representative: &Genes<'_>,
        genomes: &Genomes,
        out: &mut Vec<[f64; LANES]>,
    ) {
        let own_genes = representative.innovation.iter().zip(representative.weight);
        self.own.clear();
        self.own.extend(own_genes.filter_map(|(i, w)| Some((self.places.get(*i)?, *w))));
        out.clear();
        out.resize(self.sizes.len(), [0.0; LANES]);
        // With one coefficient for both the number of excess connections plays no part.
        if own.excess == own.disjoint {
            compare(own, representative.innovation.len(), self, None, out);
            return;
        }
        let mut excess = vec![[0.0; LANES]; out.len()];
        for genome in 0..genomes.count() {
            let beyond = beyond(representative.innovation, genomes.get(genome).innovation);
            excess[genome / LANES][genome % LANES] = beyond as f64;
        }
        compare(own, representative.innovation.len(), self, Some(&excess), out);
    }
}

/// The number of excess connections.
fn beyond(a: &[u32], b: &[u32]) -> usize {
    let after = |own: &[u32], other: &[u32]| {
        own.len() - other.last().map_or(0, |last| own.partition_point(|i| i <= last))
    };
    after(a, b) + after(b, a)
}

dispatch! {
    fn compare(
        own: &Compatibility,
        size: usize,
        table: &Table,
        excess: Option<&[[f64; LANES]]>,
        out: &mut [[f64; LANES]],
    ) {
        // `mul_add` is not used: the distances do not depend on the CPU.
        let _ = FMA;
        let (blocks, size) = (out.len(), size as f64);
        let small = own.small_genome as f64;
        for (block, out) in out.iter_mut().enumerate() {
            let (mut matching, mut sum) = ([0.0f64; LANES], [0.0f64; LANES]);
            for (place, weight) in &table.own {
                let column = &table.columns[*place as usize * blocks + block];
                for lane in 0..LANES {
                    let present = f64::from(column.present[lane]);
                    let other = f64::from(column.weights[lane]);
                    sum[lane] += (f64::from(*weight) - other).abs() * present;
                    matching[lane] += present;
                }
            }
            let sizes = &table.sizes[block];
            let excess = excess.map_or([0.0; LANES], |all| all[block]);
            for lane in 0..LANES {
                let alone = size + sizes[lane] - 2.0 * matching[lane] - excess[lane];
                let most = size.max(sizes[lane]);
                let divisor = if most < small { 1.0 } else { most.max(1.0) };
                let mean = if matching[lane] == 0.0 { 0.0 } else { sum[lane] / matching[lane] };
                let parts = own.excess * excess[lane] + own.disjoint * alone;
                out[lane] = parts / divisor + own.weights * mean;
            }
        }
    }
}
