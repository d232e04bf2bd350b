//! Updates composed of candle's ops, for a parameter on another device than a CPU. The composed form of each rule
//! stands beside its fused form.

use sconce_tensor::{DType, Result, Tensor};

use super::rule::{Pull, scaled};

/// New values of a parameter, its moments and its average, computed but not yet stored.
pub struct Next {
    pub(super) p: Tensor,
    pub(super) moments: Vec<Tensor>,
    pub(super) average: Option<Tensor>,
}

/// A parameter, its gradient, moments and average as tensors, like [`fused::Numbers`](super::fused::Numbers). The
/// parameter is not changed: `next` becomes the value after the update.
pub(super) struct Tensors<'a> {
    pub p: &'a Tensor,
    pub g: &'a Tensor,
    pub moments: &'a mut [Tensor],
    pub average: Option<&'a mut Tensor>,
    pub next: &'a mut Tensor,
    pub pull: Pull,
}

impl Tensors<'_> {
    /// The parameter, detached from the graph, and its gradient after clip and decay.
    pub(super) fn read(&self) -> Result<(Tensor, Tensor)> {
        let Pull { factor, coupled, .. } = self.pull;
        let p = self.p.detach();
        let g = (scaled(self.g, factor)? + scaled(&p, coupled)?)?;
        Ok((p, g))
    }

    pub(super) fn write(self, next: Tensor) -> Result<()> {
        if let Some(average) = self.average {
            *average = (&*average + scaled(&(&next - &*average)?, self.pull.blend)?)?;
        }
        *self.next = next;
        Ok(())
    }
}

/// Sum of squares of a tensor on any device, one f64 on the same device. [`squared_norm`](super::squared_norm) is the
/// CPU form.
pub fn squares_of(x: &Tensor) -> Result<Tensor> {
    Ok(x.to_dtype(DType::F64)?.sqr()?.sum_all()?)
}
