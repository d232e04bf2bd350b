//! Numbers from numbers: the Spec, its layers, and the weights they hold.

pub mod backbone;
pub mod checkpoint;
pub mod embedding;
pub mod heads;
pub mod layer;
pub mod policy;
pub mod projection;
pub mod sampling;
pub mod spec;

pub use sconce_ops::{self as ops, ceilings, weights};
pub use sconce_tensor::{
    Error, Kind, Precision, Result, device, digest, error, fs, header, memory, pool, precision, rng,
};

pub use policy::Policy;
pub use spec::Spec;
