//! One error type for every room below the border.
//!
//! A variant carries data, not prose: the border turns it into `%Sconce.Error{kind, op, details}`
//! and Elixir renders the sentence.

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

/// The closed list of kinds, the same in Rust and in `Sconce.Error` (a test compares them).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    NotFound,
    Corrupt,
    Mismatch,
    OutOfRange,
    NonFinite,
    NoGradient,
    Busy,
    Deadline,
    Cancelled,
    OutOfMemory,
    Unavailable,
    Io,
    Panic,
}

impl Kind {
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

    /// The atom in Elixir.
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

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{what} not found")]
    NotFound { what: String },
    /// A file or buffer that cannot be what it claims to be.
    #[error("{what}: {reason}")]
    Corrupt { what: String, reason: String },
    /// Two things that do not fit each other: a shape, a width, a Spec.
    #[error("{what}: expected {expected}, got {got}")]
    Mismatch { what: String, expected: String, got: String },
    /// A run that goes on cannot have these.
    #[error("{what}: {}", .differences.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    Fixed { what: String, differences: Vec<Difference> },
    #[error("{field}: {value} is outside {min}..{max}")]
    OutOfRange { field: String, value: f64, min: f64, max: f64 },
    #[error("{what} is not finite ({value})")]
    NonFinite { what: String, value: f64 },
    /// A step of a training of which nothing good comes.
    #[error("{what} is not finite ({value}) in step {step}, whose batch {batch} begins with {}",
        .windows.first().map_or("nothing".into(), |(game, frame)| format!("{game}, frame {frame}")))]
    Diverged {
        what: String,
        value: f64,
        step: u64,
        /// The first that the step learned from, counted from 0.
        batch: u64,
        /// Game and first frame of each window.
        windows: Vec<(String, i32)>,
    },
    #[error("no gradient reaches {}", .weights.join(", "))]
    NoGradient { weights: Vec<String> },
    #[error("{what} is in use")]
    Busy { what: String },
    #[error("{what} is late by the deadline of {deadline_ms} ms, after {waited_ms} ms")]
    Deadline { what: String, deadline_ms: u64, waited_ms: f64 },
    #[error("cancelled")]
    Cancelled,
    /// More than there is.
    #[error("{what} needs {bytes} bytes{}", .available.map_or(String::new(), |available|
        format!(", and {} are available ({:?})", available.bytes, available.bound)))]
    OutOfMemory {
        what: String,
        bytes: u64,
        /// None for what is more than Sconce ever takes.
        available: Option<Available>,
    },
    /// More than was allowed.
    #[error("{what} needs {bytes} bytes, and may have {limit}")]
    OverLimit { what: String, bytes: u64, limit: u64 },
    /// A card that has no room left.
    #[error("{what} is out of memory")]
    CardFull {
        what: String,
        /// What was asked for, where that is known.
        bytes: Option<u64>,
        memory: Box<Memory>,
    },
    #[error("{what}: {reason}")]
    Unavailable { what: String, reason: String },
    /// No such card to compute on.
    #[error("{device}: {missing}")]
    NoDevice { device: String, missing: Missing },
    /// A GPU's driver that is not there, or refuses. By the name of the cause Elixir knows what mends it.
    #[error("{what}: {reason}")]
    Driver { what: String, cause: &'static str, reason: String },
    #[error("{}: {source}", .path.display())]
    Io { path: PathBuf, source: std::io::Error },
    /// None of the states of a run reached the disk: the last file that failed, and what the run ended with.
    #[error("{}: {reason}; no state of the run was saved", .path.display())]
    Unsaved { path: PathBuf, reason: String, report: Box<Value> },
    #[error("panic: {message}")]
    Panic { message: String },
    /// Candle's own refusal, which only a bug of ours can cause.
    #[error("tensor: {}", words(.0))]
    Tensor(#[source] candle_core::Error),
}

/// An option with the value that is recorded and another that was given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    pub option: String,
    pub recorded: String,
    pub given: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}, not {}", self.option, self.recorded, self.given)
    }
}

impl Error {
    pub fn mismatch(what: impl Into<String>, expected: impl ToString, got: impl ToString) -> Self {
        Error::Mismatch { what: what.into(), expected: expected.to_string(), got: got.to_string() }
    }

    pub fn corrupt(what: impl Into<String>, reason: impl ToString) -> Self {
        Error::Corrupt { what: what.into(), reason: reason.to_string() }
    }

    pub fn out_of_range(field: impl Into<String>, value: f64, min: f64, max: f64) -> Self {
        Error::OutOfRange { field: field.into(), value, min, max }
    }

    pub fn not_found(what: impl Into<String>) -> Self {
        Error::NotFound { what: what.into() }
    }

    /// More bytes than there are, or than there may be.
    pub fn out_of_memory(what: impl Into<String>, bytes: u64) -> Self {
        let available = available().filter(|available| available.bytes < bytes);
        Error::OutOfMemory { what: what.into(), bytes, available }
    }

    /// What unwound: a buffer that was refused is `OutOfMemory`, all else `Panic`.
    pub fn of_panic(payload: Box<dyn Any + Send>) -> Self {
        match payload.downcast_ref::<Refused>() {
            Some(refused) => Error::OutOfMemory {
                what: "a buffer".into(),
                bytes: refused.bytes,
                available: available(),
            },
            None => Error::Panic { message: panic_message(payload.as_ref()) },
        }
    }

    /// For `map_err` on a file operation: a missing file is `NotFound`, anything else `Io`.
    pub fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self + '_ {
        move |source| match source.kind() {
            std::io::ErrorKind::NotFound => Error::not_found(path.display().to_string()),
            _ => Error::Io { path: path.to_path_buf(), source },
        }
    }

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

    /// Says what the memory was for, and how many bytes that are in all.
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
            // JSON has no NaN, so the value goes as text.
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

/// What candle says, without the backtrace that it appends where RUST_BACKTRACE is set.
fn words(error: &candle_core::Error) -> String {
    let text = error.to_string();
    text.split("\n   0: ").next().unwrap_or(&text).trim_end().to_owned()
}

/// A device that has no memory left says so in the words of its driver, or of its libraries, alone.
fn is_out_of_memory(error: &candle_core::Error) -> bool {
    let text = error.to_string().to_lowercase();
    let words = ["out of memory", "out_of_memory", "alloc_failed", "allocation_failed"];
    words.into_iter().any(|words| text.contains(words))
}

/// What a panic said.
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

/// The number and the memory of a card that is full, if one is.
type FullCard = fn() -> Option<(usize, Memory)>;

static FULL_CARD: OnceLock<FullCard> = OnceLock::new();

/// Says how to see which card is full, and its memory.
pub fn set_full_card(look: FullCard) {
    // Set once: every card is looked at in the same way.
    let _ = FULL_CARD.set(look);
}

/// A card that is full is told by its memory as it was then.
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

/// So that `?` works inside candle's traits, where it becomes text: what a caller can do wrong is
/// checked before.
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
    fn a_sentence_of_candle_comes_without_its_backtrace() {
        let backtrace = Box::new(std::backtrace::Backtrace::force_capture());
        let inner = Box::new(candle_core::Error::Msg("shape mismatch in add".into()));
        let error = Error::Tensor(candle_core::Error::WithBacktrace { inner, backtrace });
        assert_eq!(error.to_string(), "tensor: shape mismatch in add");
        assert_eq!(error.details()["reason"], "shape mismatch in add");
    }

    #[test]
    fn a_card_that_is_full_tells_who_has_it_and_what_makes_room() {
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
    fn a_device_without_memory_is_of_that_kind_whatever_it_calls_it() {
        let kind = |text: &str| Error::Tensor(candle_core::Error::Msg(text.into())).kind();
        assert_eq!(kind("DriverError(CUDA_ERROR_OUT_OF_MEMORY)"), Kind::OutOfMemory);
        assert_eq!(kind("Metal error: Out of memory"), Kind::OutOfMemory);
        assert_eq!(kind("CublasError(CUBLAS_STATUS_ALLOC_FAILED)"), Kind::OutOfMemory);
        assert_eq!(kind("CurandError(CURAND_STATUS_ALLOCATION_FAILED)"), Kind::OutOfMemory);
        assert_eq!(kind("shape mismatch in add"), Kind::Mismatch);
    }
}
