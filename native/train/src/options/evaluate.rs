//! Options of an evaluation.

use std::path::PathBuf;

use sconce_tensor::{Device, Precision, Result, device};
use serde::{Deserialize, Serialize};

use super::table::bounded;

/// How much of the past the policy sees at each frame.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Only the last frames, from a zero state, padded at the start with copies of the first frame.
    #[default]
    Window,
    /// The whole game, with the state carried through it.
    Carry,
}

/// Options of an evaluation, with a value for each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvalOptions {
    /// How much of the past the policy sees.
    pub mode: Mode,
    /// Frames in a window.
    pub window_size: usize,
    /// Frames between scored frames; [`Mode::Carry`] scores every frame.
    pub stride: usize,
    /// Number of frames by which a label lies after the next frame of its state.
    pub frame_delay: usize,
}

/// Options for scoring a finished policy. For an option of the training that is not given, the checkpoint's value is
/// used.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EvaluateOptions {
    /// How much of the past the policy sees; `None` is [`Mode::Window`].
    pub mode: Option<Mode>,
    /// Frames in a window; `None` takes the value of the training.
    pub window_size: Option<usize>,
    /// Frames between scored frames; `None` is 1.
    pub stride: Option<usize>,
    /// Number of frames by which a label lies after the next frame of its state; `None` takes the value of the
    /// training.
    pub frame_delay: Option<usize>,
    /// Threads of the pool; `None` leaves them unchanged.
    pub threads: Option<usize>,
    /// Precision of the products, used even if it is not faster. A policy plays in f32.
    pub precision: Precision,
    /// Name of the device, such as `cuda:1`; `None` is the CPU.
    pub device: Option<String>,
    /// File of a policy whose likeliest actions are compared with those of the scored one.
    pub reference: Option<PathBuf>,
}

impl EvaluateOptions {
    /// Whether the policy is scored on a CPU.
    pub fn is_on_cpu(&self) -> bool {
        self.device.as_deref().is_none_or(|device| device.starts_with("cpu"))
    }

    /// Opens the device that the policy is scored on.
    ///
    /// # Errors
    /// `NoDevice` for a device that does not exist.
    pub fn open_device(&self) -> Result<Device> {
        device::named(self.device.as_deref().unwrap_or("cpu"))
    }

    pub(crate) fn validate(&self) -> Result<()> {
        bounded("threads", self.threads.unwrap_or(1) as f64)
    }
}

impl EvalOptions {
    pub(crate) fn validate(&self) -> Result<()> {
        bounded("window_size", self.window_size as f64)?;
        bounded("stride", self.stride as f64)?;
        bounded("frame_delay", self.frame_delay as f64)
    }
}
