//! Convolutions over pixels: without a matrix of patches, filters in the lanes of vectors.
//!
//! A tile is `P` pixels by `B` filters, whose sums stay in registers. For each tap and input channel a row of `B` weights
//! is read once and multiplied by a number of each pixel. Padding is read from the zeros around the input. A dense layer
//! is a convolution of one pixel.

use std::ops::Range;

use sconce_tensor::memory;
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
    /// For each group and block of filters `[B]`.
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

/// Lanes of all blocks together.
fn lanes(filters: usize, pixels: usize) -> usize {
    let mut first = 0;
    while first < filters {
        first += block(filters - first, pixels);
    }
    first
}

/// Rearranges weights `[filters, channels / groups, taps]` and a bias for [`Conv::run`].
pub(crate) fn pack(
    weights: &[f32],
    bias: &[f32],
    groups: usize,
    taps: usize,
    pixels: usize,
) -> (Vec<f32>, Vec<f32>) {
    let filters = bias.len();
    let (own, channels) = (filters / groups, weights.len() / filters / taps);
    let lanes = groups * lanes(own, pixels);
    let mut packed = memory::with_capacity(lanes * channels * taps);
    let mut biases = memory::with_capacity(lanes);
    for group in 0..groups {
        let mut first = 0;
        while first < own {
            let lanes = first..first + block(own - first, pixels);
            let filter = |lane: usize| (lane < own).then_some(group * own + lane);
            biases.extend(lanes.clone().map(|lane| filter(lane).map_or(0.0, |f| bias[f])));
            for tap in 0..taps {
                for c in 0..channels {
                    let weight = |f| weights[(f * channels + c) * taps + tap];
                    packed.extend(lanes.clone().map(|lane| filter(lane).map_or(0.0, weight)));
                }
            }
            first = lanes.end;
        }
    }
    (packed, biases)
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

/// The places where the filters of a block go.
struct Ends<'a> {
    places: &'a [usize],
    /// A number for each lane, also for lanes without a filter.
    bias: &'a [f32],
    /// Lanes with a filter.
    filters: usize,
    low: f32,
    high: f32,
}

impl Ends<'_> {
    /// Writes the sums of a pixel. Comparisons keep NaN.
    #[inline(always)]
    fn write<const B: usize>(&self, bias: &[f32; B], sums: &[f32; B], place: usize, y: &mut [f32]) {
        let mut row = [0.0; B];
        for l in 0..B {
            let sum = sums[l] + bias[l];
            let sum = if sum < self.low { self.low } else { sum };
            row[l] = if sum > self.high { self.high } else { sum };
        }
        match y[place..].first_chunk_mut::<B>() {
            Some(y) if self.filters >= B => *y = row,
            _ => y[place..place + self.filters].copy_from_slice(&row[..self.filters]),
        }
    }
}

dispatch! {
    fn tile<[const P: usize, const B: usize], [P, B]>(tile: &Tile<'_>, ends: &Ends<'_>, y: &mut [f32]) {
        let sums = sums::<P, B, FMA>(tile);
        let bias = ends.bias.first_chunk().expect("a bias for each lane");
        for (sums, place) in sums.iter().zip(ends.places) {
            ends.write::<B>(bias, sums, *place, y);
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
    pub(crate) places: Vec<usize>,
    /// The number of neighbouring taps that are read as one.
    pub(crate) joined: usize,
}

impl Taps {
    pub(crate) fn new(window: &Window, x: &Value, join: bool) -> Self {
        let joined = if join { window.joined() } else { 1 };
        let mut places = Vec::new();
        for row in 0..window.kernel[0] {
            let at = row * window.dilation[0] * x.pitch();
            let own = (0..window.kernel[1] / joined).map(|tap| tap * window.dilation[1]);
            places.extend(own.map(|tap| at + tap * x.size.channels));
        }
        Taps { places, joined }
    }
}

impl Conv {
    /// Products of a number of the output.
    pub(crate) fn products(&self) -> u64 {
        (self.weights.len() / self.bias.len()) as u64
    }

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
        let biases = &weights[self.bias.clone()];
        let (own, channels) = (self.filters / self.groups, xs.size.channels / self.groups);
        let Taps { places, joined } = &self.taps;
        let pixels = ys.size.pixels();
        let (low, high) = bounds(self.function);
        let (mut at, mut at_bias) = (0, 0);
        for group in 0..self.groups {
            let mut first = 0;
            while first < own {
                let width = block(own - first, pixels);
                let len = places.len() * joined * channels * width;
                let bias = &biases[at_bias..at_bias + width];
                let filters = width.min(own - first);
                let mut cursor = Cursor::new(&self.window, xs, ys);
                let (mut from, mut to) = ([0; MOST], [0; MOST]);
                let mut left = pixels;
                while left > 0 {
                    let n = pixels_of_tile(left, width);
                    for p in 0..n {
                        from[p] = cursor.from + group * channels;
                        to[p] = cursor.to + group * own + first;
                        cursor.next();
                    }
                    let tile = Tile {
                        x,
                        places: &from[..n],
                        taps: places,
                        run: joined * channels,
                        weights: &all[at..at + len],
                    };
                    let ends = Ends { places: &to[..n], bias, filters, low, high };
                    run_tile(n, width, &tile, &ends, y);
                    left -= n;
                }
                at += len;
                at_bias += width;
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

/// Goes through the pixels of an output, with the place of the first tap of each in the input.
pub(crate) struct Cursor<'a> {
    window: &'a Window,
    x: &'a Value,
    y: &'a Value,
    row: usize,
    at: usize,
    pub(crate) from: usize,
    pub(crate) to: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(window: &'a Window, x: &'a Value, y: &'a Value) -> Self {
        let mut cursor = Cursor { window, x, y, row: 0, at: 0, from: 0, to: 0 };
        cursor.begin_row();
        cursor
    }

    fn begin_row(&mut self) {
        let (x, window) = (self.x, self.window);
        // The halo is at least the padding.
        let row = self.row * window.stride[0] + x.halo[0] - window.padding[0];
        self.from = row * x.pitch() + (x.halo[1] - window.padding[1]) * x.size.channels;
        self.to = self.y.place(self.row, 0);
    }

    pub(crate) fn next(&mut self) {
        self.at += 1;
        if self.at == self.y.size.width {
            (self.row, self.at) = (self.row + 1, 0);
            self.begin_row();
        } else {
            self.from += self.window.stride[1] * self.x.size.channels;
            self.to += self.y.size.channels;
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
    /// The channels from `first` on, one for each lane.
    fn vectors<[const P: usize], [P]>(tile: &Tile<'_>, ends: &Ends<'_>, first: usize, y: &mut [f32]) {
        let all = ends.bias.len();
        let mut sums = [[0.0; LANES]; P];
        for (tap, w) in tile.taps.iter().zip(tile.weights.chunks_exact(all)) {
            let w: &[f32; LANES] = w[first..].first_chunk().expect("a weight for each lane");
            for (p, sums) in sums.iter_mut().enumerate() {
                let x: &[f32; LANES] = tile.x[tile.places[p] + tap + first..]
                    .first_chunk()
                    .expect("a number for each lane");
                for l in 0..LANES {
                    sums[l] = mul_add::<FMA>(x[l], w[l], sums[l]);
                }
            }
        }
        let bias = ends.bias[first..].first_chunk().expect("a bias for each lane");
        for (sums, place) in sums.iter().zip(ends.places) {
            ends.write::<LANES>(bias, sums, place + first, y);
        }
    }
}

dispatch! {
    /// The channels from `first` on, one after the other.
    fn rest(tile: &Tile<'_>, ends: &Ends<'_>, first: usize, y: &mut [f32]) {
        let all = ends.bias.len();
        for c in first..all {
            for (from, to) in tile.places.iter().zip(ends.places) {
                let mut sum = [0.0];
                for (tap, w) in tile.taps.iter().zip(tile.weights.chunks_exact(all)) {
                    sum[0] = mul_add::<FMA>(tile.x[from + tap + c], w[c], sum[0]);
                }
                ends.write::<1>(&[ends.bias[c]], &sum, to + c, y);
            }
        }
    }
}

impl Depthwise {
    /// Products of a number of the output.
    pub(crate) fn products(&self) -> u64 {
        self.window.numbers()
    }

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
        let weights = &weights[self.weights.clone()];
        let mut cursor = Cursor::new(&self.window, xs, ys);
        let (mut from, mut to) = ([0; 4], [0; 4]);
        let mut left = ys.size.pixels();
        while left > 0 {
            let n = left.min(4);
            for p in 0..n {
                (from[p], to[p]) = (cursor.from, cursor.to);
                cursor.next();
            }
            let tile = Tile { x, places: &from[..n], taps: &self.taps.places, run: 1, weights };
            let ends = Ends { places: &to[..n], bias, filters: bias.len(), low, high };
            let full = bias.len() / LANES * LANES;
            for first in (0..full).step_by(LANES) {
                match n {
                    1 => vectors::<1>(&tile, &ends, first, y),
                    2 => vectors::<2>(&tile, &ends, first, y),
                    3 => vectors::<3>(&tile, &ends, first, y),
                    _ => vectors::<4>(&tile, &ends, first, y),
                }
            }
            if full < bias.len() {
                rest(&tile, &ends, full, y);
            }
            left -= n;
        }
    }
}
