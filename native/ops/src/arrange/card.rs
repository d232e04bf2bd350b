//! Concatenates tensors on a card, and splits them again.

use candle_core::{D, Result, Tensor, bail};
use sconce_cuda::kernels::ROWS;

use crate::device::launch::{Launch, output, unwritten};
use crate::op::card::{Op, Pass, apply};
use crate::tape;
use crate::tensor::{rows, with_width};

const THREADS: usize = 256;

/// Concatenates tensors along the last dimension.
pub(crate) fn join(parts: &[&Tensor]) -> crate::Result<Tensor> {
    apply(Join, parts)
}

/// The same values in another shape.
pub(crate) fn reshape(x: &Tensor, dims: Vec<usize>) -> Result<Tensor> {
    let (y, own) = (x.reshape(dims)?, x.dims().to_vec());
    Ok(tape::view(x, y, move |dy| dy.reshape(own.as_slice())))
}

/// Copies columns of `from`, from its column `first` on, to the columns of `to` from its column `at` on: as many as
/// both have.
pub(crate) fn copy_columns(from: (&Tensor, usize), to: (&Tensor, usize)) -> Result<()> {
    let ([from, to], [first, at]) = ([from.0, to.0], [from.1, to.1]);
    let ((count, wide), (to_count, to_wide)) = (rows(from.dims()), rows(to.dims()));
    let n = (wide - first.min(wide)).min(to_wide - at.min(to_wide));
    if count != to_count || from.dtype() != to.dtype() {
        bail!("columns of {from:?} cannot be copied to {to:?}");
    }
    let kernel = match from.dtype().size_in_bytes() {
        4 => "copy_columns_32",
        2 => "copy_columns_16",
        other => bail!("columns of numbers of {other} bytes cannot be copied"),
    };
    let launch = Launch::of(ROWS, kernel, to)?.tensor(from)?.tensor(to)?.long(count);
    let launch = [n, wide, first, to_wide, at].into_iter().fold(launch, Launch::int);
    // SAFETY: as rows.cu requires, a thread for each value.
    unsafe { launch.run([(count * n).div_ceil(THREADS), 1, 1], [THREADS, 1, 1], 0) }
}

struct Join;

impl Op for Join {
    fn forward(&self, parts: &[Tensor], track: bool) -> Result<(Tensor, Vec<Tensor>)> {
        let Some(beside) = parts.first() else { bail!("no tensors to join") };
        let widths = parts.iter().map(|part| part.dim(D::Minus1)).collect::<Result<Vec<_>>>()?;
        let y = output(with_width(beside, widths.iter().sum()), beside.dtype(), beside, track)?;
        let mut first = 0;
        for (part, width) in parts.iter().zip(widths) {
            copy_columns((part, 0), (&y, first))?;
            first += width;
        }
        Ok((y, vec![]))
    }

    fn backward(&self, pass: &Pass) -> Result<Vec<Option<Tensor>>> {
        let mut first = 0;
        let part = |(part, wanted): (&Tensor, &bool)| {
            let at = first;
            first += part.dim(D::Minus1)?;
            let own = || {
                let own = unwritten(part.shape(), part.dtype(), part)?;
                copy_columns((pass.dy, at), (&own, 0)).map(|()| own)
            };
            wanted.then(own).transpose()
        };
        pass.inputs.iter().zip(pass.wanted).map(part).collect()
    }
}
