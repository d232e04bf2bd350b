//! Policies whose matrices become products of two smaller ones.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use sconce_compress::{
    FactoredReport, Factoring, Hessian, Hessians, Matrix, Method, Names, Rank, Truncation,
    factored, hessians,
};
use sconce_data::{Corpus, Schema, VectorGame};
use sconce_nn::{Policy, Spec};
use sconce_tensor::rng::Rng;
use sconce_tensor::tensor::to_vec;
use sconce_tensor::{Kind, Result};
use serde_json::json;

static RUNNING: AtomicBool = AtomicBool::new(false);

const WIDTH: usize = 44;
const FIRST: &str = "backbone.weight_ih_l0";

fn spec() -> Spec {
    serde_json::from_value(json!({
        "embedding": {"vector": WIDTH},
        "backbone": {"gru": {"hidden_size": 40, "num_layers": 1, "layer_norm": false, "input_norm": false,
            "dropout": 0.0, "input_dropout": 0.0}},
        "heads": {"kind": "independent", "stream_size": 32, "prior": false, "parts": [
            {"name": "sign", "kind": {"categorical": 3}, "hidden_size": 32},
        ]},
    }))
    .unwrap()
}

/// The second moments of inputs that nearly lie in six dimensions.
fn found(policy: &Policy, dir: &Path) -> Hessians {
    let rng = Rng::new(1, "games", 0);
    let frame = |t: u64| {
        let own: Vec<f32> = (0..6).map(|i| rng.normal(t * 100 + i)).collect();
        (0..WIDTH).map(move |i| {
            own[i % 6] + 0.3 * own[(i * i) % 6] + 0.05 * rng.normal(t * 100 + 9 + i as u64)
        })
    };
    let x: Vec<f32> = (0..400).flat_map(frame).collect();
    let game = VectorGame { labels: vec![0.0; 400], x };
    let schema = Schema::vector(WIDTH, &policy.spec().heads);
    let corpus = Corpus::build(&schema, &[game], dir).unwrap();
    hessians(policy, &corpus.views(&[0]).unwrap(), 0, 300, &RUNNING).unwrap()
}

fn factoring(rank: Rank) -> Factoring {
    Factoring { rank, names: Names::default(), damping: 1e-6 }
}

fn run(
    policy: &Policy,
    own: &Factoring,
    found: &Hessians,
) -> Result<(Policy, Vec<FactoredReport>)> {
    factored(policy, own, found, &RUNNING)
}

fn matrix(policy: &Policy, name: &str) -> Matrix {
    let weight = &policy.weights()[name];
    let (rows, cols) = weight.dims2().unwrap();
    Matrix::new(name, rows, cols, to_vec(weight).unwrap()).unwrap()
}

fn all_values(matrix: &Matrix) -> Vec<f64> {
    let rank = Rank::Rank(matrix.rows().min(matrix.cols()));
    let way = Truncation { rank, method: Method::Exact, power_iterations: 0, seed: 0 };
    let found = way.run(matrix, &RUNNING).unwrap();
    found.singular_values.iter().map(|v| f64::from(*v)).collect()
}

#[test]
fn without_a_calibration_products_are_the_nearest_of_their_rank() {
    let policy = Policy::init(&spec(), 1).unwrap();
    let (small, reports) = run(&policy, &factoring(Rank::Rank(10)), &Hessians::new()).unwrap();
    for own in &reports {
        let (numbers, product) = (own.outputs * own.inputs, 10 * (own.outputs + own.inputs));
        assert_eq!(own.rank, (product < numbers).then_some(10), "{own:?}");
        assert_eq!(own.bytes, 4 * product.min(numbers), "{own:?}");
        assert_eq!(own.output_error, None);
        let before = matrix(&policy, &own.name);
        let values = all_values(&before);
        let square = |of: &[f64]| of.iter().map(|v| v * v).sum::<f64>();
        let want =
            if own.rank.is_some() { (square(&values[10..]) / square(&values)).sqrt() } else { 0.0 };
        assert!((own.error - want).abs() < 1e-4, "{own:?}: {want}");
        let after = matrix(&small, &own.name);
        assert_eq!(before == after, own.rank.is_none());
    }
    assert!(reports.iter().any(|own| own.rank.is_some()));
    // Other weights stay, and so do matrices that are left out.
    for (name, weight) in small.weights() {
        if !reports.iter().any(|own| own.name == *name) {
            assert_eq!(to_vec(weight).unwrap(), to_vec(&policy.weights()[name]).unwrap());
        }
    }
    let names = Names { only: vec!["heads.".into()], ..Names::default() };
    let (_, reports) =
        run(&policy, &Factoring { names, ..factoring(Rank::Rank(4)) }, &Hessians::new()).unwrap();
    for own in &reports {
        let is_smaller = 4 * (own.outputs + own.inputs) < own.outputs * own.inputs;
        let is_chosen = own.name.starts_with("heads.") && is_smaller;
        assert_eq!(own.rank, is_chosen.then_some(4), "{own:?}");
    }
    // A product of nearly the full rank is not smaller, and neither is one of a larger rank.
    for rank in [Rank::Energy(1.0), Rank::Error(0.0), Rank::Rank(1000)] {
        let (same, reports) = run(&policy, &factoring(rank), &Hessians::new()).unwrap();
        assert!(reports.iter().all(|own| own.rank.is_none() && own.error == 0.0));
        assert_eq!(matrix(&same, FIRST), matrix(&policy, FIRST));
    }
}

#[test]
fn with_a_calibration_products_change_the_outputs_least() {
    let dir = tempfile::tempdir().unwrap();
    let policy = Policy::init(&spec(), 1).unwrap();
    let found = found(&policy, dir.path());
    let (small, reports) = run(&policy, &factoring(Rank::Rank(5)), &found).unwrap();
    for own in reports.iter().filter(|own| own.rank.is_some()) {
        let [error, svd] = own.output_error.unwrap();
        assert!(error <= svd, "{own:?}");
        // No product of this rank is nearer: its error is what the other principal components of the outputs have.
        let (before, hessian): (_, &Arc<Hessian>) = (matrix(&policy, &own.name), &found[&own.name]);
        let spread = all_values(&outputs(&before, hessian));
        let want = (spread[5..].iter().sum::<f64>() / spread.iter().sum::<f64>()).sqrt();
        assert!((error - want).abs() < 1e-3 + 0.01 * want, "{own:?}: {want}");
        let lost = hessian.error(&before, matrix(&small, &own.name).values()).unwrap();
        assert!((lost - spread[5..].iter().sum::<f64>()).abs() < 1e-3 * spread[0], "{own:?}");
    }
    let first = reports.iter().find(|own| own.name == FIRST).unwrap();
    let [error, svd] = first.output_error.unwrap();
    assert!(error < 0.6 * svd && first.error > 0.5, "{first:?}");
    // An energy is that of the outputs. Six dimensions have nearly all of it.
    let (_, reports) = run(&policy, &factoring(Rank::Energy(0.99)), &found).unwrap();
    let first = reports.iter().find(|own| own.name == FIRST).unwrap();
    assert!(first.rank.unwrap() <= 6 && first.output_error.unwrap()[0] <= 0.1, "{first:?}");
    let (_, reports) = run(&policy, &factoring(Rank::Error(0.1)), &found).unwrap();
    assert_eq!(reports.iter().find(|own| own.name == FIRST).unwrap().rank, first.rank);
    // The same bits again.
    let (again, _) = run(&policy, &factoring(Rank::Rank(5)), &found).unwrap();
    assert_eq!(matrix(&again, FIRST), matrix(&small, FIRST));
}

/// `W H W^T`, whose singular values are the energies of the principal components of the outputs.
fn outputs(weight: &Matrix, hessian: &Hessian) -> Matrix {
    let size = hessian.size();
    let image = |row: &[f32]| -> Vec<f64> {
        let sum =
            |j: usize| (0..size).map(|i| f64::from(row[i]) * hessian.values()[i * size + j]).sum();
        (0..size).map(sum).collect()
    };
    let images: Vec<Vec<f64>> = weight.each_row().map(image).collect();
    let dot = |image: &[f64], row: &[f32]| {
        image.iter().zip(row).map(|(a, b)| a * f64::from(*b)).sum::<f64>()
    };
    let values =
        images.iter().flat_map(|image| weight.each_row().map(|row| dot(image, row) as f32));
    Matrix::new("outputs", weight.rows(), weight.rows(), values.collect()).unwrap()
}

#[test]
fn wrong_wishes_are_named() {
    let policy = Policy::init(&spec(), 1).unwrap();
    let none = Hessians::new();
    let kind = |own: &Factoring| run(&policy, own, &none).err().unwrap().kind();
    for rank in [Rank::Rank(0), Rank::Energy(1.5), Rank::Error(-0.1), Rank::Energy(f64::NAN)] {
        assert_eq!(kind(&factoring(rank)), Kind::OutOfRange, "{rank:?}");
    }
    assert_eq!(kind(&Factoring { damping: 2.0, ..factoring(Rank::Rank(4)) }), Kind::OutOfRange);
    let names = Names { only: vec!["trunk".into()], ..Names::default() };
    assert_eq!(kind(&Factoring { names, ..factoring(Rank::Rank(4)) }), Kind::NotFound);
    let stopped = AtomicBool::new(true);
    let error = factored(&policy, &factoring(Rank::Rank(4)), &none, &stopped).err().unwrap();
    assert_eq!(error.kind(), Kind::Cancelled);
    // A matrix of zeros, as in a head that has not learned yet, and inputs that never fire.
    let dir = tempfile::tempdir().unwrap();
    let game = VectorGame { x: vec![0.0; 50 * WIDTH], labels: vec![0.0; 50] };
    let schema = Schema::vector(WIDTH, &policy.spec().heads);
    let corpus = Corpus::build(&schema, &[game], dir.path()).unwrap();
    let found = hessians(&policy, &corpus.views(&[0]).unwrap(), 0, 20, &RUNNING).unwrap();
    let (_, reports) = run(&policy, &factoring(Rank::Rank(4)), &found).unwrap();
    let first = reports.iter().find(|own| own.name == FIRST).unwrap();
    assert_eq!((first.rank, first.output_error), (Some(4), None));
}
