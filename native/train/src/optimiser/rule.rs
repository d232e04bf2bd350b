//! What an optimiser is: how a number of a parameter changes, and the same of whole tensors by candle's ops.

use sconce_tensor::{Error, Result, Tensor};

/// An optimiser's constants in one update, and how one number of a parameter changes by them.
pub(super) trait Rule: Copy + Send + Sync {
    /// Whether there is a second moment.
    const SECOND: bool;

    /// `p` after an update by gradient `g`; `m` and `v` are what the optimiser remembers of it.
    fn next(self, p: f32, g: f32, m: &mut f32, v: &mut f32) -> f32;
}

/// [`Rule::next`] of all numbers of a parameter at once.
pub(super) trait Composed {
    /// `p` after an update by gradient `g`, and what the optimiser remembers of it.
    fn composed(self, p: &Tensor, g: &Tensor, moments: &mut [Tensor]) -> Result<Tensor>;
}

/// What is the same for every optimiser in one update.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pull {
    /// What the clip and the mean over batches leave of a gradient.
    pub factor: f32,
    /// How much of the parameter is added to its gradient.
    pub coupled: f32,
    /// What decoupled decay leaves of the parameter.
    pub keep: f32,
    /// How much of the new parameter goes into its average.
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

/// The moments of an optimiser that has so many.
pub(super) fn parts<const N: usize>(moments: &mut [Tensor]) -> Result<&mut [Tensor; N]> {
    let count = moments.len();
    moments.try_into().map_err(|_| Error::mismatch("moments", N, count))
}

/// -1, 0 or 1; 0 of what is not a number.
#[inline(always)]
pub(super) fn sign(x: f32) -> f32 {
    f32::from(u8::from(x > 0.0)) - f32::from(u8::from(x < 0.0))
}
