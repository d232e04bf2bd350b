//! Algebra of binding, bounds of errors, and independence of the number of threads.

mod support;

use std::sync::Arc;

use proptest::prelude::*;
use sconce_hrr::{Codes, Domain, Items, Kind, Sum, Vectors};
use sconce_tensor::pool;
use support::{gaussian, largest_difference, unitary};

fn numbers(vectors: &Vectors) -> Vec<f32> {
    vectors.to_numbers().unwrap()
}

fn cosines(one: &Vectors, other: &Vectors) -> Vec<f32> {
    one.similarity(Items::Numbers(other)).unwrap()
}

fn sum(group: Option<usize>, weights: Option<Vec<f32>>) -> Sum {
    Sum { group, weights, normalise: true }
}

/// Even dimensions, with and without large prime factors.
fn dimension() -> impl Strategy<Value = usize> {
    prop_oneof![4usize..200, Just(512), Just(500), Just(1021)].prop_map(|half| 2 * half)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn the_transform_is_invertible_and_keeps_dot_products(d in dimension(), seed in 0u64..1000) {
        let time = numbers(&gaussian(3, d, seed));
        let vectors = Arc::new(Vectors::new(d, time.clone()).unwrap());
        let spectrum = vectors.within(Domain::Spectrum).unwrap();
        prop_assert!(largest_difference(&numbers(&spectrum), &time) < 1e-6);
        let square = |numbers: &[f32]| numbers.iter().map(|v| v * v).sum::<f32>();
        let (one, other) = (square(&time), square(spectrum.numbers()));
        prop_assert!((one - other).abs() < 1e-5 * one);
        let (one, other) = (cosines(&vectors, &vectors), cosines(&spectrum, &spectrum));
        prop_assert!(largest_difference(&one, &other) < 2e-6);
    }

    #[test]
    fn binding_commutes_associates_and_distributes(d in dimension(), seed in 0u64..1000) {
        let [a, b, c] = [0, 1, 2].map(|i| gaussian(2, d, 3 * seed + i));
        let (ab, ba) = (a.bind(&b).unwrap(), b.bind(&a).unwrap());
        prop_assert!(largest_difference(&numbers(&ab), &numbers(&ba)) < 1e-6);
        let left = ab.bind(&c).unwrap();
        let right = a.bind(&b.bind(&c).unwrap()).unwrap();
        let scale = numbers(&left).iter().fold(1.0f32, |most, v| most.max(v.abs()));
        prop_assert!(largest_difference(&numbers(&left), &numbers(&right)) < 1e-5 * scale);
        let plain = Sum { group: None, weights: None, normalise: false };
        let both = Vectors::superpose_rows(&[&b, &c], &plain).unwrap();
        let left = numbers(&a.bind(&both).unwrap());
        let ac = a.bind(&c).unwrap();
        let right = numbers(&Vectors::superpose_rows(&[&ab, &ac], &plain).unwrap());
        prop_assert!(largest_difference(&left, &right) < 1e-5 * scale);
    }

    #[test]
    fn unbinding_a_unitary_key_returns_the_atom(d in dimension(), seed in 0u64..1000) {
        let (keys, items) = (unitary(3, d, seed), gaussian(3, d, seed));
        let bound = keys.bind(&items).unwrap();
        prop_assert!(largest_difference(&numbers(&bound.unbind(&keys).unwrap()), &numbers(&items)) < 1e-5);
        let exact = bound.unbind_exact(&keys).unwrap();
        prop_assert!(largest_difference(&numbers(&exact), &numbers(&items)) < 1e-5);
        // Any batch becomes one of unitary keys.
        let keys = items.unitary().unwrap();
        let back = keys.bind(&items).unwrap().unbind(&keys).unwrap();
        prop_assert!(largest_difference(&numbers(&back), &numbers(&items)) < 1e-5);
    }

    #[test]
    fn powers_add_and_invert(d in dimension(), seed in 0u64..1000, x in -30f64..30.0, y in -3f64..3.0) {
        let one = unitary(1, d, seed);
        let powers = one.power(&[x, y, x + y, 0.0, 1.0, 2.0, -x]).unwrap();
        let row = |at: usize| powers.take(&[at]).unwrap();
        let product = row(0).bind(&row(1)).unwrap();
        prop_assert!(largest_difference(&numbers(&product), &numbers(&row(2))) < 1e-5);
        let neutral = numbers(&row(3));
        prop_assert!((neutral[0] - 1.0).abs() < 1e-5 && neutral[1..].iter().all(|v| v.abs() < 1e-5));
        prop_assert!(largest_difference(&numbers(&row(4)), &numbers(&one)) < 1e-6);
        let twice = one.bind(&one).unwrap();
        prop_assert!(largest_difference(&numbers(&row(5)), &numbers(&twice)) < 1e-5);
        let inverse = row(0).bind(&row(6)).unwrap();
        prop_assert!(largest_difference(&numbers(&inverse), &neutral) < 1e-5);
    }

    #[test]
    fn a_shift_is_the_same_in_both_domains(d in dimension(), seed in 0u64..1000, shift in -5000i64..5000) {
        let spectrum = gaussian(2, d, seed);
        let time = Vectors::new(d, numbers(&spectrum)).unwrap();
        let shifted = numbers(&time.permute(shift).unwrap());
        prop_assert!(largest_difference(&shifted, &numbers(&spectrum.permute(shift).unwrap())) < 1e-5);
        let first = numbers(&time);
        let to = shift.rem_euclid(d as i64) as usize;
        prop_assert_eq!(shifted[to], first[0]);
        prop_assert_eq!(numbers(&time.permute(shift).unwrap().permute(-shift).unwrap()), first);
    }

    #[test]
    fn tiny_vectors_have_cosines(d in dimension(), power in -44i32..-18, seed in 0u64..1000) {
        // Their lengths are finite where products of both lengths, or their inverses, are not.
        let scale = 10f32.powi(power);
        let tiny = |seed| Vectors::new(d, numbers(&gaussian(3, d, seed)).iter().map(|v| v * scale).collect()).unwrap();
        let (queries, items) = (tiny(seed), tiny(seed + 1));
        let codes = Codes::of(&items).unwrap();
        for items in [Items::Numbers(&items), Items::Codes(&codes)] {
            let cosines = queries.similarity(items).unwrap();
            prop_assert!(cosines.iter().all(|cosine| (-1.0..=1.0).contains(cosine)), "{:?}", cosines);
        }
    }

    #[test]
    fn the_error_of_8_bits_is_within_its_bound(d in dimension(), seed in 0u64..1000) {
        // A code differs from its number by at most half a step, so a vector by at most half a step times sqrt(d).
        let error = |numbers: &[f32]| {
            let largest = numbers.iter().fold(0.0f32, |most, v| most.max(v.abs()));
            let length = numbers.iter().map(|v| v * v).sum::<f32>().sqrt();
            0.5 * largest / 127.0 * (numbers.len() as f32).sqrt() / length
        };
        for (queries, items) in [(gaussian(5, d, seed), gaussian(30, d, seed + 1)), (unitary(5, d, seed), unitary(30, d, seed + 1))] {
            let codes = Codes::of(&items).unwrap();
            let exact = cosines(&queries, &items);
            let got = queries.similarity(Items::Codes(&codes)).unwrap();
            for (query, (exact, got)) in exact.chunks(30).zip(got.chunks(30)).enumerate() {
                let own = error(&queries.numbers()[query * d..][..d]);
                for item in 0..30 {
                    let other = error(&items.numbers()[item * d..][..d]);
                    // An angle changes by at most the arc sine of each error, and a cosine by less than the angle.
                    let bound = own.asin() + other.asin() + 1e-5;
                    prop_assert!((exact[item] - got[item]).abs() <= bound);
                }
            }
        }
    }

    #[test]
    fn a_projection_keeps_dot_products(power in 3u32..12, width in 1usize..2000, seed in 0u64..1000) {
        let d = 1 << power;
        let width = width.min(d);
        let rows: Vec<f32> = gaussian(1, 4096, seed).numbers()[..2 * width].iter().map(|v| 64.0 * v).collect();
        let projected = numbers(&Vectors::project(&rows, width, (d, seed), false).unwrap());
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
        let (a, b) = rows.split_at(width);
        let (c, e) = projected.split_at(d);
        let scale = dot(a, a).max(dot(b, b));
        for (before, after) in [(dot(a, a), dot(c, c)), (dot(b, b), dot(e, e)), (dot(a, b), dot(c, e))] {
            prop_assert!((before - after).abs() <= 1e-5 * scale, "{} {}", before, after);
        }
    }
}

#[test]
fn a_projection_spreads_one_number_over_all_and_differs_by_seed() {
    let d = 1024;
    let one = Vectors::project(&[3.0], 1, (d, 1), true).unwrap();
    let largest = numbers(&one).iter().fold(0.0f32, |most, v| most.max(v.abs()));
    assert!(largest < 6.0 / (d as f32).sqrt(), "{largest}");
    // Trailing zeros change nothing.
    let padded = Vectors::project(&[3.0, 0.0, 0.0], 3, (d, 1), true).unwrap();
    assert_eq!(numbers(&padded), numbers(&one));
    let other = Vectors::project(&[3.0], 1, (d, 2), true).unwrap();
    assert!(cosines(&one, &other)[0].abs() < 0.2);
    // Wide rows keep their length in expectation, and different rows stay apart.
    let wide = gaussian(2, 3 * d, 5);
    let projected = Vectors::project(wide.numbers(), 3 * d, (d, 1), false).unwrap();
    let length = |row: &[f32]| row.iter().map(|v| v * v).sum::<f32>().sqrt();
    for row in numbers(&projected).chunks(d) {
        assert!((length(row) - 1.0).abs() < 0.2);
    }
    assert!(cosines(&projected, &projected)[1].abs() < 0.2);
}

/// Mean cosine of the items of `pairs` bound pairs with that which their keys retrieve.
fn retrieved(kind: Kind, pairs: usize) -> f32 {
    let d = 8192;
    let keys = Vectors::atoms(pairs, d, 11, kind).unwrap();
    let items = Vectors::atoms(pairs, d, 12, kind).unwrap();
    let record = keys.bind(&items).unwrap().superpose(&sum(None, None)).unwrap();
    let back = record.unbind(&keys).unwrap();
    let found = back.cleanup(Items::Numbers(&items)).unwrap();
    assert!(found.indices.iter().enumerate().all(|(at, index)| *index as usize == at));
    found.similarities.iter().sum::<f32>() / pairs as f32
}

#[test]
fn retrieval_has_the_cosines_of_theory() {
    // A record of K pairs returns an item with a cosine of 1 / sqrt(K), and with Gaussian keys of 1 / sqrt(K + 1).
    for (pairs, gaussian, unitary) in
        [(1, 0.71, 1.0), (4, 0.45, 0.5), (16, 0.24, 0.25), (64, 0.124, 0.125)]
    {
        let got = (retrieved(Kind::Gaussian, pairs), retrieved(Kind::Unitary, pairs));
        assert!((got.0 - gaussian).abs() < 0.015, "{pairs} Gaussian pairs: {}", got.0);
        assert!((got.1 - unitary).abs() < 0.015, "{pairs} unitary pairs: {}", got.1);
    }
}

#[test]
fn atoms_are_almost_orthogonal_and_a_prefix_of_more_atoms() {
    for kind in [Kind::Unitary, Kind::Gaussian] {
        let atoms = Vectors::atoms(40, 8192, 3, kind).unwrap();
        let all = cosines(&atoms, &atoms);
        for (at, cosine) in all.iter().enumerate() {
            match at % 41 {
                0 => assert!((cosine - 1.0).abs() < 1e-5),
                _ => assert!(cosine.abs() < 0.06, "{cosine}"),
            }
        }
        let fewer = Vectors::atoms(7, 8192, 3, kind).unwrap();
        assert_eq!(fewer.numbers(), &atoms.numbers()[..7 * 8192]);
        let other = Vectors::atoms(1, 8192, 4, kind).unwrap();
        assert!(cosines(&fewer, &other).iter().all(|cosine| cosine.abs() < 0.06));
    }
    let numbers = numbers(&gaussian(20, 8192, 9));
    let count = numbers.len() as f32;
    let variance = numbers.iter().map(|v| v * v).sum::<f32>() / count * 8192.0;
    assert!((variance - 1.0).abs() < 0.02, "{variance}");
}

#[test]
fn a_superposition_is_similar_to_its_vectors_and_weights_count() {
    let atoms = unitary(9, 8192, 1);
    let one = atoms.superpose(&sum(None, None)).unwrap();
    for cosine in cosines(&one, &atoms) {
        assert!((cosine - 1.0 / 3.0).abs() < 0.05, "{cosine}");
    }
    let groups = atoms.superpose(&sum(Some(3), Some(vec![3.0, 0.0, -4.0]))).unwrap();
    assert_eq!(groups.count(), 3);
    let all = cosines(&groups, &atoms);
    for (group, row) in all.chunks(9).enumerate() {
        let want = |at: usize| match (at / 3 == group, at % 3) {
            (true, 0) => 0.6,
            (true, 2) => -0.8,
            _ => 0.0,
        };
        for (at, cosine) in row.iter().enumerate() {
            assert!((cosine - want(at)).abs() < 0.05, "{group} {at}: {cosine}");
        }
    }
}

#[test]
fn sequences_answer_by_place() {
    let (d, items, position) = (4096, unitary(12, 4096, 1), unitary(1, 4096, 2));
    let both = items.sequence(&position, Some(6)).unwrap();
    assert_eq!((both.count(), both.dimension()), (2, d));
    let first = both.take(&[0]).unwrap();
    let back = first.at_places(&position, &[0.0, 3.0, 5.0]).unwrap();
    assert_eq!(back.cleanup(Items::Numbers(&items)).unwrap().indices, [0, 3, 5]);
    let back = both.at_places(&position, &[1.0, 4.0]).unwrap();
    assert_eq!(back.cleanup(Items::Numbers(&items)).unwrap().indices, [1, 10]);
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let (d, queries, seed) = (1000, gaussian(37, 1000, 1), 7);
    let all = || {
        let (keys, items) = (unitary(101, d, seed), gaussian(101, d, seed));
        let time = Vectors::new(d, numbers(&items)).unwrap();
        let bound = keys.bind(&time).unwrap();
        let exact = bound.unbind_exact(&time).unwrap();
        let position = unitary(1, d, 3);
        let codes = Codes::of(&items).unwrap();
        let found = queries.cleanup(Items::Numbers(&items)).unwrap();
        let coded = queries.cleanup(Items::Codes(&codes)).unwrap();
        [
            numbers(&bound),
            numbers(&exact),
            numbers(&bound.superpose(&sum(None, None)).unwrap()),
            numbers(&keys.sequence(&position, None).unwrap()),
            cosines(&queries, &items),
            cosines(&queries, &time),
            queries.similarity(Items::Codes(&codes)).unwrap(),
            found.similarities,
            coded.similarities,
            numbers(&Vectors::project(items.numbers(), d, (2048, 1), true).unwrap()),
        ]
    };
    pool::set_threads(1).unwrap();
    let alone = all();
    for threads in [2, 5] {
        pool::set_threads(threads).unwrap();
        for (at, (one, other)) in alone.iter().zip(all()).enumerate() {
            assert_eq!(one.len(), other.len());
            let same = one.iter().zip(&other).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "result {at} with {threads} threads");
        }
    }
    pool::set_threads(0).unwrap();
}

#[test]
fn a_query_has_the_same_cosines_alone_and_among_others() {
    for d in [64, 1000, 2050] {
        let (queries, items) = (gaussian(23, d, 1), gaussian(53, d, 2));
        let all = cosines(&queries, &items);
        for at in 0..23 {
            let alone = cosines(&queries.take(&[at]).unwrap(), &items);
            assert_eq!(alone, all[at * 53..][..53], "{d} {at}");
        }
        let found = queries.cleanup(Items::Numbers(&items)).unwrap();
        for (at, row) in all.chunks(53).enumerate() {
            let best = row.iter().fold(f32::MIN, |most, v| most.max(*v));
            assert_eq!(found.similarities[at], best);
            let first = row.iter().position(|v| *v == best).unwrap();
            assert_eq!(found.indices[at] as usize, first);
        }
    }
}
