//! Properties of archives, and their files.
#![allow(clippy::disallowed_methods)]

mod support;

use std::alloc::System;
use std::fs;
use std::path::Path;

use proptest::prelude::*;
use sconce_evolve::{Added, Archive, ArchiveOptions, Batch, SpaceOptions, Status};
use sconce_tensor::memory::{Counted, Meter};
use sconce_tensor::rng::Rng;
use sconce_tensor::{Error, Kind, pool};
use support::grid;

#[global_allocator]
static ALLOCATOR: Counted<System> = Counted(System);

const RANGES: [(f64, f64); 2] = [(-1.0, 1.0), (0.0, 2.0)];

/// Candidates of three numbers, with few objectives so that many are equal.
struct Candidates {
    solutions: Vec<f32>,
    objectives: Vec<f64>,
    measures: Vec<f64>,
}

impl Candidates {
    fn new(count: usize, seed: u64) -> Self {
        let rng = Rng::new(seed, "candidates", 0);
        let uniform = |at: usize| f64::from(rng.uniform(at as u64));
        Candidates {
            solutions: (0..3 * count).map(|i| i as f32 + seed as f32 / 16.0).collect(),
            objectives: (0..count).map(|i| (uniform(i) * 9.0).floor() * 0.3 - 1.0).collect(),
            measures: (0..2 * count).map(|i| 2.4 * uniform(count + i) - 1.2).collect(),
        }
    }

    fn batch(&self) -> Batch<'_> {
        self.part(0, self.objectives.len())
    }

    fn part(&self, from: usize, count: usize) -> Batch<'_> {
        Batch {
            solutions: &self.solutions[3 * from..][..3 * count],
            objectives: &self.objectives[from..][..count],
            measures: &self.measures[2 * from..][..2 * count],
        }
    }
}

fn options(kind: usize) -> ArchiveOptions {
    let plain = grid(&[5, 4], &RANGES, 3);
    let voronoi = SpaceOptions::Voronoi { cells: 17, ranges: RANGES.into(), samples: 500, seed: 3 };
    match kind {
        0 => plain,
        1 => ArchiveOptions { learning_rate: 0.3, threshold_min: Some(-0.5), ..plain },
        2 => ArchiveOptions { threshold_min: Some(0.0), offset: -2.0, ..plain },
        3 => ArchiveOptions { space: voronoi, ..plain },
        4 => ArchiveOptions { space: balls(0.3, 40), ..plain },
        // Fewer than candidates would make.
        _ => ArchiveOptions {
            space: balls(0.1, 45),
            learning_rate: 0.3,
            threshold_min: Some(-0.5),
            ..plain
        },
    }
}

fn balls(distance: f64, cells: usize) -> SpaceOptions {
    SpaceOptions::Unstructured { measures: 2, distance, cells }
}

/// The archive of a kind with some candidates.
fn filled(kind: usize, count: usize, seed: u64) -> Archive {
    let mut archive = Archive::new(&options(kind)).unwrap();
    archive.add(Candidates::new(count, seed).batch()).unwrap();
    archive
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_batch_is_the_same_as_its_candidates_one_by_one(
        kind in 0usize..6, count in 0usize..200, seed in any::<u64>(), cut in 1usize..50,
    ) {
        let all = Candidates::new(count, seed);
        let (mut whole, mut parts) = (filled(kind, 30, 1), filled(kind, 30, 1));
        let added = whole.add(all.batch()).unwrap();
        let mut one_by_one = Added::default();
        for from in (0..count).step_by(cut) {
            let part = parts.add(all.part(from, cut.min(count - from))).unwrap();
            one_by_one.status.extend(part.status);
            one_by_one.improvements.extend(part.improvements);
        }
        prop_assert_eq!(added, one_by_one);
        prop_assert_eq!(whole, parts);
    }

    #[test]
    fn the_figures_equal_those_of_a_scan(kind in 0usize..6, seed in any::<u64>()) {
        let mut archive = Archive::new(&options(kind)).unwrap();
        let mut best = f64::NEG_INFINITY;
        for batch in 0..5 {
            let all = Candidates::new(40, seed ^ batch);
            let added = archive.add(all.batch()).unwrap();
            for (status, objective) in added.status.iter().zip(&all.objectives) {
                best = if *status == Status::NotAdded { best } else { best.max(*objective) };
            }
        }
        let (stats, elites) = (archive.stats(), archive.elites());
        let offset = options(kind).offset;
        let scan: f64 = elites.objectives.iter().map(|objective| objective - offset).sum();
        prop_assert!((stats.qd_score - scan).abs() < 1e-11, "{} {}", stats.qd_score, scan);
        let mut cells = elites.cells.clone();
        cells.sort_unstable();
        cells.dedup();
        prop_assert_eq!(stats.elites, cells.len());
        prop_assert_eq!(stats.coverage, cells.len() as f64 / stats.cells as f64);
        prop_assert_eq!(stats.best.unwrap_or(f64::NEG_INFINITY), best);
        for (measures, cell) in elites.measures.chunks(2).zip(&elites.cells) {
            prop_assert_eq!(archive.space().cell(measures), Some(*cell as usize));
        }
    }

    #[test]
    fn the_nearest_centroid_is_that_of_a_scan(
        seed in any::<u64>(), cells in 1usize..80, measures in 1usize..6, ties in any::<bool>(),
    ) {
        let rng = Rng::new(seed, "centroids", 0);
        // Few values, so that many centroids are equally near.
        let value = |at: usize| match ties {
            true => f64::from(rng.u32(at as u64) % 3),
            false => f64::from(rng.uniform(at as u64)),
        };
        let rows: Vec<Vec<f64>> =
            (0..cells).map(|i| (0..measures).map(|j| value(i * measures + j)).collect()).collect();
        let space = sconce_evolve::Space::new(&SpaceOptions::Centroids(rows.clone())).unwrap();
        for at in 0..50 {
            let point: Vec<f64> = (0..measures).map(|j| value(9_000 + at * measures + j)).collect();
            let distance = |row: &[f64]| -> f64 {
                row.iter().zip(&point).map(|(a, b)| (a - b) * (a - b)).sum()
            };
            let mut nearest = 0;
            for i in 1..cells {
                nearest = if distance(&rows[i]) < distance(&rows[nearest]) { i } else { nearest };
            }
            prop_assert_eq!(space.cell(&point), Some(nearest));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_ball_is_made_where_none_is(
        seed in any::<u64>(), width in 1usize..6, distance in 0.02f64..2.0, cells in 1usize..60,
        ties in any::<bool>(),
    ) {
        let rng = Rng::new(seed, "balls", 0);
        // Few values, so that distances are often equal to the radius.
        let value = |at: usize| match ties {
            true => f64::from(rng.u32(at as u64) % 7) * distance,
            false => f64::from(rng.uniform(at as u64)) - 0.5,
        };
        let space = SpaceOptions::Unstructured { measures: width, distance, cells };
        let own = ArchiveOptions { space, solution_size: 1, ..grid(&[1], &[(0.0, 1.0)], 1) };
        let mut archive = Archive::new(&own).unwrap();
        let measures: Vec<f64> = (0..200 * width).map(value).collect();
        let objectives: Vec<f64> = (0..200).map(|i| f64::from(rng.u32(9_000 + i) % 5)).collect();
        let solutions = vec![0.5; 200];
        let batch = Batch { solutions: &solutions, objectives: &objectives, measures: &measures };
        let added = archive.add(batch).unwrap();
        let (mut centers, mut bars) = (Vec::<&[f64]>::new(), vec![]);
        for (at, point) in measures.chunks(width).enumerate() {
            let square = |center: &[f64]| -> f64 {
                center.iter().zip(point).map(|(a, b)| (a - b) * (a - b)).sum()
            };
            let within = |center: &&[f64]| square(center) <= distance * distance;
            let status = match centers.iter().position(within) {
                Some(cell) if objectives[at] > bars[cell] => {
                    bars[cell] = objectives[at];
                    Status::Improved
                }
                None if centers.len() < cells => {
                    centers.push(point);
                    bars.push(objectives[at]);
                    Status::New
                }
                _ => Status::NotAdded,
            };
            prop_assert_eq!(added.status[at], status, "{}", at);
        }
        // Also where no cell can be made, so that emitters prefer what can be stored.
        let lost = added.status.iter().zip(&added.improvements);
        prop_assert!(lost.clone().all(|(status, gain)| status.is_added() || *gain <= 0.0));
        prop_assert_eq!(&archive.elites().objectives, &bars);
        prop_assert_eq!(archive.stats().coverage, centers.len() as f64 / cells as f64);
    }
}

#[test]
fn of_equal_objectives_the_first_stays() {
    let mut archive = Archive::new(&grid(&[1, 1], &RANGES, 1)).unwrap();
    let batch = |solutions| Batch { solutions, objectives: &[1.0, 1.0], measures: &[0.0; 4] };
    let added = archive.add(batch(&[1.0, 2.0])).unwrap();
    assert_eq!(added.status, [Status::New, Status::NotAdded]);
    assert_eq!(added.improvements, [1.0, 0.0]);
    assert_eq!(archive.add(batch(&[3.0, 4.0])).unwrap().status, [Status::NotAdded; 2]);
    assert_eq!(archive.elites().solutions, [1.0]);
}

#[test]
fn a_threshold_moves_by_the_learning_rate() {
    let plain = grid(&[1, 1], &RANGES, 1);
    let options = ArchiveOptions { learning_rate: 0.25, threshold_min: Some(-4.0), ..plain };
    let mut archive = Archive::new(&options).unwrap();
    let mut add = |objective: f64| {
        let batch = Batch { solutions: &[0.0], objectives: &[objective], measures: &[0.0; 2] };
        let added = archive.add(batch).unwrap();
        (added.status[0], added.improvements[0], archive.thresholds()[0])
    };
    assert_eq!(add(-4.0), (Status::NotAdded, 0.0, -4.0));
    assert_eq!(add(4.0), (Status::New, 8.0, -2.0));
    // Worse than the elite and above the threshold.
    assert_eq!(add(2.0), (Status::Improved, 4.0, -1.0));
    assert_eq!(add(-3.0), (Status::NotAdded, -2.0, -1.0));
    let stats = archive.stats();
    assert_eq!((archive.elites().objectives[0], stats.qd_score, stats.best), (2.0, 2.0, Some(4.0)));
}

#[test]
fn a_refused_batch_names_its_candidate_and_leaves_the_archive_as_it_was() {
    let before = filled(0, 30, 1);
    let mut archive = before.clone();
    let mut said = |change: &dyn Fn(&mut Candidates)| {
        let mut all = Candidates::new(9, 2);
        all.objectives.fill(50.0);
        change(&mut all);
        let error = archive.add(Batch {
            solutions: &all.solutions,
            objectives: &all.objectives,
            measures: &all.measures,
        });
        assert_eq!(archive, before);
        let error = error.unwrap_err();
        (error.kind(), error.to_string())
    };
    let (kind, text) = said(&|all| all.objectives[5] = f64::NAN);
    assert_eq!(
        (kind, &*text),
        (Kind::NonFinite, "the objective of candidate 5 is not finite (NaN)")
    );
    let (kind, text) = said(&|all| all.measures[15] = f64::INFINITY);
    assert_eq!((kind, &*text), (Kind::NonFinite, "measure 1 of candidate 7 is not finite (inf)"));
    let (kind, text) = said(&|all| all.solutions[4] = f32::NAN);
    assert_eq!(
        (kind, &*text),
        (Kind::NonFinite, "the solution of candidate 1 is not finite (NaN)")
    );
    assert_eq!(said(&|all| all.objectives[3] = 1e200).0, Kind::OutOfRange);
    let (kind, text) = said(&|all| all.solutions.truncate(26));
    assert_eq!(kind, Kind::Mismatch);
    assert!(text.ends_with("expected 27, got 26"), "{text}");
    let (kind, text) = said(&|all| all.measures.push(0.0));
    assert_eq!(kind, Kind::Mismatch);
    assert!(text.ends_with("expected 18, got 19"), "{text}");
}

#[test]
fn an_empty_archive_has_no_elite_to_draw_or_to_compare() {
    let archive = Archive::new(&options(0)).unwrap();
    let missing = |kind: Option<Error>| assert_eq!(kind.map(|e| e.kind()), Some(Kind::NotFound));
    missing(archive.sample(3, 1).err());
    missing(archive.novelty(&[0.0, 0.0], 1).err());
    assert_eq!(archive.retrieve(&[0.0, 0.0]).unwrap(), [None]);
    let stats = archive.stats();
    assert_eq!((stats.elites, stats.coverage, stats.qd_score, stats.best), (0, 0.0, 0.0, None));
    assert!(archive.raster().unwrap().rows.iter().flatten().all(Option::is_none));
}

#[test]
fn elites_are_drawn_uniformly_and_retrieved_by_their_measures() {
    let archive = filled(3, 300, 4);
    let count = archive.stats().elites;
    let drawn = archive.sample(count * 400, 9).unwrap();
    assert_eq!(drawn, archive.sample(count * 400, 9).unwrap());
    assert_ne!(drawn, archive.sample(count * 400, 10).unwrap());
    for elite in 0..count {
        let times = drawn.iter().filter(|at| **at == elite).count();
        assert!((300..500).contains(&times), "{elite}: {times}");
    }
    let own = archive.retrieve(&archive.elites().measures).unwrap();
    assert_eq!(own, (0..count).map(Some).collect::<Vec<_>>());
}

#[test]
fn novelty_is_the_mean_distance_to_the_nearest_elites() {
    let mut archive = Archive::new(&grid(&[4, 4], &[(0.0, 4.0); 2], 1)).unwrap();
    let measures = [0.5, 0.5, 3.5, 0.5, 0.5, 2.5];
    let batch = Batch { solutions: &[0.0; 3], objectives: &[0.0; 3], measures: &measures };
    archive.add(batch).unwrap();
    assert_eq!(archive.novelty(&[0.5, 0.5, 3.5, 4.5], 1).unwrap(), [0.0, 13f64.sqrt()]);
    assert_eq!(archive.novelty(&[0.5, 0.5], 2).unwrap(), [1.0]);
    assert_eq!(archive.novelty(&[0.5, 0.5], 9).unwrap(), [5.0 / 3.0]);
    assert_eq!(archive.novelty(&[0.5, 0.5], 0).map_err(|e| e.kind()), Err(Kind::OutOfRange));
    assert_eq!(archive.novelty(&[0.5], 1).map_err(|e| e.kind()), Err(Kind::Mismatch));
}

#[test]
fn a_merge_offers_the_elites_of_the_other_archive() {
    let (mut one, other) = (filled(0, 60, 1), filled(0, 60, 2));
    let mut both = Archive::new(&options(0)).unwrap();
    for own in [&one, &other] {
        both.merge(own).unwrap();
    }
    one.merge(&other).unwrap();
    assert_eq!(one, both);
    assert_eq!(one.merge(&filled(3, 9, 1)).map_err(|e| e.kind()), Err(Kind::Mismatch));
    let wider = Archive::new(&grid(&[5, 4], &RANGES, 4)).unwrap();
    assert_eq!(one.merge(&wider).map_err(|e| e.kind()), Err(Kind::Mismatch));
    // Cells that are made where candidates land need not be the same ones.
    let (mut one, other) = (filled(4, 60, 1), filled(4, 60, 2));
    let added = one.merge(&other).unwrap();
    assert!(added.status.iter().any(|status| status.is_added()));
    assert!(one.merge(&other).unwrap().status.iter().all(|status| !status.is_added()));
    assert_eq!(one.merge(&filled(5, 60, 1)).map_err(|e| e.kind()), Err(Kind::Mismatch));
}

#[test]
fn pruning_removes_the_worst_elites_and_empties_their_cells() {
    for kind in 0..6 {
        let mut archive = filled(kind, 200, 3);
        let (before, old) = (archive.stats(), archive.elites().clone());
        assert_eq!(archive.prune(0.3).unwrap(), (0.3 * before.elites as f64) as usize);
        let (after, left) = (archive.stats(), archive.elites().clone());
        assert_eq!(after.elites, before.elites - (0.3 * before.elites as f64) as usize);
        let worst = left.objectives.iter().copied().fold(f64::INFINITY, f64::min);
        let stays = |row: &[f64]| left.measures.chunks(2).any(|own| own == row);
        let gone = old.measures.chunks(2).zip(&old.objectives).filter(|(row, _)| !stays(row));
        assert!(gone.clone().all(|(_, objective)| *objective <= worst));
        assert_eq!(gone.count() + left.cells.len(), old.cells.len());
        let known = archive.retrieve(&left.measures).unwrap();
        assert_eq!(known, (0..left.cells.len()).map(Some).collect::<Vec<_>>());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("archive.safetensors");
        archive.save(&path).unwrap();
        assert_eq!(Archive::load(&path).unwrap(), archive);
        // A pruned cell takes what an empty one takes.
        let again = Batch {
            solutions: &old.solutions,
            objectives: &old.objectives,
            measures: &old.measures,
        };
        let added = archive.add(again).unwrap();
        let fresh = added.status.iter().filter(|status| **status == Status::New).count();
        // A ball that stays may hold the measures of one that was removed.
        let lost = before.elites - after.elites;
        assert!(if kind < 4 { fresh == lost } else { (1..=lost).contains(&fresh) }, "{fresh}");
        assert_eq!(archive.prune(1.0).unwrap(), after.elites + fresh);
        assert_eq!((archive.stats().elites, archive.stats().best), (0, None));
        assert!(archive.prune(1.5).is_err());
    }
}

#[test]
fn centroids_spread_evenly_and_do_not_depend_on_threads() {
    let voronoi =
        || SpaceOptions::Voronoi { cells: 64, ranges: RANGES.into(), samples: 20_000, seed: 5 };
    let shared = sconce_evolve::Space::new(&voronoi()).unwrap();
    let alone = pool::serial(|| sconce_evolve::Space::new(&voronoi()).unwrap());
    assert_eq!(shared, alone);
    let rng = Rng::new(1, "points", 0);
    let mut counts = vec![0; 64];
    for i in 0..64_000 {
        let uniform = |at: u64| 2.0 * f64::from(rng.uniform(at));
        counts[shared.cell(&[uniform(2 * i) - 1.0, uniform(2 * i + 1)]).unwrap()] += 1;
    }
    assert!(counts.iter().all(|count| (500..1600).contains(count)), "{counts:?}");
}

#[test]
fn spaces_and_options_out_of_range_are_named() {
    let kind = |options: ArchiveOptions| Archive::new(&options).map_err(|e| e.kind()).err();
    let plain = || grid(&[5, 4], &RANGES, 3);
    let space = |space: SpaceOptions| ArchiveOptions { space, ..plain() };
    assert_eq!(kind(grid(&[5], &RANGES, 3)), Some(Kind::Mismatch));
    assert_eq!(kind(grid(&[5, 0], &RANGES, 3)), Some(Kind::OutOfRange));
    assert_eq!(kind(grid(&[1 << 40, 1 << 40], &RANGES, 3)), Some(Kind::OutOfRange));
    assert_eq!(kind(grid(&[], &[], 3)), Some(Kind::OutOfRange));
    assert_eq!(kind(grid(&[5, 4], &[(1.0, 1.0), (0.0, 1.0)], 3)), Some(Kind::Mismatch));
    assert_eq!(kind(grid(&[5, 4], &[(f64::NAN, 1.0), (0.0, 1.0)], 3)), Some(Kind::NonFinite));
    assert_eq!(kind(grid(&[5, 4], &RANGES, 0)), Some(Kind::OutOfRange));
    assert_eq!(kind(ArchiveOptions { learning_rate: 1.5, ..plain() }), Some(Kind::OutOfRange));
    assert_eq!(kind(ArchiveOptions { learning_rate: 0.5, ..plain() }), Some(Kind::Mismatch));
    assert_eq!(kind(ArchiveOptions { offset: f64::NAN, ..plain() }), Some(Kind::NonFinite));
    let voronoi = |cells, samples| {
        space(SpaceOptions::Voronoi { cells, ranges: RANGES.into(), samples, seed: 0 })
    };
    assert_eq!(kind(voronoi(0, 9)), Some(Kind::OutOfRange));
    assert_eq!(kind(voronoi(9, 8)), Some(Kind::OutOfRange));
    let centroids = |rows: &[&[f64]]| {
        space(SpaceOptions::Centroids(rows.iter().map(|row| row.to_vec()).collect()))
    };
    assert_eq!(kind(space(balls(0.0, 9))), Some(Kind::OutOfRange));
    assert_eq!(kind(space(balls(f64::NAN, 9))), Some(Kind::NonFinite));
    assert_eq!(kind(space(balls(0.5, 0))), Some(Kind::OutOfRange));
    assert_eq!(kind(space(balls(0.5, 1 << 40))), Some(Kind::OutOfRange));
    assert_eq!(kind(centroids(&[])), Some(Kind::OutOfRange));
    assert_eq!(kind(centroids(&[&[1.0], &[1.0, 2.0]])), Some(Kind::Mismatch));
    assert_eq!(kind(centroids(&[&[1.0], &[f64::INFINITY]])), Some(Kind::NonFinite));
}

#[test]
fn a_picture_has_the_objective_of_each_cell() {
    let archive = filled(0, 300, 1);
    let raster = archive.raster().unwrap();
    assert_eq!((raster.rows.len(), raster.rows[0].len(), raster.ranges), (4, 5, RANGES));
    let elites = archive.elites();
    for (cell, objective) in elites.cells.iter().zip(&elites.objectives) {
        assert_eq!(raster.rows[*cell as usize % 4][*cell as usize / 4], Some(*objective));
    }
    let drawn = raster.rows.iter().flatten().flatten().count();
    assert_eq!(drawn, elites.cells.len());
    let line = Archive::new(&grid(&[5], &[(0.0, 1.0)], 3)).unwrap();
    assert_eq!(line.raster().map_err(|e| e.kind()), Err(Kind::Mismatch));
    // Balls smaller than a pixel are drawn too.
    let space = |distance| ArchiveOptions { space: balls(distance, 500), ..options(0) };
    for (distance, least) in [(1e-6, 250), (0.2, 5000)] {
        let mut archive = Archive::new(&space(distance)).unwrap();
        assert!(archive.raster().unwrap().rows.iter().flatten().all(Option::is_none));
        archive.add(Candidates::new(1, 1).batch()).unwrap();
        assert!(archive.raster().unwrap().rows.iter().flatten().any(Option::is_some));
        archive.add(Candidates::new(300, 2).batch()).unwrap();
        let drawn = archive.raster().unwrap().rows.iter().flatten().flatten().count();
        assert!(drawn >= least, "{drawn}");
    }
    let wide = filled(3, 300, 1);
    assert!(wide.raster().unwrap().rows.iter().flatten().flatten().count() > 1000);
}

#[test]
fn a_loaded_archive_equals_the_saved_one_and_goes_on_equally() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("archive.safetensors");
    for kind in 0..6 {
        for count in [0, 500] {
            let mut archive = filled(kind, count, 3);
            archive.save(&path).unwrap();
            let mut loaded = Archive::load(&path).unwrap();
            assert_eq!(loaded, archive, "{kind}");
            let bytes = fs::read(&path).unwrap();
            loaded.save(&path).unwrap();
            assert_eq!(fs::read(&path).unwrap(), bytes);
            let more = Candidates::new(100, 4);
            assert_eq!(loaded.add(more.batch()).unwrap(), archive.add(more.batch()).unwrap());
            assert_eq!(loaded, archive);
        }
    }
}

#[test]
fn a_save_takes_little_memory_beside_that_of_the_archive() {
    let (count, size) = (900, 4096);
    let mut archive = Archive::new(&grid(&[30, 30], &[(0.0, 30.0); 2], size)).unwrap();
    let solutions: Vec<f32> = (0..count * size).map(|at| at as f32).collect();
    let measures: Vec<f64> =
        (0..count).flat_map(|at| [(at / 30) as f64 + 0.5, (at % 30) as f64 + 0.5]).collect();
    archive
        .add(Batch { solutions: &solutions, objectives: &vec![1.0; count], measures: &measures })
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("archive.safetensors");
    let meter = Meter::start().unwrap();
    archive.save(&path).unwrap();
    let taken = meter.peak();
    assert!(fs::metadata(&path).unwrap().len() > (4 * count * size) as u64);
    assert!(taken < 1 << 18, "{taken} bytes");
    assert_eq!(Archive::load(&path).unwrap(), archive);
}

#[test]
fn a_file_that_is_cut_or_changed_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("archive.safetensors");
    for kind in [1, 3, 5] {
        filled(kind, 12, 3).save(&path).unwrap();
        let whole = fs::read(&path).unwrap();
        let refused = |bytes: &[u8], what: &str| {
            fs::write(&path, bytes).unwrap();
            let error = Archive::load(&path).map(drop).unwrap_err();
            let known = matches!(error.kind(), Kind::Corrupt | Kind::Mismatch);
            assert!(known, "{what}: {error}");
        };
        for length in 0..whole.len() {
            refused(&whole[..length], &format!("{length} bytes"));
        }
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1 << (at % 8);
            refused(&changed, &format!("byte {at}"));
        }
        refused(&[&whole[..], &[0]].concat(), "a byte more");
    }
}

#[test]
fn a_file_that_is_no_archive_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let kind = |path: &Path| Archive::load(path).map_err(|e| e.kind()).err();
    assert_eq!(kind(&folder.path().join("none")), Some(Kind::NotFound));
    assert_eq!(kind(folder.path()), Some(Kind::Mismatch));
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test/golden");
    assert_eq!(kind(&golden.join("evolve_archive.safetensors")), Some(Kind::Corrupt));
}
