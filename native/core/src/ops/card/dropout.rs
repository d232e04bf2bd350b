//! Dropout, whose masks are drawn where they are used.

use candle_core::{Result, Tensor, bail};
use sconce_cuda::kernels::DROPOUT;

use super::launch::{Launch, suffix, unwritten};
use super::op::{Op, Pass, apply};
use crate::ops::dropout::Dropout;
use crate::ops::tensor;

/// Threads of a block, and numbers of each.
const THREADS: usize = 128;
const EACH: usize = 4;

/// `x` without what is dropped, and with a `residual`, which is whole.
pub fn dropout(x: &Tensor, residual: Option<&Tensor>, dropout: &Dropout) -> crate::Result<Tensor> {
    match residual {
        Some(residual) => apply(Masked(*dropout), &[x, residual]),
        None => apply(Masked(*dropout), &[x]),
    }
}

struct Masked(Dropout);

impl Masked {
    fn launch(&self, x: &Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
        let (rows, d) = tensor::rows(x.dims());
        let y = unwritten(x.shape(), x.dtype(), x)?;
        let Dropout { p, rng, repeat, place } = self.0;
        let [key0, key1, low, high] = rng.words().map(|word| word as usize);
        let launch = Launch::of(DROPOUT, &format!("dropout_{}", suffix(x)), x)?;
        let launch = launch.tensor(x)?.option(residual)?.tensor(&y)?.option(None)?;
        let launch = launch.long(high << 32 | low).int(key0).int(key1);
        let launch = launch.long(rows).int(d).int(repeat).int(place.window).int(place.before);
        let launch = launch.int(place.frames).float(p).float(1.0 / (1.0 - p));
        let blocks = (rows * d.div_ceil(EACH)).div_ceil(THREADS);
        // SAFETY: as dropout.cu says: a thread for every EACH numbers of a row.
        unsafe { launch.run([blocks, 1, 1], [THREADS, 1, 1], 0) }?;
        Ok(y)
    }
}

impl Op for Masked {
    fn name(&self) -> &'static str {
        "dropout"
    }

    fn forward(&self, inputs: &[Tensor], _track: bool) -> Result<(Tensor, Vec<Tensor>)> {
        let [x, residual @ ..] = inputs else { bail!("dropout has an argument") };
        Ok((self.launch(x, residual.first())?, vec![]))
    }

    fn backward(&self, pass: &Pass) -> Result<Vec<Option<Tensor>>> {
        let mut gradients = vec![Some(self.launch(pass.dy, None)?)];
        gradients.extend(pass.inputs.get(1).map(|_| Some(pass.dy.clone())));
        Ok(gradients)
    }
}
