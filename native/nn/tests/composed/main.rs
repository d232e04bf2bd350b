//! Backbones, decisions and steps whose ops are composed of candle's, or that kernels do, beside those of the CPU. Where
//! `SCONCE_TEST_CARD` is set, on the card too.

#[path = "../backbones/mod.rs"]
mod backbones;
#[path = "../../../ops/tests/common/mod.rs"]
mod common;

mod composed_backbones;
mod heads;
mod steps;
