//! NVIDIA's GPUs: what their driver tells of them, and kernels of ours for them.
//!
//! The driver's library is opened when it is first asked for, so that this is part of every build and costs
//! nothing where there is no GPU.

mod driver;
mod drivers;
mod error;
pub mod kernels;

pub use driver::{Card, Clocks, Driver, Memory, Power, Process, Utilization, Versions};
pub use drivers::{Drivers, RETRY};
pub use error::{Cause, Error, Result};
