//! Shapes of one run over a batch, and the ranges of its rows and chunks.

use std::ops::Range;

use super::Options;
use crate::rotary::Way;

/// Shapes of one run.
pub(super) struct Sizes {
    pub batch: usize,
    pub time: usize,
    /// Columns of the streams.
    pub width: usize,
    /// Rows of a head's state: one per value, and one more for a normaliser.
    pub wide: usize,
    pub options: Options,
}

impl Sizes {
    /// Frames of a chunk.
    pub(super) fn chunk(&self) -> usize {
        self.options.frames(self.time)
    }

    pub(super) fn chunks(&self) -> usize {
        self.time.div_ceil(self.chunk())
    }

    pub(super) fn state(&self) -> usize {
        self.options.heads * self.wide * self.options.key
    }

    pub(super) fn gates(&self) -> usize {
        self.options.gates().unwrap_or(0)
    }

    /// Columns of all queries, equal to the columns of all keys.
    pub(super) fn keys(&self) -> usize {
        self.options.groups() * self.options.key
    }

    /// Rotates the state of a row by `frames` frames, if keys are rotated: from the rotation of a first query to that
    /// of the query `frames` later. For the gradient of the rotation, `way` is the inverse.
    pub(super) fn turn_state(&self, state: &mut [f32], frames: usize, way: Way) {
        if let Some(rotary) = &self.options.rotary {
            rotary.turn(state, frames, way);
        }
    }

    /// If keys are rotated, turns the gradients of a chunk's rotated queries and keys into the gradients of the
    /// streams.
    pub(super) fn turn_gradients(&self, d_streams: &mut [f32]) {
        if let Some(rotary) = &self.options.rotary {
            for first in [self.options.q, self.options.k] {
                rotary.turn_frames(d_streams, self.width, first, self.keys(), Way::Back);
            }
        }
    }

    /// Copies the gradients of the values, `[frames, heads, wide]`, to their columns of the streams' gradient.
    pub(super) fn leave_values(&self, d_streams: &mut [f32], dv: &[f32]) {
        let Options { heads, value, v: first, .. } = self.options;
        let frames = d_streams.chunks_exact_mut(self.width);
        for (d, dv) in frames.zip(dv.chunks_exact(heads * self.wide)) {
            let d = d[first..first + heads * value].chunks_exact_mut(value);
            for (d, dv) in d.zip(dv.chunks_exact(self.wide)) {
                d.copy_from_slice(&dv[..value]);
            }
        }
    }

    /// Rows of the batch in one shard.
    pub(super) fn shard(&self) -> usize {
        self.batch.div_ceil(8).max(1)
    }

    pub(super) fn length(&self, row: usize) -> usize {
        self.options.lengths.as_ref().map_or(self.time, |lengths| lengths[row])
    }

    /// The chunks of a row that has `length` frames.
    pub(super) fn spans(
        &self,
        length: usize,
    ) -> impl DoubleEndedIterator<Item = (usize, Range<usize>)> {
        let chunk = self.chunk();
        (0..length.div_ceil(chunk)).map(move |i| (i, i * chunk..length.min((i + 1) * chunk)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Decay;
    use super::*;

    #[test]
    fn a_chunk_is_bounded_however_long_the_sequence() {
        let chunk = |chunk, time| {
            let options = Options { chunk, ..Options::side_by_side(1, 2, 2, Decay::Head) };
            Sizes { batch: 1, time, width: 6, wide: 2, options }.chunk()
        };
        assert_eq!([chunk(1 << 16, 1 << 20), chunk(1 << 16, 5), chunk(7, 60)], [256, 5, 7]);
    }
}
