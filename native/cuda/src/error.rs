//! Why the driver has no answer.

use nvml_wrapper::error::NvmlError;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {reason}")]
pub struct Error {
    /// Whose answer is missing: `NVML` or `GPU 0`.
    pub what: String,
    pub cause: Cause,
    /// In the words of whoever refused.
    pub reason: String,
}

/// What a caller can tell apart, and do something about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// No library of the driver is found, or none can be opened.
    NoLibrary,
    /// What was opened is another library.
    NotNvml,
    /// The driver does not have the function yet.
    TooOld,
    /// The library is there, its kernel module is not loaded.
    NoDriver,
    NoPermission,
    /// Kernel module and library are of different versions, as after an update without a restart.
    VersionMismatch,
    NoDevice,
    /// The card fell off the bus.
    Lost,
    ResetRequired,
    /// This card does not tell it.
    NotSupported,
    Other,
}

impl Cause {
    /// The atom in Elixir.
    pub fn name(self) -> &'static str {
        match self {
            Cause::NoLibrary => "no_library",
            Cause::NotNvml => "not_nvml",
            Cause::TooOld => "too_old",
            Cause::NoDriver => "no_driver",
            Cause::NoPermission => "no_permission",
            Cause::VersionMismatch => "version_mismatch",
            Cause::NoDevice => "no_device",
            Cause::Lost => "lost",
            Cause::ResetRequired => "reset_required",
            Cause::NotSupported => "not_supported",
            Cause::Other => "other",
        }
    }
}

impl Error {
    pub(crate) fn new(what: impl Into<String>, cause: Cause, reason: impl ToString) -> Self {
        Error { what: what.into(), cause, reason: reason.to_string() }
    }

    /// For `map_err` on what NVML was asked.
    pub(crate) fn nvml(what: impl Into<String>) -> impl FnOnce(NvmlError) -> Self {
        |error| Error::new(what, cause(&error), error)
    }
}

fn cause(error: &NvmlError) -> Cause {
    match error {
        NvmlError::LibloadingError(_) => Cause::NoLibrary,
        NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound => Cause::TooOld,
        NvmlError::DriverNotLoaded => Cause::NoDriver,
        // The second is said where a cgroup denies the device.
        NvmlError::NoPermission | NvmlError::OperatingSystem => Cause::NoPermission,
        NvmlError::LibRmVersionMismatch => Cause::VersionMismatch,
        NvmlError::GpuLost => Cause::Lost,
        NvmlError::ResetRequired => Cause::ResetRequired,
        NvmlError::NotSupported => Cause::NotSupported,
        _ => Cause::Other,
    }
}
