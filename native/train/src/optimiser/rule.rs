//! The rule of an optimiser: the update of one element of a parameter, and of whole tensors by candle's ops.

use sconce_tensor::{Error, Result, Tensor};

/// An optimiser's constants in one update, and the update of one element by these constants.
pub(super) trait Rule: Copy + Send + Sync {
    /// Whether there is a second moment.
    const SECOND: bool;

    /// Returns `p` after an update by gradient `g`, and updates the moments `m` and `v`.
    fn next(self, p: f32, g: f32, m: &mut f32, v: &mut f32) -> f32;
}

/// [`Rule::next`] for a whole parameter, by candle's ops.
pub(super) trait Composed {
    /// Returns `p` after an update by gradient `g`, and updates `moments`.
    fn composed(self, p: &Tensor, g: &Tensor, moments: &mut [Tensor]) -> Result<Tensor>;
}

/// The part of an update that is the same for every optimiser.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pull {
    /// Factor on a gradient, from the clip and the mean over batches.
    pub factor: f32,
    /// Factor of coupled decay: this multiple of the parameter is added to its gradient.
    pub coupled: f32,
    /// Factor of decoupled decay: the parameter is multiplied by it.
    pub keep: f32,
    /// Weight of the new parameter in its average.
    pub blend: f32,
}

impl Pull {
    #[inline(always)]
    pub(super) fn gradient(self, p: f32, g: f32) -> f32 {
        g * self.factor + self.coupled * p
    }
}

pub(super) fn scaled(x: &Tensor, factor: f32) -> Result<Tensor> {
    Ok(x.affine(factor.into(), 0.0)?)
}

/// Returns the moments as an array, for an optimiser that has N of them.
pub(super) fn parts<const N: usize>(moments: &mut [Tensor]) -> Result<&mut [Tensor; N]> {
    let count = moments.len();
    moments.try_into().map_err(|_| Error::mismatch("moments", N, count))
}

/// The sign of a number: -1, 0 or 1; 0 for NaN.
#[inline(always)]
pub(super) fn sign(x: f32) -> f32 {
    f32::from(u8::from(x > 0.0)) - f32::from(u8::from(x < 0.0))
}
