//! The treatment of environments after the end of an episode.

use serde::{Deserialize, Serialize};

/// Treatment of an environment after the end of an episode. The names are Gymnasium's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Autoreset {
    /// The next step ignores the input and begins an episode, with reward 0.
    NextStep,
    /// The step that ends an episode also begins the next one, and returns its first observation.
    #[default]
    SameStep,
    /// The caller resets with [`Envs::reset_rows`](super::Envs::reset_rows). Steps before that are errors.
    Disabled,
}
