//! Keys and values of the frames in the window.

use candle_core::Tensor;

use super::window::Window;
use crate::lengths::{Lengths, check_lengths};
use crate::{Error, Result, tensor};

/// Keys and values of the last frames, before rotation.
#[derive(Debug, Clone)]
pub struct Cache {
    /// The keys, a ring `[b, window, heads * head_dim]`: frame f of a game lies in slot `f % window`.
    pub keys: Tensor,
    /// The values, a ring laid out like `keys`.
    pub values: Tensor,
    /// Frames seen, `[b, 1]`. The count rises to `window` and then stays in `window..2 * window`: it is bounded, and
    /// `seen % window` is always the next slot.
    pub seen: Tensor,
}

impl Cache {
    /// The cache of `batch` games that have not begun.
    pub fn empty(window: &Window, batch: usize) -> Result<Self> {
        // One zero, broadcast to the whole ring.
        let ring = tensor::zeros(&[1])?.broadcast_as((batch, window.window, window.width()))?;
        Ok(Cache { keys: ring.clone(), values: ring, seen: tensor::zeros(&[batch, 1])? })
    }

    /// Whether this is the result of [`empty`](Self::empty), on any device: a single broadcast element.
    #[cfg(any(test, feature = "flash-attn"))]
    pub(super) fn is_blank(&self) -> bool {
        [&self.keys, &self.values].into_iter().all(|ring| ring.stride().iter().all(|&n| n == 0))
    }

    /// Frames that each row has seen.
    pub(super) fn seen(&self, window: usize) -> Result<Vec<usize>> {
        tensor::to_vec(&self.seen)?.into_iter().map(|seen| frames_seen(seen, window)).collect()
    }
}

impl Window {
    /// Checks the shapes of `qkv`, cache and lengths, and returns `[b, t]`.
    pub(crate) fn check(
        &self,
        qkv: &Tensor,
        cache: &Cache,
        lengths: &Lengths,
    ) -> Result<[usize; 2]> {
        let [batch, time] = self.check_streams(qkv)?;
        self.check_cache(cache, batch)?;
        check_lengths(lengths, batch, time)?;
        Ok([batch, time])
    }

    pub(super) fn check_cache(&self, cache: &Cache, batch: usize) -> Result<()> {
        let ring = [batch, self.window, self.width()];
        tensor::check_shape("cached keys", &ring, cache.keys.dims())?;
        tensor::check_shape("cached values", &ring, cache.values.dims())?;
        tensor::check_shape("frames seen by a cache", &[batch, 1], cache.seen.dims())
    }
}

/// The frames of one row that a cache has seen.
///
/// # Errors
/// `OutOfRange` for a value that is not a count of frames for this window.
pub fn frames_seen(seen: f32, window: usize) -> Result<usize> {
    match (0.0..2.0 * window as f32).contains(&seen) && seen.fract() == 0.0 {
        true => Ok(seen as usize),
        false => {
            let most = 2 * window - 1;
            Err(Error::out_of_range("frames seen by a cache", seen.into(), 0.0, most as f64))
        }
    }
}

/// The count of frames seen, as in [`Cache`], after `frames` more.
pub fn count_on(seen: usize, frames: usize, window: usize) -> usize {
    match seen + frames {
        n if n < window => n,
        n => window + n % window,
    }
}
