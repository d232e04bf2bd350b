//! Sums over the values of a channel, which lie in the planes of all items.

use crate::simd::{LANES, dispatch};
use crate::{memory, pool};

/// Values of one shard, at least.
const SHARD: usize = 1 << 14;

/// Sizes of `[b, c, ..]`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Channels {
    pub(super) batch: usize,
    pub(super) channels: usize,
    /// Values of a plane.
    pub(super) positions: usize,
}

/// Mean and population variance of a channel.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Moments {
    pub(super) mean: f64,
    pub(super) variance: f64,
}

/// Gradients of the scale and the shift of a channel.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Slopes {
    pub(super) weight: f64,
    pub(super) bias: f64,
}

impl Channels {
    /// Values of a channel.
    pub(super) fn values(&self) -> usize {
        self.batch * self.positions
    }

    /// Planes of a shard.
    pub(super) fn per_shard(&self) -> usize {
        SHARD.div_ceil(self.positions.max(1))
    }

    /// The planes of a channel.
    fn planes<'a>(&self, x: &'a [f32], channel: usize) -> impl Iterator<Item = &'a [f32]> {
        let &Channels { channels, positions, .. } = self;
        x.chunks_exact((channels * positions).max(1))
            .map(move |item| &item[channel * positions..][..positions])
    }

    /// Computes a value for each channel.
    fn each<T: Clone + Default + Send>(&self, of: impl Fn(usize) -> T + Sync + Send) -> Vec<T> {
        let mut all = memory::repeated(T::default(), self.channels);
        let per_shard = SHARD.div_ceil(self.values().max(1));
        pool::for_each_rows(&mut all, 1, per_shard, |first, all| {
            all.iter_mut().zip(first..).for_each(|(to, channel)| *to = of(channel));
        });
        all
    }

    /// Mean and variance of every channel, summed in f64.
    pub(super) fn moments(&self, x: &[f32]) -> Vec<Moments> {
        let n = self.values() as f64;
        self.each(|channel| {
            let mut sums = [0.0; LANES];
            self.planes(x, channel).for_each(|x| add(&mut sums, x));
            let mean = sums.iter().sum::<f64>() / n;
            let mut sums = [0.0; LANES];
            self.planes(x, channel).for_each(|x| add_squares(&mut sums, x, mean));
            Moments { mean, variance: sums.iter().sum::<f64>() / n }
        })
    }

    /// Gradients of scale and shift of every channel, summed in f64.
    pub(super) fn slopes(
        &self,
        x: &[f32],
        dy: &[f32],
        means: &[f32],
        scales: &[f32],
    ) -> Vec<Slopes> {
        self.each(|channel| {
            let (mut sums, mut products) = ([0.0; LANES], [0.0; LANES]);
            for (x, dy) in self.planes(x, channel).zip(self.planes(dy, channel)) {
                add(&mut sums, dy);
                add_products(&mut products, dy, x, means[channel]);
            }
            let weight = products.iter().sum::<f64>() * f64::from(scales[channel]);
            Slopes { weight, bias: sums.iter().sum() }
        })
    }
}

dispatch! {
    /// Adds the values to the lanes.
    fn add(sums: &mut [f64; LANES], x: &[f32]) {
        let mut own = *sums;
        let (chunks, rest) = x.as_chunks::<LANES>();
        for chunk in chunks {
            for i in 0..LANES {
                own[i] += f64::from(chunk[i]);
            }
        }
        own.iter_mut().zip(rest).for_each(|(sum, x)| *sum += f64::from(*x));
        *sums = own;
    }
}

dispatch! {
    /// Adds the squared distances from `mean` to the lanes.
    fn add_squares(sums: &mut [f64; LANES], x: &[f32], mean: f64) {
        let mut own = *sums;
        let square = |x: f32| (f64::from(x) - mean) * (f64::from(x) - mean);
        let (chunks, rest) = x.as_chunks::<LANES>();
        for chunk in chunks {
            for i in 0..LANES {
                own[i] += square(chunk[i]);
            }
        }
        own.iter_mut().zip(rest).for_each(|(sum, x)| *sum += square(*x));
        *sums = own;
    }
}

dispatch! {
    /// Adds the products of `dy` and the distances from `mean` to the lanes.
    fn add_products(sums: &mut [f64; LANES], dy: &[f32], x: &[f32], mean: f32) {
        let mut own = *sums;
        let product = |dy: f32, x: f32| f64::from(dy) * f64::from(x - mean);
        let ((chunks, rest), (chunks_dy, rest_dy)) = (x.as_chunks::<LANES>(), dy.as_chunks());
        for (x, dy) in chunks.iter().zip(chunks_dy) {
            let dy: &[f32; LANES] = dy;
            for i in 0..LANES {
                own[i] += product(dy[i], x[i]);
            }
        }
        let rest = rest.iter().zip(rest_dy);
        own.iter_mut().zip(rest).for_each(|(sum, (x, dy))| *sum += product(*dy, *x));
        *sums = own;
    }
}

dispatch! {
    /// `y = (x - mean) factor + bias`.
    pub(super) fn normalise(y: &mut [f32], x: &[f32], mean: f32, factor: f32, bias: f32) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = (x - mean) * factor + bias;
        }
    }
}

dispatch! {
    /// `dx = factor (dy - mean of dy - n mean of (dy n))` with `n = (x - mean) scale`, where `of` is mean, scale and
    /// factor.
    pub(super) fn input_gradient(
        dx: &mut [f32],
        x: &[f32],
        dy: &[f32],
        of: [f32; 3],
        means: [f32; 2],
    ) {
        let ([mean, scale, factor], [mean_dy, mean_dyn]) = (of, means);
        for ((dx, x), dy) in dx.iter_mut().zip(x).zip(dy) {
            *dx = (dy - mean_dy - (x - mean) * scale * mean_dyn) * factor;
        }
    }
}
