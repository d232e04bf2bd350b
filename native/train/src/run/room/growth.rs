//! A micro-batch that was halved grows again: the rule of `Sconce.Pressure`.
//!
//! 1. A size that failed is a ceiling. It is forgotten after [`FORGET_AFTER`] good steps.
//! 2. After [`GROW_AFTER`] good steps the size doubles without a ceiling. Otherwise it moves half the way to the ceiling,
//!    until that is less than an eighth away.
//! 3. A size that fails again goes back to the last one that went well.

use serde::{Deserialize, Serialize};

/// Good steps before the size grows.
pub(super) const GROW_AFTER: u64 = 16;
/// Good steps after which a size that failed may be tried again.
const FORGET_AFTER: u64 = 1024;
/// The share of a size below which growth is not worth another failure.
const SHARE: usize = 8;

/// The known sizes. They are a part of the saved state, because the sizes of later steps follow from them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::run) struct Growth {
    /// The size of a run without a failure.
    wanted: usize,
    /// The size of the last good step; 0 if none is known.
    proven: usize,
    /// The smallest size that failed and is not forgotten.
    ceiling: Option<usize>,
    /// Good steps since the last change.
    good: u64,
    /// Good steps since the ceiling.
    since: u64,
}

impl Growth {
    pub(super) fn new(wanted: usize) -> Self {
        Growth { wanted, proven: 0, ceiling: None, good: 0, since: 0 }
    }

    /// The size of a run without a failure.
    pub(super) fn wanted(&self) -> usize {
        self.wanted
    }

    /// The growth of a run that goes on elsewhere, with another size without a failure.
    pub(super) fn towards(self, wanted: usize) -> Self {
        Growth { wanted, ..self }
    }

    /// The size after a failure of `size`.
    pub(super) fn smaller(&mut self, size: usize) -> usize {
        let trial = (1..size).contains(&self.proven);
        let less = if trial { self.proven } else { size.div_ceil(2) };
        let ceiling = self.ceiling.map_or(size, |ceiling| ceiling.min(size));
        let proven = if trial { self.proven } else { 0 };
        *self = Growth { wanted: self.wanted, proven, ceiling: Some(ceiling), good: 0, since: 0 };
        less
    }

    /// The size after a good step of `size`.
    pub(super) fn went_well(&mut self, size: usize) -> usize {
        self.proven = size;
        if size >= self.wanted {
            (self.ceiling, self.good, self.since) = (None, 0, 0);
            return size;
        }
        self.good += 1;
        self.since += 1;
        if self.since >= FORGET_AFTER {
            (self.ceiling, self.since) = (None, 0);
        }
        if self.good < GROW_AFTER {
            return size;
        }
        self.good = 0;
        match self.ceiling {
            None => size.saturating_mul(2).min(self.wanted),
            Some(ceiling) if ceiling.saturating_sub(size).saturating_mul(SHARE) > size => {
                size.midpoint(ceiling).min(self.wanted)
            }
            Some(_) => size,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sizes of the next steps on a device where sizes of up to `room(step)` fit, each with its failures.
    fn sizes(
        growth: &mut Growth,
        mut size: usize,
        steps: u64,
        room: impl Fn(u64) -> usize,
    ) -> Vec<usize> {
        let mut seen = vec![size];
        for step in 0..steps {
            while size > room(step) {
                size = growth.smaller(size);
                seen.push(size);
            }
            let next = growth.went_well(size);
            if next != size {
                seen.push(next);
            }
            size = next;
        }
        seen
    }

    #[test]
    fn a_size_that_failed_is_approached_by_halves_and_never_tried_again_before_it_is_forgotten() {
        let seen = sizes(&mut Growth::new(64), 64, 500, |_| 41);
        assert_eq!(seen, [64, 32, 48, 32, 40, 44, 40]);
        // The ceiling of 44 is forgotten after enough good steps, and the size that is wanted is tried again.
        let seen = sizes(&mut Growth::new(64), 64, 3 * GROW_AFTER + FORGET_AFTER + 1, |_| 41);
        assert_eq!(seen, [64, 32, 48, 32, 40, 44, 40, 64, 40]);
    }

    #[test]
    fn a_size_grows_back_to_what_was_wanted_when_there_is_room_again() {
        let mut growth = Growth::new(64);
        let seen = sizes(&mut growth, 64, 2000, |step| if step < 3 { 8 } else { 100 });
        assert_eq!(seen, [64, 32, 16, 8, 12, 14, 15, 30, 60, 64]);
        assert_eq!(growth, Growth { proven: 64, ..Growth::new(64) });
        // The next failure halves it.
        assert_eq!(growth.smaller(64), 32);
    }

    #[test]
    fn a_size_of_one_does_not_grow_beneath_its_ceiling() {
        assert_eq!(sizes(&mut Growth::new(4), 4, 1000, |_| 1), [4, 2, 1]);
    }
}
