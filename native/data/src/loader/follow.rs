//! A depth that follows the waits of the caller: one batch more while it waits, three tenths less while batches lie
//! unused and memory is short (AIMD).
//!
//! Three rules keep the depth from swinging: a single wait in a window changes nothing, batches must lie unused for
//! [`LONG`] windows, and the depth rests for [`REST`] windows after a move.

use std::time::Duration;

/// Smallest and largest depth.
pub(super) const LEAST: usize = 1;
pub(super) const MOST: usize = 16;

/// Calls of a window.
const WINDOW: u32 = 8;
/// Waits in a window from which on the depth grows.
const WAITS: u32 = 2;
/// Windows in which batches lay unused before the depth falls.
const LONG: u32 = 8;
/// Windows in which the depth stays after a move.
const REST: u32 = 1;
/// A shorter wait is only the way through the channel.
const BRIEF: Duration = Duration::from_micros(100);

/// Counts of the present window and of those before it.
#[derive(Debug, Default)]
pub(super) struct Follow {
    calls: u32,
    waits: u32,
    /// Calls after which no other batch was ready.
    bare: u32,
    /// Windows in a row in which batches lay unused.
    unused: u32,
    rest: u32,
}

impl Follow {
    /// Counts a call that waited for this time and left `ready` batches. Returns the depth from now on. `short` tells
    /// whether memory is short.
    pub(super) fn observe(
        &mut self,
        depth: usize,
        waited: Duration,
        ready: u64,
        short: impl Fn() -> bool,
    ) -> usize {
        self.calls += 1;
        self.waits += u32::from(waited > BRIEF);
        self.bare += u32::from(ready == 0);
        if self.calls < WINDOW {
            return depth;
        }
        let next = self.decide(depth, short).clamp(LEAST, MOST);
        (self.calls, self.waits, self.bare) = (0, 0, 0);
        if next != depth {
            (self.unused, self.rest) = (0, REST);
        }
        next
    }

    fn decide(&mut self, depth: usize, short: impl Fn() -> bool) -> usize {
        if self.rest > 0 {
            self.rest -= 1;
            return depth;
        }
        let unused = self.waits == 0 && self.bare == 0;
        self.unused = if unused { self.unused.saturating_add(1) } else { 0 };
        match () {
            () if self.waits >= WAITS && depth < MOST && !short() => depth + 1,
            () if self.unused >= LONG && depth > LEAST && short() => depth * 7 / 10,
            () => depth,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATE: Duration = Duration::from_millis(5);

    /// The depths after windows of calls, each with these waits and as many batches left ready.
    fn depths(follow: &mut Follow, from: usize, windows: &[(u32, u64)], short: bool) -> Vec<usize> {
        let mut depth = from;
        let window = |&(waits, ready): &(u32, u64)| {
            for call in 0..WINDOW {
                let waited = if call < waits { LATE } else { Duration::ZERO };
                depth = follow.observe(depth, waited, ready, || short);
            }
            depth
        };
        windows.iter().map(window).collect()
    }

    #[test]
    fn the_depth_grows_by_one_while_the_caller_waits_up_to_its_bound() {
        let mut follow = Follow::default();
        let waits = [(2, 0); 6];
        assert_eq!(depths(&mut follow, 2, &waits, false), [3, 3, 4, 4, 5, 5]);
        assert_eq!(depths(&mut follow, 15, &waits, false), [16; 6]);
        // A single wait is none, and neither is one while memory is short.
        assert_eq!(depths(&mut Follow::default(), 2, &[(1, 0); 6], false), [2; 6]);
        assert_eq!(depths(&mut Follow::default(), 2, &waits, true), [2; 6]);
    }

    #[test]
    fn the_depth_falls_only_if_batches_lie_unused_for_long_and_memory_is_short() {
        let unused = [(0, 1); 2 * LONG as usize];
        let after = |windows: &[(u32, u64)], short| {
            depths(&mut Follow::default(), 10, windows, short).last().copied()
        };
        assert_eq!(after(&unused, true), Some(7));
        assert_eq!(after(&unused[..LONG as usize - 1], true), Some(10));
        assert_eq!(after(&unused, false), Some(10));
        assert_eq!(after(&[(0, 0); 2 * LONG as usize], true), Some(10));
        // A window with a wait begins the count anew.
        let mut broken = unused;
        broken[LONG as usize - 1] = (1, 1);
        assert_eq!(after(&broken, true), Some(7));
        assert_eq!(after(&broken[..2 * LONG as usize - 1], true), Some(10));
        let many = [(0, 1); 100];
        assert_eq!(after(&many, true), Some(1));
    }
}
