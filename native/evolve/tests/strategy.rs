//! Strategies on test functions, their files, and variation.
#![allow(clippy::disallowed_methods)]

mod support;

use std::fs;

use sconce_evolve::{Archive, Batch, Crossover, Method, Strategy, StrategyOptions, Variation};
use sconce_tensor::{Kind, pool};
use support::{grid, rosenbrock, sphere};

const METHODS: [Method; 4] = [Method::OpenAiEs, Method::Snes, Method::SepCmaEs, Method::CmaEs];

fn options(method: Method) -> StrategyOptions {
    StrategyOptions { method, population: None, sigma: 0.5, learning_rate: 0.05, seed: 1 }
}

/// The evaluations until a function of which 0 is the minimum falls below a value, if `most` suffice.
fn evaluations(
    mut strategy: Strategy,
    function: fn(&[f64]) -> f64,
    below: f64,
    most: usize,
) -> Option<usize> {
    let mut count = 0;
    while count < most {
        let candidates = strategy.ask().unwrap();
        let fitness: Vec<f64> = candidates.chunks(strategy.size()).map(|x| -function(x)).collect();
        strategy.tell(&fitness).unwrap();
        count += fitness.len();
        if strategy.best().is_some_and(|(_, best)| -best < below) {
            return Some(count);
        }
    }
    None
}

#[test]
fn both_cma_es_find_the_minimum_of_a_sphere() {
    for (method, most) in [(Method::SepCmaEs, 2_500), (Method::CmaEs, 2_500)] {
        for seed in 1..4 {
            let options = StrategyOptions { seed, ..options(method) };
            let own = Strategy::new(&[2.0; 10], &options).unwrap();
            let found = evaluations(own, sphere, 1e-8, most);
            assert!(found.is_some(), "{method:?} with seed {seed}");
        }
    }
}

#[test]
fn cma_es_finds_the_minimum_of_rosenbrocks_function() {
    for seed in 1..4 {
        let options = StrategyOptions { seed, sigma: 0.3, ..options(Method::CmaEs) };
        let own = Strategy::new(&[0.0; 8], &options).unwrap();
        assert!(evaluations(own, rosenbrock, 1e-8, 9_000).is_some(), "seed {seed}");
    }
}

#[test]
fn sep_cma_es_finds_the_minimum_of_rosenbrocks_function_more_slowly() {
    let options = StrategyOptions { sigma: 0.3, ..options(Method::SepCmaEs) };
    let own = Strategy::new(&[0.0; 4], &options).unwrap();
    assert!(evaluations(own, rosenbrock, 1e-8, 120_000).is_some());
}

#[test]
fn snes_and_the_strategy_of_openai_approach_the_minimum_of_a_sphere() {
    for (method, below) in [(Method::Snes, 1e-8), (Method::OpenAiEs, 0.05)] {
        let options = StrategyOptions {
            population: Some(20),
            sigma: if method == Method::Snes { 0.5 } else { 0.05 },
            ..options(method)
        };
        let own = Strategy::new(&[1.0; 10], &options).unwrap();
        assert!(evaluations(own, sphere, below, 20_000).is_some(), "{method:?}");
    }
}

#[test]
fn candidates_and_states_do_not_depend_on_threads() {
    for method in METHODS {
        let run = || {
            let population = Some(64);
            let mut own =
                Strategy::new(&[1.0; 90], &StrategyOptions { population, ..options(method) })
                    .unwrap();
            for _ in 0..3 {
                let candidates = own.ask().unwrap();
                let fitness: Vec<f64> = candidates.chunks(90).map(|x| -sphere(x)).collect();
                own.tell(&fitness).unwrap();
            }
            own
        };
        assert_eq!(run(), pool::serial(run), "{method:?}");
    }
}

#[test]
fn a_refused_fitness_leaves_the_strategy_as_it_was() {
    for method in METHODS {
        let mut own = Strategy::new(&[1.0; 6], &options(method)).unwrap();
        let before = own.clone();
        let mut fitness = vec![0.0; own.population()];
        fitness[3] = f64::NAN;
        let error = own.tell(&fitness).unwrap_err();
        assert_eq!(error.to_string(), "the fitness of candidate 3 is not finite (NaN)");
        assert_eq!(own.tell(&[0.0]).map_err(|e| e.kind()), Err(Kind::Mismatch));
        assert_eq!(own, before);
        fitness[3] = 1.0;
        own.tell(&fitness).unwrap();
        assert_ne!(own, before);
    }
}

#[test]
fn a_distribution_that_diverges_is_refused_and_stays_as_it_was() {
    for method in [Method::Snes, Method::SepCmaEs, Method::CmaEs] {
        let mut own = Strategy::new(&[0.0; 2], &options(method)).unwrap();
        let refused = (0..20_000).find_map(|_| {
            let before = own.clone();
            // It grows without bound along the first number.
            let fitness: Vec<f64> = own.ask().unwrap().chunks(2).map(|x| x[0].asinh()).collect();
            own.tell(&fitness).err().map(|error| (error, before))
        });
        let (error, before) = refused.unwrap();
        assert_eq!(error.kind(), Kind::OutOfRange, "{method:?}: {error}");
        assert!(error.to_string().contains("of the strategy"), "{error}");
        assert_eq!(own, before);
    }
}

#[test]
fn options_out_of_range_are_named() {
    let kind = |mean: &[f64], options: StrategyOptions| {
        Strategy::new(mean, &options).map_err(|e| e.kind()).err()
    };
    let plain = || options(Method::Snes);
    assert_eq!(kind(&[], plain()), Some(Kind::OutOfRange));
    assert_eq!(kind(&[f64::NAN], plain()), Some(Kind::NonFinite));
    assert_eq!(kind(&[0.0; 1025], options(Method::CmaEs)), Some(Kind::OutOfRange));
    assert_eq!(kind(&[0.0], StrategyOptions { sigma: 0.0, ..plain() }), Some(Kind::OutOfRange));
    let population = |method, count| {
        kind(&[0.0], StrategyOptions { population: Some(count), ..options(method) })
    };
    assert_eq!(population(Method::Snes, 1), Some(Kind::OutOfRange));
    assert_eq!(population(Method::OpenAiEs, 5), Some(Kind::Mismatch));
    assert_eq!(population(Method::OpenAiEs, 6), None);
}

#[test]
fn a_loaded_strategy_goes_on_with_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("strategy.safetensors");
    for method in METHODS {
        let mut own = Strategy::new(&[0.0; 7], &options(method)).unwrap();
        for at in 0..12 {
            own.save(&path).unwrap();
            let mut loaded = Strategy::load(&path).unwrap();
            assert_eq!(loaded, own, "{method:?} after {at}");
            let candidates = own.ask().unwrap();
            assert_eq!(loaded.ask().unwrap(), candidates);
            let fitness: Vec<f64> = candidates.chunks(7).map(|x| -rosenbrock(x)).collect();
            own.tell(&fitness).unwrap();
            loaded.tell(&fitness).unwrap();
            assert_eq!(loaded, own, "{method:?} after {at}");
        }
    }
}

#[test]
fn a_strategy_file_that_is_cut_or_changed_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("strategy.safetensors");
    for method in METHODS {
        let mut own = Strategy::new(&[0.0; 3], &options(method)).unwrap();
        let fitness: Vec<f64> = (0..own.population()).map(|i| i as f64).collect();
        own.tell(&fitness).unwrap();
        own.save(&path).unwrap();
        let whole = fs::read(&path).unwrap();
        let refused = |bytes: &[u8], what: &str| {
            fs::write(&path, bytes).unwrap();
            let error = Strategy::load(&path).map(drop).unwrap_err();
            let known = matches!(error.kind(), Kind::Corrupt | Kind::Mismatch);
            assert!(known, "{what}: {error}");
        };
        for at in 0..whole.len() {
            refused(&whole[..at], &format!("{at} bytes"));
            let mut changed = whole.clone();
            changed[at] ^= 1 << (at % 8);
            refused(&changed, &format!("byte {at}"));
        }
    }
    let archive = Archive::new(&grid(&[2], &[(0.0, 1.0)], 1)).unwrap();
    archive.save(&path).unwrap();
    assert_eq!(Strategy::load(&path).map_err(|e| e.kind()).err(), Some(Kind::Mismatch));
}

#[test]
fn children_keep_their_bounds_and_do_not_depend_on_threads() {
    let mut archive = Archive::new(&grid(&[8], &[(0.0, 1.0)], 5)).unwrap();
    let variation =
        Variation { iso_sigma: 0.2, crossover: Crossover::Line(0.5), bounds: Some((-1.0, 1.0)) };
    let empty = archive.vary(&variation, 3, (1, 0)).map_err(|e| e.kind());
    assert_eq!(empty, Err(Kind::NotFound));
    let solutions: Vec<f32> = (0..40).map(|i| (i as f32 * 0.7).sin()).collect();
    let measures: Vec<f64> = (0..8).map(|i| (f64::from(i) + 0.5) / 8.0).collect();
    let batch = Batch { solutions: &solutions, objectives: &[0.0; 8], measures: &measures };
    archive.add(batch).unwrap();
    let run = |seed, generation| archive.vary(&variation, 1000, (seed, generation)).unwrap();
    let children = run(1, 0);
    assert_eq!(children, pool::serial(|| run(1, 0)));
    assert!(children != run(2, 0) && children != run(1, 1));
    assert!(children.iter().all(|v| v.abs() <= 1.0));
    let still = Variation { iso_sigma: 0.0, crossover: Crossover::Line(0.0), bounds: None };
    for child in archive.vary(&still, 100, (1, 0)).unwrap().chunks(5) {
        assert!(solutions.chunks(5).any(|elite| elite == child));
    }
    let wrong = |variation| archive.vary(&variation, 1, (1, 0)).map_err(|e| e.kind());
    assert_eq!(wrong(Variation { iso_sigma: f32::NAN, ..still }), Err(Kind::OutOfRange));
    assert_eq!(wrong(Variation { bounds: Some((1.0, 0.0)), ..still }), Err(Kind::Mismatch));
}
