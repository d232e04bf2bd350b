//! Convolutions over pixels: without a matrix of patches, filters in the lanes of vectors.
//!
//! A tile is `P` pixels by `B` filters, whose sums stay in registers. For each tap and input channel a row of `B` weights
//! is read once and multiplied by a number of each pixel. Padding is read from the zeros around the input. A dense layer
//! is a convolution of one pixel.

use std::ops::Range;

use sconce_tensor::simd::{self, Level, dispatch, mul_add};

use crate::packed::values::{Value, Window};
use crate::spec::Function;

/// A convolution, in one or several groups of channels.
pub(crate) struct Conv {
    pub(crate) window: Window,
    pub(crate) groups: usize,
    pub(crate) filters: usize,
    /// For each group and block of filters `[taps, channels / groups, B]`.
    pub(crate) weights: Range<usize>,
    pub(crate) bias: Range<usize>,
    pub(crate) function: Function,
    pub(crate) taps: Taps,
}

/// The widths of blocks of filters, by the filters that are left. Two vectors of each pixel are best, with six pixels.
fn block(left: usize, pixels: usize) -> usize {
    match left {
        // One pixel has few sums, so it takes many filters at once.
        33.. if pixels < 3 => 64,
        17.. if simd::level() == Level::Avx512 => 32,
        9.. => 16,
        _ => 8,
    }
}

/// Rearranges weights `[filters, channels / groups, taps]` for [`Conv::run`].
pub(crate) fn pack(
    weights: &[f32],
    filters: usize,
    groups: usize,
    taps: usize,
    pixels: usize,
) -> Vec<f32> {
    let (own, channels) = (filters / groups, weights.len() / filters / taps);
    let mut packed = Vec::new();
    for group in 0..groups {
        let mut first = 0;
        while first < own {
            let width = block(own - first, pixels);
            for tap in 0..taps {
                for c in 0..channels {
                    for lane in first..first + width {
                        let filter = group * own + lane;
                        let value = || weights[(filter * channels + c) * taps + tap];
                        packed.push(if lane < own { value() } else { 0.0 });
                    }
                }
            }
            first += width;
        }
    }
    packed
}

/// The places of the first pixels of a tile in the input and the output.
struct Tile<'a> {
    x: &'a [f32],
    places: &'a [usize],
    /// Places of taps relative to a pixel, and the number of input numbers at each.
    taps: &'a [usize],
    run: usize,
    weights: &'a [f32],
}

#[inline(always)]
fn sums<const P: usize, const B: usize, const FMA: bool>(tile: &Tile<'_>) -> [[f32; B]; P] {
    let mut sums = [[0.0; B]; P];
    let mut weights = tile.weights.as_chunks::<B>().0;
    for tap in tile.taps {
        let (now, rest) = weights.split_at(tile.run);
        weights = rest;
        let x: [&[f32]; P] = std::array::from_fn(|p| &tile.x[tile.places[p] + tap..][..now.len()]);
        for (i, w) in now.iter().enumerate() {
            for p in 0..P {
                // SAFETY: each of these slices has the length of `now`. Checks here would keep the sums in memory.
                let x = unsafe { *x[p].get_unchecked(i) };
                for l in 0..B {
                    sums[p][l] = mul_add::<FMA>(x, w[l], sums[p][l]);
                }
            }
        }
    }
    sums
}

/// The place where the filters of a block go.
struct Ends<'a> {
    places: &'a [usize],
    bias: &'a [f32],
    low: f32,
    high: f32,
}

dispatch! {
    fn tile<[const P: usize, const B: usize], [P, B]>(tile: &Tile<'_>, ends: &Ends<'_>, y: &mut [f32]) {
        let sums = sums::<P, B, FMA>(tile);
        let own = ends.bias.len().min(B);
        for (sums, place) in sums.iter().zip(ends.places) {
            let mut row = [0.0; B];
            for l in 0..B {
                row[l] = sums[l] + if l < own { ends.bias[l] } else { 0.0 };
                // Comparisons keep NaN.
                row[l] = if row[l] < ends.low { ends.low } else { row[l] };
                row[l] = if row[l] > ends.high { ends.high } else { row[l] };
            }
            y[*place..*place + own].copy_from_slice(&row[..own]);
        }
    }
}

/// The pixels of the largest tile.
const MOST: usize = 8;

/// The pixels of the next tile.
fn pixels_of_tile(left: usize, block: usize) -> usize {
    let most = match block {
        64 => 1,
        8 => 8,
        16 if simd::level() == Level::Avx512 => 8,
        _ => 6,
    };
    let sizes = [8, 6, 4, 2, 1];
    sizes.into_iter().find(|size| *size <= left.min(most)).unwrap_or(1)
}

fn run_tile(count: usize, block: usize, own: &Tile<'_>, ends: &Ends<'_>, y: &mut [f32]) {
    match (block, count) {
        (8, 1) => tile::<1, 8>(own, ends, y),
        (8, 2) => tile::<2, 8>(own, ends, y),
        (8, 4) => tile::<4, 8>(own, ends, y),
        (8, 6) => tile::<6, 8>(own, ends, y),
        (8, _) => tile::<8, 8>(own, ends, y),
        (16, 1) => tile::<1, 16>(own, ends, y),
        (16, 2) => tile::<2, 16>(own, ends, y),
        (16, 4) => tile::<4, 16>(own, ends, y),
        (16, 6) => tile::<6, 16>(own, ends, y),
        (16, _) => tile::<8, 16>(own, ends, y),
        (32, 1) => tile::<1, 32>(own, ends, y),
        (32, 2) => tile::<2, 32>(own, ends, y),
        (32, 4) => tile::<4, 32>(own, ends, y),
        (32, _) => tile::<6, 32>(own, ends, y),
        (_, _) => tile::<1, 64>(own, ends, y),
    }
}

/// The places of a window's taps, relative to a pixel's first tap.
#[derive(Default)]
pub(crate) struct Taps {
    places: Vec<usize>,
    /// The number of neighbouring taps that are read as one.
    joined: usize,
}

impl Taps {
    fn new(window: &Window, x: &Value, join: bool) -> Self {
        let joined = if join && window.dilation[1] == 1 { window.kernel[1] } else { 1 };
        let mut places = Vec::new();
        for row in 0..window.kernel[0] {
            let at = row * window.dilation[0] * x.pitch();
            let own = (0..window.kernel[1] / joined).map(|tap| tap * window.dilation[1]);
            places.extend(own.map(|tap| at + tap * x.size.channels));
        }
        Taps { places, joined }
    }
}

/// The first tap of an output pixel.
fn first_tap(window: &Window, x: &Value, row: usize, at: usize) -> usize {
    // The halo is at least the padding.
    let row = row * window.stride[0] + x.halo[0] - window.padding[0];
    let at = at * window.stride[1] + x.halo[1] - window.padding[1];
    row * x.pitch() + at * x.size.channels
}

impl Conv {
    /// Learns where its input lies.
    pub(crate) fn place(&mut self, x: &Value) {
        self.taps = Taps::new(&self.window, x, self.groups == 1);
    }

    /// Computes `y` from `x`, the numbers of these values.
    pub(crate) fn run(
        &self,
        weights: &[f32],
        (xs, x): (&Value, &[f32]),
        (ys, y): (&Value, &mut [f32]),
    ) {
        let all = &weights[self.weights.clone()];
        let bias = &weights[self.bias.clone()];
        let (own, channels) = (self.filters / self.groups, xs.size.channels / self.groups);
        let Taps { places, joined } = &self.taps;
        let pixels = ys.size.pixels();
        let (low, high) = bounds(self.function);
        let mut at = 0;
        for group in 0..self.groups {
            let mut first = 0;
            while first < own {
                let width = block(own - first, pixels);
                let len = places.len() * joined * channels * width;
                let filters = first..(first + width).min(own);
                let bias = &bias[group * own + filters.start..group * own + filters.end];
                let mut cursor = Cursor { row: 0, x: 0, width: ys.size.width };
                let mut left = pixels;
                while left > 0 {
                    let n = pixels_of_tile(left, width);
                    let (mut from, mut to) = ([0; MOST], [0; MOST]);
                    for p in 0..n {
                        from[p] =
                            first_tap(&self.window, xs, cursor.row, cursor.x) + group * channels;
                        to[p] = ys.place(cursor.row, cursor.x) + group * own + first;
                        cursor.next();
                    }
                    let tile = Tile {
                        x,
                        places: &from[..n],
                        taps: places,
                        run: joined * channels,
                        weights: &all[at..at + len],
                    };
                    run_tile(n, width, &tile, &Ends { places: &to[..n], bias, low, high }, y);
                    left -= n;
                }
                at += len;
                first += width;
            }
        }
    }
}

/// The bounds of functions that only cut.
pub(crate) fn bounds(function: Function) -> (f32, f32) {
    match function {
        Function::Relu => (0.0, f32::INFINITY),
        Function::Relu6 => (0.0, 6.0),
        _ => (f32::NEG_INFINITY, f32::INFINITY),
    }
}

/// Goes through the pixels of an output.
struct Cursor {
    row: usize,
    x: usize,
    width: usize,
}

impl Cursor {
    fn next(&mut self) {
        self.x += 1;
        if self.x == self.width {
            (self.row, self.x) = (self.row + 1, 0);
        }
    }
}

/// A convolution of each channel by itself.
pub(crate) struct Depthwise {
    pub(crate) window: Window,
    /// `[taps, channels]`
    pub(crate) weights: Range<usize>,
    pub(crate) bias: Range<usize>,
    pub(crate) function: Function,
    pub(crate) taps: Taps,
}

/// Channels of a tile.
const LANES: usize = 16;

dispatch! {
    fn channels<[const P: usize], [P]>(tile: &Tile<'_>, ends: &Ends<'_>, y: &mut [f32]) {
        let all = ends.bias.len();
        let mut first = 0;
        while first < all {
            let own = LANES.min(all - first);
            let mut sums = [[0.0; LANES]; P];
            for (tap, w) in tile.taps.iter().zip(tile.weights.chunks_exact(all)) {
                #[allow(clippy::needless_range_loop)] // p is a constant, so the sums stay in registers
                for p in 0..P {
                    let x = &tile.x[tile.places[p] + tap + first..][..own];
                    if own == LANES {
                        let (x, w) = (&x[..LANES], &w[first..][..LANES]);
                        for l in 0..LANES {
                            sums[p][l] = mul_add::<FMA>(x[l], w[l], sums[p][l]);
                        }
                    } else {
                        for (l, (x, w)) in x.iter().zip(&w[first..]).enumerate() {
                            sums[p][l] = mul_add::<FMA>(*x, *w, sums[p][l]);
                        }
                    }
                }
            }
            for (sums, place) in sums.iter().zip(ends.places) {
                let y = &mut y[place + first..][..own];
                for ((y, sum), bias) in y.iter_mut().zip(sums).zip(&ends.bias[first..]) {
                    let value = sum + bias;
                    let value = if value < ends.low { ends.low } else { value };
                    *y = if value > ends.high { ends.high } else { value };
                }
            }
            first += own;
        }
    }
}

impl Depthwise {
    /// Learns where its input lies.
    pub(crate) fn place(&mut self, x: &Value) {
        self.taps = Taps::new(&self.window, x, false);
    }

    /// Computes `y` from `x`, the numbers of these values.
    pub(crate) fn run(
        &self,
        weights: &[f32],
        (xs, x): (&Value, &[f32]),
        (ys, y): (&Value, &mut [f32]),
    ) {
        let (low, high) = bounds(self.function);
        let bias = &weights[self.bias.clone()];
        let mut cursor = Cursor { row: 0, x: 0, width: ys.size.width };
        let mut left = ys.size.pixels();
        while left > 0 {
            let n = left.min(4);
            let (mut from, mut to) = ([0; 4], [0; 4]);
            for p in 0..n {
                from[p] = first_tap(&self.window, xs, cursor.row, cursor.x);
                to[p] = ys.place(cursor.row, cursor.x);
                cursor.next();
            }
            let weights = &weights[self.weights.clone()];
            let tile = Tile { x, places: &from[..n], taps: &self.taps.places, run: 1, weights };
            let ends = Ends { places: &to[..n], bias, low, high };
            match n {
                1 => channels::<1>(&tile, &ends, y),
                2 => channels::<2>(&tile, &ends, y),
                3 => channels::<3>(&tile, &ends, y),
                _ => channels::<4>(&tile, &ends, y),
            }
            left -= n;
        }
    }
}
