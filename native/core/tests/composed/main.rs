//! Ops, backbones and steps that are composed of candle's ops, or that kernels do, beside those of the CPU.
//! Where `SCONCE_TEST_CARD` is set, on the card too.

#[path = "../common/mod.rs"]
mod common;

mod activation;
mod attention;
mod backbones;
mod dense;
mod frames;
mod heads;
mod matrix_state;
mod norm;
mod recurrent;
mod scan;
mod steps;
mod tape;
