//! Upper bounds of the machine, against which benchmarks are compared.

use std::hint::black_box;
use std::time::Instant;

use crate::matmul;
use crate::simd::{dispatch, exp_with};

/// Sums that one loop keeps in registers: twelve vectors of 16, enough to hide the four cycles that a multiply-add
/// takes on two ports.
const STRIDE: usize = 12 * 16;
/// Multiply-adds of each lane in one timed run.
const ROUNDS: usize = 20_000;
/// Exponentials of each lane in one timed run; each takes about as long as ten multiply-adds.
const EXPONENTIALS: usize = ROUNDS / 10;

/// Bytes per second read by `threads` threads. Each reads its own `bytes / threads` repeatedly for about `seconds`. The
/// fastest run counts, because only other load on the machine slows a run.
pub fn read_bandwidth(bytes: usize, threads: usize, seconds: f64) -> f64 {
    let numbers = (bytes / size_of::<f32>() / threads.max(1)).max(STRIDE);
    together(threads, || {
        let data = vec![1.0f32; numbers];
        // The data is read often enough that the clock resolves a run.
        let repeats = ((1 << 20) / numbers).max(1);
        let best = best_of(seconds, || {
            let mut sum = 0.0;
            read(&mut sum, &data, repeats);
            black_box(sum);
        });
        (repeats * numbers * size_of::<f32>()) as f64 / best
    })
}

/// f32 operations per second, a multiply-add counted as two: of the matrix unit where there is one, otherwise of the
/// vector units.
pub fn peak_flops(threads: usize, seconds: f64) -> f64 {
    together(threads, || {
        if matmul::spin(0).is_some() {
            let mut flops = 0.0;
            let best = best_of(seconds, || flops = matmul::spin(ROUNDS).unwrap_or(0.0));
            return flops / best;
        }
        let mut sums = [1.0f32; STRIDE];
        let best = best_of(seconds, || multiply_add(&mut sums, black_box(0.5), black_box(0.5)));
        black_box(&sums);
        (2 * STRIDE * ROUNDS) as f64 / best
    })
}

/// Exponentials per second, of numbers in registers.
pub fn peak_exponentials(threads: usize, seconds: f64) -> f64 {
    together(threads, || {
        let mut numbers = [1.0f32; STRIDE];
        let best = best_of(seconds, || exponentials(&mut numbers));
        black_box(&numbers);
        (STRIDE * EXPONENTIALS) as f64 / best
    })
}

/// The sum of the rates of `threads` concurrent threads.
fn together(threads: usize, rate: impl Fn() -> f64 + Sync) -> f64 {
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(&rate)).collect();
        // A thread that panicked adds nothing.
        handles.into_iter().filter_map(|handle| handle.join().ok()).sum()
    })
}

/// Seconds of the fastest call within about `seconds`.
fn best_of(seconds: f64, mut work: impl FnMut()) -> f64 {
    let clock = Instant::now();
    let mut best = f64::INFINITY;
    while best.is_infinite() || clock.elapsed().as_secs_f64() < seconds {
        let start = Instant::now();
        work();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}

dispatch! {
    fn read(sum: &mut f32, data: &[f32], repeats: usize) {
        let mut sums = [0.0f32; STRIDE];
        for _ in 0..repeats {
            for block in black_box(data).chunks_exact(STRIDE) {
                for i in 0..STRIDE {
                    sums[i] += block[i];
                }
            }
        }
        *sum = sums.iter().sum();
    }
}

dispatch! {
    fn multiply_add(sums: &mut [f32; STRIDE], a: f32, b: f32) {
        let mut own = *sums;
        for _ in 0..ROUNDS {
            for sum in &mut own {
                *sum = sum.mul_add(a, b);
            }
        }
        *sums = own;
    }
}

dispatch! {
    fn exponentials(numbers: &mut [f32; STRIDE]) {
        let mut own = *numbers;
        for _ in 0..EXPONENTIALS {
            for number in &mut own {
                *number = exp_with::<FMA>(-*number);
            }
        }
        *numbers = own;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rate_is_positive() {
        assert!(read_bandwidth(1 << 16, 2, 0.01) > 1e8);
        assert!(peak_flops(1, 0.01) > 1e8);
        assert!(peak_exponentials(1, 0.01) > 1e7);
    }
}
