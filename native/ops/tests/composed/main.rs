//! Composed ops and kernels compared with the ops of the CPU, also on a card if `SCONCE_TEST_CARD` is set.

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
