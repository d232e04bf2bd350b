//! The arm of ten equal joints: a solution has their angles from -pi to pi, the measures are the place of the tip in the
//! square around its reach, and the objective is minus the variance of the angles (Cully et al. 2015, Vassiliades et al.
//! 2018).

use std::f32::consts::PI;

use sconce_evolve::{Archive, ArchiveOptions, Batch, Crossover, SpaceOptions, Variation};
use sconce_tensor::rng::Rng;
use sconce_tensor::trig::sin_cos_with;
use sconce_tensor::{Result, dispatch, pool};

pub(crate) const JOINTS: usize = 10;
/// Cells of the grid along each measure.
const SIDE: usize = 64;
/// Candidates that one thread evaluates at a time.
const SHARD: usize = 256;
/// Arms that are computed together.
const LANES: usize = 16;

dispatch! {
    fn evaluate_shard(angles: &[f32], objectives: &mut [f64], measures: &mut [f64]) {
        let arms = angles.chunks(LANES * JOINTS);
        let out = objectives.chunks_mut(LANES).zip(measures.chunks_mut(2 * LANES));
        for (angles, (objectives, measures)) in arms.zip(out) {
            let mut joints = [[0.0f32; LANES]; JOINTS];
            for (lane, arm) in angles.chunks_exact(JOINTS).enumerate() {
                for (joint, angle) in joints.iter_mut().zip(arm) {
                    joint[lane] = *angle;
                }
            }
            let (mut sum, mut squares) = ([0.0f32; LANES], [0.0f32; LANES]);
            let (mut x, mut y) = ([0.0f32; LANES], [0.0f32; LANES]);
            for joint in &joints {
                for lane in 0..LANES {
                    sum[lane] += joint[lane];
                    squares[lane] += joint[lane] * joint[lane];
                    let (sin, cos) = sin_cos_with::<FMA>(sum[lane]);
                    x[lane] += cos;
                    y[lane] += sin;
                }
            }
            let share = 1.0 / JOINTS as f32;
            for (lane, objective) in objectives.iter_mut().enumerate() {
                let mean = sum[lane] * share;
                *objective = f64::from(mean * mean - squares[lane] * share);
            }
            for (lane, measures) in measures.chunks_exact_mut(2).enumerate() {
                measures.copy_from_slice(&[f64::from(x[lane] * share), f64::from(y[lane] * share)]);
            }
        }
    }
}

/// Writes the objective and the measures of each arm.
pub(crate) fn evaluate(angles: &[f32], objectives: &mut [f64], measures: &mut [f64]) {
    let arms = angles.chunks(SHARD * JOINTS);
    let out = objectives.chunks_mut(SHARD).zip(measures.chunks_mut(2 * SHARD));
    let shards = arms.zip(out).collect();
    pool::hand_out(shards, |_, (angles, (objectives, measures))| {
        evaluate_shard(angles, objectives, measures);
    });
}

pub(crate) fn archive() -> Result<Archive> {
    let space = SpaceOptions::Grid { dimensions: vec![SIDE; 2], ranges: vec![(-1.0, 1.0); 2] };
    Archive::new(&ArchiveOptions {
        space,
        solution_size: JOINTS,
        learning_rate: 1.0,
        threshold_min: None,
        offset: 0.0,
    })
}

/// Number of cells with a point that the tip can reach: those that the disc of radius 1 touches.
pub(crate) fn reachable() -> usize {
    let radius = SIDE as f64 / 2.0;
    // The distance of a cell from the middle along a measure, in cells.
    let distance = |at: usize| (at as f64 - radius).max(radius - 1.0 - at as f64).max(0.0);
    let cells = (0..SIDE * SIDE).map(|cell| (distance(cell / SIDE), distance(cell % SIDE)));
    cells.filter(|(x, y)| x * x + y * y < radius * radius).count()
}

/// MAP-Elites: the first batch is uniform, and the others are variations of elites.
pub(crate) fn search(archive: &mut Archive, batches: u64, batch: usize, seed: u64) -> Result<()> {
    let variation =
        Variation { iso_sigma: 0.1, crossover: Crossover::Line(0.3), bounds: Some((-PI, PI)) };
    let (mut objectives, mut measures) = (vec![0.0; batch], vec![0.0; 2 * batch]);
    for generation in 0..batches {
        let solutions = match generation {
            0 => uniform(batch, seed),
            _ => archive.vary(&variation, batch, (seed, generation))?,
        };
        evaluate(&solutions, &mut objectives, &mut measures);
        let (objectives, measures) = (&objectives, &measures);
        archive.add(Batch { solutions: &solutions, objectives, measures })?;
    }
    Ok(())
}

pub(crate) fn uniform(count: usize, seed: u64) -> Vec<f32> {
    let rng = Rng::new(seed, "arms", 0);
    (0..count * JOINTS).map(|at| PI * (2.0 * rng.uniform(at as u64) - 1.0)).collect()
}
