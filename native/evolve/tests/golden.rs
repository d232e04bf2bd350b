//! Archives, variation and strategies against golden data in float64.

mod support;

use sconce_evolve::{Archive, Batch, Method, Strategy, StrategyOptions, iso_line};
use support::{Golden, grid, rosenbrock};

fn numbers(golden: &Golden, key: &str) -> Vec<f64> {
    golden.config[key].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

#[test]
fn an_archive_has_the_cells_the_winners_and_the_scores_of_the_reference() {
    let golden = Golden::open("evolve_archive");
    let dims: Vec<usize> = numbers(&golden, "dims").iter().map(|v| *v as usize).collect();
    let ranges: Vec<_> =
        numbers(&golden, "low").into_iter().zip(numbers(&golden, "high")).collect();
    let mut archive = Archive::new(&grid(&dims, &ranges, 1)).unwrap();
    let (batch, cells) = (golden.size("batch"), dims.iter().product::<usize>());
    let (measures, scores) = (golden.f64("input.measures"), golden.f64("input.score"));
    let cell: Vec<i64> =
        measures.chunks(2).map(|m| archive.space().cell(m).unwrap() as i64).collect();
    assert_eq!(cell, golden.i64("output.cell"));
    let (winners, best) = (golden.i64("output.winner"), golden.f64("output.best"));
    let status = golden.i64("output.status");
    for at in 0..golden.size("batches") {
        let solutions: Vec<f32> = (at * batch..(at + 1) * batch).map(|i| i as f32).collect();
        let measures = &measures[at * batch * 2..][..batch * 2];
        let objectives = &scores[at * batch..][..batch];
        // The reference compares each candidate with the archive before the batch.
        for i in 0..batch {
            let solutions = &solutions[i..=i];
            let (objectives, measures) = (&objectives[i..=i], &measures[2 * i..][..2]);
            let one = archive.clone().add(Batch { solutions, objectives, measures }).unwrap();
            assert_eq!(i64::from(one.status[0] as u8), status[at * batch + i], "{at} {i}");
        }
        archive.add(Batch { solutions: &solutions, objectives, measures }).unwrap();
        let elites = archive.elites();
        let (mut winner, mut score) = (vec![-1; cells], vec![0.0; cells]);
        for (i, cell) in elites.cells.iter().enumerate() {
            winner[*cell as usize] = elites.solutions[i] as i64;
            score[*cell as usize] = elites.objectives[i];
        }
        assert_eq!(winner, winners[at * cells..][..cells], "{at}");
        golden.check("best", &score, &best[at * cells..][..cells]);
        let stats = archive.stats();
        assert_eq!(stats.elites as i64, golden.i64("output.filled")[at]);
        golden.check("total", &[stats.qd_score], &golden.f64("output.total")[at..=at]);
    }
}

#[test]
fn a_child_is_that_of_the_reference() {
    let golden = Golden::open("evolve_iso_line");
    let size = golden.size("size");
    let [first, second, noise] =
        ["first", "second", "iso_noise"].map(|name| golden.f64(&format!("input.{name}")));
    let sigma = ["sigma_iso", "sigma_line"].map(|key| golden.config[key].as_f64().unwrap());
    let mut children = vec![0.0; first.len()];
    let lines = golden.f64("input.line_noise");
    for (i, child) in children.chunks_mut(size).enumerate() {
        let row = |all: &'_ [f64]| all[i * size..][..size].to_vec();
        let (a, b, z) = (row(&first), row(&second), row(&noise));
        iso_line((&a, &b), (sigma[0], sigma[1]), (&z, lines[i]), child);
    }
    golden.check("child", &children, &golden.f64("output.child"));
}

fn strategy(golden: &Golden, method: Method, sigma: f64) -> Strategy {
    let population = Some(golden.size("population"));
    let options = StrategyOptions { method, population, sigma, learning_rate: 0.01, seed: 0 };
    Strategy::new(&golden.f64("input.mean"), &options).unwrap()
}

/// Negated values of Rosenbrock's function: a strategy maximises.
fn fitness(candidates: &[f64], size: usize) -> Vec<f64> {
    candidates.chunks(size).map(|x| -rosenbrock(x)).collect()
}

#[test]
fn both_cma_es_follow_the_reference_in_every_generation() {
    let cases = [
        ("evolve_cma_1", Method::CmaEs),
        ("evolve_cma_10", Method::CmaEs),
        ("evolve_cma_10_odd", Method::CmaEs),
        ("evolve_sep_cma_1", Method::SepCmaEs),
        ("evolve_sep_cma_10", Method::SepCmaEs),
    ];
    for (name, method) in cases {
        let golden = Golden::open(name);
        let mut own = strategy(&golden, method, golden.config["sigma0"].as_f64().unwrap());
        let n = own.size();
        let width = own.population() * n;
        let matrix = own.covariance().len();
        for at in 0..golden.size("generations") {
            let noise = &golden.f64("input.z")[at * width..][..width];
            let candidates = own.candidates(noise).unwrap();
            let fitness = fitness(&candidates, n);
            golden.check("x", &candidates, &golden.f64("output.x")[at * width..][..width]);
            own.learn(noise, &fitness).unwrap();
            let row = |name: &str, width: usize| {
                golden.f64(&format!("output.{name}"))[at * width..][..width].to_vec()
            };
            golden.check("mean", own.mean(), &row("mean", n));
            golden.check("sigma", &[own.sigma()], &row("sigma", 1));
            golden.check("p_sigma", own.paths()[0], &row("p_sigma", n));
            golden.check("p_c", own.paths()[1], &row("p_c", n));
            golden.check("cov", own.covariance(), &row("cov", matrix));
        }
        assert_eq!(own.generation(), golden.size("generations") as u64);
    }
}

#[test]
fn snes_follows_the_reference_in_every_generation() {
    for name in ["evolve_snes_1", "evolve_snes_10"] {
        let golden = Golden::open(name);
        let own = strategy(&golden, Method::Snes, 1.0);
        let mut own = own.with_deviations(&golden.f64("input.sigma")).unwrap();
        let n = own.size();
        let width = own.population() * n;
        for at in 0..golden.size("generations") {
            let noise = &golden.f64("input.z")[at * width..][..width];
            let fitness = fitness(&own.candidates(noise).unwrap(), n);
            own.learn(noise, &fitness).unwrap();
            golden.check("mean", own.mean(), &golden.f64("output.mean")[at * n..][..n]);
            golden.check("sigma", own.deviations(), &golden.f64("output.sigma")[at * n..][..n]);
        }
    }
}
