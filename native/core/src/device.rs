//! Where tensors live. A CPU is always there; an NVIDIA card has to be looked for, and what is missing is said.

use candle_core::Device;
use serde::Serialize;

use crate::{Error, Result};

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(any(feature = "cuda", test))]
mod ledger;
mod memory;
#[cfg(not(feature = "cuda"))]
mod none;
#[cfg(feature = "cuda")]
pub use cuda::{Caching, Graph, Uploads, leave, memory, open, release, settle, shrink};
#[cfg(feature = "cuda")]
pub use ledger::Held;
pub use memory::{Budget, Kept, Memory, Owner, allow, budget};

/// Whether this build computes on cards at all.
pub const CUDA: bool = cfg!(feature = "cuda");

/// Why there is no card to compute on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum Missing {
    #[error("this build has no CUDA")]
    Build,
    #[error("NVIDIA's driver (libcuda.so.1) was not found")]
    Driver,
    #[error("NVIDIA's driver is one of CUDA {}.{}, and 13.0 is needed", .0 / 1000, .0 % 1000 / 10)]
    DriverVersion(i32),
    #[error("there is no card {ordinal} among {count}")]
    Card { ordinal: usize, count: usize },
    #[error("{name} has compute capability {}.{}, and 8.0 is needed", .capability.0, .capability.1)]
    Capability { name: String, capability: (i32, i32) },
    #[error("{0} was not found")]
    Library(&'static str),
    /// What the driver says, in its words.
    #[error("NVIDIA's driver says {0}")]
    Refused(String),
}

impl Missing {
    /// What mends it, if anything does.
    pub fn mend(&self) -> Option<&'static str> {
        match self {
            Missing::Build => Some("bin/cuda-toolkit, then compile with SCONCE_CUDA=1"),
            Missing::Driver | Missing::DriverVersion(_) => {
                Some("install NVIDIA's driver 580 or newer")
            }
            Missing::Card { .. } => Some("see which cards CUDA_VISIBLE_DEVICES leaves"),
            Missing::Library(_) => {
                Some("install the libraries of CUDA 13, or name their folder in LD_LIBRARY_PATH")
            }
            Missing::Capability { .. } | Missing::Refused(_) => None,
        }
    }

    /// As data: the name of what is missing.
    pub fn name(&self) -> &'static str {
        match self {
            Missing::Build => "build",
            Missing::Driver => "driver",
            Missing::DriverVersion(_) => "driver_version",
            Missing::Card { .. } => "card",
            Missing::Capability { .. } => "capability",
            Missing::Library(_) => "library",
            Missing::Refused(_) => "refused",
        }
    }
}

/// Whether policies run on a card, by its number among those that the driver shows. Whatever is missing is told
/// before a context is made, which would take memory there.
pub fn check(ordinal: usize) -> Result<()> {
    look(ordinal).map_err(|missing| Error::NoDevice { device: format!("cuda:{ordinal}"), missing })
}

/// The device of a name, `cpu` or `cuda:` and the number of a card. Words after it, such as who chose it, are
/// not read.
///
/// # Errors
/// `NoDevice` for a card on which policies do not run, `Mismatch` for another name.
pub fn named(text: &str) -> Result<Device> {
    let name = text.split(' ').next().unwrap_or_default();
    let ordinal = name.strip_prefix("cuda:").and_then(|ordinal| ordinal.parse().ok());
    match (name, ordinal) {
        ("cpu", _) => Ok(Device::Cpu),
        (_, Some(ordinal)) => open(ordinal),
        _ => Err(Error::mismatch("device", "cpu or cuda:N", text)),
    }
}

#[cfg(feature = "cuda")]
pub(crate) use cuda::full;
#[cfg(feature = "cuda")]
use cuda::{grown, look, place};

#[cfg(not(feature = "cuda"))]
pub(crate) use none::full;
#[cfg(not(feature = "cuda"))]
use none::look;
#[cfg(not(feature = "cuda"))]
pub use none::{Caching, Held, leave, memory, open, release, settle, shrink};
#[cfg(all(test, not(feature = "cuda")))]
use none::{grown, place};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_known_by_its_name_and_a_card_that_is_not_there_is_told() {
        for name in ["cpu", "cpu (auto)"] {
            assert!(named(name).is_ok_and(|device| device.is_cpu()), "{name}");
        }
        for name in ["", "cuda", "cuda:", "cuda:-1", "gpu:0", "cpu:0"] {
            assert!(matches!(named(name), Err(Error::Mismatch { .. })), "{name}");
        }
        for (name, card) in [("cuda:299", "cuda:299"), ("cuda:300 (auto)", "cuda:300")] {
            let refused = named(name).err();
            assert!(matches!(refused, Some(Error::NoDevice { device, .. }) if device == card));
        }
    }
}
