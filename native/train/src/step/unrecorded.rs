//! What there is of recorded steps in a build without CUDA: nothing.

use sconce_core::backbone::State;
use sconce_core::device::Missing;
use sconce_core::{Error, Result};

use super::{Examples, Stepped, Stepper};

impl Stepper<'_> {
    pub fn records(&self, _: Examples<'_>) -> bool {
        false
    }

    pub fn begin(&mut self, _: Examples<'_>, _: &State, _: u64, _: f64) -> Result<Option<State>> {
        Err(Error::NoDevice { device: "cuda".into(), missing: Missing::Build })
    }

    pub fn pending(&self) -> usize {
        0
    }

    pub fn results(&mut self) -> Result<Vec<Result<Stepped>>> {
        Ok(vec![])
    }
}
