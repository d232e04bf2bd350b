//! Transposed convolutions. Forward is the pass of a convolution back to its input, and backward is its pass forward, so the
//! loops are those of a convolution whose input is the output here.

use candle_core::Tensor;

use super::{Sizes, Sums, Wanted, accumulate, depthwise, products};
use crate::op::{self, Op, Pass};
use crate::planes::{Kernel, Padded, planes};
use crate::weights::Weight;
use crate::{Error, Result, memory, pool, tensor};

/// The transposed convolution of `x [b, c, ..]` and `weight [c, filters / groups, ..]` plus `bias [filters]` (Dumoulin & Visin
/// 2016, section 4) -> `[b, filters, ..]`. `..` is `t` or `h, w`, and an axis of n positions becomes one of `(n - 1) stride - 2
/// padding + dilation (size - 1) + 1 + output_padding`, where `output_padding` is less than the stride.
///
/// A group of channels writes its own `filters / groups` filters. Gradients of weights accumulate in the weights
/// ([`Weight::accumulate`]).
///
/// # Errors
/// `Mismatch` for shapes or groups that do not fit and for a padding that leaves no position. `OutOfRange` for an output
/// padding of the stride or more, and for an output that overflows. `Unavailable` for tensors that are not f32 on a CPU.
pub fn transposed_convolution(
    x: &Tensor,
    weight: &Weight,
    bias: Option<&Weight>,
    kernel: Kernel,
    output_padding: &[usize],
    groups: usize,
) -> Result<Tensor> {
    let ([batch, channels], input) = planes("a transposed convolution", x, kernel.rank())?;
    let own = weight.dims().get(1).copied().unwrap_or(0);
    if own == 0 || channels == 0 || channels.checked_rem(groups) != Some(0) {
        let got = format!("{groups} of {channels} channels and {own} filters each");
        return Err(Error::mismatch(
            "groups of a transposed convolution",
            "divisors of the channels",
            got,
        ));
    }
    let size = &kernel.size[2 - kernel.rank()..];
    let shape: Vec<usize> = [channels, own].into_iter().chain(size.iter().copied()).collect();
    tensor::check_shape("weight of a transposed convolution", &shape, weight.dims())?;
    if let Some(bias) = bias {
        let filters = own * groups;
        tensor::check_shape("bias of a transposed convolution", &[filters], bias.dims())?;
    }
    let output = kernel.transposed(input, output_padding)?;
    let shape = kernel.shape(batch, own * groups, output)?;
    let sizes = Sizes {
        batch,
        groups,
        inputs: own,
        filters: channels / groups,
        taps: kernel.taps(),
        is_pointwise: kernel.is_pointwise(),
        padded: Padded::new(kernel, output)?,
    };
    let op = Transposed { sizes, weight: weight.clone(), bias: bias.cloned() };
    let inputs = [Some(x), Some(&**weight), bias.map(|bias| &**bias)];
    op::apply(op, &inputs.into_iter().flatten().collect::<Vec<_>>(), shape)
}

struct Transposed {
    /// Those of the convolution from the output to the input.
    sizes: Sizes,
    weight: Weight,
    bias: Option<Weight>,
}

/// Inputs are x, weight, and a bias if there is one.
impl Op for Transposed {
    fn forward(&mut self, inputs: &[&[f32]], _track: bool) -> Result<Vec<Vec<f32>>> {
        let (x, weight, sizes) = (inputs[0], inputs[1], &self.sizes);
        let bias = inputs.get(2).copied().unwrap_or_default();
        let turned = products::turned(sizes, if sizes.is_depthwise() { &[] } else { weight });
        let mut y = memory::zeros(sizes.batch * sizes.input());
        pool::for_each_rows(&mut y, sizes.input(), sizes.per_shard(), |first, y| {
            let count = y.len() / sizes.input();
            let x = &x[first * sizes.output()..][..count * sizes.output()];
            let wanted = Wanted { dx: &mut *y, dw: &mut [] };
            match sizes.is_depthwise() {
                true => depthwise::backward(sizes, &[], weight, x, wanted),
                false => products::backward(sizes, &[], &turned, x, wanted),
            }
            if !bias.is_empty() {
                let planes = y.chunks_exact_mut(sizes.padded.input());
                for (plane, bias) in planes.zip(bias.iter().cycle()) {
                    plane.iter_mut().for_each(|y| *y += bias);
                }
            }
        });
        Ok(vec![y])
    }

    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let (x, weight, dy, sizes) =
            (pass.inputs[0], pass.inputs[1], pass.gradient()?, &self.sizes);
        let wanted = |i: usize, count: usize| if pass.wants(i) { count } else { 0 };
        let zero = || Sums {
            weight: memory::zeros(wanted(1, weight.len())),
            bias: memory::zeros(wanted(2, sizes.groups * sizes.inputs)),
        };
        let mut dx = memory::zeros(wanted(0, x.len()));
        let width = wanted(0, sizes.output());
        let buffers = [(&mut dx[..], width)];
        let per_shard = sizes.per_shard();
        let parts = pool::sum_shards(sizes.batch, per_shard, buffers, zero, |rows, [dx], sums| {
            let x = &x[rows.start * sizes.output()..rows.end * sizes.output()];
            let dy = &dy[rows.start * sizes.input()..rows.end * sizes.input()];
            products::add_sums_of(&mut sums.bias, dy, sizes.input());
            if !dx.is_empty() {
                match sizes.is_depthwise() {
                    true => depthwise::forward(sizes, dy, weight, &[], dx),
                    false => products::forward(sizes, dy, weight, &[], dx),
                }
            }
            if !sums.weight.is_empty() {
                let wanted = Wanted { dx: &mut [], dw: &mut sums.weight };
                match sizes.is_depthwise() {
                    true => depthwise::backward(sizes, dy, weight, x, wanted),
                    false => products::backward(sizes, dy, &[], x, wanted),
                }
            }
        });
        accumulate(&self.weight, self.bias.as_ref(), &parts);
        let mut gradients = vec![dx];
        gradients.resize_with(pass.inputs.len(), Vec::new);
        Ok(gradients)
    }
}
