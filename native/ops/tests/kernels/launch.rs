//! What runs kernels, and how near they come.

use crate::memory::Argument;

/// A shape of a grid or of a block.
pub type Shape = [u32; 3];

/// The kernels of a file, wherever they run.
pub trait Kernels {
    /// Runs a kernel to its end; the arguments are those of its signature, in its order.
    fn launch(&self, kernel: &str, grid: Shape, block: Shape, arguments: &mut [Argument]);
}

/// `|got - want| <= tolerance * max|want|`, with 0.1 at least: a difference of two numbers leaves noise.
pub fn assert_near(what: &str, got: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(got.len(), want.len(), "{what}");
    let bound = tolerance * want.iter().fold(0.1f32, |most, v| most.max(v.abs()));
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() <= bound, "{what}[{i}]: {got}, not {want} within {bound}");
    }
}
