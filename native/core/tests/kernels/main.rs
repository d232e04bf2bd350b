//! CUDA kernels beside the ops of the CPU: each is compiled as C++ and run thread by thread, so that the indices
//! it touches are seen where there is no card. With the feature `cuda` the same tests run on a card as well, if
//! they are asked for: `-- --include-ignored`.

mod attention;
#[cfg(feature = "cuda")]
mod card;
mod emulated;
mod emulator;
mod gather;
#[cfg(feature = "cuda")]
mod graphs;
mod linear_recurrence;
mod matrix_state;
mod memory;
mod norm;
mod sampling;
mod selective_scan;
mod wkv;

use memory::Argument;

/// A shape of a grid or of a block.
type Shape = [u32; 3];

/// The kernels of a file, wherever they run.
trait Kernels {
    /// Runs a kernel to its end; the arguments are those of its signature, in its order.
    fn launch(&self, kernel: &str, grid: Shape, block: Shape, arguments: &mut [Argument]);
}

/// `|got - want| <= tolerance * max|want|`, with 0.1 at least: a difference of two numbers leaves noise.
fn assert_near(what: &str, got: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(got.len(), want.len(), "{what}");
    let bound = tolerance * want.iter().fold(0.1f32, |most, v| most.max(v.abs()));
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() <= bound, "{what}[{i}]: {got}, not {want} within {bound}");
    }
}

/// The sum of parts of `count` numbers each.
fn sum(parts: &[f32], count: usize) -> Vec<f32> {
    let mut sum = vec![0.0; count];
    for part in parts.chunks_exact(count.max(1)) {
        sum.iter_mut().zip(part).for_each(|(sum, v)| *sum += v);
    }
    sum
}
