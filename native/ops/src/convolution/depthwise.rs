//! Convolutions whose filters read one channel each, as loops over vectors of positions.

use super::{Sizes, Wanted};
use crate::memory;
use crate::planes::Padded;
use crate::simd::{LANES, dispatch, load, mul_add, store, sum};

/// A filter on its plane.
struct Filter<'a> {
    padded: &'a Padded,
    /// The values of the filter.
    weight: &'a [f32],
    /// The index at which each tap begins to read.
    taps: &'a [usize],
}

impl Filter<'_> {
    /// The first index and the number of the positions in each vector of a row, and its row.
    #[inline(always)]
    fn vectors(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        let [rows, width] = self.padded.output;
        let step = self.padded.step();
        (0..rows).flat_map(move |i| {
            let vectors = (0..width).step_by(LANES);
            vectors.map(move |j| (i * width + j, i * step + j, LANES.min(width - j)))
        })
    }
}

/// The index at which each tap begins to read.
fn taps(sizes: &Sizes) -> Vec<usize> {
    (0..sizes.taps).map(|tap| sizes.padded.at(tap, 0)).collect()
}

/// Outputs of the items in `y`.
pub(super) fn forward(sizes: &Sizes, x: &[f32], weight: &[f32], bias: &[f32], y: &mut [f32]) {
    let (padded, filters, taps) = (&sizes.padded, sizes.filters, taps(sizes));
    let mut plane = memory::zeros(padded.len() + Padded::SLACK);
    let channels = x.chunks_exact(padded.input());
    let outputs = y.chunks_exact_mut(filters * padded.positions());
    for (channel, (y, x)) in outputs.zip(channels).enumerate() {
        let group = channel % sizes.groups;
        padded.fill(&mut plane[..padded.len()], x);
        for (f, y) in y.chunks_exact_mut(padded.positions()).enumerate() {
            let f = group * filters + f;
            let weight = &weight[f * sizes.taps..][..sizes.taps];
            let filter = Filter { padded, weight, taps: &taps };
            convolve(y, &plane, &filter, bias.get(f).copied().unwrap_or(0.0));
        }
    }
}

/// Gradients of the items in `dy`. `x` is read for the gradient of the weight only.
pub(super) fn backward(sizes: &Sizes, x: &[f32], weight: &[f32], dy: &[f32], wanted: Wanted<'_>) {
    let (padded, filters, taps) = (&sizes.padded, sizes.filters, taps(sizes));
    let Wanted { dx, dw } = wanted;
    let mut plane = memory::zeros(padded.len() + Padded::SLACK);
    let mut slopes = memory::zeros(if dx.is_empty() { 0 } else { plane.len() });
    for (channel, dy) in dy.chunks_exact(filters * padded.positions()).enumerate() {
        let group = channel % sizes.groups;
        if !dw.is_empty() {
            let x = &x[channel * padded.input()..][..padded.input()];
            padded.fill(&mut plane[..padded.len()], x);
        }
        slopes.fill(0.0);
        for (f, dy) in dy.chunks_exact(padded.positions()).enumerate() {
            let own = (group * filters + f) * sizes.taps;
            let filter = Filter { padded, weight: &weight[own..][..sizes.taps], taps: &taps };
            if !dw.is_empty() {
                add_weight_gradient(&mut dw[own..][..sizes.taps], dy, &plane, &filter);
            }
            if !dx.is_empty() {
                add_input_gradient(&mut slopes, dy, &filter);
            }
        }
        if !dx.is_empty() {
            padded.read(&mut dx[channel * padded.input()..][..padded.input()], &slopes);
        }
    }
}

dispatch! {
    /// The outputs of a filter. `plane` has [`Padded::SLACK`] values beyond its end.
    fn convolve(y: &mut [f32], plane: &[f32], filter: &Filter<'_>, bias: f32) {
        for (to, from, n) in filter.vectors() {
            let mut sums = [bias; LANES];
            for (tap, w) in filter.taps.iter().zip(filter.weight) {
                let x = load(plane, from + tap, LANES);
                for i in 0..LANES {
                    sums[i] = mul_add::<FMA>(x[i], *w, sums[i]);
                }
            }
            store(y, to, n, sums);
        }
    }
}

dispatch! {
    /// Adds the gradients of a filter's values.
    fn add_weight_gradient(dw: &mut [f32], dy: &[f32], plane: &[f32], filter: &Filter<'_>) {
        for (dw, tap) in dw.iter_mut().zip(filter.taps) {
            let mut sums = [0.0; LANES];
            for (to, from, n) in filter.vectors() {
                let (d, x) = (load(dy, to, n), load(plane, from + tap, n));
                for i in 0..LANES {
                    sums[i] = mul_add::<FMA>(d[i], x[i], sums[i]);
                }
            }
            *dw += sum(sums);
        }
    }
}

dispatch! {
    /// Adds the gradients of a padded plane.
    fn add_input_gradient(slopes: &mut [f32], dy: &[f32], filter: &Filter<'_>) {
        for (tap, w) in filter.taps.iter().zip(filter.weight) {
            for (from, to, n) in filter.vectors() {
                let d = load(dy, from, n);
                let mut sums = load(slopes, to + tap, n);
                for i in 0..LANES {
                    sums[i] = mul_add::<FMA>(d[i], *w, sums[i]);
                }
                store(slopes, to + tap, n, sums);
            }
        }
    }
}
