//! Attention on a CPU: both passes over a batch, and the ring at the end of a sequence.

use std::sync::Arc;

use candle_core::Tensor;

use super::cache::{Cache, count_on};
use super::tiles::{
    Given, Gradients, Scratch, Sequence, backward_chunk, fetch, forward_chunk, forward_few,
};
use super::window::Window;
use crate::columns::{copied, filled, zeroed};
use crate::lengths::{Lengths, check_lengths};
use crate::op::{self, Op};
use crate::{Result, memory, simd, tensor};

/// At most this many queries are computed one by one: laying the keys out for blocks would cost more.
pub(super) const FEW: usize = 3;
/// Shards of a batch, at most.
pub(super) const SHARDS: usize = 16;

/// The sizes, counts and lengths of one call.
pub(super) struct Pass {
    pub(super) window: Arc<Window>,
    pub(super) batch: usize,
    pub(super) time: usize,
    pub(super) lengths: Lengths,
    pub(super) seen: Vec<usize>,
}

impl Pass {
    pub(super) fn of(
        qkv: &Tensor,
        cache: &Cache,
        window: &Arc<Window>,
        lengths: Lengths,
    ) -> Result<Self> {
        Pass::new(window.check_streams(qkv)?, cache, window, lengths)
    }

    pub(super) fn new(
        [batch, time]: [usize; 2],
        cache: &Cache,
        window: &Arc<Window>,
        lengths: Lengths,
    ) -> Result<Self> {
        window.check_cache(cache, batch)?;
        check_lengths(&lengths, batch, time)?;
        let seen = cache.seen(window.window)?;
        Ok(Pass { window: window.clone(), batch, time, lengths, seen })
    }

    /// The keys and values of a cache; empty tensors if no row has seen a frame, as none is read then.
    pub(super) fn rings(&self, cache: &Cache) -> Result<[Tensor; 2]> {
        let [keys, values] = [&cache.keys, &cache.values];
        if self.seen.iter().any(|seen| *seen > 0) || keys.track_op() || values.track_op() {
            return Ok([keys.contiguous()?, values.contiguous()?]);
        }
        let nothing = tensor::zeros(&[0])?;
        Ok([nothing.clone(), nothing])
    }

    pub(super) fn frames(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.batch).map(|row| self.frames_of(row))
    }

    pub(super) fn frames_of(&self, row: usize) -> usize {
        self.lengths.as_ref().map_or(self.time, |lengths| lengths[row])
    }

    /// Frames that each row has seen at the end.
    pub(super) fn seen_after(&self) -> Result<Tensor> {
        let after = |(seen, frames): (&usize, usize)| count_on(*seen, frames, self.window.window);
        let seen = self.seen.iter().zip(self.frames()).map(|row| after(row) as f32).collect();
        Ok(tensor::tensor(seen, (self.batch, 1))?)
    }

    /// Cached frames of a row that the first query sees.
    pub(super) fn past_of(&self, row: usize) -> usize {
        self.seen[row].min(self.window.window - 1)
    }

    /// Rows of the batch in one shard.
    pub(super) fn shard(&self) -> usize {
        self.batch.div_ceil(SHARDS)
    }

    pub(super) fn row<'a>(
        &self,
        row: usize,
        qkv: &'a [f32],
        keys: &'a [f32],
        values: &'a [f32],
    ) -> Sequence<'a> {
        let d = self.window.width();
        let (of_qkv, of_ring) = (self.time * 3 * d, self.window.window * d);
        Sequence {
            qkv: &qkv[row * of_qkv..][..of_qkv],
            keys: keys.get(row * of_ring..(row + 1) * of_ring).unwrap_or_default(),
            values: values.get(row * of_ring..(row + 1) * of_ring).unwrap_or_default(),
            seen: self.seen[row],
            past: self.past_of(row),
            frames: self.frames_of(row),
        }
    }
}

impl Pass {
    /// The attention output, and if `keep` the logarithm of each softmax's denominator, `[b, heads, t]`.
    pub(super) fn forward(&self, [qkv, keys, values]: [&[f32]; 3], keep: bool) -> [Vec<f32>; 2] {
        let Pass { window: w, batch, time, .. } = self;
        let kept = if keep { w.heads * time } else { 0 };
        let (widths, blocks) = ([time * w.width(), kept], *time > FEW);
        // SAFETY: all parts are zeroed.
        unsafe {
            filled(*batch, self.shard(), widths, |rows, parts| {
                let [y, log_sums] = parts.map(zeroed);
                let past = rows.clone().map(|row| self.past_of(row)).max().unwrap_or(0);
                let mut scratch = Scratch::new(w, *time, past, blocks, false);
                for (i, row) in rows.enumerate() {
                    let row = self.row(row, qkv, keys, values);
                    let y = &mut y[i * time * w.width()..][..time * w.width()];
                    let kept = kept / w.heads;
                    let mut kept_of = log_sums[i * w.heads * kept..].chunks_mut(kept.max(1));
                    let mut kept_of: Vec<&mut [f32]> =
                        (0..w.heads).map(|_| kept_of.next().unwrap_or_default()).collect();
                    if !blocks {
                        for (head, log_sums) in kept_of.iter_mut().enumerate() {
                            forward_few(w, &row, 0..row.frames, head, &mut scratch, y, log_sums);
                        }
                        continue;
                    }
                    for chunk in row.chunks(w) {
                        row.fetch(w, chunk);
                        for (head, log_sums) in kept_of.iter_mut().enumerate() {
                            forward_chunk(w, &row, chunk, head, &mut scratch, y, log_sums);
                        }
                    }
                }
            })
        }
    }

    /// The attention output of the last query of each row, `[b, heads * head_dim]`.
    pub(super) fn of_last(&self, all: &[&[f32]]) -> Vec<f32> {
        let (w, &[qkv, keys, values]) = (&*self.window, all) else { return vec![] };
        // SAFETY: the part is zeroed.
        let [y] = unsafe {
            filled(self.batch, self.shard(), [w.width()], |rows, [y]| {
                let mut scratch = Scratch::new(w, self.time, w.window - 1, false, false);
                for (at, y) in rows.zip(zeroed(y).chunks_exact_mut(w.width())) {
                    let row = self.row(at, qkv, keys, values);
                    let last = row.frames.saturating_sub(1)..row.frames;
                    for head in 0..w.heads {
                        forward_few(w, &row, last.clone(), head, &mut scratch, y, &mut []);
                    }
                }
            })
        };
        y
    }

    /// Gradients of `qkv`, and of the cached keys and values if `cached`.
    pub(super) fn backward(
        &self,
        [qkv, keys, values]: [&[f32]; 3],
        [y, dy, log_sums]: [&[f32]; 3],
        cached: bool,
    ) -> [Vec<f32>; 3] {
        let Pass { window: w, batch, time, .. } = self;
        let (of_y, of_qkv) = (time * w.width(), 3 * time * w.width());
        let of_ring = if cached { w.window * w.width() } else { 0 };
        // SAFETY: all parts are zeroed.
        unsafe {
            filled(*batch, self.shard(), [of_qkv, of_ring, of_ring], |rows, parts| {
                let [qs, ks, vs] = parts.map(zeroed);
                let past = rows.clone().map(|row| self.past_of(row)).max().unwrap_or(0);
                let mut scratch = Scratch::new(w, *time, past, true, true);
                for (i, at) in rows.enumerate() {
                    let row = self.row(at, qkv, keys, values);
                    let mut out = Gradients {
                        qkv: &mut qs[i * of_qkv..][..of_qkv],
                        keys: &mut ks[i * of_ring..][..of_ring],
                        values: &mut vs[i * of_ring..][..of_ring],
                    };
                    let given = Given {
                        y: &y[at * of_y..][..of_y],
                        dy: &dy[at * of_y..][..of_y],
                        log_sums: &log_sums[at * w.heads * time..][..w.heads * time],
                    };
                    for chunk in row.chunks(w) {
                        row.fetch(w, chunk);
                        let span = chunk.begin * w.width()..chunk.end * w.width();
                        fetch(&given.y[span.clone()]);
                        fetch(&given.dy[span]);
                        for head in 0..w.heads {
                            backward_chunk(w, &row, chunk, head, &mut scratch, &given, &mut out);
                        }
                    }
                }
            })
        }
    }
}

/// The kind of data, keys or values, that a ring holds.
#[derive(Debug, Clone, Copy)]
pub(super) enum Part {
    Keys = 1,
    Values = 2,
}

impl Pass {
    /// The frame of a row that ends up in a slot of its ring, if any.
    pub(super) fn frame_in(&self, row: usize, slot: usize) -> Option<usize> {
        let (window, frames) = (self.window.window, self.frames_of(row));
        // The distance from this slot to the slot of the last frame.
        let back = (self.seen[row] + frames + window - 1 - slot) % window;
        frames.checked_sub(1 + back)
    }

    /// A ring after the last frames of a sequence were written to it; `ring` may be empty if no row has seen a frame.
    pub(super) fn append(&self, part: Part, ring: &[f32], qkv: &[f32]) -> Vec<f32> {
        let (d, window) = (self.window.width(), self.window.window);
        // SAFETY: each slot is copied.
        let [next] = unsafe {
            filled(self.batch, 1, [window * d], |rows, [next]| {
                let row = rows.start;
                for (slot, next) in next.chunks_exact_mut(d).enumerate() {
                    match self.frame_in(row, slot) {
                        Some(t) => {
                            let at = (3 * (row * self.time + t) + part as usize) * d;
                            copied(next, &qkv[at..at + d]);
                        }
                        None if ring.is_empty() => {
                            zeroed(next);
                        }
                        None => {
                            copied(next, &ring[(row * window + slot) * d..][..d]);
                        }
                    }
                }
            })
        };
        next
    }

    /// Splits the gradient of the ring after the sequence: `d_ring` keeps the gradient of the ring before the sequence,
    /// and the rest is added to `d_qkv`.
    pub(super) fn append_backward(&self, part: Part, d_ring: &mut [f32], d_qkv: &mut [f32]) {
        let (d, window) = (self.window.width(), self.window.window);
        for (at, d_slot) in d_ring.chunks_exact_mut(d).enumerate() {
            let row = at / window;
            if let Some(t) = self.frame_in(row, at % window) {
                let at = (3 * (row * self.time + t) + part as usize) * d;
                simd::add_assign(&mut d_qkv[at..at + d], d_slot);
                d_slot.fill(0.0);
            }
        }
    }
}

pub(super) struct Attend {
    pub(super) pass: Arc<Pass>,
    /// Logarithm of each softmax's denominator, `[b, heads, t]`, saved for the backward pass.
    pub(super) log_sums: Vec<f32>,
}

impl Op for Attend {
    fn forward(&mut self, inputs: &[&[f32]], track: bool) -> Result<Vec<Vec<f32>>> {
        let [y, log_sums] = self.pass.forward([inputs[0], inputs[1], inputs[2]], track);
        self.log_sums = log_sums;
        Ok(vec![y])
    }

    fn backward(&mut self, pass: &op::Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let inputs = [pass.inputs[0], pass.inputs[1], pass.inputs[2]];
        let given = [pass.outputs[0], pass.gradient()?, &self.log_sums];
        let cached = pass.wants(1) || pass.wants(2);
        let all = self.pass.backward(inputs, given, cached);
        Ok(only_wanted(all, pass.wanted))
    }
}

/// Gradients of the inputs; empty for an input that wants none.
pub(super) fn only_wanted<const N: usize>(
    gradients: [Vec<f32>; N],
    wanted: &[bool],
) -> Vec<Vec<f32>> {
    let all = gradients.into_iter().zip(wanted);
    all.map(|(d, wanted)| if *wanted { d } else { vec![] }).collect()
}

pub(super) struct Append {
    pub(super) pass: Arc<Pass>,
    pub(super) part: Part,
}

impl Op for Append {
    fn forward(&mut self, inputs: &[&[f32]], _track: bool) -> Result<Vec<Vec<f32>>> {
        Ok(vec![self.pass.append(self.part, inputs[0], inputs[1])])
    }

    fn backward(&mut self, pass: &op::Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let mut d_ring = memory::copied(pass.gradient()?);
        let mut d_qkv = memory::zeros(pass.inputs[1].len());
        self.pass.append_backward(self.part, &mut d_ring, &mut d_qkv);
        Ok(only_wanted([d_ring, d_qkv], pass.wanted))
    }
}
