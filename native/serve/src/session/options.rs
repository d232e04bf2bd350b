//! How a session decides: options, and what one call changes about one decision.

use sconce_nn::head::of_word;
use sconce_nn::sampling::Sampling;
use sconce_realtime::Format;
use sconce_tensor::{Error, Result};
use serde::{Deserialize, Deserializer, Serialize};

/// How much of the past a decision sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The whole game, its state carried through.
    Carry,
    /// The last `window_size` frames from a zero state, padded at the start with copies of the first.
    Window,
    /// Carried, but every so many frames the state is that of `Window`.
    Resync(u64),
}

/// Where a call runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lane {
    /// On the caller's thread alone: it waits for no other.
    Inline,
    /// On a thread of ours.
    Worker,
}

/// What steps the state by one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Path {
    /// The policy's own ops, tensor by tensor.
    #[serde(rename = "core")]
    Ops,
    /// The weights packed for this CPU.
    Packed,
}

/// More frames than a game of four minutes has are no window.
const MAX_WINDOW: usize = 1 << 14;

/// A second of a game, and the moment before a decision that came too late for a caller on another node.
const MAX_ROLLBACK: usize = 61;

/// A quarter of the millisecond that a call on a scheduler of the VM may take.
pub(crate) const INLINE_US: f64 = 250.0;

/// That millisecond: no decision that takes longer runs on a scheduler, whatever lane was asked for. Decisions of
/// 2.5 ms there delayed all other processes of the VM by 33 ms.
pub const MAX_INLINE_US: f64 = 1000.0;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    pub mode: Mode,
    pub window_size: usize,
    pub sampling: Sampling,
    pub seed: u64,
    /// How a plan has the weights.
    #[serde(default)]
    pub weights: Format,
    /// None: as measured. Inline is refused for decisions beyond [`MAX_INLINE_US`]; a window beyond it, of a session
    /// that steps otherwise, runs on a worker.
    pub lane: Option<Lane>,
    /// Decisions that may be taken back.
    #[serde(default)]
    pub rollback: usize,
    /// Frames until an input shows beyond the next. None: as the policy was trained.
    pub frame_delay: Option<usize>,
    /// Directions `[n, trunk width]` that the heads do not see.
    #[serde(skip)]
    pub project_out: Option<Vec<f32>>,
}

impl Options {
    pub(super) fn validate(&self) -> Result<()> {
        let bounded = |field: &str, n: u64, max: u64| match n {
            n if (1..=max).contains(&n) => Ok(()),
            n => Err(Error::out_of_range(field, n as f64, 1.0, max as f64)),
        };
        bounded("window_size", self.window_size as u64, MAX_WINDOW as u64)?;
        if self.rollback > MAX_ROLLBACK {
            let max = MAX_ROLLBACK as f64;
            return Err(Error::out_of_range("rollback", self.rollback as f64, 0.0, max));
        }
        if let Mode::Resync(every) = self.mode {
            bounded("resync", every, u64::from(u32::MAX))?;
        }
        self.sampling.validate()
    }
}

/// What one call changes about one decision.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Overrides {
    pub temperature: Option<f32>,
    pub deterministic: Option<bool>,
    pub deterministic_buttons: Option<bool>,
    pub press_threshold: Option<f32>,
    pub release_threshold: Option<f32>,
    pub seed: Option<u64>,
    /// The game's number of the frame, which rises: asked again for one that the session remembers, it answers
    /// what it decided.
    pub game_frame: Option<i64>,
    /// Labels of the action that led to the frame.
    #[serde(deserialize_with = "labels")]
    pub previous: Option<Vec<f32>>,
    /// Labels of the inputs that were given last, the newest first; [`NONE`] for
    /// one that the session shall know itself.
    #[serde(deserialize_with = "labels")]
    pub queue: Option<Vec<f32>>,
    /// Labels of an action to score: it becomes the decision, and nothing is drawn.
    #[serde(deserialize_with = "labels")]
    pub choices: Option<Vec<f32>>,
    /// Instead of those of the session; none if empty.
    #[serde(skip)]
    pub project_out: Option<Vec<f32>>,
}

/// Labels as Elixir has them: bits and classes are integers, of which the largest of 16 bits stands for none.
fn labels<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<Option<Vec<f32>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Label {
        Whole(u16),
        Number(f32),
    }
    let labels = Option::<Vec<Label>>::deserialize(from)?;
    let label = |label| match label {
        Label::Whole(word) => of_word(word),
        Label::Number(number) => number,
    };
    Ok(labels.map(|labels| labels.into_iter().map(label).collect()))
}

impl Overrides {
    pub(super) fn apply(&self, base: &Sampling) -> Result<Sampling> {
        let sampling = Sampling {
            temperature: self.temperature.unwrap_or(base.temperature),
            deterministic: self.deterministic.unwrap_or(base.deterministic),
            deterministic_buttons: self.deterministic_buttons.unwrap_or(base.deterministic_buttons),
            press_threshold: self.press_threshold.unwrap_or(base.press_threshold),
            release_threshold: self.release_threshold.unwrap_or(base.release_threshold),
        };
        sampling.validate()?;
        Ok(sampling)
    }
}

/// Refuses the inline lane for decisions that cost more than [`MAX_INLINE_US`].
pub(crate) fn check_inline(lane: Option<Lane>, cost_us: f64) -> Result<()> {
    match lane {
        Some(Lane::Inline) if cost_us >= MAX_INLINE_US => {
            let what = "microseconds of a decision (lane: inline)";
            Err(Error::out_of_range(what, cost_us.round(), 0.0, MAX_INLINE_US))
        }
        _ => Ok(()),
    }
}
