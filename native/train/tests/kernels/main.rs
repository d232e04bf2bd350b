//! CUDA kernels of a training step compared with the CPU, as in `native/ops/tests/kernels`.

mod adamw;
#[cfg(feature = "cuda")]
#[path = "../../../ops/tests/kernels/card.rs"]
mod card;
#[path = "../../../ops/tests/kernels/emulated.rs"]
mod emulated;
#[path = "../../../ops/tests/kernels/launch.rs"]
mod launch;
mod loss;
#[path = "../../../ops/tests/kernels/memory.rs"]
mod memory;

use launch::{Kernels, Shape, assert_near};
