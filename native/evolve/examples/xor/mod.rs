//! NEAT on XOR: options and patterns.

use sconce_evolve::{Activation, Compatibility, NeatOptions, Rule};

pub(crate) const INPUTS: [f32; 8] = [0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0];
pub(crate) const TARGETS: [f32; 4] = [0.0, 1.0, 1.0, 0.0];
/// The fitness, 4 minus the sum of squared errors, that counts as solved.
#[allow(dead_code)] // each user of this module uses a part
pub(crate) const SOLVED: f64 = 3.9;

/// The defaults of `Sconce.Evolve.Neat`.
pub(crate) fn options(seed: u64) -> NeatOptions {
    NeatOptions {
        inputs: 2,
        outputs: 1,
        population: 150,
        seed,
        hidden_activation: Activation::SteepSigmoid,
        output_activation: Activation::SteepSigmoid,
        compatibility: Compatibility {
            rule: Rule::Paper,
            excess: 1.0,
            disjoint: 1.0,
            weights: 0.4,
            small_genome: 20,
        },
        threshold: 3.0,
        threshold_step: 0.3,
        target_species: 10,
        stagnation: 15,
        protected_species: 2,
        elitism: 1,
        survival: 0.2,
        crossover: 0.75,
        interspecies: 0.001,
        weight_range: 3.0,
        weight_limit: 30.0,
        weight_rate: 0.8,
        weight_power: 1.0,
        weight_replace: 0.1,
        add_node: 0.03,
        add_connection: 0.2,
        toggle: 0.01,
    }
}
