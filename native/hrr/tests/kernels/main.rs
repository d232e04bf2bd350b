//! `holographic.cu` compared with the vectors of the CPU, as in `native/ops/tests/kernels`.

#[cfg(feature = "cuda")]
#[path = "../../../ops/tests/kernels/card.rs"]
mod card;
#[path = "../../../ops/tests/kernels/emulated.rs"]
mod emulated;
mod holographic;
#[path = "../../../ops/tests/kernels/launch.rs"]
mod launch;
#[path = "../../../ops/tests/kernels/memory.rs"]
#[allow(dead_code, reason = "other kernels take other numbers")]
mod memory;

use launch::{Kernels, Shape, assert_near};
