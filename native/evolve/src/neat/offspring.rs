//! Children: crossover and mutations.

use std::collections::HashMap;

use sconce_tensor::dispatch;
use sconce_tensor::rng::Rng;

use super::genomes::{Genes, Genomes};
use super::options::NeatOptions;
use super::order::Sorter;

/// Random words of a child for decisions that concern it as a whole.
const HEAD: usize = 16;
/// Blocks of Philox that are computed together, and their words.
const BLOCKS: usize = 16;
const WORDS: usize = 4 * BLOCKS;
/// Pairs of nodes that a mutation tries to connect.
const TRIES: u64 = 8;
/// Blocks of one child. The last ones are those of the tries.
const ROOM: u64 = 1 << 32;

/// The meaning of the first words of a child.
#[derive(Clone, Copy)]
pub(super) enum Word {
    Crossover,
    First,
    Second,
    Interspecies,
    Other,
    Weights,
    AddNode,
    Split,
    AddConnection,
    Toggle,
    Toggled,
}

/// The random numbers of a child.
#[derive(Debug, Clone, Default)]
pub(super) struct Words {
    words: Vec<u32>,
    first: u64,
}

dispatch! {
    fn fill(rng: &Rng, first: u64, out: &mut [u32]) {
        let _ = FMA;
        for (at, out) in out.chunks_exact_mut(WORDS).enumerate() {
            let words = rng.blocks::<BLOCKS>(first + (at * BLOCKS) as u64);
            out.copy_from_slice(words.as_flattened());
        }
    }
}

impl Words {
    /// Draws the first numbers of a child.
    pub(super) fn draw(&mut self, rng: &Rng, child: usize) {
        self.first = child as u64 * ROOM;
        self.words.resize(WORDS.max(self.words.len()), 0);
        fill(rng, self.first, &mut self.words[..WORDS]);
    }

    /// Draws the numbers of this many connections.
    pub(super) fn extend(&mut self, rng: &Rng, genes: usize) {
        let room = (HEAD + genes).next_multiple_of(WORDS);
        if self.words.len() < room {
            self.words.resize(room, 0);
        }
        fill(rng, self.first + BLOCKS as u64, &mut self.words[WORDS..room]);
    }

    pub(super) fn get(&self, word: Word) -> u32 {
        self.words[word as usize]
    }

    /// Whether an event of this probability occurs.
    pub(super) fn event(&self, word: Word, rate: f64) -> bool {
        f64::from(self.get(word)) < rate * 4_294_967_296.0
    }

    /// A number in `0..count`.
    pub(super) fn below(&self, word: Word, count: usize) -> usize {
        below(self.get(word), count)
    }

    /// A word for each connection. The lowest bits belong to the crossover, the upper 24 to the weight.
    fn genes(&self, count: usize) -> &[u32] {
        &self.words[HEAD..][..count]
    }
}

fn below(word: u32, count: usize) -> usize {
    ((u64::from(word) * count as u64) >> 32) as usize
}

/// A uniform number in `-1..1`.
fn signed(word: u32) -> f32 {
    (word >> 8) as i32 as f32 / 8_388_608.0 - 1.0
}

/// Numbers of structural mutations. The same mutation in one generation has the same numbers.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Innovations {
    pub(super) next_innovation: u32,
    pub(super) next_node: u32,
    connections: HashMap<(u32, u32), u32>,
    /// The node that splits a connection, and the two connections that it gets.
    splits: HashMap<u32, (u32, u32, u32)>,
}

impl Innovations {
    pub(super) fn new(next_innovation: u32, next_node: u32) -> Self {
        let (connections, splits) = (HashMap::new(), HashMap::new());
        Innovations { next_innovation, next_node, connections, splits }
    }

    /// Forgets the mutations of the last generation. The numbers go on.
    pub(super) fn begin(&mut self) {
        self.connections.clear();
        self.splits.clear();
    }

    fn connection(&mut self, source: u32, target: u32) -> u32 {
        let next = &mut self.next_innovation;
        *self.connections.entry((source, target)).or_insert_with(|| {
            *next += 1;
            *next - 1
        })
    }

    fn split(&mut self, innovation: u32) -> (u32, u32, u32) {
        let Innovations { next_innovation, next_node, splits, .. } = self;
        *splits.entry(innovation).or_insert_with(|| {
            *next_innovation += 2;
            *next_node += 1;
            (*next_node - 1, *next_innovation - 2, *next_innovation - 1)
        })
    }
}

/// Makes children at the end of `genomes`.
pub(super) struct Nursery<'a> {
    pub(super) options: &'a NeatOptions,
    pub(super) rng: Rng,
    pub(super) innovations: &'a mut Innovations,
    pub(super) sorter: &'a mut Sorter,
}

impl Nursery<'_> {
    /// Appends a child of one or two parents. The first one is at least as fit; the child has its nodes and connections.
    pub(super) fn child(
        &mut self,
        genomes: &mut Genomes,
        first: &Genes<'_>,
        second: Option<&Genes<'_>>,
        words: &Words,
    ) {
        genomes.push(first);
        let last = genomes.last();
        let choices = words.genes(last.len());
        if let Some(second) = second {
            let (weight, enabled) =
                (&mut genomes.weight[last.clone()], &mut genomes.enabled[last.clone()]);
            cross((first, second), choices, weight, enabled);
        }
        if words.event(Word::Weights, self.options.weight_rate) {
            perturb(self.options, choices, &mut genomes.weight[last.clone()]);
        }
        if !last.is_empty() && words.event(Word::Toggle, self.options.toggle) {
            let at = last.start + words.below(Word::Toggled, last.len());
            genomes.enabled[at] ^= true;
        }
        let mut changed = false;
        if words.event(Word::AddConnection, self.options.add_connection) {
            changed |= self.connect(genomes, words);
        }
        if words.event(Word::AddNode, self.options.add_node) {
            changed |= self.split(genomes, words);
        }
        if changed {
            // Neither a split nor a connection that `connect` accepts makes a cycle.
            let sorted = genomes.sort(self.sorter);
            debug_assert!(sorted);
        }
    }

    /// Connects two nodes of the last genome. A pair that is connected already or would close a cycle is not used.
    fn connect(&mut self, genomes: &mut Genomes, words: &Words) -> bool {
        let ends = genomes.ends;
        let last = genomes.last();
        let genome = genomes.count() - 1;
        let hidden = genomes.get(genome).hidden.len();
        for at in 0..TRIES {
            let block = self.rng.block(words.first + (ROOM - TRIES) + at);
            // Outputs are no sources.
            let source = below(block[0], ends.sources() + hidden);
            let source = if source < ends.sources() { source } else { source + ends.outputs };
            let target = ends.sources() + below(block[1], ends.outputs + hidden);
            let (source, target) = (source as u32, target as u32);
            let pairs = genomes.source[last.clone()].iter().zip(&genomes.target[last.clone()]);
            let mut same = pairs.filter(|(from, to)| (**from, **to) == (source, target));
            if source == target || same.next().is_some() {
                continue;
            }
            let genes = genomes.get(genome);
            let pair = (genes.number(ends, source), genes.number(ends, target));
            let weight = self.options.weight_range * signed(block[2]);
            // A number is taken only for a connection that stays.
            let highest = u32::MAX;
            genomes.connect(highest, (source, target), weight);
            let fits = genomes.sort(self.sorter);
            genomes.disconnect(highest);
            if fits {
                let innovation = self.innovations.connection(pair.0, pair.1);
                genomes.connect(innovation, (source, target), weight);
                return true;
            }
        }
        false
    }

    /// Puts a node into an enabled connection of the last genome, which becomes disabled.
    fn split(&mut self, genomes: &mut Genomes, words: &Words) -> bool {
        let last = genomes.last();
        let enabled = &genomes.enabled[last.clone()];
        let count = enabled.iter().filter(|own| **own).count();
        let mut all = enabled.iter().enumerate().filter(|(_, own)| **own);
        let Some((at, _)) = all.nth(words.below(Word::Split, count)) else { return false };
        let at = last.start + at;
        genomes.enabled[at] = false;
        let (source, target, weight) = (genomes.source[at], genomes.target[at], genomes.weight[at]);
        let (node, into, out) = self.innovations.split(genomes.innovation[at]);
        let node = genomes.split(node);
        genomes.connect(into, (source, node), 1.0);
        genomes.connect(out, (node, target), weight);
        true
    }
}

/// Takes each weight that both parents have from one of them. A connection that is disabled in a parent is disabled in
/// three of four children.
fn cross(
    (first, second): (&Genes<'_>, &Genes<'_>),
    choices: &[u32],
    weight: &mut [f32],
    enabled: &mut [bool],
) {
    let mut other = 0;
    let own = first.innovation.iter().zip(choices).zip(weight).zip(enabled);
    for (((innovation, choice), weight), enabled) in own {
        while second.innovation.get(other).is_some_and(|number| number < innovation) {
            other += 1;
        }
        let Some(number) = second.innovation.get(other) else { return };
        if number == innovation {
            *weight = if choice & 1 == 0 { *weight } else { second.weight[other] };
            *enabled = (*enabled && second.enabled[other]) || choice & 6 == 0;
        }
    }
}

/// Perturbs or replaces each weight.
fn perturb(options: &NeatOptions, choices: &[u32], weight: &mut [f32]) {
    let &NeatOptions { weight_limit: limit, weight_range: range, weight_power: power, .. } =
        options;
    let rate = options.weight_replace as f32;
    // A uniform number below the rate is uniform below it, and one above is uniform above it: one number decides both.
    let (below, above) = (2.0 / rate, 2.0 / (1.0 - rate));
    for (weight, choice) in weight.iter_mut().zip(choices) {
        let uniform = (choice >> 8) as i32 as f32 / 16_777_216.0;
        let new = range * (below * uniform - 1.0);
        let moved = *weight + power * (above * (uniform - rate) - 1.0);
        *weight = if uniform < rate { new } else { moved }.clamp(-limit, limit);
    }
}
