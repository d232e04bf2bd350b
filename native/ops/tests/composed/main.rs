//! Ops that are composed of candle's, or that kernels do, beside those of the CPU. Where `SCONCE_TEST_CARD` is set, on the
//! card too.

#[path = "../common/mod.rs"]
mod common;

mod activation;
mod attention;
mod dense;
mod frames;
mod matrix_state;
mod norm;
mod recurrent;
mod scan;
mod tape;
