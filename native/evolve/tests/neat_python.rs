//! Distances and species of genomes that neat-python evolved, made by `bench/peers/neat.py`.
#![allow(clippy::disallowed_methods)]

use std::collections::HashMap;

use sconce_evolve::{Compatibility, Genome, Rule, assign_species};
use serde::Deserialize;

#[derive(Deserialize)]
struct Golden {
    disjoint: f64,
    weights: f64,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    threshold: f64,
    representatives: Vec<Genome>,
    genomes: Vec<Genome>,
    /// `[representatives, genomes]`.
    distances: Vec<Vec<f64>>,
    species: Vec<u32>,
}

#[test]
fn distances_and_species_are_those_of_neat_python() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test/golden/neat_python.json");
    let golden: Golden = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let Golden { disjoint, weights, .. } = golden;
    let own =
        Compatibility { rule: Rule::NeatPython, excess: 1.0, disjoint, weights, small_genome: 0 };
    assert_eq!(golden.cases.len(), 3);
    for case in &golden.cases {
        for (old, distances) in case.representatives.iter().zip(&case.distances) {
            for (genome, want) in case.genomes.iter().zip(distances) {
                let got = old.distance(genome, &own).unwrap();
                assert!((got - want).abs() < 1e-12, "{got} {want}");
            }
        }
        let species =
            assign_species(&case.genomes, &case.representatives, &own, case.threshold).unwrap();
        assert_eq!(species, case.species);
        let sizes = species.iter().fold(HashMap::new(), |mut sizes, of| {
            *sizes.entry(of).or_insert(0) += 1;
            sizes
        });
        // The representatives and new genomes share the population.
        assert!(sizes.len() > 4 && sizes.values().any(|size| *size > 3), "{sizes:?}");
    }
}
