//! The transform between both domains: a complex transform of half the length, and vector code that joins its halves
//! (Sorensen et al. 1987, "Real-valued fast Fourier transform algorithms").

use std::sync::{Arc, Mutex};

use num_complex::Complex;
use rustfft::algorithm::{BluesteinsAlgorithm, Radix4};
use rustfft::{Fft, FftDirection};
use sconce_tensor::dispatch;
use sconce_tensor::simd::mul_add;
#[cfg(target_arch = "x86_64")]
use sconce_tensor::simd::{Level, level};

/// Bins that are computed together.
const BINS: usize = 8;
/// Plans that are kept.
const KEPT: usize = 8;

const DIRECTIONS: [FftDirection; 2] = [FftDirection::Forward, FftDirection::Inverse];

static PLANS: Mutex<Vec<Arc<Plan>>> = Mutex::new(Vec::new());

/// Tables for vectors of one dimension.
pub(crate) struct Plan {
    dimension: usize,
    forward: Arc<dyn Fft<f32>>,
    inverse: Arc<dyn Fft<f32>>,
    /// Cosine and sine of `2 pi k / d` for the bins `0..=d/4`.
    cos: Vec<f32>,
    sin: Vec<f32>,
}

/// The complex transforms of a length, forward and inverse.
fn planned(length: usize) -> [Arc<dyn Fft<f32>>; 2] {
    #[cfg(target_arch = "x86_64")]
    if level() != Level::Portable
        && let Ok(mut planner) = rustfft::FftPlannerAvx::new()
    {
        return DIRECTIONS.map(|direction| planner.plan_fft(length, direction));
    }
    #[cfg(target_arch = "aarch64")]
    if let Ok(mut planner) = rustfft::FftPlannerNeon::new() {
        return DIRECTIONS.map(|direction| planner.plan_fft(length, direction));
    }
    DIRECTIONS.map(|direction| plain(length, direction))
}

/// A transform without vector code. Rustfft's planner is faster, and would add 200 kB to the library for CPUs that few have.
fn plain(length: usize, direction: FftDirection) -> Arc<dyn Fft<f32>> {
    if length.is_power_of_two() {
        return Arc::new(Radix4::new(length, direction));
    }
    let inner = Radix4::new((2 * length - 1).next_power_of_two(), direction);
    Arc::new(BluesteinsAlgorithm::new(length, Arc::new(inner)))
}

/// The factor of bins 0 and `d/2` of the spectrum, and that of the others.
pub(crate) fn factors(dimension: usize) -> (f32, f32) {
    let d = dimension as f64;
    ((1.0 / d).sqrt() as f32, (2.0 / d).sqrt() as f32)
}

impl Plan {
    /// The plan of a dimension, which is even.
    pub(crate) fn of(dimension: usize) -> Arc<Plan> {
        let kept = || PLANS.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(plan) = kept().iter().find(|plan| plan.dimension == dimension) {
            return plan.clone();
        }
        let plan = Arc::new(Plan::new(dimension));
        let mut plans = kept();
        if plans.len() == KEPT {
            plans.remove(0);
        }
        plans.push(plan.clone());
        plan
    }

    fn new(dimension: usize) -> Self {
        let half = dimension / 2;
        let [forward, inverse] = planned(half);
        let angle = |k: usize| std::f64::consts::TAU * k as f64 / dimension as f64;
        let (sin, cos) = (0..=half / 2)
            .map(|k| {
                let (sin, cos) = angle(k).sin_cos();
                (sin as f32, cos as f32)
            })
            .unzip();
        Plan { dimension, forward, inverse, cos, sin }
    }

    /// Buffers for the transforms of one thread.
    pub(crate) fn scratch(&self) -> Scratch {
        let lengths = [&self.forward, &self.inverse].map(|fft| fft.get_outofplace_scratch_len());
        let zeros = |count| vec![Complex::default(); count];
        Scratch {
            halves: [zeros(self.dimension / 2), zeros(self.dimension / 2)],
            rest: zeros(lengths[0].max(lengths[1])),
        }
    }

    /// Writes the spectrum of numbers.
    pub(crate) fn forward(&self, numbers: &[f32], spectrum: &mut [f32], scratch: &mut Scratch) {
        let Scratch { halves: [pairs, halves], rest } = scratch;
        pairs.copy_from_slice(bytemuck::cast_slice(numbers));
        self.forward.process_outofplace_with_scratch(pairs, halves, rest);
        join(self, bytemuck::cast_slice(halves), spectrum);
    }

    /// Writes the numbers of a spectrum.
    pub(crate) fn inverse(&self, spectrum: &[f32], numbers: &mut [f32], scratch: &mut Scratch) {
        let Scratch { halves: [halves, _], rest } = scratch;
        split(self, spectrum, bytemuck::cast_slice_mut(halves));
        let pairs = bytemuck::cast_slice_mut(numbers);
        self.inverse.process_outofplace_with_scratch(halves, pairs, rest);
    }
}

/// Buffers of [`Plan::scratch`].
pub(crate) struct Scratch {
    halves: [Vec<Complex<f32>>; 2],
    rest: Vec<Complex<f32>>,
}

/// The first number of each block whose bins and mirrored bins [`join`] and [`split`] compute together, and the first
/// bin after all blocks.
fn blocks(half: usize) -> (impl Iterator<Item = usize>, usize) {
    let count = (half / 2) / BINS;
    ((0..count).map(|block| 1 + block * BINS), 1 + count * BINS)
}

#[inline(always)]
fn lanes(row: &[f32], at: usize) -> [f32; BINS] {
    std::array::from_fn(|i| row[at..at + BINS][i])
}

#[inline(always)]
fn mirrored(lanes: [f32; BINS]) -> [f32; BINS] {
    std::array::from_fn(|i| lanes[BINS - 1 - i])
}

#[inline(always)]
fn put(row: &mut [f32], at: usize, lanes: [f32; BINS]) {
    row[at..at + BINS].copy_from_slice(&lanes);
}

/// The bins `k` and `half - k` of the spectrum of real numbers, of the bins `a` and `b` of that of their pairs.
#[inline(always)]
fn joined<const FMA: bool>(a: [f32; 2], b: [f32; 2], [cos, sin]: [f32; 2]) -> ([f32; 2], [f32; 2]) {
    let (even, odd) = ([a[0] + b[0], a[1] - b[1]], [a[1] + b[1], b[0] - a[0]]);
    let re = mul_add::<FMA>(cos, odd[0], sin * odd[1]);
    let im = mul_add::<FMA>(cos, odd[1], -(sin * odd[0]));
    ([even[0] + re, even[1] + im], [even[0] - re, im - even[1]])
}

/// The inverse of [`joined`].
#[inline(always)]
fn parted<const FMA: bool>(x: [f32; 2], y: [f32; 2], [cos, sin]: [f32; 2]) -> ([f32; 2], [f32; 2]) {
    let (even, odd) = ([x[0] + y[0], x[1] - y[1]], [x[0] - y[0], x[1] + y[1]]);
    let re = mul_add::<FMA>(cos, odd[0], -(sin * odd[1]));
    let im = mul_add::<FMA>(cos, odd[1], sin * odd[0]);
    ([even[0] - im, even[1] + re], [even[0] + im, re - even[1]])
}

dispatch! {
    /// Writes the spectrum of real numbers, of the transform of their pairs.
    fn join(plan: &Plan, pairs: &[f32], spectrum: &mut [f32]) {
        let half = plan.dimension / 2;
        let (real, other) = factors(plan.dimension);
        let other = 0.5 * other;
        let (re, im) = spectrum.split_at_mut(half);
        re[0] = (pairs[0] + pairs[1]) * real;
        im[0] = (pairs[0] - pairs[1]) * real;
        let (blocks, rest) = blocks(half);
        for k in blocks {
            let mirror = half + 1 - k - BINS;
            let a = &pairs[2 * k..][..2 * BINS];
            let b = &pairs[2 * mirror..][..2 * BINS];
            let (cos, sin) = (lanes(&plan.cos, k), lanes(&plan.sin, k));
            let mut own = [[0.0; BINS]; 2];
            let mut others = [[0.0; BINS]; 2];
            for i in 0..BINS {
                let j = BINS - 1 - i;
                let pair = ([a[2 * i], a[2 * i + 1]], [b[2 * j], b[2 * j + 1]]);
                let (x, y) = joined::<FMA>(pair.0, pair.1, [cos[i], sin[i]]);
                for part in 0..2 {
                    own[part][i] = x[part] * other;
                    others[part][i] = y[part] * other;
                }
            }
            put(re, k, own[0]);
            put(im, k, own[1]);
            put(re, mirror, mirrored(others[0]));
            put(im, mirror, mirrored(others[1]));
        }
        for k in rest..=half / 2 {
            let m = half - k;
            let (a, b) = ([pairs[2 * k], pairs[2 * k + 1]], [pairs[2 * m], pairs[2 * m + 1]]);
            let (x, y) = joined::<FMA>(a, b, [plan.cos[k], plan.sin[k]]);
            (re[k], im[k]) = (x[0] * other, x[1] * other);
            (re[m], im[m]) = (y[0] * other, y[1] * other);
        }
    }
}

dispatch! {
    /// Writes the transform of the pairs of real numbers, divided by the number of pairs: the inverse of [`join`].
    fn split(plan: &Plan, spectrum: &[f32], pairs: &mut [f32]) {
        let half = plan.dimension / 2;
        let (real, other) = factors(plan.dimension);
        let other = 0.5 * other;
        let (re, im) = spectrum.split_at(half);
        pairs[0] = (re[0] + im[0]) * real;
        pairs[1] = (re[0] - im[0]) * real;
        let (blocks, rest) = blocks(half);
        for k in blocks {
            let mirror = half + 1 - k - BINS;
            let x = [lanes(re, k), lanes(im, k)];
            let y = [mirrored(lanes(re, mirror)), mirrored(lanes(im, mirror))];
            let (cos, sin) = (lanes(&plan.cos, k), lanes(&plan.sin, k));
            let mut own = [0.0; 2 * BINS];
            let mut others = [0.0; 2 * BINS];
            for i in 0..BINS {
                let bins = ([x[0][i], x[1][i]], [y[0][i], y[1][i]]);
                let (a, b) = parted::<FMA>(bins.0, bins.1, [cos[i], sin[i]]);
                let j = BINS - 1 - i;
                for part in 0..2 {
                    own[2 * i + part] = a[part] * other;
                    others[2 * j + part] = b[part] * other;
                }
            }
            pairs[2 * k..][..2 * BINS].copy_from_slice(&own);
            pairs[2 * mirror..][..2 * BINS].copy_from_slice(&others);
        }
        for k in rest..=half / 2 {
            let m = half - k;
            let (a, b) =
                parted::<FMA>([re[k], im[k]], [re[m], im[m]], [plan.cos[k], plan.sin[k]]);
            for part in 0..2 {
                pairs[2 * k + part] = a[part] * other;
                pairs[2 * m + part] = b[part] * other;
            }
        }
    }
}
