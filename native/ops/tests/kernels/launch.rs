//! The interface that runs kernels, and the comparison of their results.

use crate::memory::Argument;

/// A shape of a grid or of a block.
pub type Shape = [u32; 3];

/// The kernels of a file, on a card or emulated.
pub trait Kernels {
    /// Runs a kernel to its end; the arguments are those of its signature, in order.
    fn launch(&self, kernel: &str, grid: Shape, block: Shape, arguments: &mut [Argument]) {
        self.launch_with(kernel, grid, block, None, arguments);
    }

    /// Runs a kernel whose blocks wait for each other if `together` is given: the bytes of its dynamic shared memory.
    fn launch_with(
        &self,
        kernel: &str,
        grid: Shape,
        block: Shape,
        together: Option<u32>,
        arguments: &mut [Argument],
    );
}

/// Checks `|got - want| <= tolerance * max(max|want|, 0.1)`: differences of two numbers have rounding errors of their
/// size.
pub fn assert_near(what: &str, got: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(got.len(), want.len(), "{what}");
    let bound = tolerance * want.iter().fold(0.1f32, |most, v| most.max(v.abs()));
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!(
            (got - want).abs() <= bound,
            "{what}[{i}]: got {got}, expected {want} within {bound}"
        );
    }
}
