//! Each number on its own: activations, products with a gate, dropout, a scaled skip.
//!
//! What belongs here looks neither along the features nor along the time.

pub mod activation;
pub mod dropout;
pub mod glu;
pub mod skip;

pub use activation::{Activation, activate, gated};
pub use dropout::{dropout, dropout_columns};
pub use glu::glu;
pub use skip::skip;
