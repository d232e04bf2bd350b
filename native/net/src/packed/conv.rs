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

/// A block of filters over all pixels of an output.
struct Pass<'a> {
    xs: &'a Value,
    ys: &'a Value,
    window: &'a Window,
    x: &'a [f32],
    /// Places of taps relative to a pixel, ascending, and the number of input numbers at each.
    taps: &'a [usize],
    run: usize,
    /// The first channel of the input, and of the output.
    channels: [usize; 2],
    /// `[taps, run, B]`
    weights: &'a [f32],
    /// A number for each lane, also for lanes without a filter.
    bias: &'a [f32],
    /// Lanes with a filter.
    filters: usize,
    low: f32,
    high: f32,
}

impl Pass<'_> {
    /// The next `P` pixels by `B` filters.
    #[inline(always)]
    fn tile<const P: usize, const B: usize, const FMA: bool>(
        &self,
        cursor: &mut Cursor<'_>,
        y: &mut [f32],
    ) {
        let (from, to) = cursor.take::<P>();
        let from = from.map(|at| at + self.channels[0]);
        let sums = self.sums::<P, B, FMA>(&from);
        if let Some(bias) = self.bias.first_chunk::<B>() {
            for (sums, to) in sums.iter().zip(to) {
                self.write::<B>(bias, sums, to + self.channels[1], y);
            }
        }
    }

    #[inline(always)]
    fn sums<const P: usize, const B: usize, const FMA: bool>(
        &self,
        from: &[usize; P],
    ) -> [[f32; B]; P] {
        let mut sums = [[0.0; B]; P];
        let (last, most) = (self.taps.last(), from.iter().max());
        let end = last.copied().unwrap_or(0) + most.copied().unwrap_or(0) + self.run;
        assert!(end <= self.x.len(), "a pixel lies outside of its value");
        let mut weights = self.weights.as_chunks::<B>().0;
        for tap in self.taps {
            let (now, rest) = weights.split_at(self.run);
            weights = rest;
            for (i, w) in now.iter().enumerate() {
                for p in 0..P {
                    // SAFETY: no tap is beyond the last one, and `i` is less than `run`, so the place is before `end`.
                    let x = unsafe { *self.x.get_unchecked(from[p] + tap + i) };
                    for l in 0..B {
                        sums[p][l] = mul_add::<FMA>(x, w[l], sums[p][l]);
                    }
                }
            }
        }
        sums
    }

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
    /// All pixels, `P` at a time. One call for all of them: a tile of few products takes less time than a call.
    fn block_of<[const P: usize, const B: usize], [P, B]>(own: &Pass<'_>, y: &mut [f32]) {
        let mut cursor = Cursor::new(own.window, own.xs, own.ys);
        let mut left = own.ys.size.pixels();
        while left >= P {
            own.tile::<P, B, FMA>(&mut cursor, y);
            left -= P;
        }
        if P > 6 && left >= 6 {
            own.tile::<6, B, FMA>(&mut cursor, y);
            left -= 6;
        }
        if P > 4 && left >= 4 {
            own.tile::<4, B, FMA>(&mut cursor, y);
            left -= 4;
        }
        if P > 2 && left >= 2 {
            own.tile::<2, B, FMA>(&mut cursor, y);
            left -= 2;
        }
        if P > 1 && left >= 1 {
            own.tile::<1, B, FMA>(&mut cursor, y);
        }
    }
}

/// Pixels at a time: as many as leave their sums in registers.
fn run_block(block: usize, own: &Pass<'_>, y: &mut [f32]) {
    match block {
        8 => block_of::<8, 8>(own, y),
        16 if simd::level() == Level::Avx512 => block_of::<8, 16>(own, y),
        16 => block_of::<6, 16>(own, y),
        32 => block_of::<6, 32>(own, y),
        _ => block_of::<1, 64>(own, y),
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
                let pass = Pass {
                    xs,
                    ys,
                    window: &self.window,
                    x,
                    taps: places,
                    run: joined * channels,
                    channels: [group * channels, group * own + first],
                    weights: &all[at..at + len],
                    bias: &biases[at_bias..at_bias + width],
                    filters: width.min(own - first),
                    low,
                    high,
                };
                run_block(width, &pass, y);
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

    /// The places of the next `P` pixels, and passes them.
    #[inline(always)]
    fn take<const P: usize>(&mut self) -> ([usize; P], [usize; P]) {
        let (mut from, mut to) = ([0; P], [0; P]);
        if self.at + P < self.y.size.width {
            let steps = [self.window.stride[1] * self.x.size.channels, self.y.size.channels];
            for p in 0..P {
                (from[p], to[p]) = (self.from + p * steps[0], self.to + p * steps[1]);
            }
            self.at += P;
            self.from += P * steps[0];
            self.to += P * steps[1];
        } else {
            for p in 0..P {
                (from[p], to[p]) = (self.from, self.to);
                self.next();
            }
        }
        (from, to)
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

impl Pass<'_> {
    /// `P` pixels of the `B` channels from `first` on, one for each lane.
    #[inline(always)]
    fn channels<const P: usize, const B: usize, const FMA: bool>(
        &self,
        (from, to): &([usize; P], [usize; P]),
        first: usize,
        y: &mut [f32],
    ) {
        let mut sums = [[0.0; B]; P];
        for (tap, w) in self.taps.iter().zip(self.weights.chunks_exact(self.filters)) {
            let Some(w) = w[first..].first_chunk::<B>() else { return };
            for p in 0..P {
                let Some(x) = self.x[from[p] + tap + first..].first_chunk::<B>() else { return };
                for l in 0..B {
                    sums[p][l] = mul_add::<FMA>(x[l], w[l], sums[p][l]);
                }
            }
        }
        if let Some(bias) = self.bias[first..].first_chunk::<B>() {
            for (sums, to) in sums.iter().zip(to) {
                self.write::<B>(bias, sums, to + first, y);
            }
        }
    }

    /// `P` pixels of all channels.
    #[inline(always)]
    fn pixels<const P: usize, const FMA: bool>(&self, cursor: &mut Cursor<'_>, y: &mut [f32]) {
        let places = cursor.take::<P>();
        let (last, most) = (self.taps.last(), places.0.iter().max());
        let end = last.copied().unwrap_or(0) + most.copied().unwrap_or(0) + self.filters;
        assert!(end <= self.x.len(), "a pixel lies outside of its value");
        let mut first = 0;
        while first + 16 <= self.filters {
            self.channels::<P, 16, FMA>(&places, first, y);
            first += 16;
        }
        if first + 8 <= self.filters {
            self.channels::<P, 8, FMA>(&places, first, y);
            first += 8;
        }
        while first < self.filters {
            self.channels::<P, 1, FMA>(&places, first, y);
            first += 1;
        }
    }
}

dispatch! {
    fn depthwise(own: &Pass<'_>, y: &mut [f32]) {
        let mut cursor = Cursor::new(own.window, own.xs, own.ys);
        let mut left = own.ys.size.pixels();
        while left >= 4 {
            own.pixels::<4, FMA>(&mut cursor, y);
            left -= 4;
        }
        while left > 0 {
            own.pixels::<1, FMA>(&mut cursor, y);
            left -= 1;
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
        let pass = Pass {
            xs,
            ys,
            window: &self.window,
            x,
            taps: &self.taps.places,
            run: 1,
            channels: [0, 0],
            weights: &weights[self.weights.clone()],
            bias,
            filters: bias.len(),
            low,
            high,
        };
        depthwise(&pass, y);
    }
}
