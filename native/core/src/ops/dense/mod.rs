//! Weights times features: linear layers, alone or several at once, and tables of rows.
//!
//! What belongs here reads one frame at a time and is a product with a trained matrix.

pub mod branches;
pub mod feed_forward;
pub mod gather;
pub mod linear;
pub mod parts;
pub mod project;

pub use branches::{Branch, Dense, branches};
pub use feed_forward::{Affine, feed_forward, feed_forward_residual};
pub use gather::{Ids, gather, gather_of};
pub use linear::{linear, linear_norm};
pub use parts::linear_parts;
pub use project::project;
