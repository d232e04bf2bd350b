//! Kinds of heads: the distribution of one part of an action, with its choice, likelihood and gradient.
//!
//! A kind is a folder here, its `mod` line and a row of the table. Its kernel for a card, if it has one, lies in its
//! folder.

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
