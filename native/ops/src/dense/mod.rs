//! Linear layers, alone or several at once.
//!
//! An op of this folder takes one frame at a time and is a product with a trained matrix.

pub mod branches;
pub(crate) mod card;
pub(crate) mod composed;
pub(crate) mod composites;
pub mod feed_forward;
pub(crate) mod layers;
pub mod linear;
pub mod parts;
pub mod perceptron;
pub mod project;

pub use branches::branches;
pub use feed_forward::{feed_forward, feed_forward_residual};
pub use layers::{Activated, Affine, Branch, Dense};
pub use linear::{linear, linear_norm};
pub use parts::linear_parts;
pub use perceptron::perceptron;
pub use project::project;
