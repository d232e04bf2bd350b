//! Kinds of heads: the distribution of one part of an action, with its choice, likelihood and gradient.
//!
//! Each kind has a folder here, a `mod` line and a row of the table. The folder also holds the kind's CUDA kernel, if
//! any.

mod bernoulli;
mod categorical;
mod counter;
mod distribution;
mod gaussian;
mod label;
mod table;
mod value;

pub(crate) use distribution::PriorRead;
pub use distribution::{BaselineKind, Chance, Direction, Pair, Shape};
pub use gaussian::Gaussian;
pub use label::{NONE, known, of_word, to_word};
pub use table::HeadKind;
