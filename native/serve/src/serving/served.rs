//! The served model and the lane of its steps.

use std::sync::Arc;

use sconce_tensor::Result;

use super::options::Options;
use crate::model::Model;
use crate::session::{INLINE_US, Lane, check_inline};

/// Minimum saving per batched step, in microseconds, that justifies a worker round trip. The round trip costs 9 us of
/// scheduler and worker time (64 callers, two cores); the other 4 us allow for callers on different schedulers, which
/// step in parallel without waiting.
const TRIP_US: f64 = 13.0;

/// A model and the lane of its steps.
#[derive(Clone)]
pub(super) struct Served {
    pub model: Arc<Model>,
    pub lane: Lane,
}

impl Served {
    /// Measures the model, unless its cost is known or workers run all steps anyway. The inline lane is refused for
    /// steps longer than [`MAX_INLINE_US`](crate::session::MAX_INLINE_US).
    pub(super) fn new(model: Arc<Model>, options: &Options) -> Result<Self> {
        let lane = match options.lane {
            // Only steps of a plan are short enough for a scheduler.
            _ if model.plan().is_none() => Lane::Worker,
            Some(Lane::Inline) => {
                check_inline(options.lane, model.step_us()?)?;
                Lane::Inline
            }
            Some(Lane::Worker) => Lane::Worker,
            None if is_inline(model.step_us()?, model.game_us()?) => Lane::Inline,
            None => Lane::Worker,
        };
        Ok(Served { model, lane })
    }
}

/// Whether steps run inline, given the unbatched and batched step times in microseconds.
fn is_inline(alone: f64, together: f64) -> bool {
    alone < INLINE_US && alone < together + TRIP_US
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_inline_if_it_is_short_and_a_batch_saves_little() {
        for (alone, together, inline) in
            [(12.0, 6.0, true), (24.0, 12.0, true), (80.0, 12.0, false), (300.0, 299.0, false)]
        {
            assert_eq!(is_inline(alone, together), inline, "{alone} and {together}");
        }
    }
}
