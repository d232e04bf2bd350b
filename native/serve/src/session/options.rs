//! Options of a session, and overrides of one decision.

use sconce_nn::head::of_word;
use sconce_nn::sampling::Sampling;
use sconce_realtime::Format;
use sconce_tensor::{Error, Result};
use serde::{Deserialize, Deserializer, Serialize};

/// How much of the past a decision sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The whole game: the state is carried from frame to frame.
    Carry,
    /// The last `window_size` frames from a zero state, padded at the start with copies of the first.
    Window,
    /// As `Carry`, but every given number of frames the state is recomputed as in `Window`.
    Resync(u64),
}

/// Where a call runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lane {
    /// On the caller's thread, which waits for no other thread.
    Inline,
    /// On a native worker thread.
    Worker,
}

/// How the state is stepped by one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Path {
    /// By the policy's own ops, tensor by tensor.
    #[serde(rename = "core")]
    Ops,
    /// By a plan: weights packed for this CPU.
    Packed,
}

/// Maximum number of frames in a window: more than four minutes of a game.
const MAX_WINDOW: usize = 1 << 14;

/// Maximum number of decisions that can be taken back: those of one second of a game, plus one that reached a caller
/// on another node too late.
const MAX_ROLLBACK: usize = 61;

/// Limit in microseconds for a decision on a scheduler: a quarter of the millisecond that a NIF may take.
pub(crate) const INLINE_US: f64 = 250.0;

/// Microseconds that no decision on a scheduler may exceed, whatever lane is set. Decisions of 2.5 ms there delayed all
/// other processes of the VM by 33 ms.
pub const MAX_INLINE_US: f64 = 1000.0;

/// Options of a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// How much of the past a decision sees.
    pub mode: Mode,
    /// Frames of a window.
    pub window_size: usize,
    /// How choices are drawn from logits.
    pub sampling: Sampling,
    /// Seed of all choices.
    pub seed: u64,
    /// Format of the packed weights.
    #[serde(default)]
    pub weights: Format,
    /// Lane of decisions; `None` chooses by measured cost. `Inline` is refused for decisions beyond [`MAX_INLINE_US`].
    /// If only a window exceeds this limit, in a session that otherwise steps, the window runs on a worker.
    pub lane: Option<Lane>,
    /// Decisions that can be taken back.
    #[serde(default)]
    pub rollback: usize,
    /// Frames, beyond the next, before an input takes effect; `None` is the delay of the training.
    pub frame_delay: Option<usize>,
    /// Directions that the heads do not see, `[n, trunk_width]`.
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

/// Overrides of the session's options for one decision.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Overrides {
    /// Divides the logits.
    pub temperature: Option<f32>,
    /// Whether each head takes its most likely choice.
    pub deterministic: Option<bool>,
    /// Whether bits take their most likely value while classes are drawn.
    pub deterministic_buttons: Option<bool>,
    /// Probability above which a deterministic bit is pressed.
    pub press_threshold: Option<f32>,
    /// Probability at or below which a held deterministic bit is released.
    pub release_threshold: Option<f32>,
    /// Seed of this decision.
    pub seed: Option<u64>,
    /// Game frame number, which rises. For a number that was already decided, the session returns that decision.
    pub game_frame: Option<i64>,
    /// Labels of the action that led to the frame.
    #[serde(deserialize_with = "labels")]
    pub previous: Option<Vec<f32>>,
    /// Labels of the latest inputs, `[k, num_labels]`, newest first; [`NONE`](sconce_nn::heads::NONE) for an input that
    /// the session takes from its own memory.
    #[serde(deserialize_with = "labels")]
    pub queue: Option<Vec<f32>>,
    /// Labels of an action to score; it becomes the decision, and nothing is drawn.
    #[serde(deserialize_with = "labels")]
    pub choices: Option<Vec<f32>>,
    /// Action mask `[mask_size]`: 0 for each class or bit that must not be chosen.
    pub mask: Option<Vec<u8>>,
    /// Directions instead of the session's, `[n, trunk_width]`; empty for none.
    #[serde(skip)]
    pub project_out: Option<Vec<f32>>,
}

/// Labels as Elixir sends them: bits and classes are 16-bit integers, and the largest of them means none.
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
