//! Errors of the driver.

use nvml_wrapper::error::NvmlError;

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the driver.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {reason}")]
pub struct Error {
    /// The library or GPU that failed, such as `NVML` or `GPU 0`.
    pub what: String,
    /// The cause, for callers that match on data.
    pub cause: Cause,
    /// The message of the driver or the loader.
    pub reason: String,
}

/// The cause of an error. Each has its own remedy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// No library of the driver was found, or none could be opened.
    NoLibrary,
    /// The opened file is another library.
    NotNvml,
    /// The driver is too old for a function.
    TooOld,
    /// The library exists but its kernel module is not loaded.
    NoDriver,
    /// The process may not access the GPU.
    NoPermission,
    /// Kernel module and library have different versions, as after an update without a restart.
    VersionMismatch,
    /// There is no GPU with this number.
    NoDevice,
    /// The card fell off the bus.
    Lost,
    /// The GPU has to be reset.
    ResetRequired,
    /// The GPU does not report this value.
    NotSupported,
    /// Any other cause.
    Other,
}

impl Cause {
    /// The name of the atom in Elixir.
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

    /// Returns a closure for `map_err` on an NVML call.
    pub(crate) fn nvml(what: impl Into<String>) -> impl FnOnce(NvmlError) -> Self {
        |error| Error::new(what, cause(&error), error)
    }
}

fn cause(error: &NvmlError) -> Cause {
    match error {
        NvmlError::LibloadingError(_) => Cause::NoLibrary,
        NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound => Cause::TooOld,
        NvmlError::DriverNotLoaded => Cause::NoDriver,
        // NVML returns `OperatingSystem` if a cgroup denies access to the device.
        NvmlError::NoPermission | NvmlError::OperatingSystem => Cause::NoPermission,
        NvmlError::LibRmVersionMismatch => Cause::VersionMismatch,
        NvmlError::GpuLost => Cause::Lost,
        NvmlError::ResetRequired => Cause::ResetRequired,
        NvmlError::NotSupported => Cause::NotSupported,
        _ => Cause::Other,
    }
}
