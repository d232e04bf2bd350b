//! Numbers from numbers: the Spec, its layers, and the weights they hold.

pub mod backbone;
pub mod ceilings;
pub mod checkpoint;
pub mod device;
pub mod digest;
pub mod embedding;
pub mod error;
pub mod fs;
pub mod header;
pub mod heads;
pub mod layer;
pub mod memory;
pub mod ops;
pub mod policy;
pub mod pool;
pub mod precision;
pub mod projection;
pub mod rng;
pub mod sampling;
pub mod spec;
pub mod weights;

pub use error::{Error, Kind, Result};
pub use policy::Policy;
pub use precision::Precision;
pub use spec::Spec;
