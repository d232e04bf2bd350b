//! How much of a batch is worked through together.

use std::ops::Range;

/// How a window is worked through.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unroll {
    /// Frames whose backward pass is made before the next ones' forward pass (truncated BPTT, Williams
    /// & Peng 1990): the state goes on, its gradient does not. `None`: the whole window.
    pub truncate_bptt: Option<usize>,
    /// Blocks that the backward pass runs again together, instead of keeping what they computed.
    pub recompute: Option<usize>,
    /// Windows of a batch that are worked through together, the others after them: the micro-batch.
    /// Gradients are those of the whole batch up to the order of sums. `None`: all.
    pub micro_batch: Option<usize>,
    /// Whether another window goes on where this one ends.
    pub carry: bool,
}

/// `0..all` in stretches of so many, the last maybe shorter.
pub(crate) fn stretches(all: usize, each: Option<usize>) -> impl Iterator<Item = Range<usize>> {
    let each = each.unwrap_or(all).clamp(1, all.max(1));
    (0..all).step_by(each).map(move |from| from..(from + each).min(all))
}
