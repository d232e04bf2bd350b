//! MAP-Elites on the arm of ten joints.

#[path = "../examples/arm/mod.rs"]
mod arm;

use arm::{JOINTS, archive, evaluate, reachable, search, uniform};
use sconce_tensor::pool;

/// The formulas of the arm in f64.
fn reference(angles: &[f32]) -> (f64, [f64; 2]) {
    let (mut sum, mut tip) = (0.0, [0.0; 2]);
    for angle in angles {
        sum += f64::from(*angle);
        tip[0] += sum.cos() / 10.0;
        tip[1] += sum.sin() / 10.0;
    }
    let mean = sum / 10.0;
    let variance = angles.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / 10.0;
    (-variance, tip)
}

#[test]
fn an_arm_has_the_tip_and_the_variance_of_its_angles() {
    let angles = uniform(1000, 3);
    let (mut objectives, mut measures) = (vec![0.0; 1000], vec![0.0; 2000]);
    evaluate(&angles, &mut objectives, &mut measures);
    for (i, arm) in angles.chunks(JOINTS).enumerate() {
        let (objective, tip) = reference(arm);
        assert!((objectives[i] - objective).abs() < 1e-5, "{i}");
        assert!((0..2).all(|at| (measures[2 * i + at] - tip[at]).abs() < 1e-6), "{i}");
    }
}

#[test]
fn map_elites_fills_95_percent_of_the_cells_in_reach() {
    let (mut found, reachable) = (archive().unwrap(), reachable());
    search(&mut found, 100, 4096, 1).unwrap();
    let stats = found.stats();
    // The grid has 4096 cells; the disc has the area of 3217.
    assert_eq!(reachable, 3332);
    assert!(stats.elites <= reachable, "{stats:?}");
    assert!(stats.elites as f64 >= 0.95 * reachable as f64, "{stats:?}");
    // As many random angles fill fewer.
    let mut random = archive().unwrap();
    for seed in 0..100 {
        let angles = uniform(4096, 100 + seed);
        let (mut objectives, mut measures) = (vec![0.0; 4096], vec![0.0; 8192]);
        evaluate(&angles, &mut objectives, &mut measures);
        let (objectives, measures) = (&objectives, &measures);
        random.add(sconce_evolve::Batch { solutions: &angles, objectives, measures }).unwrap();
    }
    assert!(random.stats().coverage < 0.6, "{:?}", random.stats());
    // Every elite has the objective and the measures of its angles.
    let elites = found.elites();
    for (i, arm) in elites.solutions.chunks(JOINTS).enumerate() {
        let (objective, tip) = reference(arm);
        assert!((elites.objectives[i] - objective).abs() < 1e-4, "{i}");
        assert!((0..2).all(|at| (elites.measures[2 * i + at] - tip[at]).abs() < 1e-5), "{i}");
    }
}

#[test]
fn a_search_does_not_depend_on_threads_and_depends_on_its_seed() {
    let run = |seed| {
        let mut found = archive().unwrap();
        search(&mut found, 6, 1000, seed).unwrap();
        found
    };
    let found = run(1);
    assert!(found == pool::serial(|| run(1)));
    assert!(found != run(2));
}
