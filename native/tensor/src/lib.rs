//! The foundation of all numeric code: devices and their memory, kernel launches, the tape, threads, random numbers,
//! SIMD; errors and files.
#![warn(unreachable_pub)]

pub mod bounded;
pub mod device;
pub mod digest;
mod elements;
pub mod error;
pub mod fs;
pub mod header;
pub mod mapped;
pub mod memory;
pub mod metrics;
pub mod pool;
pub mod precision;
pub mod region;
pub mod rng;
pub mod simd;
pub mod tape;
pub mod tensor;
pub mod trace;
pub mod trig;

/// Candle's types for dependent crates, which do not depend on candle themselves.
pub use candle_core::{self as candle, DType, Device, Shape, Tensor};
pub use error::{Error, Kind, Result};
pub use precision::Precision;
