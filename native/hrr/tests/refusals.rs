//! Bad input gets an error that names it.
#![allow(clippy::disallowed_methods)]

mod support;

use std::sync::Arc;

use sconce_hrr::{Codes, Items, Kind, Sum, Vectors};
use sconce_tensor::{Error, Kind as ErrorKind, Result};
use support::{gaussian, unitary};

fn message<T>(result: Result<T>) -> (ErrorKind, String) {
    match result {
        Ok(_) => panic!("no error"),
        Err(error) => (error.kind(), error.to_string()),
    }
}

fn check<T>(result: Result<T>, kind: ErrorKind, text: &str) {
    assert_eq!(message(result), (kind, text.into()));
}

#[test]
fn dimensions_must_be_even_and_neither_tiny_nor_huge() {
    let atoms = |count, d| Vectors::atoms(count, d, 1, Kind::Unitary);
    check(atoms(1, 9), ErrorKind::Mismatch, "dimension: expected an even number, got 9");
    check(atoms(1, 2), ErrorKind::OutOfRange, "dimension: 2 is outside 8..16777216");
    check(
        atoms(1, usize::MAX),
        ErrorKind::OutOfRange,
        "dimension: 18446744073709552000 is outside 8..16777216",
    );
    check(atoms(0, 8), ErrorKind::OutOfRange, "count: 0 is outside 1..2147483648");
    assert_eq!(message(atoms(1 << 31, 1 << 24)).0, ErrorKind::OutOfMemory);
    check(Vectors::new(8, vec![]), ErrorKind::OutOfRange, "count: 0 is outside 1..2147483648");
    check(
        Vectors::new(8, vec![0.0; 12]),
        ErrorKind::Mismatch,
        "numbers: expected rows of 8, got 12",
    );
    check(
        Vectors::new(7, vec![0.0; 7]),
        ErrorKind::OutOfRange,
        "dimension: 7 is outside 8..16777216",
    );
}

#[test]
fn numbers_that_are_not_finite_are_named() {
    let mut numbers = vec![0.0; 16];
    numbers[9] = f32::NAN;
    check(
        Vectors::new(8, numbers.clone()),
        ErrorKind::NonFinite,
        "a number of vector 1 is not finite (NaN)",
    );
    let project = |numbers: &[f32]| Vectors::project(numbers, 4, (8, 0), true);
    check(project(&numbers), ErrorKind::NonFinite, "number 1 of row 2 is not finite (NaN)");
    let one = unitary(1, 8, 1);
    check(one.power(&[1.0, f64::INFINITY]), ErrorKind::NonFinite, "exponent 1 is not finite (inf)");
    check(
        one.power(&[1e10]),
        ErrorKind::OutOfRange,
        "exponent 0: 10000000000 is outside -1000000000..1000000000",
    );
    let weights = Sum { group: None, weights: Some(vec![f32::NAN]), normalise: true };
    check(one.superpose(&weights), ErrorKind::NonFinite, "weight 0 is not finite (NaN)");
}

#[test]
fn vectors_that_grew_too_large_are_found_where_they_leave() {
    let large = Vectors::new(8, vec![1e30; 8]).unwrap();
    let bound = large.bind(&large).unwrap();
    assert_eq!(message(bound.to_numbers()).0, ErrorKind::NonFinite);
    let text = "the length of vector 0 of the queries is not finite (inf)";
    check(bound.similarity(Items::Numbers(&gaussian(1, 8, 1))), ErrorKind::NonFinite, text);
    let text = "the length of vector 0 of the items is not finite (inf)";
    check(gaussian(1, 8, 1).cleanup(Items::Numbers(&large)), ErrorKind::NonFinite, text);
    check(Codes::of(&large), ErrorKind::NonFinite, text);
    let plain = Sum { group: None, weights: None, normalise: true };
    let text = "the squared length of sum 0 is not finite (inf)";
    check(large.superpose(&plain), ErrorKind::NonFinite, text);
}

#[test]
fn widths_and_counts_must_fit() {
    let (a, b) = (gaussian(2, 8, 1), gaussian(2, 16, 1));
    check(a.bind(&b), ErrorKind::Mismatch, "dimension of the second batch: expected 8, got 16");
    check(a.unbind(&b), ErrorKind::Mismatch, "dimension of the keys: expected 8, got 16");
    check(
        a.bind(&gaussian(3, 8, 1)),
        ErrorKind::Mismatch,
        "count of the second batch: expected 1 or 2, got 3",
    );
    check(
        a.similarity(Items::Numbers(&b)),
        ErrorKind::Mismatch,
        "dimension of the items: expected 8, got 16",
    );
    check(
        a.cleanup(Items::Codes(&Codes::of(&b).unwrap())),
        ErrorKind::Mismatch,
        "dimension of the items: expected 8, got 16",
    );
    check(a.take(&[0, 2]), ErrorKind::OutOfRange, "index: 2 is outside 0..1");
    check(a.take(&[]), ErrorKind::OutOfRange, "count: 0 is outside 1..2147483648");
    let (a, b) = (Arc::new(a), Arc::new(b));
    check(
        Vectors::concat(&[a.clone(), b]),
        ErrorKind::Mismatch,
        "dimension of the batches: expected 8, got 16",
    );
    check(Vectors::concat(&[]), ErrorKind::NotFound, "a batch of vectors not found");
    let sum = |group, weights: Option<Vec<f32>>| Sum { group, weights, normalise: true };
    check(a.superpose(&sum(Some(0), None)), ErrorKind::OutOfRange, "group: 0 is outside 1..2");
    check(
        gaussian(3, 8, 1).superpose(&sum(Some(2), None)),
        ErrorKind::Mismatch,
        "count: expected a multiple of the group of 2, got 3",
    );
    check(
        a.superpose(&sum(None, Some(vec![1.0]))),
        ErrorKind::Mismatch,
        "number of weights: expected 2, got 1",
    );
    check(
        a.sequence(&unitary(1, 16, 1), None),
        ErrorKind::Mismatch,
        "dimension of the position: expected 8, got 16",
    );
    check(
        a.sequence(&unitary(1, 8, 1), Some(0)),
        ErrorKind::OutOfRange,
        "length: 0 is outside 1..2",
    );
    check(
        a.sequence(&unitary(2, 8, 1), None),
        ErrorKind::Mismatch,
        "count of the position: expected 1, got 2",
    );
}

#[test]
fn a_projection_needs_a_power_of_two() {
    let project = |width, d| Vectors::project(&[1.0; 6], width, (d, 0), true);
    check(project(3, 24), ErrorKind::Mismatch, "dimension: expected a power of two, got 24");
    check(project(0, 16), ErrorKind::OutOfRange, "width: 0 is outside 1..4294967295");
    check(project(4, 16), ErrorKind::Mismatch, "numbers: expected rows of 4, got 6");
}

#[test]
fn powers_need_a_unitary_vector_and_exact_inverses_a_spectrum_without_zeros() {
    let (kind, text) = message(gaussian(1, 64, 1).power(&[1.0]));
    assert_eq!(kind, ErrorKind::Mismatch);
    assert!(text.starts_with("position: expected a unitary vector, got a modulus of"), "{text}");
    // The mean of such a vector is 0: bin 0 has no reciprocal.
    let zero = Vectors::new(8, vec![1.0, -1.0, 1.0, -1.0, 1.0, 1.0, -1.0, -1.0]).unwrap();
    let text = "spectrum of key 0: expected no zero, got 0 in bin 0";
    check(zero.unbind_exact(&zero), ErrorKind::Mismatch, text);
    let error: Error = zero.unbind_exact(&Vectors::new(8, vec![0.0; 8]).unwrap()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Mismatch);
}

#[test]
fn a_vector_of_zeros_is_similar_to_none() {
    let zero = Vectors::new(8, vec![0.0; 8]).unwrap();
    let items = gaussian(3, 8, 1);
    assert_eq!(zero.similarity(Items::Numbers(&items)).unwrap(), [0.0; 3]);
    assert_eq!(zero.similarity(Items::Codes(&Codes::of(&items).unwrap())).unwrap(), [0.0; 3]);
    let plain = Sum { group: None, weights: None, normalise: true };
    assert_eq!(zero.superpose(&plain).unwrap().to_numbers().unwrap(), [0.0; 8]);
    assert_eq!(zero.unitary().unwrap().to_numbers().unwrap()[0], 1.0);
}
