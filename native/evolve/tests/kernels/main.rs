//! `population.cu` compared with the populations of the CPU, as in `native/ops/tests/kernels`.

#[cfg(feature = "cuda")]
#[path = "../../../ops/tests/kernels/card.rs"]
mod card;
#[path = "../../../ops/tests/kernels/emulated.rs"]
mod emulated;
#[path = "../../../ops/tests/kernels/launch.rs"]
mod launch;
#[path = "../../../ops/tests/kernels/memory.rs"]
#[allow(dead_code, reason = "other kernels take other numbers")]
mod memory;
mod population;

use launch::{Kernels, Shape, assert_near};
