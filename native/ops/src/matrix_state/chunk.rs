//! The frames of one chunk, laid out for the kernels.

use std::ops::Range;

use super::Options;
use super::sizes::Sizes;
use crate::matmul::View;
use crate::memory;
use crate::rotary::Way;
use crate::simd::dispatch;

/// Buffers for copies of parts of a chunk.
pub(super) struct Scratch {
    /// Values, `[frames, heads, wide]`.
    v: Vec<f32>,
    /// Queries and keys side by side, if they are rotated.
    turned: Vec<f32>,
}

impl Scratch {
    pub(super) fn new(sizes: &Sizes) -> Self {
        let turns = sizes.options.rotary.is_some() && sizes.chunk() > 1;
        let turned = if turns { 2 * sizes.keys() } else { 0 };
        Scratch {
            v: memory::zeros(sizes.chunk() * sizes.options.heads * sizes.wide),
            turned: memory::zeros(sizes.chunk() * turned),
        }
    }
}

/// Values and outputs of one chunk, `[frames, heads, wide]`, and the other inputs of a kernel.
pub(super) struct Chunk<'a> {
    pub sizes: &'a Sizes,
    pub frames: usize,
    /// The frames of the chunk, `width` values each, with queries and keys from the streams or rotated. The queries
    /// begin at column `q`, the keys at column `k`.
    pub streams: &'a [f32],
    pub width: usize,
    pub q: usize,
    pub k: usize,
    pub gates: &'a [f32],
    /// The values; with a normaliser, each head's values are followed by a 1.
    pub v: &'a [f32],
}

impl<'a> Chunk<'a> {
    /// The frames `span` of a row of the streams, with their values copied and their queries and keys rotated.
    pub(super) fn new(
        s: &'a Sizes,
        streams: &'a [f32],
        gates: &'a [f32],
        row: usize,
        span: &Range<usize>,
        scratch: &'a mut Scratch,
    ) -> Self {
        let Options { heads, value, q, k, v: first, .. } = s.options;
        let Scratch { v, turned } = scratch;
        let (from, to) = (row * s.time + span.start, row * s.time + span.end);
        let streams = &streams[from * s.width..to * s.width];
        let gates = &gates[from * s.gates()..to * s.gates()];
        let frames = v.chunks_exact_mut(heads * s.wide).zip(streams.chunks_exact(s.width));
        for (v, stream) in frames {
            widen(v, &stream[first..first + heads * value], s.wide, value);
        }
        let frames = span.len();
        let v = &v[..frames * heads * s.wide];
        match &s.options.rotary {
            // The first frame has position 0, so a single frame is not rotated.
            Some(rotary) if frames > 1 => {
                let part = s.keys();
                let turned = &mut turned[..frames * 2 * part];
                let rows = turned.chunks_exact_mut(2 * part).zip(streams.chunks_exact(s.width));
                for (turned, stream) in rows {
                    turned[..part].copy_from_slice(&stream[q..q + part]);
                    turned[part..].copy_from_slice(&stream[k..k + part]);
                }
                rotary.turn_frames(turned, 2 * part, 0, 2 * part, Way::There);
                Chunk {
                    sizes: s,
                    frames,
                    streams: turned,
                    width: 2 * part,
                    q: 0,
                    k: part,
                    gates,
                    v,
                }
            }
            _ => Chunk { sizes: s, frames, streams, width: s.width, q, k, gates, v },
        }
    }

    pub(super) fn q(&self, group: usize) -> View<'_> {
        let key = self.sizes.options.key;
        View::strided(&self.streams[self.q + group * key..], self.frames, key, self.width)
    }

    pub(super) fn k(&self, group: usize) -> View<'_> {
        let key = self.sizes.options.key;
        View::strided(&self.streams[self.k + group * key..], self.frames, key, self.width)
    }
}

dispatch! {
    /// Copies the rows of `from` to `to [rows, wide]`, each followed by a 1 if `wide` exceeds `value`.
    fn widen(to: &mut [f32], from: &[f32], wide: usize, value: usize) {
        for (to, from) in to.chunks_exact_mut(wide).zip(from.chunks_exact(value)) {
            to[..value].copy_from_slice(from);
            to[value..].fill(1.0);
        }
    }
}
