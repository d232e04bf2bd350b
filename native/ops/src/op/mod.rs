//! The CPU form of an op, and its application in a forward and backward pass.

pub(crate) mod card;

use candle_core::op::BackpropOp;
use candle_core::{CpuStorage, Shape, Storage, Tensor};

use sconce_tensor::trace::{self, Kind, Span};

use super::{tape, tensor};
use crate::{Error, Result};

/// The CPU form of an op, from slices of contiguous f32 tensors to vectors of values.
pub trait Op: 'static {
    /// Computes the values of all outputs. With `track`, the op saves the values that [`backward`](Self::backward)
    /// needs.
    fn forward(&mut self, inputs: &[&[f32]], track: bool) -> Result<Vec<Vec<f32>>>;

    /// Computes the gradients of the inputs from the gradients of the outputs. Called at most once. A gradient is empty
    /// if not required or if accumulated in a weight ([`Weight::accumulate`](crate::weights::Weight::accumulate)).
    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>>;
}

/// Inputs of an op's backward pass.
pub struct Pass<'a> {
    /// The op's inputs.
    pub inputs: &'a [&'a [f32]],
    /// The op's outputs.
    pub outputs: &'a [&'a [f32]],
    /// Gradients of the outputs; `None` for an output that no later op used.
    pub gradients: &'a [Option<&'a [f32]>],
    /// Whether each input requires a gradient.
    pub wanted: &'a [bool],
}

impl<'a> Pass<'a> {
    /// The gradient of the only output.
    pub fn gradient(&self) -> Result<&'a [f32]> {
        let missing = || Error::not_found("gradient of an output");
        self.gradients.first().copied().flatten().ok_or_else(missing)
    }

    /// Whether input `i` requires a gradient.
    pub fn wants(&self, i: usize) -> bool {
        self.wanted.get(i).is_some_and(|wanted| *wanted)
    }
}

/// The N slices of an op's inputs, or their gradients.
pub fn numbers<T: Copy, const N: usize>(all: &[T]) -> Result<[T; N]> {
    all.try_into().map_err(|_| Error::mismatch("inputs of an op", N, all.len()))
}

/// The N results of an op that runs inside another op, in the inner op's order.
pub fn results<const N: usize>(all: Vec<Vec<f32>>) -> Result<[Vec<f32>; N]> {
    let count = all.len();
    all.try_into().map_err(|_| Error::mismatch("results of an op", N, count))
}

/// Runs an op with one output, of this shape.
pub fn apply(op: impl Op, inputs: &[&Tensor], shape: impl Into<Shape>) -> Result<Tensor> {
    let [y] = apply_all(op, inputs, [shape.into()])?;
    Ok(y)
}

/// Runs an op with N outputs, of these shapes.
pub fn apply_all<const N: usize>(
    op: impl Op,
    inputs: &[&Tensor],
    shapes: [Shape; N],
) -> Result<[Tensor; N]> {
    take(apply_some(op, inputs, &shapes)?)
}

/// [`apply_all`] for an op whose number of outputs depends on its input.
pub fn apply_some<O: Op>(mut op: O, inputs: &[&Tensor], shapes: &[Shape]) -> Result<Vec<Tensor>> {
    let tensors = inputs.iter().map(|x| tape::contiguous(x)).collect::<Result<Vec<_>>>()?;
    let wanted: Vec<bool> = tensors.iter().map(tape::wants).collect();
    let track = wanted.contains(&true);
    let inputs: Vec<Tensor> = tensors.iter().map(Tensor::detach).collect();
    let made = {
        let _span = spanned::<O>(Kind::Forward, &inputs, shapes.iter().map(Shape::elem_count));
        tensor::with_all(&inputs, |slices| op.forward(slices, track))?
    };
    if made.len() != shapes.len() {
        return Err(Error::mismatch("outputs of an op", shapes.len(), made.len()));
    }
    let made = made.into_iter().zip(shapes);
    let outputs =
        made.map(|(data, shape)| output(data, shape, track)).collect::<Result<Vec<_>>>()?;
    if track {
        let kept: Vec<Tensor> = outputs.iter().map(Tensor::detach).collect();
        tape::note(&tensors, &outputs, move |gradients| {
            let found = backward(&mut op, [&inputs, &kept], gradients, &wanted)?;
            let gradients = found.into_iter().zip(&inputs).map(|(d, x)| {
                let is_none = d.is_empty() && x.elem_count() > 0;
                if is_none { Ok(None) } else { Ok(Some(tensor::tensor(d, x.shape())?)) }
            });
            gradients.collect()
        });
    }
    Ok(outputs)
}

/// A span of an op, with the bytes of its inputs and of all other numbers that it reads and writes.
fn spanned<O>(kind: Kind, inputs: &[Tensor], numbers: impl Iterator<Item = usize>) -> Span {
    if !trace::is_on() {
        return Span::none();
    }
    let inputs = inputs.iter().map(Tensor::elem_count);
    let numbers: usize = inputs.chain(numbers).sum();
    trace::sized(kind, std::any::type_name::<O>(), (size_of::<f32>() * numbers) as u64)
}

fn backward<O: Op>(
    op: &mut O,
    [inputs, outputs]: [&[Tensor]; 2],
    gradients: &[Option<Tensor>],
    wanted: &[bool],
) -> Result<Vec<Vec<f32>>> {
    // Besides inputs it reads outputs and their gradients, and writes the gradients of its inputs.
    let found = inputs.iter().zip(wanted).filter(|(_, wanted)| **wanted).map(|(x, _)| x);
    let others = outputs.iter().chain(gradients.iter().flatten()).chain(found);
    let _span = spanned::<O>(Kind::Backward, inputs, others.map(Tensor::elem_count));
    let given: Vec<Tensor> =
        gradients.iter().flatten().map(tensor::contiguous).collect::<Result<_>>()?;
    tensor::with_all(&given, |given| {
        let mut given = given.iter().copied();
        let gradients: Vec<_> =
            gradients.iter().map(|d| d.as_ref().and_then(|_| given.next())).collect();
        tensor::with_all(inputs, |inputs| {
            tensor::with_all(outputs, |outputs| {
                op.backward(&Pass { inputs, outputs, gradients: &gradients, wanted })
            })
        })
    })
}

/// An output of an op; a variable of candle if a backward pass may follow.
pub(crate) fn output(data: Vec<f32>, shape: &Shape, track: bool) -> Result<Tensor> {
    if data.len() != shape.elem_count() {
        return Err(Error::mismatch("numbers of an output", shape.elem_count(), data.len()));
    }
    let storage = Storage::Cpu(CpuStorage::F32(data));
    Ok(Tensor::from_storage(storage, shape, BackpropOp::none(), track))
}

/// The N outputs of an op with N outputs.
pub fn take<const N: usize>(outputs: Vec<Tensor>) -> Result<[Tensor; N]> {
    let count = outputs.len();
    outputs.try_into().map_err(|_| Error::mismatch("outputs of an op", N, count))
}
