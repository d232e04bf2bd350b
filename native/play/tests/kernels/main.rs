//! CUDA kernels of learning from play compared with the CPU, as in `native/ops/tests/kernels`.

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
mod places;
mod ppo;
mod returns;

use launch::{Kernels, Shape, assert_near};
