//! Batch normalisation of the channels of `[b, c, ..]` (Ioffe & Szegedy 2015).

mod channels;

use candle_core::Tensor;

use self::channels::{Channels, Moments, Slopes};
use crate::op::{self, Op, Pass};
use crate::planes::only_on_cpus;
use crate::simd::add_assign;
use crate::weights::Weight;
use crate::{Error, Result, memory, pool, tensor};

/// A batch normalisation: scale and shift by channel, and the running statistics.
#[derive(Clone)]
pub struct BatchNorm {
    /// The scale, `[c]`.
    pub weight: Weight,
    /// The shift, `[c]`.
    pub bias: Weight,
    /// The running mean, `[c]`. It is no trained weight.
    pub running_mean: Tensor,
    /// The running variance, `[c]`. It is no trained weight.
    pub running_var: Tensor,
    /// The constant added to the variance.
    pub eps: f32,
    /// The part of a batch in the running statistics: `(1 - momentum) old + momentum new`.
    pub momentum: f32,
}

/// The training form, `(x - mean) / sqrt(variance + eps) * weight + bias` with mean and population variance of each channel
/// over batch and positions (algorithm 1). It updates the running statistics in place, with the unbiased variance.
///
/// Backward, with `n` the normalised value and `g = dy * weight`: `dx = (g - mean(g) - n * mean(g * n)) / s`. Gradients of
/// weights accumulate in the weights ([`Weight::accumulate`]).
///
/// # Errors
/// `Mismatch` for shapes that do not fit and for channels of a single value. `Unavailable` for tensors that are not f32 on
/// a CPU.
pub fn batch_norm(x: &Tensor, norm: &BatchNorm) -> Result<Tensor> {
    let channels = norm.channels(x)?;
    if channels.values() < 2 {
        let got = channels.values();
        return Err(Error::mismatch("values of a channel in a batch", "at least 2", got));
    }
    let moments = tensor::with(x, |x| Ok(channels.moments(x)))?;
    norm.update(&channels, &moments)?;
    norm.apply(x, channels, moments, true)
}

/// The inference form: [`batch_norm()`] with the running statistics instead of those of the batch (algorithm 2). It does
/// not change them, and its backward pass treats them as constants.
///
/// # Errors
/// `Mismatch` for shapes that do not fit. `Unavailable` for tensors that are not f32 on a CPU.
pub fn batch_norm_of(x: &Tensor, norm: &BatchNorm) -> Result<Tensor> {
    let channels = norm.channels(x)?;
    let (means, variances) =
        (tensor::to_vec(&norm.running_mean)?, tensor::to_vec(&norm.running_var)?);
    let pairs = means.iter().zip(&variances);
    let moments = pairs.map(|(m, v)| Moments { mean: (*m).into(), variance: (*v).into() });
    norm.apply(x, channels, moments.collect(), false)
}

impl BatchNorm {
    /// Checks the shapes.
    fn channels(&self, x: &Tensor) -> Result<Channels> {
        only_on_cpus("batch normalisation", x)?;
        let Some((&[batch, channels], rest)) = x.dims().split_first_chunk() else {
            let got = format!("{:?}", x.dims());
            return Err(Error::mismatch("input of batch normalisation", "[b, c, ..]", got));
        };
        let parts = [
            ("weight", &*self.weight),
            ("bias", &*self.bias),
            ("running mean", &self.running_mean),
            ("running variance", &self.running_var),
        ];
        for (name, part) in parts {
            let what = format_args!("{name} of a batch normalisation");
            tensor::check_shape(what, &[channels], part.dims())?;
        }
        Ok(Channels { batch, channels, positions: rest.iter().product() })
    }

    /// Moves the running statistics towards those of a batch.
    fn update(&self, channels: &Channels, moments: &[Moments]) -> Result<()> {
        let (n, momentum) = (channels.values() as f64, f64::from(self.momentum));
        let moved =
            |old: f32, new: f64| ((1.0 - momentum) * f64::from(old) + momentum * new) as f32;
        tensor::update(&self.running_mean, |means| {
            means.iter_mut().zip(moments).for_each(|(mean, of)| *mean = moved(*mean, of.mean));
        })?;
        tensor::update(&self.running_var, |variances| {
            for (variance, of) in variances.iter_mut().zip(moments) {
                *variance = moved(*variance, of.variance * n / (n - 1.0));
            }
        })?;
        Ok(())
    }

    fn apply(
        &self,
        x: &Tensor,
        channels: Channels,
        moments: Vec<Moments>,
        of_batch: bool,
    ) -> Result<Tensor> {
        let scales =
            moments.iter().map(|m| (1.0 / (m.variance + f64::from(self.eps)).sqrt()) as f32);
        let op = Normalise {
            channels,
            scales: scales.collect(),
            means: moments.iter().map(|m| m.mean as f32).collect(),
            of_batch,
            weight: self.weight.clone(),
            bias: self.bias.clone(),
        };
        op::apply(op, &[x, &self.weight, &self.bias], x.shape())
    }
}

struct Normalise {
    channels: Channels,
    means: Vec<f32>,
    /// `1 / sqrt(variance + eps)`.
    scales: Vec<f32>,
    /// Whether the statistics depend on the input.
    of_batch: bool,
    weight: Weight,
    bias: Weight,
}

/// Inputs are x, weight and bias.
impl Op for Normalise {
    fn forward(&mut self, inputs: &[&[f32]], _track: bool) -> Result<Vec<Vec<f32>>> {
        let (x, weight, bias) = (inputs[0], inputs[1], inputs[2]);
        let channels = &self.channels;
        let mut y = memory::zeros(x.len());
        pool::for_each_rows(&mut y, channels.positions, channels.per_shard(), |first, y| {
            for (plane, y) in (first..).zip(y.chunks_exact_mut(channels.positions)) {
                let c = plane % channels.channels;
                let x = &x[plane * channels.positions..][..y.len()];
                channels::normalise(y, x, self.means[c], self.scales[c] * weight[c], bias[c]);
            }
        });
        Ok(vec![y])
    }

    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let (x, weight, dy) = (pass.inputs[0], pass.inputs[1], pass.gradient()?);
        let channels = &self.channels;
        let slopes = channels.slopes(x, dy, &self.means, &self.scales);
        let add = |to: &Weight, of: fn(&Slopes) -> f64| {
            to.accumulate(|sum, adds| {
                if !adds {
                    sum.fill(0.0);
                }
                let found: Vec<f32> = slopes.iter().map(|slopes| of(slopes) as f32).collect();
                add_assign(sum, &found);
            });
        };
        add(&self.weight, |slopes| slopes.weight);
        add(&self.bias, |slopes| slopes.bias);
        if !pass.wants(0) {
            return Ok(vec![vec![]; 3]);
        }
        let n = channels.values() as f64;
        let mut dx = memory::zeros(x.len());
        pool::for_each_rows(&mut dx, channels.positions, channels.per_shard(), |first, dx| {
            for (plane, dx) in (first..).zip(dx.chunks_exact_mut(channels.positions)) {
                let c = plane % channels.channels;
                let span = plane * channels.positions..(plane + 1) * channels.positions;
                let means = match self.of_batch {
                    true => [slopes[c].bias / n, slopes[c].weight / n].map(|mean| mean as f32),
                    false => [0.0; 2],
                };
                let of = [self.means[c], self.scales[c], self.scales[c] * weight[c]];
                channels::input_gradient(dx, &x[span.clone()], &dy[span], of, means);
            }
        });
        Ok(vec![dx, vec![], vec![]])
    }
}
