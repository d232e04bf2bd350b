//! Backbones, decisions and steps with composed ops or kernels against those of the CPU. Where `SCONCE_TEST_CARD` is
//! set, they also run on the card.

#[path = "../backbones/mod.rs"]
mod backbones;
#[path = "../../../ops/tests/common/mod.rs"]
mod common;

mod composed_backbones;
mod heads;
mod steps;
