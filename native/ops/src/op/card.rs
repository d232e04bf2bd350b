//! The card form of an op, over any number of tensors.

use candle_core::{Result, Tensor};

use sconce_tensor::trace::{self, CardSpan, Kind};

use crate::{op, tape};

/// The card form of an op. All of its input tensors are contiguous and outside any graph.
pub(crate) trait Op: Send + Sync + 'static {
    /// Returns the output, and the tensors that a backward pass needs besides inputs and output. Further outputs
    /// ([`apply_all`]) come first among these tensors. `track` is true if a backward pass may follow: outputs are
    /// allocated by [`output`](crate::device::launch::output).
    fn forward(&self, inputs: &[Tensor], track: bool) -> Result<(Tensor, Vec<Tensor>)>;

    /// The gradients of the inputs, each of the shape and dtype of its input; an unneeded gradient may be `None`.
    fn backward(&self, pass: &Pass) -> Result<Vec<Option<Tensor>>>;
}

/// Inputs of an op's backward pass.
pub(crate) struct Pass<'a> {
    pub inputs: &'a [Tensor],
    pub kept: &'a [Tensor],
    pub y: &'a Tensor,
    pub dy: &'a Tensor,
    /// Gradients of the other outputs; `None` for an output without a gradient.
    pub d_others: &'a [Option<Tensor>],
    pub wanted: &'a [bool],
}

/// Runs an op and returns its output.
pub(crate) fn apply(op: impl Op, inputs: &[&Tensor]) -> crate::Result<Tensor> {
    let [y] = apply_all(op, inputs)?;
    Ok(y)
}

/// Runs an op and returns its N outputs.
pub(crate) fn apply_all<O: Op, const N: usize>(
    op: O,
    inputs: &[&Tensor],
) -> crate::Result<[Tensor; N]> {
    let tensors = inputs.iter().map(|x| tape::contiguous(x)).collect::<crate::Result<Vec<_>>>()?;
    let wanted: Vec<bool> = tensors.iter().map(tape::wants).collect();
    let inputs: Vec<Tensor> = tensors.iter().map(Tensor::detach).collect();
    let track = wanted.contains(&true);
    let (y, mut kept) = {
        let _span = spanned::<O>(Kind::Forward, &inputs);
        op.forward(&inputs, track)?
    };
    let others = kept.drain(..kept.len().min(N - 1));
    let outputs: Vec<Tensor> = std::iter::once(y.clone()).chain(others).collect();
    if track {
        tape::note(&tensors, &outputs, move |gradients| {
            let given = gradients.iter().map(|d| d.as_ref().map(Tensor::contiguous).transpose());
            let mut given = given.collect::<Result<Vec<_>>>()?;
            let y = y.detach();
            let dy = given.remove(0).map_or_else(|| y.zeros_like(), Ok)?;
            let (inputs, kept, d_others) = (&inputs[..], &kept[..], &given[..]);
            let pass = Pass { inputs, kept, y: &y, dy: &dy, d_others, wanted: &wanted };
            let _span = spanned::<O>(Kind::Backward, inputs);
            Ok(op.backward(&pass)?)
        });
    }
    op::take(outputs)
}

/// The spans of an op, with the bytes of its inputs; those of its outputs are not known yet.
fn spanned<O>(kind: Kind, inputs: &[Tensor]) -> Option<CardSpan> {
    let device = inputs.first().filter(|_| trace::is_on())?.device();
    let bytes = inputs.iter().map(|x| x.elem_count() * x.dtype().size_in_bytes());
    Some(trace::on_card(device, kind, std::any::type_name::<O>(), bytes.sum::<usize>() as u64))
}
