//! Norms of rows on a card.

use candle_core::{DType, Tensor};
use sconce_cuda::kernels::NORM;

use crate::activation::card::activate;
use crate::columns::card::sum_of_parts;
use crate::device::launch::{Launch, MOST_ALONG_Y, output, suffix, unwritten};
use crate::op::card::{Op, Pass, apply};
use crate::{Activation, Norm, Result, tape, tensor};

const WARP: usize = 32;
/// Threads of a block.
const THREADS: usize = 128;
/// The most rows, and numbers of each, that a kernel with rows in registers normalises faster.
const FEW: usize = 1024;
const KEPT: usize = 16 * WARP;
/// Minimum rows of a partial sum of the weights' gradients.
const ROWS: usize = 64;

pub(super) fn row_norm(x: &Tensor, norm: &Norm, activation: Activation) -> Result<Tensor> {
    let op = RowNorm { center: norm.bias.is_some(), eps: norm.eps, groups: 1, activation };
    normed(x, &norm.weight, norm.bias.as_deref(), op)
}

pub(super) fn group_norm(
    x: &Tensor,
    weight: &Tensor,
    groups: usize,
    center: bool,
    eps: f32,
) -> Result<Tensor> {
    normed(x, weight, None, RowNorm { center, eps, groups, activation: Activation::None })
}

fn normed(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, op: RowNorm) -> Result<Tensor> {
    let f32s = |t: &Tensor| t.to_dtype(DType::F32);
    let (weight, bias) = (f32s(weight)?, bias.map(f32s).transpose()?);
    let inputs: Vec<&Tensor> = [x, &weight].into_iter().chain(&bias).collect();
    let then = op.activation;
    if then != Activation::None && inputs.iter().any(|t| tape::wants(t)) {
        return activate(&apply(RowNorm { activation: Activation::None, ..op }, &inputs)?, then);
    }
    apply(op, &inputs)
}

struct RowNorm {
    center: bool,
    eps: f32,
    groups: usize,
    /// The activation after the norm, for inputs without gradient.
    activation: Activation,
}

impl RowNorm {
    fn launch(&self, step: &str, x: &Tensor) -> candle_core::Result<Launch> {
        let name = if self.center { "layer_norm" } else { "rms_norm" };
        Launch::of(NORM, &format!("{name}_{}_{step}", suffix(x)), x)
    }

    /// The number of rows of all groups, and the width of a group.
    fn rows(&self, x: &Tensor) -> (usize, usize) {
        let (rows, width) = tensor::rows(x.dims());
        (rows * self.groups, width / self.groups)
    }
}

impl Op for RowNorm {
    fn forward(
        &self,
        inputs: &[Tensor],
        track: bool,
    ) -> candle_core::Result<(Tensor, Vec<Tensor>)> {
        let [x, weight, bias @ ..] = inputs else { candle_core::bail!("a norm takes a weight") };
        let (rows, d) = self.rows(x);
        let y = output(x.shape(), x.dtype(), x, track)?;
        let kept = track.then(|| unwritten((rows, 2), DType::F32, x)).transpose()?;
        let few = rows <= FEW && d <= KEPT;
        let launch = self.launch(if few { "forward_few" } else { "forward" }, x)?;
        let launch = launch.tensor(x)?.tensor(weight)?.option(bias.first())?;
        let launch = launch.tensor(&y)?.option(kept.as_ref())?.long(rows).int(d).int(self.groups);
        let launch = launch.float(self.eps).int(self.activation as usize);
        // SAFETY: as norm.cu requires, a warp for each row.
        unsafe { launch.run([(rows * WARP).div_ceil(THREADS), 1, 1], [THREADS, 1, 1], 0) }?;
        Ok((y, kept.into_iter().collect()))
    }

    fn backward(&self, pass: &Pass) -> candle_core::Result<Vec<Option<Tensor>>> {
        let Pass { inputs: [x, weight, bias @ ..], kept: [kept], dy, wanted, .. } = pass else {
            candle_core::bail!("a norm takes a weight")
        };
        let (rows, d) = self.rows(x);
        let dx = unwritten(x.shape(), x.dtype(), x)?;
        let launch = self.launch("backward", x)?.tensor(x)?.tensor(weight)?.tensor(kept)?;
        let launch = launch.tensor(dy)?.tensor(&dx)?.long(rows).int(d).int(self.groups);
        // SAFETY: as norm.cu requires, a warp for each row.
        unsafe { launch.run([(rows * WARP).div_ceil(THREADS), 1, 1], [THREADS, 1, 1], 0) }?;

        let mut gradients = vec![Some(dx)];
        if !wanted[1..].contains(&true) {
            return Ok(gradients);
        }
        let (rows, width) = tensor::rows(x.dims());
        let per_part = rows.div_ceil(MOST_ALONG_Y).max(ROWS);
        let (count, n) = (rows.div_ceil(per_part), if self.center { 2 } else { 1 });
        let parts = unwritten((count, n, width), DType::F32, x)?;
        let launch = self.launch("weight_parts", x)?.tensor(x)?.tensor(kept)?.tensor(dy)?;
        let launch = launch.tensor(&parts)?.long(rows).int(d).int(self.groups).int(per_part);
        // SAFETY: as norm.cu requires, a thread for each column of each part.
        unsafe { launch.run([width.div_ceil(THREADS), count, 1], [THREADS, 1, 1], 0) }?;
        let sums = sum_of_parts(&parts)?;
        gradients.extend((0..1 + bias.len()).map(|i| sums.get(i).ok()));
        Ok(gradients)
    }
}
