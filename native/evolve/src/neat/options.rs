//! Options of a population of networks.

use sconce_tensor::{Error, Result};
use serde::{Deserialize, Serialize};

use super::distance::Compatibility;

/// Most inputs, and most outputs, of a network.
pub(super) const MOST_ENDS: usize = 1 << 16;
/// Most connections of a network at the start, and of a genome that is given as data.
pub(super) const MOST_GENES: usize = 1 << 20;
/// Most networks of a population.
pub(super) const MOST_GENOMES: usize = 1 << 20;
/// Most connections of all networks at the start.
const MOST_ALL: usize = 1 << 28;
/// Largest magnitude of a weight. Values of nodes are at most 1e18, so no sum of a node overflows.
pub(super) const MOST_WEIGHT: f32 = 1e6;

/// The function of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// `1 / (1 + e^-4.9x)`, as in Stanley & Miikkulainen 2002.
    SteepSigmoid,
    /// The hyperbolic tangent.
    Tanh,
    /// `max(x, 0)`.
    Relu,
    /// `x`.
    Identity,
}

/// Options of a [`Neat`](super::Neat). Rates are probabilities.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NeatOptions {
    /// Number of inputs, without the bias node.
    pub inputs: usize,
    /// Number of outputs.
    pub outputs: usize,
    /// Number of genomes.
    pub population: usize,
    /// The seed of all random numbers.
    pub seed: u64,
    /// The function of hidden nodes.
    pub hidden_activation: Activation,
    /// The function of output nodes.
    pub output_activation: Activation,
    /// The distance between genomes.
    #[serde(flatten)]
    pub compatibility: Compatibility,
    /// Distance below which two genomes may share a species, at the start.
    pub threshold: f64,
    /// Change of the threshold after each generation, towards `target_species`; 0 keeps it.
    pub threshold_step: f64,
    /// Wanted number of species.
    pub target_species: usize,
    /// Generations without a higher best fitness after which a species ends.
    pub stagnation: u64,
    /// Number of species with the highest best fitness that never end by stagnation.
    pub protected_species: usize,
    /// Best members of a species that stay unchanged.
    pub elitism: usize,
    /// Share of a species, the best ones, that may be parents.
    pub survival: f64,
    /// Rate of children that have two parents.
    pub crossover: f64,
    /// Rate of second parents from any species.
    pub interspecies: f64,
    /// New weights are uniform between `-weight_range` and `weight_range`.
    pub weight_range: f32,
    /// Largest magnitude of a weight.
    pub weight_limit: f32,
    /// Rate of children whose weights change.
    pub weight_rate: f64,
    /// Largest change of a weight that is perturbed.
    pub weight_power: f32,
    /// Rate of weights that are replaced, in a child whose weights change.
    pub weight_replace: f64,
    /// Rate of children that get a node.
    pub add_node: f64,
    /// Rate of children that get a connection.
    pub add_connection: f64,
    /// Rate of children one of whose connections is enabled or disabled.
    pub toggle: f64,
}

impl NeatOptions {
    /// Connections of a network at the start: each input and the bias node to each output.
    pub(super) fn first_genes(&self) -> usize {
        (self.inputs + 1) * self.outputs
    }

    /// Refuses options out of range.
    pub(super) fn check(&self) -> Result<()> {
        let within =
            |name: &str, value: f64, least: f64, most: f64| match (least..=most).contains(&value) {
                true => Ok(()),
                false => Err(Error::out_of_range(name, value, least, most)),
            };
        let count = |name: &str, value: usize, least: usize, most: usize| {
            within(name, value as f64, least as f64, most as f64)
        };
        count("inputs", self.inputs, 0, MOST_ENDS)?;
        count("outputs", self.outputs, 1, MOST_ENDS)?;
        count("connections", self.first_genes(), 1, MOST_GENES)?;
        count("population", self.population, 2, MOST_GENOMES)?;
        count("population", self.population, 2, MOST_ALL / self.first_genes())?;
        count("target_species", self.target_species, 1, MOST_GENOMES)?;
        for (name, rate) in [
            ("survival", self.survival),
            ("crossover", self.crossover),
            ("interspecies", self.interspecies),
            ("weight_rate", self.weight_rate),
            ("weight_replace", self.weight_replace),
            ("add_node", self.add_node),
            ("add_connection", self.add_connection),
            ("toggle", self.toggle),
        ] {
            within(name, rate, 0.0, 1.0)?;
        }
        let most = f64::from(MOST_WEIGHT);
        within("weight_limit", self.weight_limit.into(), 0.0, most)?;
        within("weight_range", self.weight_range.into(), 0.0, self.weight_limit.into())?;
        within("weight_power", self.weight_power.into(), 0.0, most)?;
        within("threshold", self.threshold, 0.0, most)?;
        within("threshold_step", self.threshold_step, 0.0, most)?;
        self.compatibility.check()
    }
}
