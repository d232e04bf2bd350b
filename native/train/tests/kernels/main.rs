//! CUDA kernels of a training step beside what the CPU does, as in `native/core/tests/kernels`.

mod adamw;
#[cfg(feature = "cuda")]
#[path = "../../../core/tests/kernels/card.rs"]
mod card;
#[path = "../../../core/tests/kernels/emulated.rs"]
mod emulated;
#[path = "../../../core/tests/kernels/launch.rs"]
mod launch;
mod loss;
#[path = "../../../core/tests/kernels/memory.rs"]
mod memory;

use launch::{Kernels, Shape, assert_near};
