//! Genomes in flat arrays.
//!
//! Nodes of a genome have local indices: inputs, the bias node, outputs, hidden nodes. Only hidden nodes are stored,
//! because the others are the same in each genome. A hidden node also has a number, which is the same in all genomes
//! that got the node by the same mutation.

use std::ops::Range;

use super::order::{Ends, Sorter};

/// One genome. Connections are in ascending order of their innovation numbers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Genes<'a> {
    pub(super) innovation: &'a [u32],
    pub(super) source: &'a [u32],
    pub(super) target: &'a [u32],
    pub(super) weight: &'a [f32],
    pub(super) enabled: &'a [bool],
    /// Numbers of the hidden nodes.
    pub(super) hidden: &'a [u32],
    /// Outputs and hidden nodes, each after all nodes that a connection leads from. Disabled connections count too, so
    /// a mutation that enables one changes nothing here.
    pub(super) order: &'a [u32],
}

impl Genes<'_> {
    /// The number of a node with a local index.
    pub(super) fn number(&self, ends: Ends, local: u32) -> u32 {
        match (local as usize).checked_sub(ends.fixed()).and_then(|at| self.hidden.get(at)) {
            Some(number) => *number,
            None => local,
        }
    }
}

/// Any number of genomes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Genomes {
    pub(super) ends: Ends,
    /// First connection of each genome, and the end of the last one.
    pub(super) genes: Vec<usize>,
    /// First hidden node of each genome, and the end of the last one.
    pub(super) nodes: Vec<usize>,
    pub(super) innovation: Vec<u32>,
    pub(super) source: Vec<u32>,
    pub(super) target: Vec<u32>,
    pub(super) weight: Vec<f32>,
    pub(super) enabled: Vec<bool>,
    pub(super) hidden: Vec<u32>,
    order: Vec<u32>,
}

impl Genomes {
    pub(super) fn new(ends: Ends) -> Self {
        Genomes {
            ends,
            genes: vec![0],
            nodes: vec![0],
            innovation: vec![],
            source: vec![],
            target: vec![],
            weight: vec![],
            enabled: vec![],
            hidden: vec![],
            order: vec![],
        }
    }

    pub(super) fn clear(&mut self) {
        self.genes.truncate(1);
        self.nodes.truncate(1);
        for numbers in [
            &mut self.innovation,
            &mut self.source,
            &mut self.target,
            &mut self.hidden,
            &mut self.order,
        ] {
            numbers.clear();
        }
        self.weight.clear();
        self.enabled.clear();
    }

    pub(super) fn count(&self) -> usize {
        self.genes.len() - 1
    }

    fn ordered(&self, genome: usize) -> usize {
        self.nodes[genome] + genome * self.ends.outputs
    }

    #[inline]
    pub(super) fn get(&self, genome: usize) -> Genes<'_> {
        let genes = self.genes[genome]..self.genes[genome + 1];
        Genes {
            innovation: &self.innovation[genes.clone()],
            source: &self.source[genes.clone()],
            target: &self.target[genes.clone()],
            weight: &self.weight[genes.clone()],
            enabled: &self.enabled[genes],
            hidden: &self.hidden[self.nodes[genome]..self.nodes[genome + 1]],
            order: &self.order[self.ordered(genome)..self.ordered(genome + 1)],
        }
    }

    /// The connections of the last genome.
    pub(super) fn last(&self) -> Range<usize> {
        match *self.genes.as_slice() {
            [.., start, end] => start..end,
            _ => 0..0,
        }
    }

    /// Appends a copy of a genome.
    pub(super) fn push(&mut self, genes: &Genes<'_>) {
        self.innovation.extend_from_slice(genes.innovation);
        self.source.extend_from_slice(genes.source);
        self.target.extend_from_slice(genes.target);
        self.weight.extend_from_slice(genes.weight);
        self.enabled.extend_from_slice(genes.enabled);
        self.hidden.extend_from_slice(genes.hidden);
        self.order.extend_from_slice(genes.order);
        self.genes.push(self.innovation.len());
        self.nodes.push(self.hidden.len());
    }

    /// Adds a connection to the last genome: number, local source, local target, weight.
    pub(super) fn connect(&mut self, innovation: u32, (source, target): (u32, u32), weight: f32) {
        let last = self.last();
        let numbers = &self.innovation[last.clone()];
        let at = last.start + numbers.partition_point(|own| *own < innovation);
        self.innovation.insert(at, innovation);
        self.source.insert(at, source);
        self.target.insert(at, target);
        self.weight.insert(at, weight);
        self.enabled.insert(at, true);
        if let Some(end) = self.genes.last_mut() {
            *end += 1;
        }
    }

    /// Removes a connection of the last genome.
    pub(super) fn disconnect(&mut self, innovation: u32) {
        let last = self.last();
        if let Ok(at) = self.innovation[last.clone()].binary_search(&innovation) {
            let at = last.start + at;
            self.innovation.remove(at);
            self.source.remove(at);
            self.target.remove(at);
            self.weight.remove(at);
            self.enabled.remove(at);
            if let Some(end) = self.genes.last_mut() {
                *end -= 1;
            }
        }
    }

    /// Adds a hidden node to the last genome, and returns its local index. Call [`Genomes::sort`] next.
    pub(super) fn split(&mut self, number: u32) -> u32 {
        let first = self.nodes[self.nodes.len().saturating_sub(2)];
        self.hidden.push(number);
        if let Some(end) = self.nodes.last_mut() {
            *end += 1;
        }
        (self.ends.fixed() + self.hidden.len() - 1 - first) as u32
    }

    /// Computes the order of evaluation of the last genome. It answers whether the genome has no cycle; if it has one,
    /// the order stays as it was.
    pub(super) fn sort(&mut self, sorter: &mut Sorter) -> bool {
        let last = self.count() - 1;
        let genes = self.last();
        let hidden = self.nodes[last + 1] - self.nodes[last];
        let sorted =
            sorter.sort(self.ends, hidden, &self.source[genes.clone()], &self.target[genes]);
        match sorted {
            Some(order) => {
                let start = self.ordered(last);
                self.order.truncate(start);
                self.order.extend_from_slice(order);
                true
            }
            None => false,
        }
    }

    /// Bytes of all genomes.
    pub(super) fn bytes(&self) -> usize {
        17 * self.innovation.len()
            + 8 * self.hidden.len()
            + self.count() * (16 + 4 * self.ends.outputs)
    }
}
