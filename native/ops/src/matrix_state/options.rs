//! What there is to one recurrence: where its numbers lie, and how its state fades.

use std::sync::Arc;

use candle_core::Tensor;

use crate::lengths::Lengths;
use crate::rotary::Rotary;
use crate::{Error, Result};

/// The memory of a chunk grows with its square.
pub(super) const MAX_CHUNK: usize = 256;

/// How fast the state fades. All logarithms are of factors in 0..1, so at most 0.
#[derive(Debug, Clone)]
pub enum Decay {
    /// A logarithm per head, the same at every frame (RetNet). The gates are not read.
    Constant(Arc<[f32]>),
    /// The gates are a logarithm per frame and head, `[b, t, heads]`.
    Head,
    /// The gates are a logarithm and a factor of the key per frame and head, `[b, t, 2 * heads]`:
    /// first the logarithms of all heads, then the factors (Mamba-2's dt, mLSTM's input gate).
    HeadAndInput,
    /// The gates are a logarithm per frame, head and key channel, `[b, t, heads * key]` (GLA).
    Key,
}

impl Decay {
    /// The length of a chunk that costs least. Where key channels fade by themselves the products
    /// inside one are not matrix products, and half the length costs half.
    pub fn chunk(&self) -> usize {
        if matches!(self, Decay::Key) { 16 } else { 32 }
    }
}

/// Where the queries, keys and values of all heads lie in a frame of the streams `[b, t, ..]`, and
/// what else there is to the recurrence.
#[derive(Debug, Clone)]
pub struct Options {
    pub heads: usize,
    /// Heads that read the same queries and keys; they lie next to each other. A divisor of `heads`.
    pub heads_per_group: usize,
    /// Numbers of a query and of a key of one head.
    pub key: usize,
    /// Numbers of a value of one head.
    pub value: usize,
    /// First column of the queries `[heads / heads_per_group, key]`, of the keys, and of the values
    /// `[heads, value]`.
    pub q: usize,
    pub k: usize,
    pub v: usize,
    pub decay: Decay,
    /// Turns queries and keys by their position (RetNet). Not for keys that fade by channel.
    pub rotary: Option<Arc<Rotary>>,
    /// What keys are multiplied with.
    pub scale: f32,
    /// Frames that are computed together; see [`Decay::chunk`].
    pub chunk: usize,
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
            let what = "heads that share keys which fade by channel";
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
            let what = "keys that turn";
            return Err(Error::mismatch(what, "a decay for the whole head", "one by channel"));
        }
        if rotary.dim() != self.key {
            return Err(Error::mismatch("numbers that turn", self.key, rotary.dim()));
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

/// The gates of an mLSTM, kept within the range of a float.
pub struct MlstmGates {
    /// `[b, t, 2 * heads]`: the logarithms of the decays, then the factors of the inputs.
    pub gates: Tensor,
    /// `m [b, t, heads]`, and after the last frame `[b, heads]`. Neither has a gradient.
    pub m: Tensor,
    pub last: Tensor,
}
