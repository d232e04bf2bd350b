//! Kinds of heads: what a policy says of one part of an action, and how it is chosen, learned and scored.
//!
//! A kind is a folder here, its `mod` line and a row of the table. Its form on a card, if it has one, lies beside it.

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
