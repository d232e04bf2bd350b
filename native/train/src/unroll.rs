//! Parts of a batch that are computed one after another.

use std::ops::Range;

/// The parts in which a batch is computed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unroll {
    /// Frames of a chunk, whose backward pass runs before the forward pass of the next chunk (truncated BPTT, Williams
    /// & Peng 1990). The state passes from chunk to chunk, its gradient does not. `None`: the whole window.
    pub truncate_bptt: Option<usize>,
    /// Number of blocks that the backward pass recomputes together, instead of keeping activations. `None` keeps them.
    pub recompute: Option<usize>,
    /// Windows of a micro-batch, which are computed together. Gradients are those of the whole batch up to the order
    /// of sums. `None`: all windows.
    pub micro_batch: Option<usize>,
    /// Whether the next batch continues the windows of this one.
    pub carry: bool,
}

/// Splits `0..all` into ranges of length `each`; the last may be shorter.
pub(crate) fn stretches(all: usize, each: Option<usize>) -> impl Iterator<Item = Range<usize>> {
    let each = each.unwrap_or(all).clamp(1, all.max(1));
    (0..all).step_by(each).map(move |from| from..(from + each).min(all))
}
