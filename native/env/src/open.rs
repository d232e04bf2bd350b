//! Environments of either kind: native, or of a host.

use sconce_tensor::Result;

use crate::hosted::Hosted;
use crate::vector::VectorEnv;
use crate::vectorised::{EnvOptions, Envs};

/// Environments with these options, in their first episodes.
///
/// # Errors
/// Those of [`spec`](crate::spec) and of a host.
pub fn open(options: &EnvOptions) -> Result<Box<dyn VectorEnv>> {
    match &options.host {
        None => Ok(Box::new(Envs::new(options)?)),
        Some(host) => Ok(Box::new(Hosted::new(options, host.clone())?)),
    }
}
