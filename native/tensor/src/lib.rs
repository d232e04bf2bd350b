//! What numbers stand on: devices and their memory, launches, the tape, threads, randomness, vectors; errors and files.
#![warn(unreachable_pub)]

pub mod bounded;
pub mod device;
pub mod digest;
pub mod error;
pub mod fs;
pub mod header;
pub mod memory;
pub mod pool;
pub mod precision;
pub mod rng;
pub mod simd;
pub mod tape;
pub mod tensor;

/// What the rooms above take of candle, which none of them names.
pub use candle_core::{self as candle, DType, Device, Shape, Tensor};
pub use error::{Error, Kind, Result};
pub use precision::Precision;
