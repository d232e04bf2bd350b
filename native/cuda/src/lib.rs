//! NVIDIA GPUs: reports of their driver, and Sconce's kernels for them.
//!
//! The driver's library is opened on first use, so every build contains this crate at no cost on machines without a
//! GPU. Builds with the feature `cuda` contain the kernels; others contain only their names.
#![warn(unreachable_pub)]

mod driver;
mod drivers;
mod error;
pub mod kernels;
pub mod nvtx;

pub use driver::{Card, Clocks, Driver, Memory, Power, Process, Throttle, Utilization, Versions};
pub use drivers::{Drivers, RETRY};
pub use error::{Cause, Error, Result};
