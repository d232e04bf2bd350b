//! Ops compared with slow references and finite differences, and the errors of wrong inputs.

#[path = "../common/mod.rs"]
mod common;

mod arithmetic;
mod attention;
mod causal_conv;
mod fake_quantise;
mod feed_forward;
mod linear_recurrence;
mod matrix_state;
mod perceptron;
mod planes;
mod selective_scan;
