//! The error type of all crates below the NIF.
//!
//! A variant carries fields, not prose: the NIF turns the variant into `%Sconce.Error{kind, op, details}`, and Elixir
//! renders the message.

use std::any::Any;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde::Serialize;
use serde_json::{Value, json};

use crate::device::memory::Memory;
use crate::device::missing::Missing;
use crate::memory::available::{Available, available};
use crate::memory::refused::Refused;
use crate::metrics::METRICS;

/// The closed list of error kinds, the same in Rust and in `Sconce.Error` (a test compares them).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A file, a name or an entry does not exist.
    NotFound,
    /// A file or buffer is invalid.
    Corrupt,
    /// Two things do not fit each other.
    Mismatch,
    /// A number is outside of its bounds.
    OutOfRange,
    /// A number is NaN or infinite.
    NonFinite,
    /// A weight gets no gradient.
    NoGradient,
    /// A resource is in use or full.
    Busy,
    /// A deadline has passed.
    Deadline,
    /// The work was cancelled.
    Cancelled,
    /// Memory of the host or of a card is insufficient.
    OutOfMemory,
    /// A device, a driver or a feature is missing.
    Unavailable,
    /// The system reported an error on a file.
    Io,
    /// Rust code panicked: a bug.
    Panic,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 13] = [
        Kind::NotFound,
        Kind::Corrupt,
        Kind::Mismatch,
        Kind::OutOfRange,
        Kind::NonFinite,
        Kind::NoGradient,
        Kind::Busy,
        Kind::Deadline,
        Kind::Cancelled,
        Kind::OutOfMemory,
        Kind::Unavailable,
        Kind::Io,
        Kind::Panic,
    ];

    /// The name of the atom in Elixir.
    pub fn name(self) -> &'static str {
        match self {
            Kind::NotFound => "not_found",
            Kind::Corrupt => "corrupt",
            Kind::Mismatch => "mismatch",
            Kind::OutOfRange => "out_of_range",
            Kind::NonFinite => "non_finite",
            Kind::NoGradient => "no_gradient",
            Kind::Busy => "busy",
            Kind::Deadline => "deadline",
            Kind::Cancelled => "cancelled",
            Kind::OutOfMemory => "out_of_memory",
            Kind::Unavailable => "unavailable",
            Kind::Io => "io",
            Kind::Panic => "panic",
        }
    }
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the native library. The fields are data for `%Sconce.Error{}`.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something does not exist.
    #[error("{what} not found")]
    NotFound {
        /// The thing, such as a path.
        what: String,
    },
    /// A file or buffer does not hold what its format demands.
    #[error("{what}: {reason}")]
    Corrupt {
        /// The file or buffer.
        what: String,
        /// The fault.
        reason: String,
    },
    /// Two things do not fit each other: shapes, widths, Specs.
    #[error("{what}: expected {expected}, got {got}")]
    Mismatch {
        /// The thing that was compared.
        what: String,
        /// The expected value.
        expected: String,
        /// The value that was given.
        got: String,
    },
    /// Options differ that a resumed run cannot change.
    #[error("{what}: {}", .differences.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    Fixed {
        /// The run.
        what: String,
        /// The options that differ.
        differences: Vec<Difference>,
    },
    /// A number is outside of its bounds.
    #[error("{field}: {value} is outside {min}..{max}")]
    OutOfRange {
        /// The name of the number.
        field: String,
        /// The number.
        value: f64,
        /// The lowest number allowed.
        min: f64,
        /// The highest number allowed.
        max: f64,
    },
    /// A number is NaN or infinite.
    #[error("{what} is not finite ({value})")]
    NonFinite {
        /// The name of the number.
        what: String,
        /// The number.
        value: f64,
    },
    /// The loss diverged: a metric of a training step is not finite.
    #[error("{what} is not finite ({value}) in step {step}, whose batch {batch} begins with {}",
        .windows.first().map_or("nothing".into(), |(game, frame)| format!("{game}, frame {frame}")))]
    Diverged {
        /// The metric, such as the loss.
        what: String,
        /// The metric's value: NaN or infinite.
        value: f64,
        /// The training step, counted from 1.
        step: u64,
        /// The first batch of the step, counted from 0.
        batch: u64,
        /// Name of the game and first frame of each window in the batch.
        windows: Vec<(String, i32)>,
    },
    /// No gradient reaches some weights.
    #[error("no gradient reaches {}", .weights.join(", "))]
    NoGradient {
        /// The names of the weights.
        weights: Vec<String>,
    },
    /// Something is in use.
    #[error("{what} is in use")]
    Busy {
        /// The resource in use.
        what: String,
    },
    /// A deadline has passed.
    #[error("{what} missed its deadline of {deadline_ms} ms, after {waited_ms} ms")]
    Deadline {
        /// The call.
        what: String,
        /// The deadline of the whole call, in milliseconds.
        deadline_ms: u64,
        /// The time that the call has waited, in milliseconds.
        waited_ms: f64,
    },
    /// The caller cancelled the work.
    #[error("cancelled")]
    Cancelled,
    /// Work needs more memory than is available.
    #[error("{what} needs {bytes} bytes{}", .available.map_or(String::new(), |available|
        format!(", and {} are available ({:?})", available.bytes, available.bound)))]
    OutOfMemory {
        /// The work or the buffer.
        what: String,
        /// Bytes that it needs.
        bytes: u64,
        /// The available memory. `None` if the system reports no bound below `bytes`.
        available: Option<Available>,
    },
    /// Work needs more memory than its limit.
    #[error("{what} needs {bytes} bytes, and may have {limit}")]
    OverLimit {
        /// The work.
        what: String,
        /// Bytes that it needs.
        bytes: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// A card is out of memory.
    #[error("{what} is out of memory")]
    CardFull {
        /// The card, preceded by the name of the work if known.
        what: String,
        /// Bytes that the work needs, if known.
        bytes: Option<u64>,
        /// The card's memory at the time of the failure.
        memory: Box<Memory>,
    },
    /// A resource or a feature is unavailable.
    #[error("{what}: {reason}")]
    Unavailable {
        /// The resource or feature.
        what: String,
        /// The reason.
        reason: String,
    },
    /// Policies cannot run on a card.
    #[error("{device}: {missing}")]
    NoDevice {
        /// The name of the device.
        device: String,
        /// The thing that is missing.
        missing: Missing,
    },
    /// A GPU's driver is missing or reports an error. Elixir chooses the remedy by `cause`.
    #[error("{what}: {reason}")]
    Driver {
        /// The driver or the GPU.
        what: String,
        /// The name of the cause.
        cause: &'static str,
        /// The driver's text.
        reason: String,
    },
    /// The system reported an error on a file.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// No state of a run could be saved.
    #[error("{}: {reason}; no state of the run was saved", .path.display())]
    Unsaved {
        /// The last file that failed.
        path: PathBuf,
        /// The cause of the last failure.
        reason: String,
        /// The final report of the run.
        report: Box<Value>,
    },
    /// Rust code panicked: a bug.
    #[error("panic: {message}")]
    Panic {
        /// The message of the panic.
        message: String,
    },
    /// An error of candle, which only a bug in Sconce can cause.
    #[error("tensor: {}", words(.0))]
    Tensor(#[source] candle_core::Error),
}

/// An option whose given value differs from the recorded one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The name of the option.
    pub option: String,
    /// The recorded value.
    pub recorded: String,
    /// The value that was given.
    pub given: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}, not {}", self.option, self.recorded, self.given)
    }
}

impl Error {
    /// A [`Error::Mismatch`] from displayable values.
    pub fn mismatch(what: impl Into<String>, expected: impl ToString, got: impl ToString) -> Self {
        Error::Mismatch { what: what.into(), expected: expected.to_string(), got: got.to_string() }
    }

    /// A [`Error::Corrupt`] from a displayable reason.
    pub fn corrupt(what: impl Into<String>, reason: impl ToString) -> Self {
        Error::Corrupt { what: what.into(), reason: reason.to_string() }
    }

    /// An [`Error::OutOfRange`].
    pub fn out_of_range(field: impl Into<String>, value: f64, min: f64, max: f64) -> Self {
        Error::OutOfRange { field: field.into(), value, min, max }
    }

    /// A [`Error::NotFound`].
    pub fn not_found(what: impl Into<String>) -> Self {
        Error::NotFound { what: what.into() }
    }

    /// An [`Error::OutOfMemory`] for `bytes` bytes. The error carries the available memory if less than `bytes`.
    pub fn out_of_memory(what: impl Into<String>, bytes: u64) -> Self {
        let available = available().filter(|available| available.bytes < bytes);
        Error::OutOfMemory { what: what.into(), bytes, available }
    }

    /// The error of a panic: `OutOfMemory` for a refused buffer, `Panic` for anything else.
    pub fn of_panic(payload: Box<dyn Any + Send>) -> Self {
        match payload.downcast_ref::<Refused>() {
            Some(refused) => Error::OutOfMemory {
                what: "a buffer".into(),
                bytes: refused.bytes,
                available: available(),
            },
            None => {
                METRICS.panics.add(1);
                Error::Panic { message: panic_message(payload.as_ref()) }
            }
        }
    }

    /// For `map_err` on a file operation: a missing file is `NotFound`, anything else `Io`.
    pub fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self + '_ {
        move |source| match source.kind() {
            std::io::ErrorKind::NotFound => Error::not_found(path.display().to_string()),
            _ => Error::Io { path: path.to_path_buf(), source },
        }
    }

    /// The kind of the error.
    pub fn kind(&self) -> Kind {
        match self {
            Error::NotFound { .. } => Kind::NotFound,
            Error::Corrupt { .. } => Kind::Corrupt,
            Error::Tensor(error) if is_out_of_memory(error) => Kind::OutOfMemory,
            Error::Mismatch { .. } | Error::Fixed { .. } | Error::Tensor(_) => Kind::Mismatch,
            Error::OutOfRange { .. } => Kind::OutOfRange,
            Error::NonFinite { .. } | Error::Diverged { .. } => Kind::NonFinite,
            Error::NoGradient { .. } => Kind::NoGradient,
            Error::Busy { .. } => Kind::Busy,
            Error::Deadline { .. } => Kind::Deadline,
            Error::Cancelled => Kind::Cancelled,
            Error::OutOfMemory { .. } | Error::OverLimit { .. } | Error::CardFull { .. } => {
                Kind::OutOfMemory
            }
            Error::Unavailable { .. } | Error::NoDevice { .. } | Error::Driver { .. } => {
                Kind::Unavailable
            }
            Error::Io { .. } | Error::Unsaved { .. } => Kind::Io,
            Error::Panic { .. } => Kind::Panic,
        }
    }

    /// Adds to an out-of-memory error the purpose of the memory and the bytes that the whole work needs.
    pub fn asking(self, what: &str, bytes: u64) -> Self {
        match self {
            Error::OutOfMemory { available, .. } => {
                Error::OutOfMemory { what: what.into(), bytes, available }
            }
            Error::CardFull { what: card, memory, .. } => {
                Error::CardFull { what: format!("{what} on {card}"), bytes: Some(bytes), memory }
            }
            other => other,
        }
    }

    /// The fields as data, for `%Sconce.Error{details: map}`.
    pub fn details(&self) -> Value {
        match self {
            Error::NotFound { what } | Error::Busy { what } => json!({ "what": what }),
            Error::Corrupt { what, reason } | Error::Unavailable { what, reason } => {
                json!({ "what": what, "reason": reason })
            }
            Error::Driver { what, cause, reason } => {
                json!({ "what": what, "cause": cause, "reason": reason })
            }
            Error::Mismatch { what, expected, got } => {
                json!({ "what": what, "expected": expected, "got": got })
            }
            Error::OutOfRange { field, value, min, max } => {
                json!({ "field": field, "value": value, "min": min, "max": max })
            }
            // JSON has no NaN, so the value is sent as text.
            Error::NonFinite { what, value } => json!({ "what": what, "value": value.to_string() }),
            Error::Diverged { what, value, step, batch, windows } => {
                let window =
                    |(game, frame): &(String, i32)| json!({ "game": game, "frame": frame });
                let windows: Vec<Value> = windows.iter().map(window).collect();
                json!({
                    "what": what, "value": value.to_string(),
                    "step": step, "batch": batch, "windows": windows,
                })
            }
            Error::NoGradient { weights } => json!({ "weights": weights }),
            Error::Fixed { what, differences } => {
                json!({ "what": what, "differences": differences })
            }
            Error::Deadline { what, deadline_ms, waited_ms } => {
                json!({ "what": what, "deadline_ms": deadline_ms, "waited_ms": waited_ms })
            }
            Error::Cancelled => json!({}),
            Error::OutOfMemory { what, bytes, available: None } => {
                json!({ "what": what, "bytes": bytes })
            }
            Error::OutOfMemory { what, bytes, available: Some(available) } => json!({
                "what": what, "bytes": bytes, "available": available.bytes,
                "bound": available.bound, "mend": available.bound.mend(),
            }),
            Error::OverLimit { what, bytes, limit } => {
                json!({ "what": what, "bytes": bytes, "memory_limit": limit })
            }
            Error::CardFull { what, bytes, memory } => {
                let remedies = memory.remedies();
                let mend = remedies.join(", or ");
                json!({
                    "what": what, "bytes": bytes, "memory": memory,
                    "remedies": remedies, "mend": mend,
                })
            }
            Error::NoDevice { device, missing } => json!({
                "what": device, "reason": missing.to_string(),
                "cause": missing.name(), "mend": missing.mend(),
            }),
            Error::Io { path, source } => {
                json!({ "path": path.display().to_string(), "reason": source.to_string() })
            }
            Error::Unsaved { path, reason, report } => {
                json!({ "path": path.display().to_string(), "reason": reason, "report": report })
            }
            Error::Panic { message } => json!({ "message": message }),
            Error::Tensor(error) => json!({ "what": "tensor", "reason": words(error) }),
        }
    }
}

/// Candle's message without the backtrace that candle appends if RUST_BACKTRACE is set.
fn words(error: &candle_core::Error) -> String {
    let text = error.to_string();
    text.split("\n   0: ").next().unwrap_or(&text).trim_end().to_owned()
}

/// Whether an error means that a device is out of memory. Candle reports this only as text from the driver or a
/// library.
fn is_out_of_memory(error: &candle_core::Error) -> bool {
    let text = error.to_string().to_lowercase();
    let words = ["out of memory", "out_of_memory", "alloc_failed", "allocation_failed"];
    words.into_iter().any(|words| text.contains(words))
}

/// The message of a panic.
pub fn panic_message(payload: &(dyn Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else if let Some(refused) = payload.downcast_ref::<Refused>() {
        format!("a buffer of {} bytes was refused", refused.bytes)
    } else {
        "without a message".to_owned()
    }
}

/// Returns the ordinal and the memory of the card that is full, if there is one.
type FullCard = fn() -> Option<(usize, Memory)>;

static FULL_CARD: OnceLock<FullCard> = OnceLock::new();

/// Sets the function that finds the full card and its memory. Only the first call has an effect.
pub fn set_full_card(look: FullCard) {
    // All cards share one function.
    let _ = FULL_CARD.set(look);
}

/// Converts candle's error. If a card is full, the error carries the card's memory at this moment.
impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Self {
        match is_out_of_memory(&error).then(|| FULL_CARD.get()?()).flatten() {
            None => Error::Tensor(error),
            Some((ordinal, memory)) => Error::CardFull {
                what: format!("cuda:{ordinal}"),
                bytes: None,
                memory: Box::new(memory),
            },
        }
    }
}

/// Converts errors so that `?` works inside candle's traits. The conversion turns fields into text; a caller's errors
/// are checked earlier.
impl From<Error> for candle_core::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Tensor(inner) => inner,
            other => candle_core::Error::wrap(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candle_s_message_comes_without_its_backtrace() {
        let backtrace = Box::new(std::backtrace::Backtrace::force_capture());
        let inner = Box::new(candle_core::Error::Msg("shape mismatch in add".into()));
        let error = Error::Tensor(candle_core::Error::WithBacktrace { inner, backtrace });
        assert_eq!(error.to_string(), "tensor: shape mismatch in add");
        assert_eq!(error.details()["reason"], "shape mismatch in add");
    }

    #[test]
    fn the_error_of_a_full_card_has_its_owners_and_remedies() {
        let kept = crate::device::Kept { weights: 7, ..Default::default() };
        let memory = Memory::of_pool((100, Some(50)), Some(40), kept, [30, 40]);
        let full = Error::CardFull { what: "cuda:0".into(), bytes: None, memory: memory.into() };
        let error = full.asking("a loaf", 20);
        assert_eq!(error.kind(), Kind::OutOfMemory);
        let details = error.details();
        assert_eq!((&details["what"], &details["bytes"]), (&json!("a loaf on cuda:0"), &json!(20)));
        let memory = json!({
            "total": 100, "free": 50, "budget": 40, "others": 10, "weights": 7, "optimiser": 0,
            "sessions": 0, "loader": 0, "activations": 23, "cached": 10,
        });
        assert_eq!(details["memory"], memory);
        let remedies = ["a larger memory_fraction or memory_budget", "Sconce.GPU.release/1"];
        assert_eq!(details["remedies"], json!(remedies));
        assert_eq!(details["mend"], json!(remedies.join(", or ")));
    }

    #[test]
    fn out_of_memory_is_recognised_in_the_texts_of_all_libraries() {
        let kind = |text: &str| Error::Tensor(candle_core::Error::Msg(text.into())).kind();
        assert_eq!(kind("DriverError(CUDA_ERROR_OUT_OF_MEMORY)"), Kind::OutOfMemory);
        assert_eq!(kind("Metal error: Out of memory"), Kind::OutOfMemory);
        assert_eq!(kind("CublasError(CUBLAS_STATUS_ALLOC_FAILED)"), Kind::OutOfMemory);
        assert_eq!(kind("CurandError(CURAND_STATUS_ALLOCATION_FAILED)"), Kind::OutOfMemory);
        assert_eq!(kind("shape mismatch in add"), Kind::Mismatch);
    }
}
