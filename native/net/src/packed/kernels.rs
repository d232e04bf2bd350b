//! Sums of products of 8-bit codes, for tiles of pixels and filters.
//!
//! Each form gives the same integers. AVX2 multiplies codes widened to 16 bits, because its product of bytes
//! (`vpmaddubsw`) saturates. AVX-512 VNNI (`vpdpbusd`) needs an unsigned operand, so codes of inputs are stored with an offset of
//! 128, and a sum starts at -128 times the sum of the filter's codes.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use sconce_tensor::simd::{self, Level};

/// Inputs of a word.
pub(crate) const INPUTS: usize = 4;
/// Most pixels of a tile.
pub(crate) const PIXELS: usize = 6;

/// Codes of the weights of four inputs.
pub(crate) type Word = [i8; INPUTS];

/// The instructions that a sum is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Portable,
    Avx2,
    Vnni,
    /// `Vnni` without its instructions.
    #[cfg(test)]
    Model,
}

impl Form {
    /// The fastest form of this CPU.
    pub(crate) fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        return match simd::level() {
            Level::Avx512 if is_x86_feature_detected!("avx512vnni") => Form::Vnni,
            Level::Avx512 | Level::Avx2 => Form::Avx2,
            Level::Portable => Form::Portable,
        };
        #[cfg(not(target_arch = "x86_64"))]
        Form::Portable
    }

    #[cfg(test)]
    pub(crate) fn runs_here(self) -> bool {
        match self {
            Form::Portable | Form::Model => true,
            Form::Avx2 => matches!(Form::best(), Form::Avx2 | Form::Vnni),
            Form::Vnni => Form::best() == Form::Vnni,
        }
    }

    /// Whether codes of inputs are stored with an offset of 128.
    pub(crate) fn is_unsigned(self) -> bool {
        !matches!(self, Form::Portable | Form::Avx2)
    }

    /// The start of the sum of a filter whose codes have this sum.
    pub(crate) fn start(self, sum: i32) -> i32 {
        if self.is_unsigned() { -128 * sum } else { 0 }
    }

    /// The inputs of a word. Forms of 16 bits read the even bytes as one pair and the odd bytes as the next one.
    pub(crate) fn order(self) -> [usize; INPUTS] {
        if self.is_unsigned() { [0, 1, 2, 3] } else { [0, 2, 1, 3] }
    }

    fn lanes(self) -> usize {
        if self.is_unsigned() { 16 } else { 8 }
    }

    /// Filters of the next block. One pixel has few sums, so it takes many filters at once.
    pub(crate) fn block(self, left: usize, pixels: usize) -> usize {
        let lanes = self.lanes();
        match left {
            _ if left <= lanes => lanes,
            _ if left > 2 * lanes && pixels < 3 => 4 * lanes,
            _ => 2 * lanes,
        }
    }
}

/// Pixels of the next tile.
pub(crate) fn pixels(left: usize) -> usize {
    [PIXELS, 4, 2].into_iter().find(|size| *size <= left).unwrap_or(1)
}

/// The codes of an input.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    Signed(&'a [i16]),
    Unsigned(&'a [u8]),
}

/// The places where the sums of a block go.
pub(crate) struct Sink<'a> {
    pub(crate) y: &'a mut [f32],
    /// The scale of the input.
    pub(crate) scale: f32,
    /// A number for each lane, also for lanes without a filter.
    pub(crate) scales: &'a [f32],
    pub(crate) bias: &'a [f32],
    /// Lanes with a filter.
    pub(crate) filters: usize,
    pub(crate) low: f32,
    pub(crate) high: f32,
}

impl Sink<'_> {
    /// Writes the sums of lanes from `first` on. Comparisons keep NaN.
    #[inline(always)]
    fn write<const L: usize>(&mut self, place: usize, first: usize, sums: &[i32; L]) {
        // The last vectors of a wide block may have no filter at all.
        let Some(count) = self.filters.checked_sub(first).filter(|count| *count > 0) else {
            return;
        };
        let of = |from: &[f32]| *from[first..].first_chunk::<L>().expect("a number for each lane");
        let (scales, bias) = (of(self.scales), of(self.bias));
        let mut row = [0.0; L];
        for l in 0..L {
            let sum = sums[l] as f32 * (self.scale * scales[l]) + bias[l];
            let sum = if sum < self.low { self.low } else { sum };
            row[l] = if sum > self.high { self.high } else { sum };
        }
        let to = place + first;
        match self.y[to..].first_chunk_mut::<L>() {
            Some(y) if count >= L => *y = row,
            _ => self.y[to..to + count.min(L)].copy_from_slice(&row[..count.min(L)]),
        }
    }
}

/// Sums of `L` lanes.
trait Kernel<const L: usize> {
    type Code: Copy;
    type Sum: Copy;

    /// # Safety
    /// The CPU has the instructions of this form. `words` has `L` words.
    unsafe fn start(words: *const Word) -> Self::Sum;

    /// Adds the products of words `[V, L]` and of four codes of each pixel.
    ///
    /// # Safety
    /// The CPU has the instructions of this form. `words` has `V` times `L` words, and each of `x` four codes.
    unsafe fn add<const P: usize, const V: usize>(
        sums: &mut [[Self::Sum; V]; P],
        words: *const Word,
        x: [*const Self::Code; P],
    );

    fn integers(sum: Self::Sum) -> [i32; L];
}

struct Portable;

impl Kernel<8> for Portable {
    type Code = i16;
    type Sum = [i32; 8];

    #[inline(always)]
    unsafe fn start(words: *const Word) -> [i32; 8] {
        // SAFETY: the caller guarantees the words.
        unsafe { *words.cast::<[Word; 8]>() }
            .map(|word| i32::from_le_bytes(word.map(i8::cast_unsigned)))
    }

    #[inline(always)]
    unsafe fn add<const P: usize, const V: usize>(
        sums: &mut [[[i32; 8]; V]; P],
        words: *const Word,
        x: [*const i16; P],
    ) {
        for v in 0..V {
            // SAFETY: the caller guarantees the words.
            let words = unsafe { *words.add(8 * v).cast::<[Word; 8]>() };
            for (sums, x) in sums.iter_mut().zip(x) {
                // SAFETY: the caller guarantees four codes.
                let x = unsafe { x.cast::<[i16; INPUTS]>().read_unaligned() }.map(i32::from);
                for (sum, w) in sums[v].iter_mut().zip(words) {
                    let w = w.map(i32::from);
                    let pair = x[0] * w[0] + x[1] * w[2];
                    *sum = sum.wrapping_add(pair + x[2] * w[1] + x[3] * w[3]);
                }
            }
        }
    }

    #[inline(always)]
    fn integers(sum: [i32; 8]) -> [i32; 8] {
        sum
    }
}

#[cfg(target_arch = "x86_64")]
struct Avx2;

#[cfg(target_arch = "x86_64")]
impl Kernel<8> for Avx2 {
    type Code = i16;
    type Sum = __m256i;

    #[inline(always)]
    unsafe fn start(words: *const Word) -> __m256i {
        // SAFETY: the caller guarantees AVX2 and 32 bytes.
        unsafe { _mm256_loadu_si256(words.cast()) }
    }

    #[inline(always)]
    unsafe fn add<const P: usize, const V: usize>(
        sums: &mut [[__m256i; V]; P],
        words: *const Word,
        x: [*const i16; P],
    ) {
        // SAFETY: the caller guarantees AVX2, the words and the codes.
        unsafe {
            let both: [__m256i; V] =
                std::array::from_fn(|v| _mm256_loadu_si256(words.add(8 * v).cast()));
            let even = both.map(|both| _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(both)));
            let odd = both.map(|both| _mm256_srai_epi16::<8>(both));
            for (half, weights) in [even, odd].iter().enumerate() {
                for p in 0..P {
                    let x = _mm256_set1_epi32(x[p].add(2 * half).cast::<i32>().read_unaligned());
                    for v in 0..V {
                        let products = _mm256_madd_epi16(weights[v], x);
                        sums[p][v] = _mm256_add_epi32(sums[p][v], products);
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn integers(sum: __m256i) -> [i32; 8] {
        // SAFETY: both have 32 bytes, of which each pattern is valid.
        unsafe { std::mem::transmute(sum) }
    }
}

#[cfg(target_arch = "x86_64")]
struct Vnni;

#[cfg(target_arch = "x86_64")]
impl Kernel<16> for Vnni {
    type Code = u8;
    type Sum = __m512i;

    #[inline(always)]
    unsafe fn start(words: *const Word) -> __m512i {
        // SAFETY: the caller guarantees AVX-512 and 64 bytes.
        unsafe { _mm512_loadu_si512(words.cast()) }
    }

    #[inline(always)]
    unsafe fn add<const P: usize, const V: usize>(
        sums: &mut [[__m512i; V]; P],
        words: *const Word,
        x: [*const u8; P],
    ) {
        // SAFETY: the caller guarantees AVX-512 VNNI, the words and the codes.
        unsafe {
            let weights: [__m512i; V] =
                std::array::from_fn(|v| _mm512_loadu_si512(words.add(16 * v).cast()));
            for p in 0..P {
                let x = _mm512_set1_epi32(x[p].cast::<i32>().read_unaligned());
                for v in 0..V {
                    sums[p][v] = _mm512_dpbusd_epi32(sums[p][v], x, weights[v]);
                }
            }
        }
    }

    #[inline(always)]
    fn integers(sum: __m512i) -> [i32; 16] {
        // SAFETY: both have 64 bytes, of which each pattern is valid.
        unsafe { std::mem::transmute(sum) }
    }
}

#[cfg(test)]
struct Model;

#[cfg(test)]
impl Kernel<16> for Model {
    type Code = u8;
    type Sum = [i32; 16];

    unsafe fn start(words: *const Word) -> [i32; 16] {
        // SAFETY: the caller guarantees the words.
        unsafe { *words.cast::<[Word; 16]>() }
            .map(|word| i32::from_le_bytes(word.map(i8::cast_unsigned)))
    }

    unsafe fn add<const P: usize, const V: usize>(
        sums: &mut [[[i32; 16]; V]; P],
        words: *const Word,
        x: [*const u8; P],
    ) {
        for v in 0..V {
            // SAFETY: the caller guarantees the words.
            let words = unsafe { *words.add(16 * v).cast::<[Word; 16]>() };
            for (sums, x) in sums.iter_mut().zip(x) {
                // SAFETY: the caller guarantees four codes.
                let x = unsafe { *x.cast::<[u8; INPUTS]>() };
                for (sum, w) in sums[v].iter_mut().zip(words) {
                    *sum += x.iter().zip(w).map(|(x, w)| i32::from(*x) * i32::from(w)).sum::<i32>();
                }
            }
        }
    }

    fn integers(sum: [i32; 16]) -> [i32; 16] {
        sum
    }
}

/// The inputs of a tile: codes, the places of its pixels, and the places of the taps relative to a pixel with the number of
/// codes at each.
type Inputs<'a, C> = (&'a [C], &'a [usize], (&'a [usize], usize));

/// Computes and writes `P` pixels of a block of `V` vectors of `L` filters.
///
/// # Safety
/// The CPU has the instructions of the form.
#[inline(always)]
unsafe fn block<K: Kernel<L>, const L: usize, const P: usize, const V: usize>(
    (codes, from, (taps, run)): Inputs<'_, K::Code>,
    words: &[Word],
    to: &[usize],
    sink: &mut Sink<'_>,
) {
    let steps = run.div_ceil(INPUTS);
    let (from, to): (&[usize; P], &[usize; P]) = match (from.first_chunk(), to.first_chunk()) {
        (Some(from), Some(to)) => (from, to),
        _ => return,
    };
    assert!(words.len() >= L * V * (1 + taps.len() * steps), "words of a block");
    let start = words.as_ptr();
    // SAFETY: the caller guarantees the instructions; the block begins with a start for each lane.
    let mut sums = [std::array::from_fn::<_, V, _>(|v| unsafe { K::start(start.add(L * v)) }); P];
    let mut words = start.wrapping_add(L * V);
    for tap in taps {
        let x = from.map(|from| codes[from + tap..][..steps * INPUTS].as_ptr());
        for step in 0..steps {
            // SAFETY: the words were counted above, and the codes of this tap with the slice.
            unsafe { K::add::<P, V>(&mut sums, words, x.map(|x| x.add(INPUTS * step))) };
            words = words.wrapping_add(L * V);
        }
    }
    for (sums, place) in sums.iter().zip(to) {
        for (v, sum) in sums.iter().enumerate() {
            sink.write::<L>(*place, L * v, &K::integers(*sum));
        }
    }
}

/// Defines a function for all tiles of a form.
macro_rules! tiles {
    ($(#[$meta:meta])* $name:ident, $kernel:ty, $lanes:literal, $code:ty) => {
        $(#[$meta])*
        unsafe fn $name(inputs: Inputs<'_, $code>, words: &[Word], to: &[usize], width: usize, sink: &mut Sink<'_>) {
            // SAFETY: the caller guarantees the instructions.
            unsafe {
                match (to.len(), width / $lanes) {
                    (1, 1) => block::<$kernel, $lanes, 1, 1>(inputs, words, to, sink),
                    (2, 1) => block::<$kernel, $lanes, 2, 1>(inputs, words, to, sink),
                    (4, 1) => block::<$kernel, $lanes, 4, 1>(inputs, words, to, sink),
                    (_, 1) => block::<$kernel, $lanes, 6, 1>(inputs, words, to, sink),
                    (1, 2) => block::<$kernel, $lanes, 1, 2>(inputs, words, to, sink),
                    (2, 2) => block::<$kernel, $lanes, 2, 2>(inputs, words, to, sink),
                    (4, 2) => block::<$kernel, $lanes, 4, 2>(inputs, words, to, sink),
                    (_, 2) => block::<$kernel, $lanes, 6, 2>(inputs, words, to, sink),
                    (1, _) => block::<$kernel, $lanes, 1, 4>(inputs, words, to, sink),
                    (_, _) => block::<$kernel, $lanes, 2, 4>(inputs, words, to, sink),
                }
            }
        }
    };
}

tiles!(portable, Portable, 8, i16);
#[cfg(target_arch = "x86_64")]
tiles!(
    #[target_feature(enable = "avx2,fma")]
    avx2,
    Avx2,
    8,
    i16
);
#[cfg(target_arch = "x86_64")]
tiles!(
    #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512vnni,fma")]
    vnni,
    Vnni,
    16,
    u8
);
#[cfg(test)]
tiles!(model, Model, 16, u8);

/// Computes and writes the pixels of a tile, from `from` to `to`, for a block of filters.
pub(crate) fn tile(
    form: Form,
    (codes, from, taps): (Source<'_>, &[usize], (&[usize], usize)),
    words: &[Word],
    to: &[usize],
    sink: &mut Sink<'_>,
) {
    let width = sink.bias.len();
    match (form, codes) {
        // SAFETY: no instructions beyond the baseline.
        (Form::Portable, Source::Signed(codes)) => unsafe {
            portable((codes, from, taps), words, to, width, sink)
        },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `Form::best` found the instructions.
        (Form::Avx2, Source::Signed(codes)) => unsafe {
            avx2((codes, from, taps), words, to, width, sink)
        },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        (Form::Vnni, Source::Unsigned(codes)) => unsafe {
            vnni((codes, from, taps), words, to, width, sink)
        },
        #[cfg(test)]
        // SAFETY: no instructions beyond the baseline.
        (Form::Model, Source::Unsigned(codes)) => unsafe {
            model((codes, from, taps), words, to, width, sink)
        },
        _ => {}
    }
}
