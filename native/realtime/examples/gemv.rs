//! Microseconds of a product with one vector, by format, beside its bytes:
//!
//! ```text
//! cargo run --release -p sconce-realtime --example gemv [PASSES]
//! ```
//!
//! The matrices of a row are read one after the other, as a step does, so that weights come from the smallest cache that
//! holds all of them. Each time is the median of passes in turns.

use std::time::Instant;

use sconce_ops::weights::Weights;
use sconce_realtime::{Format, Input, Matrix, Packer};
use sconce_tensor::rng::Rng;

/// Number of matrices, outputs and inputs.
const SIZES: [[usize; 3]; 6] =
    [[1, 64, 64], [1, 256, 256], [4, 768, 256], [2, 1024, 1024], [6, 2048, 1024], [8, 4096, 2048]];

fn main() {
    let passes = std::env::args().nth(1).and_then(|own| own.parse().ok()).unwrap_or(201);
    let formats = [
        ("f32", Format::F32),
        ("bf16", Format::Bf16),
        ("int8", Format::Int8(1.0)),
        ("int4", Format::Int4(1.0)),
    ];
    println!(
        "{:>18}  {:>6} {:>10} {:>10} {:>8} {:>8}",
        "matrices", "format", "KiB", "us", "GB/s", "of int8"
    );
    for [count, outputs, inputs] in SIZES {
        let rng = Rng::new(1, "gemv", 0);
        let numbers: Vec<f32> = (0..(outputs * inputs) as u64).map(|i| rng.normal(i)).collect();
        let x: Vec<f32> = (0..inputs as u64).map(|i| rng.normal(i + 77)).collect();
        let mut all: Vec<_> = formats
            .iter()
            .map(|(name, format)| {
                let weights = Weights::new();
                let mut packer = Packer::new(&weights, *format);
                let matrices: Vec<Matrix> = (0..count)
                    .map(|_| Matrix::pack(&mut packer, "w", &numbers, &vec![0.0; outputs]))
                    .collect::<Result<_, _>>()
                    .expect("a matrix");
                let input = Input::new(packer.widest(), 1);
                let (arena, _) = packer.finish().expect("finite weights");
                (*name, matrices, arena, input, vec![])
            })
            .collect();
        let mut y = vec![0.0; outputs];
        for _ in 0..passes {
            for (_, matrices, arena, input, times) in &mut all {
                // The first pass brings the weights back after the other formats.
                for times in [None, Some(times)] {
                    let began = Instant::now();
                    let read = arena.read(|arena| {
                        for matrix in &*matrices {
                            input.read([&x[..]]);
                            matrix.apply(arena, input, &mut y);
                        }
                    });
                    read.expect("weights in memory");
                    times
                        .into_iter()
                        .for_each(|times| times.push(began.elapsed().as_secs_f64() * 1e6));
                }
            }
        }
        let median = |times: &[f64]| {
            let mut times = times.to_vec();
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        };
        let int8 = median(&all[2].4);
        for (name, _, arena, _, times) in &all {
            let (us, bytes) = (median(times), arena.bytes() as f64);
            println!(
                "{:>18}  {name:>6} {:>10.0} {us:>10.2} {:>8.1} {:>8.2}",
                format!("{count} x {outputs}x{inputs}"),
                bytes / 1024.0,
                bytes / us / 1e3,
                us / int8
            );
        }
    }
}
