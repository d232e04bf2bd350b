//! Reasons why policies cannot run on a card.

use serde::Serialize;

/// The file name of NCCL, which sums gradients across cards.
pub(super) const NCCL: &str = "libnccl.so.2";

/// The reason why policies cannot run on a card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum Missing {
    /// The build has no CUDA support.
    #[error("this build has no CUDA")]
    Build,
    /// The driver's library was not found.
    #[error("NVIDIA's driver (libcuda.so.1) was not found")]
    Driver,
    /// The driver is too old. Holds 1000 times its major plus 10 times its minor CUDA version.
    #[error("NVIDIA's driver supports CUDA {}.{}, and 13.0 is needed", .0 / 1000, .0 % 1000 / 10)]
    DriverVersion(i32),
    /// The driver shows no card with this ordinal.
    #[error("there is no card {ordinal} among {count}")]
    Card {
        /// The requested ordinal.
        ordinal: usize,
        /// The number of cards that the driver shows.
        count: usize,
    },
    /// The card is too old.
    #[error("{name} has compute capability {}.{}, and 8.0 is needed", .capability.0, .capability.1)]
    Capability {
        /// The product name of the card.
        name: String,
        /// Major and minor compute capability of the card.
        capability: (i32, i32),
    },
    /// A CUDA library was not found. Holds its file name.
    #[error("{0} was not found")]
    Library(&'static str),
    /// Another error. Holds the driver's text.
    #[error("NVIDIA's driver reports {0}")]
    Refused(String),
}

impl Missing {
    /// The remedy, if there is one.
    pub fn mend(&self) -> Option<&'static str> {
        match self {
            Missing::Build => Some("bin/cuda-toolkit, then compile with SCONCE_CUDA=1"),
            Missing::Driver | Missing::DriverVersion(_) => {
                Some("install NVIDIA's driver 580 or newer")
            }
            Missing::Card { .. } => Some("see which cards CUDA_VISIBLE_DEVICES leaves"),
            Missing::Library(NCCL) => {
                Some("install NCCL 2 for CUDA 13, or name its folder in LD_LIBRARY_PATH")
            }
            Missing::Library(_) => {
                Some("install the libraries of CUDA 13, or name their folder in LD_LIBRARY_PATH")
            }
            Missing::Capability { .. } | Missing::Refused(_) => None,
        }
    }

    /// The name of the variant in snake case, for callers that match on data.
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
