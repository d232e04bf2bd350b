//! CUDA kernels beside the ops of the CPU: each is compiled as C++ and run thread by thread, so that the indices
//! it touches are seen where there is no card. With the feature `cuda` the same tests run on a card as well, if
//! they are asked for: `-- --include-ignored`.

mod activation;
#[cfg(feature = "cuda")]
mod card;
mod dropout;
mod emulated;
mod emulator;
mod launch;
mod linear_recurrence;
mod memory;
mod norm;

use launch::{Kernels, Shape, assert_near};
