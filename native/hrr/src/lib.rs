//! Holographic reduced representations (Plate 1995): vectors that are bound by circular convolution.
//!
//! [`Vectors`] are rows of `d` numbers in one of two [`Domain`]s. The transform between both keeps lengths and
//! angles, so sums, norms and dot products are the same code in both. Random numbers depend on a seed and an index,
//! so the number of threads changes no bit of a result.

#![warn(unreachable_pub)]

mod atoms;
mod binding;
mod card;
mod codes;
mod fourier;
mod hadamard;
mod power;
mod similarity;
mod superposition;
mod tile;
mod vectors;

pub use atoms::Kind;
pub use card::{CardCodes, CardItems, CardVectors, MOST_ON_CARD};
pub use codes::Codes;
pub use similarity::{Found, Items};
pub use superposition::Sum;
pub use vectors::{Domain, MOST_DIMENSION, Vectors};
