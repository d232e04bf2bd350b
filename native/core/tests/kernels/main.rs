//! CUDA kernels beside the ops of the CPU: each is compiled as C++ and run thread by thread, so that the indices
//! it touches are seen where there is no card. With the feature `cuda` the same tests run on a card as well, if
//! they are asked for: `-- --include-ignored`.

#[cfg(feature = "cuda")]
mod card;
mod emulated;
mod memory;
mod norm;

use memory::Argument;

/// A shape of a grid or of a block.
type Shape = [u32; 3];

/// The kernels of a file, wherever they run.
trait Kernels {
    /// Runs a kernel to its end; the arguments are those of its signature, in its order.
    fn launch(&self, kernel: &str, grid: Shape, block: Shape, arguments: &mut [Argument]);
}
