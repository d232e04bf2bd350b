//! CUDA kernels compared with the ops of the CPU. Each is compiled as C++ and run thread by thread, so that wrong
//! indices are found without a card. With the feature `cuda` the same tests run on a card too, if requested: `--
//! --include-ignored`.

mod activation;
mod attention;
#[cfg(feature = "cuda")]
mod candle;
#[cfg(feature = "cuda")]
mod card;
mod causal_conv;
mod columns;
mod dropout;
mod elements;
mod emulated;
mod emulator;
mod few_rows;
mod gather;
#[cfg(feature = "cuda")]
mod graphs;
mod last;
mod launch;
mod linear_recurrence;
mod mamba_step;
mod matrix_state;
mod memory;
mod norm;
mod recurrent;
mod rotary;
mod rows;
mod selective_scan;
mod wkv;

use launch::{Kernels, Shape, assert_near};

/// The sum of parts of `count` numbers each.
fn sum(parts: &[f32], count: usize) -> Vec<f32> {
    let mut sum = vec![0.0; count];
    for part in parts.chunks_exact(count.max(1)) {
        sum.iter_mut().zip(part).for_each(|(sum, v)| *sum += v);
    }
    sum
}
