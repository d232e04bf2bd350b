//! NVIDIA's GPUs: what their driver reports about them, and Sconce's kernels for them.
//!
//! The driver's library is opened when it is first needed, so every build contains this and it costs nothing without a
//! GPU. Builds with the feature `cuda` contain the kernels, others their names.
#![warn(unreachable_pub)]

mod driver;
mod drivers;
mod error;
pub mod kernels;

pub use driver::{Card, Clocks, Driver, Memory, Power, Process, Utilization, Versions};
pub use drivers::{Drivers, RETRY};
pub use error::{Cause, Error, Result};
