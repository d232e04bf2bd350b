//! Ops against slow references, by finite differences, and what they refuse.

#[path = "../common/mod.rs"]
mod common;

mod arithmetic;
mod attention;
mod causal_conv;
mod feed_forward;
mod linear_recurrence;
mod matrix_state;
mod selective_scan;
