//! Options of one recurrence: its columns in the streams, and its decay.

use std::sync::Arc;

use candle_core::Tensor;

use crate::lengths::Lengths;
use crate::rotary::Rotary;
use crate::{Error, Result};

/// The longest chunk: the memory of a chunk grows with the square of its length.
pub(super) const MAX_CHUNK: usize = 256;

/// The decay of the state. All logarithms are at most 0: the factors are in 0..1.
#[derive(Debug, Clone)]
pub enum Decay {
    /// A logarithm for each head, the same in every frame (RetNet). The gates are not read.
    Constant(Arc<[f32]>),
    /// The gates are a logarithm for each frame and head, `[b, t, heads]`.
    Head,
    /// The gates are a logarithm and an input factor for each frame and head, `[b, t, 2 * heads]`: first the logarithms
    /// of all heads, then the factors (Mamba-2's dt, mLSTM's input gate).
    HeadAndInput,
    /// The gates are a logarithm for each frame, head and key channel, `[b, t, heads * key]` (GLA).
    Key,
}

impl Decay {
    /// The fastest length of a chunk, in frames. With a decay for each key channel the products within a chunk are not
    /// matrix products, so half the length costs half.
    pub fn chunk(&self) -> usize {
        if matches!(self, Decay::Key) { 16 } else { 32 }
    }
}

/// The columns of the queries, keys and values of all heads in a frame of the streams `[b, t, ..]`, and the other
/// options of the recurrence.
#[derive(Debug, Clone)]
pub struct Options {
    /// The number of heads.
    pub heads: usize,
    /// Adjacent heads that share queries and keys. A divisor of `heads`.
    pub heads_per_group: usize,
    /// Width of one head's query and key.
    pub key: usize,
    /// Width of one head's value.
    pub value: usize,
    /// First column of the queries, `[heads / heads_per_group, key]`.
    pub q: usize,
    /// First column of the keys, `[heads / heads_per_group, key]`.
    pub k: usize,
    /// First column of the values, `[heads, value]`.
    pub v: usize,
    /// The decay of the state.
    pub decay: Decay,
    /// Rotates queries and keys by their position (RetNet). Not for a decay by key channel.
    pub rotary: Option<Arc<Rotary>>,
    /// The factor that scales the keys.
    pub scale: f32,
    /// Frames of a chunk; see [`Decay::chunk`].
    pub chunk: usize,
    /// The number of valid frames in each row.
    pub lengths: Lengths,
}

impl Options {
    /// Queries, keys and values of `heads` heads side by side: `q | k | v`.
    pub fn side_by_side(heads: usize, key: usize, value: usize, decay: Decay) -> Self {
        Options {
            heads,
            heads_per_group: 1,
            key,
            value,
            q: 0,
            k: heads * key,
            v: 2 * heads * key,
            chunk: decay.chunk(),
            decay,
            rotary: None,
            scale: 1.0,
            lengths: None,
        }
    }

    pub(crate) fn groups(&self) -> usize {
        self.heads / self.heads_per_group
    }

    pub(super) fn gates(&self) -> Option<usize> {
        match self.decay {
            Decay::Constant(_) => None,
            Decay::Head => Some(self.heads),
            Decay::HeadAndInput => Some(2 * self.heads),
            Decay::Key => Some(self.heads * self.key),
        }
    }

    pub(super) fn check(&self, width: usize, time: usize) -> Result<()> {
        let groups = self.heads / self.heads_per_group.max(1);
        if self.heads == 0 || groups * self.heads_per_group != self.heads {
            let what = "heads of a matrix state";
            let expected = format!("a multiple of {}", self.heads_per_group);
            return Err(Error::mismatch(what, expected, self.heads));
        }
        if matches!(self.decay, Decay::Key) && self.heads_per_group != 1 {
            let what = "heads per group with a decay by key channel";
            return Err(Error::mismatch(what, 1, self.heads_per_group));
        }
        if let Decay::Constant(logs) = &self.decay
            && logs.len() != self.heads
        {
            return Err(Error::mismatch("constant decays", self.heads, logs.len()));
        }
        self.check_rotary(time)?;
        let needed = [
            self.q + groups * self.key,
            self.k + groups * self.key,
            self.v + self.heads * self.value,
        ];
        match needed.into_iter().max() {
            Some(needed) if needed > width || self.key == 0 || self.value == 0 => {
                Err(Error::mismatch("columns of a matrix state", format!(">= {needed}"), width))
            }
            _ => Ok(()),
        }
    }

    fn check_rotary(&self, time: usize) -> Result<()> {
        let Some(rotary) = &self.rotary else { return Ok(()) };
        if matches!(self.decay, Decay::Key) {
            let what = "rotated keys";
            return Err(Error::mismatch(what, "a decay for the whole head", "one by channel"));
        }
        if rotary.dim() != self.key {
            return Err(Error::mismatch("numbers of a rotation", self.key, rotary.dim()));
        }
        let last = self.frames(time);
        if rotary.last() < last {
            let expected = format!(">= {last}");
            return Err(Error::mismatch("positions of a rotation", expected, rotary.last()));
        }
        Ok(())
    }

    /// Frames of a chunk of a sequence.
    pub(super) fn frames(&self, time: usize) -> usize {
        self.chunk.min(MAX_CHUNK).clamp(1, time.max(1))
    }
}

/// The gates of an mLSTM, stabilised so that no exponential overflows.
pub struct MlstmGates {
    /// The logarithms of the decays, then the input factors, `[b, t, 2 * heads]`.
    pub gates: Tensor,
    /// The stabiliser m after each frame, `[b, t, heads]`. It has no gradient.
    pub m: Tensor,
    /// The stabiliser m after the last frame, `[b, heads]`. It has no gradient.
    pub last: Tensor,
}
