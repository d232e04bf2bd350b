//! Why there is no card to compute on.

use serde::Serialize;

/// What adds up what several cards have, beside NVIDIA's other libraries.
pub(super) const NCCL: &str = "libnccl.so.2";

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
            Missing::Library(NCCL) => {
                Some("install NCCL 2 for CUDA 13, or name its folder in LD_LIBRARY_PATH")
            }
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
