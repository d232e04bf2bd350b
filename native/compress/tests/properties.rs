//! Properties of compression on random matrices, and the errors of wrong input.

use std::sync::atomic::AtomicBool;

use proptest::prelude::*;
use sconce_compress::{
    Axis, Calibrated, Distillation, Fake, FakeOptions, Gptq, Grid, Hessian, Kind, LowRank, Matrix,
    Method, Order, Per, Quantised, Rank, Scale, Share, Target, Truncation, magnitude, smooth,
    sparsity_at, structured, two_four,
};
use sconce_tensor::rng::Rng;
use sconce_tensor::{Kind as ErrorKind, pool};

static RUNNING: AtomicBool = AtomicBool::new(false);

fn noise(rows: usize, cols: usize, seed: u64) -> Matrix {
    let rng = Rng::new(seed, "noise", 0);
    let values = (0..(rows * cols) as u64).map(|i| rng.normal(i)).collect();
    Matrix::new("noise", rows, cols, values).unwrap()
}

/// Inputs that depend on each other, as those of a layer do.
fn correlated(samples: usize, width: usize, seed: u64) -> Matrix {
    let own = noise(samples, width, seed);
    let mixed = |x: &[f32]| -> Vec<f32> {
        (0..width).map(|i| x[i] + 0.7 * x[(i + 1) % width] + 0.5 * x[0]).collect()
    };
    Matrix::new("inputs", samples, width, own.each_row().flat_map(mixed).collect()).unwrap()
}

/// A matrix whose singular values fall quickly.
fn decaying(rows: usize, cols: usize, seed: u64) -> Matrix {
    let rank = 40;
    let (a, b) = (noise(rows, rank, seed), noise(rank, cols, seed + 1));
    let mut values = vec![0.0; rows * cols];
    for (row, a) in values.chunks_mut(cols).zip(a.each_row()) {
        for (k, (a, b)) in a.iter().zip(b.each_row()).enumerate() {
            let scale = 0.8f32.powi(k as i32);
            row.iter_mut().zip(b).for_each(|(w, b)| *w += scale * a * b);
        }
    }
    let noise = noise(rows, cols, seed + 2);
    values.iter_mut().zip(noise.values()).for_each(|(w, e)| *w += 1e-3 * e);
    Matrix::new("decaying", rows, cols, values).unwrap()
}

fn per() -> impl Strategy<Value = Per> {
    prop_oneof![Just(Per::Tensor), Just(Per::Row), (1usize..20).prop_map(Per::Group)]
}

fn grid() -> impl Strategy<Value = Grid> {
    (2u32..=8, per(), any::<bool>()).prop_map(|(bits, per, zero_point)| Grid {
        bits,
        per,
        zero_point,
        scale: Scale::Largest,
    })
}

/// Matrices with numbers of all magnitudes, and exact zeros.
fn matrices() -> impl Strategy<Value = Matrix> {
    let number = prop_oneof![
        3 => -2.0f32..2.0, 1 => Just(0.0f32), 1 => -1e30f32..1e30, 1 => -1e-30f32..1e-30,
    ];
    (1usize..8, 1usize..40).prop_flat_map(move |(rows, cols)| {
        prop::collection::vec(number.clone(), rows * cols)
            .prop_map(move |values| Matrix::new("weight", rows, cols, values).unwrap())
    })
}

/// The squared error of numbers on a grid without zero points.
fn squared_error(numbers: &[f32], scale: f64, [lo, hi]: [f64; 2]) -> f64 {
    let nearest = |w: f64| scale * (w / scale).round_ties_even().clamp(lo, hi);
    numbers.iter().map(|w| (f64::from(*w) - nearest(f64::from(*w))).powi(2)).sum()
}

proptest! {
    #[test]
    fn a_searched_scale_has_the_least_error_of_all_that_are_tried(
        numbers in prop::collection::vec(-2.0f32..2.0, 12), bits in 2u32..=8
    ) {
        let weight = Matrix::new("w", 2, 6, numbers).unwrap();
        let grid = |scale| Grid { bits, per: Per::Row, zero_point: false, scale };
        let found = Quantised::nearest(&weight, grid(Scale::Search)).unwrap().checked().unwrap();
        let hi = f64::from((1 << (bits - 1)) - 1);
        let lo = if bits < 8 { -hi - 1.0 } else { -hi };
        for (row, scale) in weight.each_row().zip(&found.scales) {
            let own = squared_error(row, f64::from(*scale), [lo, hi]);
            let largest = row.iter().fold(0.0f32, |most, w| most.max(w.abs()));
            for part in 24..=84 {
                let tried = f64::from(largest) / hi * f64::from(part) / 80.0;
                for sign in [1.0, -1.0] {
                    let other = squared_error(row, sign * tried, [lo, hi]);
                    // Scales are rounded to f32.
                    prop_assert!(own <= other + 1e-5, "{scale}: {own}, {tried}: {other}");
                }
            }
        }
        let nearest = Quantised::nearest(&weight, grid(Scale::Largest)).unwrap();
        prop_assert!(found.error(&weight).unwrap() <= nearest.error(&weight).unwrap() + 1e-6);
    }

    #[test]
    fn a_searched_grid_with_zero_points_is_no_worse(weight in matrices(), bits in 2u32..=8, per in per()) {
        let grid = |scale| Grid { bits, per, zero_point: true, scale };
        let found = Quantised::nearest(&weight, grid(Scale::Search)).unwrap().checked().unwrap();
        let nearest = Quantised::nearest(&weight, grid(Scale::Largest)).unwrap();
        let [found, nearest] = [&found, &nearest].map(|of| of.error(&weight).unwrap());
        prop_assert!(found <= nearest * 1.0001 + 1e-6, "{found}, {nearest}");
    }
}

#[test]
fn a_searched_scale_loses_a_sixth_less_of_normal_weights() {
    let rng = Rng::new(1, "search", 0);
    let numbers = (0..64 * 128).map(|i| rng.normal(i)).collect();
    let weight = Matrix::new("w", 64, 128, numbers).unwrap();
    let error = |scale| {
        let grid = Grid { bits: 4, per: Per::Group(32), zero_point: false, scale };
        Quantised::nearest(&weight, grid).unwrap().error(&weight).unwrap()
    };
    let [searched, largest] = [Scale::Search, Scale::Largest].map(error);
    assert!(searched < 0.085 && searched < 0.84 * largest, "{searched}, {largest}");
}

#[test]
fn numbers_at_the_ends_of_f32_stay_finite() {
    let values = vec![f32::MAX, f32::MIN, 1.0, f32::MIN_POSITIVE, f32::MAX, 0.0];
    let weight = Matrix::new("weight", 3, 2, values).unwrap();
    for (zero_point, bits) in [(false, 2), (false, 8), (true, 2), (true, 8)] {
        let quantised = Quantised::nearest(
            &weight,
            Grid { bits, per: Per::Row, zero_point, scale: Scale::Largest },
        )
        .unwrap();
        assert!(quantised.dequantise().unwrap().iter().all(|w| w.is_finite()));
        assert!(quantised.error(&weight).unwrap() < 1.0);
        let hessian = Hessian::of_inputs(&weight, &RUNNING).unwrap();
        assert!(hessian.values().iter().all(|v| v.is_finite()));
    }
}

proptest! {
    #[test]
    fn rounding_is_off_by_half_a_scale_at_most_and_keeps_zeros(weight in matrices(), grid in grid()) {
        let quantised = Quantised::nearest(&weight, grid).unwrap();
        let back = quantised.dequantise().unwrap();
        let groups = grid.per.groups(weight.rows(), weight.cols()).unwrap();
        let pairs = groups.of(weight.values()).zip(groups.of(&back)).zip(&quantised.scales);
        for ((own, back), scale) in pairs {
            for (w, b) in own.iter().zip(back) {
                // A zero point is itself rounded, which shifts the ends of the range by half a scale.
                let ends = if grid.zero_point { 1.0 } else { 0.5 };
                prop_assert!((w - b).abs() <= scale * ends * 1.001, "{w} {b} {scale}");
                prop_assert!(*w != 0.0 || *b == 0.0);
            }
        }
        prop_assert_eq!(quantised.clone().checked().unwrap(), quantised);
    }

    #[test]
    fn two_of_four_keep_the_largest(rows in 1usize..6, fours in 1usize..8, seed: u64) {
        let weight = noise(rows, 4 * fours, seed);
        let kept = two_four(&weight).unwrap();
        let values = kept.values.chunks(2).zip(kept.index.chunks(2));
        for ((own, mask), (values, index)) in
            weight.values().chunks(4).zip(kept.pruned.mask.chunks(4)).zip(values)
        {
            let of = |kept: u8| own.iter().zip(mask).filter(move |(_, m)| **m == kept).map(|(w, _)| w.abs());
            prop_assert_eq!(of(1).count(), 2);
            prop_assert!(of(1).fold(f32::MAX, f32::min) >= of(0).fold(0.0, f32::max));
            prop_assert!(index[0] < index[1]);
            prop_assert_eq!(values, &[own[usize::from(index[0])], own[usize::from(index[1])]]);
        }
    }

    #[test]
    fn magnitude_pruning_keeps_the_largest(weight in matrices(), sparsity in 0.0f64..=1.0, row: bool) {
        let (share, width) = match row {
            true => (Share::Row, weight.cols()),
            false => (Share::Tensor, weight.values().len()),
        };
        let pruned = magnitude(&weight, sparsity, share).unwrap();
        for (own, mask) in weight.values().chunks(width).zip(pruned.mask.chunks(width)) {
            let of = |kept: u8| own.iter().zip(mask).filter(move |(_, m)| **m == kept).map(|(w, _)| w.abs());
            prop_assert_eq!(of(0).count(), (sparsity * width as f64).round_ties_even() as usize);
            prop_assert!(of(1).fold(f32::MAX, f32::min) >= of(0).fold(0.0, f32::max));
        }
        prop_assert_eq!(pruned.kept, pruned.mask.iter().filter(|m| **m == 1).count());
    }

    #[test]
    fn gptq_returns_codes_of_its_grid(
        grid in grid(), seed in 0u64..1 << 40, samples in 1usize..60, by_diagonal: bool,
    ) {
        let order = if by_diagonal { Order::Diagonal } else { Order::Given };
        let gptq = Gptq { grid, damping: 0.01, order };
        let found = calibrated(gptq, &noise(5, 24, seed), &correlated(samples, 24, seed + 1));
        let quantised = found.quantised.clone().checked().unwrap();
        prop_assert_eq!(quantised.dequantise().unwrap(), found.dequantised);
        prop_assert!(found.error.is_finite() && found.error >= 0.0);
    }
}

fn calibrated(gptq: Gptq, weight: &Matrix, inputs: &Matrix) -> Calibrated {
    let hessian = Hessian::of_inputs(inputs, &RUNNING).unwrap();
    gptq.run(weight, &hessian, &RUNNING).unwrap()
}

#[test]
fn gptq_changes_outputs_less_than_nearest_rounding() {
    for per in [Per::Tensor, Per::Row, Per::Group(8), Per::Group(200)] {
        for (bits, zero_point) in [(3, false), (4, false), (4, true), (8, false), (8, true)] {
            for order in [Order::Given, Order::Diagonal] {
                let gptq = Gptq {
                    grid: Grid { bits, per, zero_point, scale: Scale::Largest },
                    damping: 0.01,
                    order,
                };
                let mut sums = [0.0; 2];
                for seed in 0..12 {
                    let (weight, inputs) = (noise(6, 40, seed), correlated(100, 40, seed + 99));
                    let found = calibrated(gptq, &weight, &inputs);
                    sums[0] += found.error;
                    sums[1] += found.nearest_error;
                }
                assert!(sums[0] < 0.8 * sums[1], "{gptq:?}: {sums:?}");
            }
        }
    }
}

/// A matrix with more columns than a block, and more rows than a shard.
#[test]
fn gptq_of_many_blocks_is_that_of_one() {
    let (weight, inputs) = (noise(20, 300, 1), correlated(400, 300, 2));
    let grid = |per| Grid { bits: 4, per, zero_point: false, scale: Scale::Largest };
    let run = |per| {
        calibrated(Gptq { grid: grid(per), damping: 0.01, order: Order::Given }, &weight, &inputs)
    };
    // Groups of 300 columns are rows, and make one block of all columns.
    let [rows, groups] = [Per::Row, Per::Group(300)].map(run);
    assert_eq!(rows.dequantised, groups.dequantised);
    let parts = run(Per::Group(100));
    assert!(parts.error < parts.nearest_error);
}

#[test]
fn one_calibration_frame_suffices() {
    let gptq = Gptq {
        grid: Grid { bits: 4, per: Per::Row, zero_point: false, scale: Scale::Largest },
        damping: 0.01,
        order: Order::Given,
    };
    let found = calibrated(gptq, &noise(16, 64, 1), &noise(1, 64, 2));
    assert!(found.error < 0.1 * found.nearest_error, "{} {}", found.error, found.nearest_error);
}

#[test]
fn inputs_that_never_fire_have_weights_of_zero() {
    let mut values = correlated(50, 10, 1).values().to_vec();
    values.iter_mut().skip(3).step_by(10).for_each(|v| *v = 0.0);
    let inputs = Matrix::new("inputs", 50, 10, values).unwrap();
    let grid = Grid { bits: 8, per: Per::Row, zero_point: true, scale: Scale::Largest };
    let gptq = Gptq { grid, damping: 0.01, order: Order::Diagonal };
    let found = calibrated(gptq, &noise(4, 10, 2), &inputs);
    for row in found.dequantised.chunks(10) {
        assert!(row[3] == 0.0 && row.iter().filter(|w| **w == 0.0).count() < 5);
    }
}

#[test]
fn results_do_not_depend_on_threads() {
    let (weight, inputs) = (decaying(300, 200, 1), correlated(300, 200, 2));
    let all = || {
        let grid = Grid { bits: 4, per: Per::Group(32), zero_point: true, scale: Scale::Largest };
        let gptq = Gptq { grid, damping: 0.01, order: Order::Diagonal };
        let exact = low_rank(&weight, Rank::Rank(20), Method::Exact);
        let sketched = low_rank(&weight, Rank::Rank(20), Method::Randomised);
        (calibrated(gptq, &weight, &inputs), exact, sketched)
    };
    assert!(all() == pool::serial(all));
}

fn low_rank(weight: &Matrix, rank: Rank, method: Method) -> LowRank {
    Truncation { rank, method, power_iterations: 2, seed: 7 }.run(weight, &RUNNING).unwrap()
}

/// The Frobenius norm of the matrix less the product.
fn distance(weight: &Matrix, found: &LowRank) -> f64 {
    let mut sum = 0.0;
    for (w, left) in weight.each_row().zip(found.left.chunks(found.rank)) {
        for (j, w) in w.iter().enumerate() {
            let terms = left
                .iter()
                .enumerate()
                .map(|(k, l)| f64::from(*l) * f64::from(found.right[k * weight.cols() + j]));
            sum += (f64::from(*w) - terms.sum::<f64>()).powi(2);
        }
    }
    sum.sqrt()
}

#[test]
fn randomised_truncations_are_nearly_as_good_as_exact_ones() {
    for (rows, cols) in [(300, 150), (150, 301), (200, 200)] {
        let weight = decaying(rows, cols, 3);
        for rank in [1, 8, 25] {
            let exact = low_rank(&weight, Rank::Rank(rank), Method::Exact);
            let sketched = low_rank(&weight, Rank::Rank(rank), Method::Randomised);
            for found in [&exact, &sketched] {
                let measured = distance(&weight, found);
                assert!((measured - found.error).abs() <= 1e-4 * found.error + 1e-5, "{measured}");
                assert_eq!(found.left.len() + found.right.len(), rank * (rows + cols));
            }
            assert!(sketched.error <= 1.02 * exact.error, "{} {}", sketched.error, exact.error);
            assert!(sketched.error >= exact.error * (1.0 - 1e-9));
        }
    }
}

#[test]
fn ranks_chosen_by_energy_and_error_are_the_smallest() {
    let weight = decaying(300, 260, 5);
    let norm = weight.values().iter().map(|w| f64::from(*w).powi(2)).sum::<f64>().sqrt();
    for method in [Method::Exact, Method::Randomised, Method::Auto] {
        for bound in [0.5, 0.1, 0.01] {
            let by_error = low_rank(&weight, Rank::Error(bound), method);
            let by_energy = low_rank(&weight, Rank::Energy(1.0 - bound * bound), method);
            assert_eq!(by_error.rank, by_energy.rank);
            assert!(by_error.error <= bound * norm);
            let less = low_rank(&weight, Rank::Rank(by_error.rank - 1), method);
            assert!(less.error > bound * norm, "{method:?} {bound}");
        }
    }
    // A bound that only the full rank meets, also where the search begins at a small rank.
    let full = noise(140, 150, 1);
    for method in [Method::Exact, Method::Randomised] {
        assert_eq!(low_rank(&full, Rank::Energy(1.0), method).rank, 140);
    }
}

#[test]
fn matrices_of_zeros_and_of_one_number_have_a_truncation() {
    for method in [Method::Exact, Method::Randomised] {
        let zeros = Matrix::new("zeros", 3, 5, vec![0.0; 15]).unwrap();
        let found = low_rank(&zeros, Rank::Rank(2), method);
        assert!(found.left.iter().chain(&found.right).all(|v| *v == 0.0));
        assert_eq!((found.error, found.energy), (0.0, 1.0));
        assert_eq!(low_rank(&zeros, Rank::Energy(0.9), method).rank, 1);
        let one = Matrix::new("one", 1, 1, vec![-4.0]).unwrap();
        let found = low_rank(&one, Rank::Error(0.0), method);
        assert!((found.left[0] * found.right[0] + 4.0).abs() < 1e-6);
    }
}

#[test]
fn smoothing_keeps_the_outputs_and_moves_the_largest_input() {
    let (weight, mut x) = (noise(6, 8, 1), noise(1, 8, 2).values().to_vec());
    x[2] = 50.0;
    x[5] = 0.0;
    let maxima: Vec<f32> = x.iter().map(|x| x.abs()).collect();
    let smoothed = smooth(&weight, &maxima, 0.5).unwrap();
    let dot = |w: &[f32], x: &[f32]| w.iter().zip(x).map(|(w, x)| w * x).sum::<f32>();
    let divided: Vec<f32> = x.iter().zip(&smoothed.factors).map(|(x, s)| x / s).collect();
    for (w, own) in weight.each_row().zip(smoothed.weight.chunks(8)) {
        assert!((dot(w, &x) - dot(own, &divided)).abs() < 1e-3);
    }
    assert_eq!(smoothed.factors[5], 1.0);
    // With alpha 1/2 inputs and weights have the same largest magnitude.
    let most = smoothed.weight.iter().skip(2).step_by(8).fold(0f32, |m, w| m.max(w.abs()));
    assert!((most / divided[2] - 1.0).abs() < 1e-5);
}

#[test]
fn rows_and_columns_with_small_norms_are_removed() {
    let weight = Matrix::new("weight", 3, 2, vec![3.0, 0.0, 0.1, 0.1, 0.0, -2.0]).unwrap();
    let rows = structured(&weight, 1.0 / 3.0, Axis::Rows).unwrap();
    assert_eq!((rows.kept, rows.weight.values()), (vec![0, 2], &[3.0, 0.0, 0.0, -2.0][..]));
    let columns = structured(&weight, 0.5, Axis::Columns).unwrap();
    assert_eq!((columns.kept, columns.weight.values()), (vec![0], &[3.0, 0.1, 0.0][..]));
    let all = structured(&weight, 1.0, Axis::Rows).unwrap_err();
    assert!(all.to_string().starts_with("sparsity: 1 is outside"), "{all}");
}

#[test]
fn the_sparsity_follows_a_cubic() {
    let at = |step| sparsity_at(step, 10, [0.1, 0.9]).unwrap();
    assert_eq!([at(10), at(11)], [0.9, 0.9]);
    assert!((at(0) - 0.1).abs() < 1e-12 && (at(5) - (0.9 - 0.8 / 8.0)).abs() < 1e-12);
    assert!((0..10).all(|step| at(step) < at(step + 1)));
}

#[test]
fn gradients_of_distillation_are_those_of_finite_differences() {
    for kind in [Kind::Categorical, Kind::Bernoulli] {
        let target = match kind {
            Kind::Categorical => Target::Classes(vec![0, 3, 1]),
            Kind::Bernoulli => Target::Bits((0..12).map(|i| i % 2).collect()),
        };
        let loss = Distillation { kind, temperature: 3.0, alpha: 0.7 };
        let teachers = [noise(3, 4, 1), noise(3, 4, 2)];
        let student = noise(3, 4, 3);
        let found = loss.run(&student, &teachers, Some(&target)).unwrap();
        for i in 0..12 {
            let at = |by: f32| {
                let mut values = student.values().to_vec();
                values[i] += by;
                let moved = Matrix::new("student", 3, 4, values).unwrap();
                loss.run(&moved, &teachers, Some(&target)).unwrap().loss
            };
            let slope = (at(1e-3) - at(-1e-3)) / 2e-3;
            assert!((slope - f64::from(found.gradient[i])).abs() < 1e-4, "{kind:?} {i}");
        }
        let own = loss.run(&student, std::slice::from_ref(&student), Some(&target)).unwrap();
        assert!(own.soft.abs() < 1e-12);
    }
}

#[test]
fn finite_logits_have_finite_losses() {
    let far = Matrix::new("far", 1, 3, vec![1e30, -1e30, 0.0]).unwrap();
    let other = Matrix::new("other", 1, 3, vec![-1e30, 1e30, 5.0]).unwrap();
    for (kind, target) in [
        (Kind::Categorical, Target::Classes(vec![1])),
        (Kind::Bernoulli, Target::Bits(vec![0, 1, 1])),
    ] {
        let loss = Distillation { kind, temperature: 0.5, alpha: 0.5 };
        let found = loss.run(&far, &[other.clone(), far.clone()], Some(&target)).unwrap();
        let all = [found.loss, found.soft, found.hard];
        assert!(all.iter().all(|v| v.is_finite() && *v > 1.0), "{all:?}");
        assert!(found.gradient.iter().all(|v| v.is_finite()));
    }
}

#[test]
fn fake_quantisation_starts_from_the_own_range() {
    let x = noise(3, 10, 1);
    for (zero_point, learned) in [(false, false), (true, false), (true, true)] {
        let grid = Grid { bits: 4, per: Per::Row, zero_point, scale: Scale::Largest };
        let options = FakeOptions { grid, full_range: false, learned };
        let gradient = Some(vec![1.0; 30]);
        let faked = Fake { gradient, ..Fake::default() }.run(&x, options).unwrap();
        let want = Quantised::nearest(&x, grid).unwrap().dequantise().unwrap();
        let off = faked.y.iter().zip(&want).map(|(y, w)| (y - w).abs()).fold(0.0, f32::max);
        assert!(off < 1e-5, "{zero_point} {learned}: {off}");
        let [dx, steps, zeros] = faked.gradients.unwrap();
        assert!(learned || dx == [1.0; 30]);
        assert_eq!([steps.len(), zeros.len()], if learned { [3, 3] } else { [0, 0] });
        let again = Fake {
            steps: Some(faked.steps),
            zeros: zero_point.then_some(faked.zeros),
            gradient: None,
        };
        assert_eq!(again.run(&x, options).unwrap().y, faked.y);
    }
}

fn named<T: std::fmt::Debug>(result: sconce_tensor::Result<T>, start: &str) {
    let text = result.unwrap_err().to_string();
    assert!(text.starts_with(start), "{text} does not start with {start}");
}

#[test]
fn wrong_matrices_grids_and_ranks_are_named() {
    let weight = noise(4, 6, 1);
    named(
        Matrix::new("weight", 0, 3, vec![]),
        "weight: expected a matrix with numbers, got [0, 3]",
    );
    named(Matrix::new("weight", 2, 3, vec![0.0; 5]), "weight: expected [2, 3] numbers, got 5");
    named(Matrix::new("weight", 1, 2, vec![0.0, f32::NAN]), "weight is not finite (NaN)");
    for bits in [0, 1, 9] {
        let grid = Grid { bits, per: Per::Row, zero_point: false, scale: Scale::Largest };
        named(Quantised::nearest(&weight, grid), "bits: ");
    }
    let empty = Grid { bits: 8, per: Per::Group(0), zero_point: false, scale: Scale::Largest };
    named(Quantised::nearest(&weight, empty), "group: 0 is outside");
    named(magnitude(&weight, 1.5, Share::Row), "sparsity: 1.5 is outside 0..1");
    named(magnitude(&weight, f64::NAN, Share::Row), "sparsity: ");
    named(two_four(&weight), "columns: expected a multiple of 4, got 6");
    named(sparsity_at(0, 0, [0.0, 1.0]), "steps: ");
    named(sparsity_at(0, 1, [0.0, 1.1]), "sparsity: ");
    named(smooth(&weight, &[1.0; 5], 0.5), "calibration: expected maxima of 6 inputs, got 5");
    named(smooth(&weight, &[-1.0; 6], 0.5), "maximum of an input: ");
    named(smooth(&weight, &[1.0; 6], 2.0), "alpha: ");
    let truncate = |rank, power_iterations| {
        Truncation { rank, method: Method::Auto, power_iterations, seed: 0 }.run(&weight, &RUNNING)
    };
    named(truncate(Rank::Rank(5), 0), "rank: 5 is outside 1..4");
    named(truncate(Rank::Rank(0), 0), "rank: 0 is outside 1..4");
    named(truncate(Rank::Energy(1.5), 0), "energy: ");
    named(truncate(Rank::Error(-0.5), 0), "error: ");
    named(truncate(Rank::Rank(1), 65), "power_iterations: ");
}

#[test]
fn wrong_calibrations_are_named() {
    let weight = noise(4, 6, 1);
    let grid = Grid { bits: 4, per: Per::Row, zero_point: false, scale: Scale::Largest };
    let gptq = |damping, values: &Matrix| {
        Gptq { grid, damping, order: Order::Given }.run(&weight, &Hessian::of(values)?, &RUNNING)
    };
    let square = |values: [f32; 36]| Matrix::new("hessian", 6, 6, values.to_vec()).unwrap();
    let unit = |at: f32| std::array::from_fn(|i| if i % 7 == 0 { at } else { 0.0 });
    assert!(gptq(0.0, &square(unit(1.0))).is_ok());
    named(gptq(0.01, &square(unit(0.0))), "calibration: expected inputs that fire, got zeros");
    named(gptq(0.01, &square(unit(-1.0))), "hessian: expected a diagonal");
    named(gptq(0.01, &noise(5, 6, 1)), "hessian: expected [5, 5], got [5, 6]");
    named(gptq(2.0, &square(unit(1.0))), "damping: 2 is outside 0..1");
    let mut crooked = unit(1.0);
    crooked[1] = 0.5;
    named(gptq(0.01, &square(crooked)), "hessian: expected a symmetric matrix");
    (crooked[1], crooked[6]) = (3.0, 3.0);
    named(gptq(0.01, &square(crooked)), "hessian: expected a positive definite matrix");
    let inputs = Hessian::of_inputs(&noise(3, 5, 1), &RUNNING).unwrap();
    let other = Gptq { grid, damping: 0.01, order: Order::Given };
    named(other.run(&weight, &inputs, &RUNNING), "calibration: expected inputs of width 6, got 5");
}

#[test]
fn wrong_codes_are_named() {
    let good = Quantised::nearest(
        &noise(2, 6, 1),
        Grid { bits: 4, per: Per::Group(3), zero_point: true, scale: Scale::Largest },
    )
    .unwrap();
    let wrong = |change: fn(&mut Quantised), start: &str| {
        let mut changed = good.clone();
        change(&mut changed);
        named(changed.checked(), start);
    };
    wrong(|q| q.codes[3] = 16, "code: 16 is outside 0..15");
    wrong(|q| q.zeros[1] = -1, "zero: -1 is outside 0..15");
    wrong(|q| q.rows = 3, "codes: expected [3, 6], got 12");
    wrong(|q| q.scales.truncate(3), "scales: expected 4, got 3");
    wrong(|q| q.zeros.truncate(3), "zeros: expected 4, got 3");
    wrong(|q| q.scales[0] = f32::INFINITY, "scale is not finite");
    wrong(|q| q.scales[0] = -1.0, "scale: -1 is outside");
    wrong(|q| q.order = vec![0, 1, 2, 3, 4, 4], "order: expected each of 6 columns once");
    wrong(|q| q.order = vec![0, 1], "order: ");
    wrong(|q| q.grid.bits = 1, "bits: ");
}

#[test]
fn wrong_losses_and_steps_are_named() {
    let (student, teacher) = (noise(2, 3, 1), noise(2, 3, 2));
    let loss = Distillation { kind: Kind::Categorical, temperature: 1.0, alpha: 0.5 };
    let classes = Target::Classes(vec![0, 2]);
    let run = |loss: Distillation, teachers: &[Matrix], target: Option<&Target>| {
        loss.run(&student, teachers, target)
    };
    let one = std::slice::from_ref(&teacher);
    assert!(run(loss, one, Some(&classes)).is_ok());
    assert_eq!(run(Distillation { alpha: 1.0, ..loss }, one, None).unwrap().hard, 0.0);
    named(run(loss, one, None), "target: expected labels");
    named(run(loss, &[], Some(&classes)), "teachers: ");
    named(run(loss, &[noise(2, 4, 1)], Some(&classes)), "logits of a teacher: expected [2, 3]");
    named(run(loss, one, Some(&Target::Classes(vec![0, 3]))), "target: 3 is outside 0..2");
    named(run(loss, one, Some(&Target::Classes(vec![0]))), "target: expected 2, got 1");
    named(run(loss, one, Some(&Target::Bits(vec![0; 6]))), "target: expected a class");
    let bits = Distillation { kind: Kind::Bernoulli, ..loss };
    named(run(bits, one, Some(&Target::Bits(vec![2; 6]))), "target: 2 is outside 0..1");
    named(run(bits, one, Some(&classes)), "target: expected bits");
    named(run(Distillation { temperature: 0.0, ..loss }, one, Some(&classes)), "temperature: ");
    named(run(Distillation { alpha: -1.0, ..loss }, one, Some(&classes)), "alpha: ");

    let grid = |zero_point| Grid { bits: 4, per: Per::Row, zero_point, scale: Scale::Largest };
    let fake = |steps: Option<Vec<f32>>, zeros: Option<Vec<f32>>, zero_point, full_range| {
        let options = FakeOptions { grid: grid(zero_point), full_range, learned: false };
        Fake { steps, zeros, gradient: None }.run(&student, options)
    };
    named(fake(Some(vec![1.0]), None, false, false), "steps: expected 2, got 1");
    named(fake(Some(vec![0.0; 2]), None, false, false), "step: 0 is outside");
    named(fake(Some(vec![1.0; 2]), None, true, false), "zero: expected one for each step");
    named(fake(Some(vec![1.0; 2]), Some(vec![0.5; 2]), true, false), "zero: 0.5 is outside 0..15");
    named(fake(None, Some(vec![0.0; 2]), true, false), "zero: expected steps beside them");
    named(fake(None, Some(vec![0.0; 2]), false, false), "zero: expected none without zero points");
    named(fake(None, None, true, true), "range: ");
}

#[test]
fn work_ends_after_a_cancellation() {
    let (weight, ended) = (noise(20, 30, 1), AtomicBool::new(true));
    let hessian = Hessian::of_inputs(&correlated(50, 30, 2), &RUNNING).unwrap();
    let grid = Grid { bits: 4, per: Per::Row, zero_point: false, scale: Scale::Largest };
    let gptq = Gptq { grid, damping: 0.01, order: Order::Given };
    let truncation =
        Truncation { rank: Rank::Rank(3), method: Method::Exact, power_iterations: 1, seed: 0 };
    let kinds = [
        gptq.run(&weight, &hessian, &ended).unwrap_err().kind(),
        Hessian::of_inputs(&weight, &ended).unwrap_err().kind(),
        truncation.run(&weight, &ended).unwrap_err().kind(),
        Truncation { method: Method::Randomised, ..truncation }
            .run(&weight, &ended)
            .unwrap_err()
            .kind(),
    ];
    assert_eq!(kinds, [ErrorKind::Cancelled; 4]);
}
