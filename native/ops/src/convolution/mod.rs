//! Convolutions of signals and images, channels first.

mod depthwise;
mod products;
mod transposed;

use candle_core::Tensor;

use crate::op::{self, Op, Pass};
use crate::planes::{Kernel, Padded, planes};
use crate::simd::add_assign;
use crate::weights::Weight;
use crate::{Error, Result, memory, pool, tensor};

pub use self::transposed::transposed_convolution;

/// The most shards of a batch. A shard has whole items, so its gradients of the weights are summed in one fixed order.
const SHARDS: usize = 8;

/// The cross-correlation of `x [b, c, ..]` and `weight [filters, c / groups, ..]` plus `bias [filters]` (Goodfellow et al.
/// 2016, eq. 9.6; strides, padding and dilation as in Dumoulin & Visin 2016) -> `[b, filters, ..]`. `..` is `t` or `h, w`.
///
/// A group of filters reads its own `c / groups` channels. With one channel in each group the convolution is depthwise.
///
/// Gradients of weights accumulate in the weights ([`Weight::accumulate`]).
///
/// # Errors
/// `Mismatch` for shapes or groups that do not fit and for a kernel larger than its padded input. `Unavailable` for
/// tensors that are not f32 on a CPU.
pub fn convolution(
    x: &Tensor,
    weight: &Weight,
    bias: Option<&Weight>,
    kernel: Kernel,
    groups: usize,
) -> Result<Tensor> {
    let ([batch, channels], input) = planes("a convolution", x, kernel.rank())?;
    let filters = weight.dims().first().copied().unwrap_or(0);
    let divides = |n: usize| n > 0 && n.checked_rem(groups) == Some(0);
    if !(divides(channels) && divides(filters)) {
        let expected = "divisors of the channels and the filters";
        let got = format!("{groups} of {channels} channels and {filters} filters");
        return Err(Error::mismatch("groups of a convolution", expected, got));
    }
    let size = &kernel.size[2 - kernel.rank()..];
    let shape: Vec<usize> =
        [filters, channels / groups].into_iter().chain(size.iter().copied()).collect();
    tensor::check_shape("weight of a convolution", &shape, weight.dims())?;
    if let Some(bias) = bias {
        tensor::check_shape("bias of a convolution", &[filters], bias.dims())?;
    }
    let padded = Padded::new(kernel, input)?;
    let shape = kernel.shape(batch, filters, padded.output)?;
    let sizes = Sizes {
        batch,
        groups,
        inputs: channels / groups,
        filters: filters / groups,
        taps: kernel.taps(),
        is_pointwise: kernel.is_pointwise(),
        padded,
    };
    let op = Convolution { sizes, weight: weight.clone(), bias: bias.cloned() };
    let inputs = [Some(x), Some(&**weight), bias.map(|bias| &**bias)];
    op::apply(op, &inputs.into_iter().flatten().collect::<Vec<_>>(), shape)
}

/// The sizes of a convolution.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    batch: usize,
    groups: usize,
    /// Channels that a filter reads.
    inputs: usize,
    /// Filters of a group.
    filters: usize,
    /// Values of a kernel on one channel.
    taps: usize,
    /// Whether the values of a channel are a row of the product as they are.
    is_pointwise: bool,
    padded: Padded,
}

impl Sizes {
    /// Values of an item's input.
    fn input(&self) -> usize {
        self.groups * self.inputs * self.padded.input()
    }

    /// Filters of all groups.
    fn all_filters(&self) -> usize {
        self.groups * self.filters
    }

    /// Values of an item's output.
    fn output(&self) -> usize {
        self.all_filters() * self.padded.positions()
    }

    /// Values of a filter.
    fn depth(&self) -> usize {
        self.inputs * self.taps
    }

    /// Items of a shard.
    fn per_shard(&self) -> usize {
        self.batch.div_ceil(SHARDS).max(1)
    }

    fn is_depthwise(&self) -> bool {
        self.inputs == 1 && self.groups > 1
    }
}

/// The gradients that a shard of a backward pass computes.
struct Wanted<'a> {
    /// The gradient of the input, set by the shard; empty if not wanted.
    dx: &'a mut [f32],
    /// Sums of gradients of the weight, to which the shard adds; empty if not wanted.
    dw: &'a mut [f32],
}

struct Convolution {
    sizes: Sizes,
    weight: Weight,
    bias: Option<Weight>,
}

/// Sums of gradients over the items of a shard.
#[derive(Default)]
struct Sums {
    weight: Vec<f32>,
    bias: Vec<f32>,
}

/// Adds up the gradients of the weights in the order of the shards.
fn accumulate(weight: &Weight, bias: Option<&Weight>, parts: &[Sums]) {
    let add = |weight: &Weight, of: fn(&Sums) -> &[f32]| {
        weight.accumulate(|sum, adds| {
            if !adds {
                sum.fill(0.0);
            }
            parts.iter().for_each(|part| add_assign(sum, of(part)));
        });
    };
    add(weight, |part| &part.weight);
    if let Some(bias) = bias {
        add(bias, |part| &part.bias);
    }
}

/// Inputs are x, weight, and a bias if there is one.
impl Op for Convolution {
    fn forward(&mut self, inputs: &[&[f32]], _track: bool) -> Result<Vec<Vec<f32>>> {
        let (x, weight, sizes) = (inputs[0], inputs[1], &self.sizes);
        let bias = inputs.get(2).copied().unwrap_or_default();
        let mut y = memory::zeros(sizes.batch * sizes.output());
        pool::for_each_rows(&mut y, sizes.output(), sizes.per_shard(), |first, y| {
            let x = &x[first * sizes.input()..];
            match sizes.is_depthwise() {
                true => depthwise::forward(sizes, x, weight, bias, y),
                false => products::forward(sizes, x, weight, bias, y),
            }
        });
        Ok(vec![y])
    }

    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let (x, weight, dy, sizes) =
            (pass.inputs[0], pass.inputs[1], pass.gradient()?, &self.sizes);
        let wanted = |i: usize, count: usize| if pass.wants(i) { count } else { 0 };
        let of_filters = |i: usize, count: usize| memory::zeros(wanted(i, count));
        let zero = || Sums {
            weight: of_filters(1, weight.len()),
            bias: of_filters(2, sizes.all_filters()),
        };
        let turned = products::turned(sizes, if pass.wants(0) { weight } else { &[] });
        let mut dx = memory::zeros(wanted(0, x.len()));
        let width = wanted(0, sizes.input());
        let per_shard = sizes.per_shard();
        let buffers = [(&mut dx[..], width)];
        let parts = pool::sum_shards(sizes.batch, per_shard, buffers, zero, |rows, [dx], sums| {
            let x = &x[rows.start * sizes.input()..rows.end * sizes.input()];
            let dy = &dy[rows.start * sizes.output()..rows.end * sizes.output()];
            products::add_sums_of(&mut sums.bias, dy, sizes.output());
            let wanted = Wanted { dx, dw: &mut sums.weight };
            match sizes.is_depthwise() {
                true => depthwise::backward(sizes, x, weight, dy, wanted),
                false => products::backward(sizes, x, &turned, dy, wanted),
            }
        });
        accumulate(&self.weight, self.bias.as_ref(), &parts);
        let mut gradients = vec![dx];
        gradients.resize_with(pass.inputs.len(), Vec::new);
        Ok(gradients)
    }
}
