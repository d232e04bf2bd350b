//! The kernel of a chunk, chosen by the kind of its decay.

use super::chunk::Chunk;
use super::sizes::Sizes;
use super::{Decay, head, key};

/// The arithmetic of one chunk, with its buffers.
pub(super) enum Kernel {
    Head(head::Kernel),
    Key(key::Kernel),
}

impl Kernel {
    pub(super) fn new(sizes: &Sizes) -> Self {
        match sizes.options.decay {
            Decay::Key => Kernel::Key(key::Kernel::new(sizes)),
            _ => Kernel::Head(head::Kernel::new(sizes)),
        }
    }

    /// Writes `read [frames, heads, wide]`, advances `state`, and copies the previous state to `kept`.
    pub(super) fn forward(
        &mut self,
        chunk: &Chunk<'_>,
        read: &mut [f32],
        state: &mut [f32],
        kept: Option<&mut [f32]>,
    ) {
        if let Some(kept) = kept {
            kept.copy_from_slice(state);
        }
        match self {
            Kernel::Head(kernel) => kernel.forward(chunk, read, state),
            Kernel::Key(kernel) => kernel.forward(chunk, read, state),
        }
    }

    /// Writes the gradients of the queries and keys to `d_streams`, of the gates to `d_gates`, of the values to `dv`.
    /// `d_state` is the gradient of the state after the chunk on entry, and of the state before it on return.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn backward(
        &mut self,
        chunk: &Chunk<'_>,
        state: &[f32],
        d_read: &[f32],
        d_state: &mut [f32],
        dv: &mut [f32],
        d_streams: &mut [f32],
        d_gates: &mut [f32],
    ) {
        match self {
            Kernel::Head(k) => {
                k.backward(chunk, state, d_read, d_state, dv, d_streams, d_gates);
            }
            Kernel::Key(k) => {
                k.backward(chunk, state, d_read, d_state, dv, d_streams, d_gates);
            }
        }
    }
}
