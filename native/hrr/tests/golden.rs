//! Operations against golden data that were computed in float64.

mod support;

use sconce_hrr::{Items, Sum, Vectors};
use support::Golden;

const SIZES: [usize; 3] = [64, 1000, 8192];

fn plain() -> Sum {
    Sum { group: None, weights: None, normalise: false }
}

fn open(d: usize) -> (Golden, impl Fn(&str) -> Vectors) {
    let golden = Golden::open(&format!("hrr_{d}"));
    let inputs = Golden::open(&format!("hrr_{d}"));
    (golden, move |name| Vectors::new(d, inputs.f32(&format!("input.{name}"))).unwrap())
}

/// Cosines of the vectors at the same index, computed with the items in time and in the spectrum.
fn check_cosine(golden: &Golden, name: &str, one: &Vectors, other: &Vectors) {
    let count = one.count();
    let identity = Vectors::new(one.dimension(), impulse(one.dimension())).unwrap();
    for other in [other, &other.bind(&identity).unwrap()] {
        let all = one.similarity(Items::Numbers(other)).unwrap();
        let paired: Vec<f32> = (0..count).map(|at| all[at * count + at]).collect();
        golden.check(name, &paired);
    }
}

/// The neutral element of binding.
fn impulse(d: usize) -> Vec<f32> {
    let mut numbers = vec![0.0; d];
    numbers[0] = 1.0;
    numbers
}

#[test]
fn binding_and_its_inverses_are_those_of_the_reference() {
    for d in SIZES {
        let (golden, input) = open(d);
        let (a, b) = (input("a"), input("b"));
        let bound = a.bind(&b).unwrap();
        golden.check("bind", &bound.to_numbers().unwrap());
        let back = bound.unbind(&a).unwrap();
        golden.check("unbind", &back.to_numbers().unwrap());
        let identity = Vectors::new(d, impulse(d)).unwrap();
        let involution = identity.unbind(&a).unwrap();
        golden.check("involution", &involution.to_numbers().unwrap());
        check_cosine(&golden, "cosine_ab", &a, &b);
        check_cosine(&golden, "cosine_aa", &a, &a);
        check_cosine(&golden, "cosine_unbind_b", &back, &b);
        let weights = golden.f32("param.projection");
        let numbers = bound.to_numbers().unwrap();
        let rows = numbers.chunks(d);
        let features = |row: &[f32]| -> Vec<f32> {
            let dot = |w: &[f32]| w.iter().zip(row).map(|(w, v)| w * v).sum::<f32>().tanh();
            weights.chunks(d).map(dot).collect()
        };
        golden.check("projected", &rows.flat_map(features).collect::<Vec<_>>());
    }
}

#[test]
fn superpositions_are_those_of_the_reference() {
    for d in SIZES {
        let (golden, input) = open(d);
        let (a, b) = (input("a"), input("b"));
        let bound = a.bind(&b).unwrap();
        let sum = Vectors::superpose_rows(&[&a, &b, &bound], &plain()).unwrap();
        golden.check("bundle", &sum.to_numbers().unwrap());
        let unit = Sum { normalise: true, ..plain() };
        let unit = Vectors::superpose_rows(&[&a, &b, &bound], &unit).unwrap();
        golden.check("bundle_unit", &unit.to_numbers().unwrap());
        check_cosine(&golden, "cosine_bundle_a", &sum, &a);
    }
}

#[test]
fn a_memory_of_pairs_answers_as_the_reference_does() {
    for d in SIZES {
        let (golden, input) = open(d);
        let (keys, items) = (input("keys"), input("items"));
        let memory = keys.bind(&items).unwrap().superpose(&plain()).unwrap();
        golden.check("memory", &memory.to_numbers().unwrap());
        let recalled = memory.unbind(&keys).unwrap();
        golden.check("recall_cosine", &recalled.similarity(Items::Numbers(&items)).unwrap());
        let found = recalled.cleanup(Items::Numbers(&items)).unwrap();
        assert_eq!(found.indices, [0, 1, 2], "{d}");
    }
}
