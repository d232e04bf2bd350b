//! The weights that are served, and where steps by them are made.

use std::sync::Arc;

use sconce_tensor::Result;

use super::options::Options;
use crate::model::Model;
use crate::session::{INLINE_US, Lane, check_inline};

/// A step alone that takes so many microseconds longer than one in company is worth a request's way to a worker and
/// back. That way takes 9 of schedulers and worker (64 callers, two cores); the others are for that callers may be on
/// as many schedulers, and wait for nobody.
const TRIP_US: f64 = 13.0;

/// Weights, and where steps by them are made.
#[derive(Clone)]
pub(super) struct Served {
    pub model: Arc<Model>,
    pub lane: Lane,
}

impl Served {
    /// Measures the model, unless its cost is known or steps are a worker's anyway. The inline lane is refused for steps
    /// beyond [`MAX_INLINE_US`](crate::session::MAX_INLINE_US).
    pub(super) fn new(model: Arc<Model>, options: &Options) -> Result<Self> {
        let lane = match options.lane {
            // What is not packed has no steps that a scheduler could wait for.
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

/// Whether a step is made where its caller is: of so many microseconds alone, and so many in company.
fn is_inline(alone: f64, together: f64) -> bool {
    alone < INLINE_US && alone < together + TRIP_US
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_inline_where_it_is_short_and_gains_little_by_company() {
        for (alone, together, inline) in
            [(12.0, 6.0, true), (24.0, 12.0, true), (80.0, 12.0, false), (300.0, 299.0, false)]
        {
            assert_eq!(is_inline(alone, together), inline, "{alone} and {together}");
        }
    }
}
