//! The Spec of a policy, its layers and weights, and the forward pass.
#![warn(unreachable_pub)]

mod action;
pub mod backbone;
mod bounds;
pub mod checkpoint;
pub mod embedding;
pub mod head;
pub mod heads;
pub mod layer;
pub mod packed;
pub mod policy;
pub mod projection;
pub mod sampling;
pub mod spec;

pub use policy::Policy;
use sconce_ops::{self as ops, weights};
use sconce_tensor::{Error, Kind, Result, device, digest, fs, header, memory, pool, rng};
pub use spec::Spec;
