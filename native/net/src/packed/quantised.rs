//! Convolutions and dense layers of 8 bits: for weights, a scale for each filter; for the input, one scale of each pass.
//!
//! Weights are the codes of [`Coded::nearest`]: `scale q` with q from -127 to 127. An input is rounded to the nearest
//! multiples of 1/127 of its largest magnitude, half to even. Products are added as integers, so all forms give the same
//! sums, and a number of the output is `sum * (scale of the input * scale of the filter) + bias` in f32.
//!
//! A block of filters begins with a start for each lane. Then a word of a lane has the weights of four inputs. The last
//! word of a tap is filled with zeros.

use std::ops::Range;

use sconce_ops::weights::Coded;
use sconce_tensor::simd::dispatch;
use sconce_tensor::{Result, memory};

use crate::packed::conv::{Cursor, Taps, bounds};
use crate::packed::kernels::{self, Form, INPUTS, Sink, Source, Word};
use crate::packed::values::{Value, Window};
use crate::spec::Function;

/// The largest code of an input.
const MOST: f32 = 127.0;
/// Products of a sum that cannot overflow.
pub(crate) const MOST_PRODUCTS: usize = i32::MAX as usize / (127 * 256);

/// A convolution in one group of channels.
pub(crate) struct Quantised {
    pub(crate) form: Form,
    pub(crate) window: Window,
    pub(crate) filters: usize,
    /// Words of all blocks.
    pub(crate) words: Range<usize>,
    /// The scale of each lane.
    pub(crate) scales: Range<usize>,
    /// The bias of each lane.
    pub(crate) bias: Range<usize>,
    pub(crate) function: Function,
    pub(crate) taps: Taps,
}

/// Weights as blocks of words.
pub(crate) struct Blocks {
    pub(crate) words: Vec<Word>,
    pub(crate) scales: Vec<f32>,
    pub(crate) bias: Vec<f32>,
}

/// Rearranges weights `[filters, channels, taps]` and a bias for [`Quantised::run`]. `joined` neighbouring taps are read as
/// one.
pub(crate) fn pack(
    form: Form,
    weights: &[f32],
    bias: &[f32],
    (taps, joined): (usize, usize),
    pixels: usize,
) -> Result<Blocks> {
    let (filters, each) = (bias.len(), weights.len() / bias.len());
    let (channels, run) = (each / taps, each / taps * joined);
    let coded = Coded::nearest(8, weights, each, each)?;
    let mut blocks = Blocks { words: vec![], scales: vec![], bias: vec![] };
    let mut first = 0;
    while first < filters {
        let width = form.block(filters - first, pixels);
        let lanes = first..first + width;
        // Lanes without a filter have no codes.
        let row = |lane: usize| coded.row(lane);
        let words = width * (1 + taps / joined * run.div_ceil(INPUTS));
        memory::reserve(&mut blocks.words, words);
        let start = |lane| form.start(row(lane).iter().map(|code| i32::from(*code)).sum());
        blocks
            .words
            .extend(lanes.clone().map(|lane| start(lane).to_le_bytes().map(u8::cast_signed)));
        for tap in 0..taps / joined {
            for input in (0..run).step_by(INPUTS) {
                let code = |lane: usize, i: usize| {
                    let at = input + i;
                    let place = at % channels * taps + tap * joined + at / channels;
                    if at < run { row(lane).get(place).copied().unwrap_or(0) } else { 0 }
                };
                let word = |lane| form.order().map(|i| code(lane, i));
                blocks.words.extend(lanes.clone().map(word));
            }
        }
        let or_zero = |from: &[f32], lane: usize| from.get(lane).copied().unwrap_or(0.0);
        blocks.scales.extend(lanes.clone().map(|lane| or_zero(coded.scales(), lane)));
        blocks.bias.extend(lanes.clone().map(|lane| or_zero(bias, lane)));
        first = lanes.end;
    }
    Ok(blocks)
}

/// Memory for the codes of an input.
#[derive(Default)]
pub(crate) struct Codes {
    signed: Vec<i16>,
    unsigned: Vec<u8>,
}

impl Codes {
    /// Memory for inputs of `numbers`, and for the zero weights that are read behind the last one.
    pub(crate) fn new(numbers: usize) -> Self {
        match numbers {
            0 => Codes::default(),
            _ => match Form::best().is_unsigned() {
                true => Codes { unsigned: memory::repeated(0, numbers + INPUTS), signed: vec![] },
                false => Codes { signed: memory::repeated(0, numbers + INPUTS), unsigned: vec![] },
            },
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&self.signed[..]) + size_of_val(&self.unsigned[..])
    }
}

/// A code of an input.
trait Code: Copy {
    fn of(code: i32) -> Self;
}

impl Code for i16 {
    #[inline(always)]
    fn of(code: i32) -> Self {
        code as i16
    }
}

/// With an offset of 128.
impl Code for u8 {
    #[inline(always)]
    fn of(code: i32) -> Self {
        code.wrapping_add(128) as u8
    }
}

dispatch! {
    /// Raises `bits` to the largest bit pattern of a magnitude. NaN has the largest patterns.
    fn largest(x: &[f32], bits: &mut u32) {
        for x in x {
            *bits = (*bits).max(x.abs().to_bits());
        }
    }
}

dispatch! {
    fn nearest<[C: Code], [C]>(x: &[f32], inverse: f32, codes: &mut [C]) {
        // Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the lowest bits.
        const ROUND: f32 = 12_582_912.0;
        for (x, code) in x.iter().zip(codes) {
            *code = C::of((x * inverse + ROUND).to_bits().wrapping_sub(ROUND.to_bits()).cast_signed());
        }
    }
}

/// Rounds a value, and returns its scale: NaN if a number is not finite.
fn encode<C: Code>((xs, x): (&Value, &[f32]), codes: &mut [C]) -> f32 {
    let mut bits = 0;
    // Without zeros around it, a value is one row.
    let whole = xs.halo == [0, 0];
    let rows = if whole { 1 } else { xs.size.rows };
    let row = |row| if whole { 0..xs.len() } else { xs.row(row) };
    (0..rows).for_each(|i| largest(&x[row(i)], &mut bits));
    let most = f32::from_bits(bits);
    let scale = if most.is_finite() { most / MOST } else { f32::NAN };
    let inverse = if scale.is_normal() { 1.0 / scale } else { 0.0 };
    let mut from = 0;
    for i in 0..rows {
        let row = row(i);
        codes[from..row.start].fill(C::of(0));
        nearest(&x[row.clone()], inverse, &mut codes[row.clone()]);
        from = row.end;
    }
    codes[from..].fill(C::of(0));
    scale
}

impl Quantised {
    /// Products of a number of the output.
    pub(crate) fn products(&self) -> u64 {
        (INPUTS * self.words.len() / self.bias.len()) as u64
    }

    /// Learns where its input lies.
    pub(crate) fn place(&mut self, x: &Value) {
        self.taps = Taps::new(&self.window, x, true);
    }

    /// Computes `y` from `x`, the numbers of these values.
    pub(crate) fn run(
        &self,
        (weights, words): (&[f32], &[Word]),
        (xs, x): (&Value, &[f32]),
        (ys, y): (&Value, &mut [f32]),
        codes: &mut Codes,
    ) {
        let len = xs.len() + INPUTS;
        if self.form.is_unsigned() {
            let codes = &mut codes.unsigned[..len];
            let scale = encode((xs, x), codes);
            self.tiles((weights, words), (xs, Source::Unsigned(codes)), scale, (ys, y));
        } else {
            let codes = &mut codes.signed[..len];
            let scale = encode((xs, x), codes);
            self.tiles((weights, words), (xs, Source::Signed(codes)), scale, (ys, y));
        }
    }

    fn tiles(
        &self,
        (weights, words): (&[f32], &[Word]),
        (xs, codes): (&Value, Source<'_>),
        scale: f32,
        (ys, y): (&Value, &mut [f32]),
    ) {
        let (low, high) = bounds(self.function);
        let (scales, biases) = (&weights[self.scales.clone()], &weights[self.bias.clone()]);
        let pixels = ys.size.pixels();
        let run = self.taps.joined * xs.size.channels;
        let mut words = &words[self.words.clone()];
        let mut first = 0;
        while first < self.filters {
            let width = self.form.block(self.filters - first, pixels);
            let len = width * (1 + self.taps.places.len() * run.div_ceil(INPUTS));
            let (own, rest) = words.split_at(len);
            words = rest;
            let lanes = first..first + width;
            let mut sink = Sink {
                y: &mut *y,
                scale,
                scales: &scales[lanes.clone()],
                bias: &biases[lanes],
                filters: width.min(self.filters - first),
                low,
                high,
            };
            let mut cursor = Cursor::new(&self.window, xs, ys);
            let (mut from, mut to) = ([0; kernels::PIXELS], [0; kernels::PIXELS]);
            let mut left = pixels;
            while left > 0 {
                let n = kernels::pixels(left);
                for p in 0..n {
                    (from[p], to[p]) = (cursor.from, cursor.to + first);
                    cursor.next();
                }
                let taps = (&self.taps.places[..], run);
                kernels::tile(self.form, (codes, &from[..n], taps), own, &to[..n], &mut sink);
                left -= n;
            }
            first += width;
        }
    }
}

#[cfg(test)]
mod tests;
