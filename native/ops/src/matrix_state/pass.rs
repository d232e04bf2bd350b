//! Both passes over a batch: rows in parallel, the chunks of a row in sequence.

use super::chunk::{Chunk, Scratch};
use super::kernel::Kernel;
use super::readout::Reading;
use super::sizes::Sizes;
use super::{Options, Readout};
use crate::op::{Op, Pass};
use crate::pool::for_each_shard;
use crate::rotary::Way;
use crate::{Result, memory, simd};

pub(super) struct MatrixState {
    sizes: Sizes,
    reading: Reading,
    kept: Kept,
}

#[derive(Default)]
struct Kept {
    /// The state before each chunk, `[b, chunks, heads, wide, key]`.
    states: Vec<f32>,
    /// With a normaliser: n q of each frame and head, `[b, t, heads]`.
    norms: Vec<f32>,
}

impl MatrixState {
    pub(super) fn new(sizes: Sizes, reading: Reading) -> Self {
        MatrixState { sizes, reading, kept: Kept::default() }
    }

    /// y, the last state, and the tensors saved for the backward pass.
    fn run(
        &self,
        streams: &[f32],
        gates: &[f32],
        first: &[f32],
        track: bool,
    ) -> (Vec<f32>, Vec<f32>, Kept) {
        let s = &self.sizes;
        let Options { heads, value, .. } = s.options;
        let states = if track { s.chunks() * s.state() } else { 0 };
        let norms = match (self.reading.readout.is_normalised(), track) {
            (true, true) => s.time * heads,
            (true, false) => s.chunk() * heads,
            (false, _) => 0,
        };
        let mut y = memory::zeros(s.batch * s.time * heads * value);
        let mut last = first.to_vec();
        let mut kept =
            Kept { states: memory::zeros(s.batch * states), norms: memory::zeros(s.batch * norms) };
        let buffers = [
            (&mut y[..], s.time * heads * value),
            (&mut last[..], s.state()),
            (&mut kept.states[..], states),
            (&mut kept.norms[..], norms),
        ];
        for_each_shard(s.batch, s.shard(), buffers, |rows, [y, last, kept, kept_norms]| {
            let mut kernel = Kernel::new(s);
            let mut scratch = Scratch::new(s);
            let mut read = memory::zeros(s.chunk() * heads * s.wide);
            for (i, row) in rows.enumerate() {
                let state = &mut last[i * s.state()..][..s.state()];
                for (c, span) in s.spans(s.length(row)) {
                    let chunk = Chunk::new(s, streams, gates, row, &span, &mut scratch);
                    let kept = match track {
                        true => Some(&mut kept[i * states + c * s.state()..][..s.state()]),
                        false => None,
                    };
                    let read = &mut read[..chunk.frames * heads * s.wide];
                    kernel.forward(&chunk, read, state, kept);
                    s.turn_state(state, span.len(), Way::Back);
                    let y = &mut y[(i * s.time + span.start) * heads * value..];
                    let y = &mut y[..span.len() * heads * value];
                    let norms = match track && norms > 0 {
                        true => &mut kept_norms[i * norms + span.start * heads..],
                        false => &mut kept_norms[i * norms..],
                    };
                    let at = (row * s.time + span.start) * heads;
                    self.reading.read(y, norms, read, chunk.v, at, value);
                }
            }
        });
        (y, last, if track { kept } else { Kept::default() })
    }

    /// Computes all gradients from the gradients of y and of the last state, and from y itself.
    fn gradients(
        &self,
        streams: &[f32],
        gates: &[f32],
        [dy, y]: [&[f32]; 2],
        d_last: Option<&[f32]>,
    ) -> Gradients {
        let s = &self.sizes;
        let Options { heads, value, .. } = s.options;
        let kept = &self.kept;
        let skips = if matches!(self.reading.readout, Readout::Skip(_)) { heads } else { 0 };
        let mut d = Gradients {
            streams: memory::zeros(s.batch * s.time * s.width),
            gates: memory::zeros(s.batch * s.time * s.gates()),
            state: d_last.map_or_else(|| memory::zeros(s.batch * s.state()), <[f32]>::to_vec),
            skip: memory::zeros(s.batch * skips),
        };
        let buffers = [
            (&mut d.streams[..], s.time * s.width),
            (&mut d.gates[..], s.time * s.gates()),
            (&mut d.state[..], s.state()),
            (&mut d.skip[..], skips),
        ];
        for_each_shard(
            s.batch,
            s.shard(),
            buffers,
            |rows, [d_streams, d_gates, d_state, d_skip]| {
                let mut kernel = Kernel::new(s);
                let mut scratch = Scratch::new(s);
                let mut d_read = memory::zeros(s.chunk() * heads * s.wide);
                let mut dv = d_read.clone();
                for (i, row) in rows.enumerate() {
                    let d_state = &mut d_state[i * s.state()..][..s.state()];
                    for (c, span) in s.spans(s.length(row)).rev() {
                        let chunk = Chunk::new(s, streams, gates, row, &span, &mut scratch);
                        let at = row * s.time + span.start;
                        let state = &kept.states[(row * s.chunks() + c) * s.state()..][..s.state()];
                        let dy = &dy[at * heads * value..][..span.len() * heads * value];
                        let d_read = &mut d_read[..span.len() * heads * s.wide];
                        let dv = &mut dv[..span.len() * heads * s.wide];
                        let results = [y, &kept.norms];
                        self.reading.read_backward(d_read, dy, results, at * heads, value);
                        let local = i * s.time + span.start;
                        let d_streams = &mut d_streams[local * s.width..][..span.len() * s.width];
                        let d_gates = &mut d_gates[local * s.gates()..][..span.len() * s.gates()];
                        s.turn_state(d_state, span.len(), Way::There);
                        kernel.backward(&chunk, state, d_read, d_state, dv, d_streams, d_gates);
                        s.turn_gradients(d_streams);
                        let d_skip = &mut d_skip[i * skips..][..skips];
                        self.reading.skip_backward(dv, d_skip, dy, chunk.v, value);
                        s.leave_values(d_streams, dv);
                    }
                }
            },
        );
        d
    }
}

struct Gradients {
    streams: Vec<f32>,
    gates: Vec<f32>,
    state: Vec<f32>,
    /// The gradient of the skip, for each row of the batch.
    skip: Vec<f32>,
}

impl Op for MatrixState {
    fn forward(&mut self, inputs: &[&[f32]], track: bool) -> Result<Vec<Vec<f32>>> {
        let gates = inputs.get(2).copied().unwrap_or_default();
        let (y, last, kept) = self.run(inputs[0], gates, inputs[1], track);
        self.kept = kept;
        Ok(vec![y, last])
    }

    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let &Pass { inputs, outputs, gradients, .. } = pass;
        let gates = inputs.get(2).copied().unwrap_or_default();
        let none;
        let dy = match gradients[0] {
            Some(dy) => dy,
            None => {
                none = memory::zeros(outputs[0].len());
                &none
            }
        };
        let given = [dy, outputs[0]];
        let d = self.gradients(inputs[0], gates, given, gradients[1]);
        if let Readout::Skip(skip) = &self.reading.readout {
            skip.accumulate(|sum, accumulate| {
                if !accumulate {
                    sum.fill(0.0);
                }
                simd::add_rows(sum, &d.skip);
            });
        }
        Ok(vec![d.streams, d.state, d.gates])
    }
}
