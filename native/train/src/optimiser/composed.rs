//! An update composed of candle's ops, of a parameter that is on another device than a CPU. Each rule stands
//! beside its fused form.

use candle_core::{DType, Tensor};
use sconce_core::{Error, Result};

use super::Pass;
use super::adam::Moments;
use super::fused::{Pull, Rule};
use super::lamb::Lamb;

/// [`Rule::next`] of all numbers of a parameter at once.
pub(super) trait Composed {
    /// `p` after an update by gradient `g`, and what the optimiser remembers of it.
    fn composed(self, p: &Tensor, g: &Tensor, moments: &mut [Tensor]) -> Result<Tensor>;
}

/// A parameter and what belongs to it after an update that may yet be made.
pub struct Next {
    pub(super) p: Tensor,
    pub(super) moments: Vec<Tensor>,
    pub(super) average: Option<Tensor>,
}

/// A parameter and what belongs to it, as [`fused::Numbers`](super::fused::Numbers). The parameter stays as it is:
/// `next` becomes what it is after the update.
pub(super) struct Tensors<'a> {
    pub p: &'a Tensor,
    pub g: &'a Tensor,
    pub moments: &'a mut [Tensor],
    pub average: Option<&'a mut Tensor>,
    pub next: &'a mut Tensor,
    pub pull: Pull,
}

impl Tensors<'_> {
    /// The parameter without its graph, and its gradient after clip and decay.
    fn read(&self) -> Result<(Tensor, Tensor)> {
        let Pull { factor, coupled, .. } = self.pull;
        let p = self.p.detach();
        let g = (scaled(self.g, factor)? + scaled(&p, coupled)?)?;
        Ok((p, g))
    }

    fn write(self, next: Tensor) -> Result<()> {
        if let Some(average) = self.average {
            *average = (&*average + scaled(&(&next - &*average)?, self.pull.blend)?)?;
        }
        *self.next = next;
        Ok(())
    }
}

impl Pass for Tensors<'_> {
    fn run(self, rule: impl Rule + Composed) -> Result<()> {
        let (p, g) = self.read()?;
        let next = rule.composed(&scaled(&p, self.pull.keep)?, &g, self.moments)?;
        self.write(next)
    }

    fn lamb(self, unit: Moments, decay: f64, lr: f64) -> Result<()> {
        let (p, g) = self.read()?;
        let lamb = Lamb::new(unit, decay);
        let r = lamb.composed_direction(&p, &g, self.moments)?;
        let norm = |x: &Tensor| -> Result<f64> { Ok(squares_of(x)?.sqrt()?.to_scalar()?) };
        let rate = Lamb::rate(lr, [norm(&p)?, norm(&r)?]);
        let next = (&p - scaled(&r, rate)?)?;
        self.write(next)
    }
}

/// Sum of squares, as [`squared_norm`](super::squared_norm), of a tensor on any device: one f64 beside it.
pub fn squares_of(x: &Tensor) -> Result<Tensor> {
    Ok(x.to_dtype(DType::F64)?.sqr()?.sum_all()?)
}

pub(super) fn scaled(x: &Tensor, factor: f32) -> Result<Tensor> {
    Ok(x.affine(factor.into(), 0.0)?)
}

/// The moments of an optimiser that has so many.
pub(super) fn parts<const N: usize>(moments: &mut [Tensor]) -> Result<&mut [Tensor; N]> {
    let count = moments.len();
    moments.try_into().map_err(|_| Error::mismatch("moments", N, count))
}
