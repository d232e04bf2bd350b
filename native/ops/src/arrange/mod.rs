//! Reshapes, concatenations and sums.

pub(crate) mod card;

use candle_core::{D, DType, Tensor};

use crate::activation::card::finished;
use crate::form::{Form, is_for_kernels};
use crate::op::{self, Op, Pass};
use crate::tensor::{bytes, check_shape, rows, sum_of, with_all, with_width};
use crate::{Activation, Error, memory, tape};

/// The values of `x` in another shape.
pub fn reshape(x: &Tensor, dims: impl Into<Vec<usize>>) -> crate::Result<Tensor> {
    let dims = dims.into();
    match Form::of(x) {
        Form::Cpu => {}
        Form::Card => return Ok(card::reshape(x, dims)?),
        Form::Composed => return Ok(x.reshape(dims)?),
    }
    let shape = x.shape().clone();
    let y = tape::contiguous(x)?.reshape(dims)?;
    Ok(tape::view(x, y, move |d| d.reshape(shape)))
}

/// Concatenates tensors along the last dimension.
pub fn join(parts: &[&Tensor]) -> crate::Result<Tensor> {
    let Some(first) = parts.first() else { return Err(Error::not_found("tensors to join")) };
    match Form::of(first) {
        Form::Cpu => {
            memory::granted(parts.iter().map(|part| bytes(part)).sum());
            let widths: Vec<usize> = parts.iter().map(|part| rows(part.dims()).1).collect();
            let shape = with_width(first, widths.iter().sum());
            op::apply(Join { widths }, parts, shape)
        }
        Form::Card if parts.iter().all(|part| is_for_kernels(part)) => card::join(parts),
        Form::Card | Form::Composed => {
            memory::granted(parts.iter().map(|part| bytes(part)).sum());
            Ok(Tensor::cat(parts, D::Minus1)?)
        }
    }
}

/// Concatenates rows of these widths.
struct Join {
    widths: Vec<usize>,
}

impl Op for Join {
    fn forward(&mut self, inputs: &[&[f32]], _track: bool) -> crate::Result<Vec<Vec<f32>>> {
        let rows = inputs[0].len() / self.widths[0].max(1);
        let mut y = memory::with_capacity(inputs.iter().map(|x| x.len()).sum());
        for row in 0..rows {
            for (x, &width) in inputs.iter().zip(&self.widths) {
                y.extend_from_slice(&x[row * width..][..width]);
            }
        }
        Ok(vec![y])
    }

    fn backward(&mut self, pass: &Pass<'_>) -> crate::Result<Vec<Vec<f32>>> {
        let (dy, all) = (pass.gradient()?, self.widths.iter().sum::<usize>().max(1));
        let mut begin = 0;
        let part = |(&width, wanted): (&usize, &bool)| {
            begin += width;
            let own = begin - width..begin;
            let mut d = memory::with_capacity(if *wanted { dy.len() / all * width } else { 0 });
            if *wanted {
                dy.chunks_exact(all).for_each(|row| d.extend_from_slice(&row[own.clone()]));
            }
            d
        };
        Ok(self.widths.iter().zip(pass.wanted).map(part).collect())
    }
}

/// `x + y`, of one shape.
pub fn add(x: &Tensor, y: &Tensor) -> crate::Result<Tensor> {
    let form = Form::of(x);
    if form == Form::Card {
        return finished(x, None, Activation::None, Some(y));
    }
    memory::granted(bytes(x));
    if form == Form::Composed || x.dtype() != DType::F32 {
        return Ok((x + y)?);
    }
    check_shape("a sum", x.dims(), y.dims())?;
    let terms = [tape::contiguous(x)?, tape::contiguous(y)?];
    let track = terms.iter().any(tape::wants);
    let numbers = with_all(&terms.each_ref().map(|t| t.detach()), |t| Ok(sum_of(t[0], t[1])))?;
    let sum = op::output(numbers, x.shape(), track)?;
    if track {
        tape::note(&terms, std::slice::from_ref(&sum), |given| Ok(vec![given[0].clone(); 2]));
    }
    Ok(sum)
}
