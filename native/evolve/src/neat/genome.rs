//! A genome as plain data.

use std::collections::{HashMap, HashSet};

use sconce_tensor::{Error, Result};
use serde::{Deserialize, Serialize};

use super::distance::Compatibility;
use super::genomes::{Genes, Genomes};
use super::network::{self, Activations, MOST_VALUE};
use super::options::{Activation, MOST_ENDS, MOST_GENES, MOST_WEIGHT};
use super::order::{Ends, Sorter};

/// The part of a node in its network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeKind {
    /// It has the value of an input.
    Input,
    /// It has the value 1.
    Bias,
    /// Its value is an output.
    Output,
    /// Any other node.
    Hidden,
}

/// A node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Inputs, the bias node and outputs have numbers from 0 on, in this order.
    pub id: u32,
    /// Its part.
    pub kind: NodeKind,
}

/// A connection.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Connection {
    /// Connections of two genomes match if they have the same number.
    pub innovation: u32,
    /// The node that it leads from.
    pub source: u32,
    /// The node that it leads to.
    pub target: u32,
    /// A factor.
    pub weight: f32,
    /// A disabled connection carries nothing.
    pub enabled: bool,
}

/// A network as data: its nodes and connections.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Genome {
    /// The function of hidden nodes.
    pub hidden_activation: Activation,
    /// The function of output nodes.
    pub output_activation: Activation,
    /// All nodes: inputs, the bias node, outputs, hidden nodes.
    pub nodes: Vec<Node>,
    /// All connections, in ascending order of their innovations.
    pub connections: Vec<Connection>,
}

impl Genome {
    pub(super) fn of(ends: Ends, activations: Activations, genes: &Genes<'_>) -> Self {
        let kind = |at: usize| match at {
            at if at < ends.inputs => NodeKind::Input,
            at if at < ends.sources() => NodeKind::Bias,
            _ => NodeKind::Output,
        };
        let fixed = (0..ends.fixed()).map(|at| Node { id: at as u32, kind: kind(at) });
        let hidden = genes.hidden.iter().map(|id| Node { id: *id, kind: NodeKind::Hidden });
        let connection = |at: usize| Connection {
            innovation: genes.innovation[at],
            source: genes.number(ends, genes.source[at]),
            target: genes.number(ends, genes.target[at]),
            weight: genes.weight[at],
            enabled: genes.enabled[at],
        };
        Genome {
            hidden_activation: activations.hidden,
            output_activation: activations.output,
            nodes: fixed.chain(hidden).collect(),
            connections: (0..genes.weight.len()).map(connection).collect(),
        }
    }

    pub(super) fn activations(&self) -> Activations {
        Activations { hidden: self.hidden_activation, output: self.output_activation }
    }

    /// The number of nodes of each kind.
    pub(super) fn ends(&self) -> Result<Ends> {
        let count = |kind| self.nodes.iter().filter(|node| node.kind == kind).count();
        let (inputs, outputs) = (count(NodeKind::Input), count(NodeKind::Output));
        let limit = |what: &str, got: usize, least: usize, most: usize| match (least..=most)
            .contains(&got)
        {
            true => Ok(()),
            false => Err(Error::out_of_range(what, got as f64, least as f64, most as f64)),
        };
        limit("inputs of the genome", inputs, 0, MOST_ENDS)?;
        limit("bias nodes of the genome", count(NodeKind::Bias), 1, 1)?;
        limit("outputs of the genome", outputs, 1, MOST_ENDS)?;
        limit("nodes of the genome", self.nodes.len(), 2, MOST_GENES)?;
        limit("connections of the genome", self.connections.len(), 0, MOST_GENES)?;
        Ok(Ends { inputs, outputs })
    }

    /// Appends the genome to others with the same inputs and outputs.
    ///
    /// # Errors
    /// `Mismatch` for other inputs and outputs, for nodes or connections that come twice, for a connection from or to a
    /// node that is not there or into an input, and for a cycle, of which one node is named.
    pub(super) fn append(&self, genomes: &mut Genomes, sorter: &mut Sorter) -> Result<()> {
        let ends = self.ends()?;
        if ends != genomes.ends {
            let shown = |ends: Ends| format!("{} inputs and {} outputs", ends.inputs, ends.outputs);
            return Err(Error::mismatch("the genome", shown(genomes.ends), shown(ends)));
        }
        let local = self.places(ends)?;
        let mut connections = self.connections.clone();
        connections.sort_by_key(|own| own.innovation);
        self.check(ends, &connections, &local)?;
        let place = |id: u32| local.get(&id).copied().unwrap_or_default();
        let column = |own: &dyn Fn(&Connection) -> u32| connections.iter().map(own).collect();
        let innovation: Vec<u32> = column(&|own| own.innovation);
        let source: Vec<u32> = column(&|own| place(own.source));
        let target: Vec<u32> = column(&|own| place(own.target));
        let weight: Vec<f32> = connections.iter().map(|own| own.weight).collect();
        let enabled: Vec<bool> = connections.iter().map(|own| own.enabled).collect();
        let hidden = self.nodes.iter().filter(|node| node.kind == NodeKind::Hidden);
        let hidden: Vec<u32> = hidden.map(|node| node.id).collect();
        let order = match sorter.sort(ends, hidden.len(), &source, &target) {
            Some(order) => order.to_vec(),
            None => {
                let at = sorter.cyclic(&source, &target);
                let id = local.iter().find(|(_, own)| Some(**own) == at).map(|(id, _)| *id);
                let got = format!("a cycle through node {}", id.unwrap_or_default());
                return Err(Error::mismatch("the genome", "connections without a cycle", got));
            }
        };
        genomes.push(&Genes {
            innovation: &innovation,
            source: &source,
            target: &target,
            weight: &weight,
            enabled: &enabled,
            hidden: &hidden,
            order: &order,
        });
        Ok(())
    }

    /// The local index of each node.
    fn places(&self, ends: Ends) -> Result<HashMap<u32, u32>> {
        let mut places = HashMap::new();
        let mut hidden = ends.fixed()..;
        let part = |kind| match kind {
            NodeKind::Input => 0..ends.inputs,
            NodeKind::Bias => ends.inputs..ends.sources(),
            NodeKind::Output => ends.sources()..ends.fixed(),
            NodeKind::Hidden => ends.fixed()..usize::MAX,
        };
        for node in &self.nodes {
            let (id, part) = (node.id, part(node.kind));
            if !part.contains(&(id as usize)) {
                let expected = format!("a number from {} on, below {}", part.start, part.end);
                return Err(Error::mismatch(format!("the {:?} node", node.kind), expected, id));
            }
            let own = if node.kind == NodeKind::Hidden { hidden.next() } else { Some(id as usize) };
            if places.insert(id, own.unwrap_or_default() as u32).is_some() {
                return Err(Error::mismatch("nodes of the genome", "each node once", id));
            }
        }
        Ok(places)
    }

    /// Refuses connections that belong to no network. They are in ascending order.
    fn check(
        &self,
        ends: Ends,
        connections: &[Connection],
        local: &HashMap<u32, u32>,
    ) -> Result<()> {
        let mut pairs = HashSet::new();
        let mut before = None;
        for own in connections {
            let what = || format!("connection {}", own.innovation);
            if before.replace(own.innovation) == Some(own.innovation) {
                return Err(Error::mismatch(what(), "each innovation once", "two"));
            }
            for id in [own.source, own.target] {
                if !local.contains_key(&id) {
                    return Err(Error::not_found(format!("node {id} of {}", what())));
                }
            }
            if local.get(&own.target).is_some_and(|at| (*at as usize) < ends.sources()) {
                let got = format!("node {}", own.target);
                return Err(Error::mismatch(what(), "an output or a hidden node as target", got));
            }
            if !pairs.insert((own.source, own.target)) {
                let got = format!("a second one from {} to {}", own.source, own.target);
                return Err(Error::mismatch(what(), "each pair of nodes once", got));
            }
            weight(own.weight, &what)?;
        }
        Ok(())
    }

    /// The outputs on patterns, `[patterns, outputs]`.
    ///
    /// # Errors
    /// Those of a genome that is no network, such as one with a cycle, and `Mismatch`, `NonFinite` and `OutOfRange` for
    /// inputs of another size or that are not finite.
    pub fn forward(&self, inputs: &[f32], patterns: usize) -> Result<Vec<f32>> {
        let mut genomes = Genomes::new(self.ends()?);
        self.append(&mut genomes, &mut Sorter::default())?;
        check_inputs(inputs, genomes.ends.inputs, patterns)?;
        let mut out = vec![];
        network::forward(&genomes, self.activations(), (inputs, patterns), &mut out)?;
        Ok(out)
    }

    /// The layer of each node, in the order of `nodes`: one more than the last layer that a connection leads from, disabled
    /// or not. Outputs have the last layer.
    ///
    /// # Errors
    /// Those of a genome that is no network.
    pub fn layers(&self) -> Result<Vec<u32>> {
        let ends = self.ends()?;
        let mut genomes = Genomes::new(ends);
        self.append(&mut genomes, &mut Sorter::default())?;
        let genes = genomes.get(0);
        let mut layers = vec![0u32; ends.fixed() + genes.hidden.len()];
        let mut into = vec![vec![]; layers.len()];
        for (source, target) in genes.source.iter().zip(genes.target) {
            into[*target as usize].push(*source);
        }
        for node in genes.order {
            let before = into[*node as usize].iter().map(|source| layers[*source as usize]);
            layers[*node as usize] = 1 + before.max().unwrap_or(0);
        }
        let last = layers.iter().copied().max().unwrap_or(1);
        layers[ends.sources()..ends.fixed()].fill(last);
        let local = self.places(ends)?;
        let layer = |node: &Node| local.get(&node.id).map_or(0, |at| layers[*at as usize]);
        Ok(self.nodes.iter().map(layer).collect())
    }

    /// The distance to another genome.
    ///
    /// # Errors
    /// Those of a genome that is no network, `Mismatch` for genomes with other inputs or outputs, and `OutOfRange` for
    /// coefficients out of range.
    pub fn distance(&self, other: &Genome, compatibility: &Compatibility) -> Result<f64> {
        compatibility.check()?;
        let ends = self.ends()?;
        let mut genomes = Genomes::new(ends);
        let mut sorter = Sorter::default();
        self.append(&mut genomes, &mut sorter)?;
        other.append(&mut genomes, &mut sorter)?;
        Ok(compatibility.between(ends, &genomes.get(0), &genomes.get(1)))
    }
}

/// Refuses a weight that is not finite or too large.
pub(super) fn weight(value: f32, what: &dyn Fn() -> String) -> Result<()> {
    let (wide, most) = (f64::from(value), f64::from(MOST_WEIGHT));
    match value.is_finite() {
        false => Err(Error::NonFinite { what: format!("the weight of {}", what()), value: wide }),
        true if value.abs() > MOST_WEIGHT => {
            Err(Error::out_of_range(format!("the weight of {}", what()), wide, -most, most))
        }
        true => Ok(()),
    }
}

/// Refuses inputs `[patterns, width]` of another size or without a pattern, and such that are not finite or too large.
pub(super) fn check_inputs(inputs: &[f32], width: usize, patterns: usize) -> Result<()> {
    if patterns == 0 {
        return Err(Error::mismatch("inputs", "at least one row", 0));
    }
    if inputs.len() != patterns.saturating_mul(width) {
        return Err(Error::mismatch("inputs", patterns.saturating_mul(width), inputs.len()));
    }
    let most = f64::from(MOST_VALUE);
    match inputs.iter().enumerate().find(|(_, v)| v.is_nan() || v.abs() > MOST_VALUE) {
        None => Ok(()),
        Some((at, v)) => {
            let (what, value) = (format!("input {at}"), f64::from(*v));
            match value.is_finite() {
                true => Err(Error::out_of_range(what, value, -most, most)),
                false => Err(Error::NonFinite { what, value }),
            }
        }
    }
}
