//! What an evaluation may be told.

use sconce_tensor::{Device, Precision, Result, device};
use serde::{Deserialize, Serialize};

use super::table::bounded;

/// How much of the past the policy sees at each frame.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The last frames alone, from a zero state, padded at the start with copies of the first.
    #[default]
    Window,
    /// The whole game, its state carried through.
    Carry,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvalOptions {
    pub mode: Mode,
    pub window_size: usize,
    /// Every how many frames one is scored; carried, every frame is.
    pub stride: usize,
    pub frame_delay: usize,
}

/// How a finished policy is scored; what is not given is what it was trained with.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EvaluateOptions {
    pub mode: Option<Mode>,
    pub window_size: Option<usize>,
    pub stride: Option<usize>,
    pub frame_delay: Option<usize>,
    pub threads: Option<usize>,
    /// Of the products, also where that gains nothing. A policy plays in f32.
    pub precision: Precision,
    /// As [`TrainOptions::device`]; none: the CPU.
    pub device: Option<String>,
}

impl EvaluateOptions {
    pub fn is_on_cpu(&self) -> bool {
        self.device.as_deref().is_none_or(|device| device.starts_with("cpu"))
    }

    /// Opens the device that the policy is scored on.
    ///
    /// # Errors
    /// `NoDevice` for one that is not there.
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
