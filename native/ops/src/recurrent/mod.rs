//! The common part of LSTM and GRU: a layer's weights, and a sequence that is split over the batch and walked over
//! time.
//!
//! A frame of a row has four parts of h values. The input is projected into the first parts, the previous state into
//! parts that the cell names. The cell turns these parts into its gates in place, and the backward pass turns the gates
//! into gradients. So a frame is written once and updated in place; the remaining work is matrix products.

mod card;
pub(crate) mod composed;
pub mod gru;
pub mod lstm;
pub mod slstm;
pub mod state;

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use candle_core::{Shape, Tensor};
pub use gru::gru;
pub use lstm::lstm;
pub use slstm::slstm;
pub use state::SlstmState;

use crate::lengths::{Lengths, check_lengths};
use crate::linear::weight_gradient;
use crate::matmul::{MANY, Operand, View};
use crate::op::{self, Op, Pass};
use crate::pool::for_each_shard;
use crate::simd::{add_assign, row_sum};
use crate::weights::Weight;
use crate::{Error, Result, memory, tensor};

/// Weights of a layer in PyTorch's layout, for a cell of g gates, d inputs and state size h.
#[derive(Clone)]
pub struct Gates {
    /// Weight of the input, `[g h, d]`.
    pub weight_ih: Weight,
    /// Weight of the state, `[g h, h]`.
    pub weight_hh: Weight,
    /// Bias of the input, `[g h]`.
    pub bias_ih: Weight,
    /// Bias of the state, `[g h]`.
    pub bias_hh: Weight,
    /// Buffers of completed steps, for reuse.
    spare: Arc<Mutex<Vec<Trace>>>,
}

impl Gates {
    /// The weights of a layer, with no spare buffers.
    pub fn new(weight_ih: Weight, weight_hh: Weight, bias_ih: Weight, bias_hh: Weight) -> Self {
        Gates { weight_ih, weight_hh, bias_ih, bias_hh, spare: Arc::default() }
    }

    /// Returns a trace with these lengths and arbitrary values.
    fn trace(&self, [frames, previous, cells]: [usize; 3]) -> Trace {
        let spare = self.spare.lock().unwrap_or_else(|e| e.into_inner()).pop();
        let mut trace = spare.unwrap_or_default();
        memory::resize(&mut trace.frames, frames);
        memory::resize(&mut trace.previous, previous);
        memory::resize(&mut trace.cells, cells);
        trace
    }

    fn give_back(&self, trace: Trace) {
        self.spare.lock().unwrap_or_else(|e| e.into_inner()).push(trace);
    }
}

/// Parts of a frame, of h values each.
const PARTS: usize = 4;

/// Some gates of the recurrent weight, and their place in a frame.
pub struct Piece {
    /// The range of gates.
    pub gates: Range<usize>,
    /// The first part of the frame that these gates write.
    pub part: usize,
    /// Whether the part already holds the projected input.
    pub adds: bool,
}

/// The computation of one frame of one row.
pub trait Cell: Send + Sync + 'static {
    /// The name in errors.
    const NAME: &'static str;
    /// The number of gates of the weights.
    const GATES: usize;
    /// Whether there is a second state, c.
    const CELLS: bool;
    /// The pieces of the recurrent product.
    const RECURRENT: &'static [Piece];

    /// The state h' from the previous state, h; `c` is changed in place. On entry `frame [4 h]` holds products without
    /// the bias, on return the values for the backward pass.
    fn forward(h_new: &mut [f32], c: &mut [f32], frame: &mut [f32], bias: &[f32], h: &[f32]);

    /// Turns the frame into gradients of its contents before `forward`, and adds them to `d_bias`. On entry `d` holds
    /// the gradients of the states after the frame, on return the gradients of the states before it, without the
    /// gradient through the weight.
    fn backward(d: States<&mut [f32]>, frame: &mut [f32], d_bias: &mut [f32], kept: &Kept<'_>);
}

/// The states of a cell, or their gradients.
pub struct States<T> {
    /// The output state h, `[h]`.
    pub h: T,
    /// The cell state c, `[h]`; empty if the cell has none.
    pub c: T,
}

/// Saved states of a frame: h and c before it, and c after it.
pub struct Kept<'a> {
    /// The state h before the frame.
    pub h: &'a [f32],
    /// The state c before the frame; empty if the cell has none.
    pub c: &'a [f32],
    /// The state c after the frame; empty if the cell has none.
    pub c_new: &'a [f32],
}

struct Layer<C> {
    batch: usize,
    time: usize,
    input: usize,
    hidden: usize,
    lengths: Lengths,
    gates: Gates,
    trace: Trace,
    cell: PhantomData<C>,
}

/// Values that a forward pass saves for the backward pass, which overwrites them.
#[derive(Default)]
struct Trace {
    /// Frames, `[b, t, 4 h]`.
    frames: Vec<f32>,
    /// The state h before each frame, `[b, t, h]`.
    previous: Vec<f32>,
    /// The state c after each frame, `[b, t, h]`; empty if the cell has none.
    cells: Vec<f32>,
}

/// Rows that are projected together if frames are not saved: 2 MiB of frames for a state of 256, and enough frames from
/// each of sixteen games to keep a matrix unit busy.
const CHUNK: usize = 512;

impl<C: Cell> Layer<C> {
    /// Checks all shapes.
    fn new(x: &Tensor, gates: &Gates, first: &[&Tensor], lengths: Lengths) -> Result<Self> {
        let (batch, time, input) = x.dims3()?;
        let (rows, hidden) = gates.weight_hh.dims2()?;
        if time == 0 {
            return Err(Error::mismatch("frames of a sequence", "at least 1", 0));
        }
        let check = |what: &str, expected: &[usize], got: &Tensor| {
            tensor::check_shape(format_args!("{what} of {}", C::NAME), expected, got.dims())
        };
        check("recurrent weight", &[C::GATES * hidden, hidden], &gates.weight_hh)?;
        check("input weight", &[rows, input], &gates.weight_ih)?;
        check("input bias", &[rows], &gates.bias_ih)?;
        check("recurrent bias", &[rows], &gates.bias_hh)?;
        for state in first {
            check("state", &[batch, hidden], state)?;
        }
        check_lengths(&lengths, batch, time)?;
        let (gates, trace) = (gates.clone(), Trace::default());
        Ok(Layer { batch, time, input, hidden, lengths, gates, trace, cell: PhantomData })
    }

    /// The states `y [b, t, h]` and those after the last frame `[b, h]` of a layer over `x [b, t, d]`.
    fn apply<const N: usize>(
        self,
        x: &Tensor,
        gates: &Gates,
        first: &[&Tensor],
    ) -> Result<[Tensor; N]> {
        let (b, t, h) = (self.batch, self.time, self.hidden);
        let shapes = std::array::from_fn(|i| match i {
            0 => Shape::from((b, t, h)),
            _ => Shape::from((b, h)),
        });
        let Gates { weight_ih, weight_hh, bias_ih, bias_hh, .. } = gates;
        let x = &*weight_ih.rounded(x)?;
        let mut inputs: Vec<&Tensor> = vec![x, weight_ih, weight_hh, bias_ih, bias_hh];
        inputs.extend(first);
        op::apply_all(self, &inputs, shapes)
    }

    /// Rows of the batch in one shard: at most four shards, none too small for a matrix unit.
    fn shard(&self) -> usize {
        self.batch.div_ceil(4).max(MANY)
    }

    fn present(&self, row: usize, t: usize) -> bool {
        self.lengths.as_ref().is_none_or(|lengths| t < lengths[row])
    }

    /// Width of c; 0 if the cell has none.
    fn cells(&self) -> usize {
        if C::CELLS { self.hidden } else { 0 }
    }

    /// The sum of both biases in the layout of a frame, `[4 h]`.
    fn bias(&self, bias_ih: &[f32], bias_hh: &[f32]) -> Vec<f32> {
        let h = self.hidden;
        let mut bias = memory::zeros(PARTS * h);
        bias[..bias_ih.len()].copy_from_slice(bias_ih);
        for Piece { gates, part, .. } in C::RECURRENT {
            add_assign(&mut bias[part * h..], &bias_hh[gates.start * h..gates.end * h]);
        }
        bias
    }

    /// The pieces of the recurrent weight as right operands.
    fn recurrent<'a>(&self, weight: &'a [f32], turned: bool) -> Vec<Operand<'a>> {
        let h = self.hidden;
        let rows = |p: &Piece| p.gates.start * h..p.gates.end * h;
        let uses = self.batch * self.time;
        let each = self.shard().min(self.batch);
        let operand = |p| self.gates.weight_hh.operand_of(weight, rows(p), turned, uses, each);
        C::RECURRENT.iter().map(operand).collect()
    }

    /// The state h after each frame `[b, t, h]` and c after the last `[b, h]`, and the trace, which is empty without
    /// `keep`.
    fn run(&self, inputs: &Inputs<'_>, keep: bool) -> ((Vec<f32>, Vec<f32>), Trace) {
        let (batch, time, h, cells) = (self.batch, self.time, self.hidden, self.cells());
        let kept = if keep { time } else { 0 };
        let mut y = memory::zeros(batch * time * h);
        let mut c = inputs.c.to_vec();
        let mut trace = match keep {
            true => self.gates.trace([PARTS * h, h, cells].map(|width| batch * time * width)),
            false => Trace::default(),
        };
        let bias = self.bias(inputs.bias_ih, inputs.bias_hh);
        let gates = 0..C::GATES * h;
        let input = self.gates.weight_ih.operand(inputs.weight_ih, gates, true, batch * time);
        let recurrent = self.recurrent(inputs.weight_hh, true);
        let buffers = [
            (&mut y[..], time * h),
            (&mut c[..], cells),
            (&mut trace.frames[..], kept * PARTS * h),
            (&mut trace.previous[..], kept * h),
            (&mut trace.cells[..], kept * cells),
        ];
        for_each_shard(batch, self.shard(), buffers, |rows, [y, c, frames, previous, all_c]| {
            let count = rows.len();
            let chunk = if keep { time } else { (CHUNK / count).clamp(1, time) };
            let mut scratch = memory::zeros(if keep { 0 } else { count * chunk * PARTS * h });
            let frames = if keep { frames } else { &mut scratch[..] };
            let stride = chunk * PARTS * h;
            let first = &inputs.h[rows.start * h..rows.end * h];
            let grid = self.gates.weight_hh.input_grid();
            let mut rounded = memory::zeros(if grid.is_some() { count * h } else { 0 });
            for begin in (0..time).step_by(chunk) {
                let length = chunk.min(time - begin);
                for i in 0..count {
                    let x = &inputs.x[((rows.start + i) * time + begin) * self.input..];
                    let x = View::rows(x, length, self.input);
                    input.matmul(&mut frames[i * stride..], PARTS * h, x, false);
                }
                for t in begin..begin + length {
                    let at = (t - begin) * PARTS * h;
                    let states = match t {
                        0 => View::rows(first, count, h),
                        _ => View::strided(&y[(t - 1) * h..], count, h, time * h),
                    };
                    let states = match grid {
                        None => states,
                        Some(grid) => {
                            for (i, own) in rounded.chunks_exact_mut(h).enumerate() {
                                own.copy_from_slice(match t {
                                    0 => &first[i * h..][..h],
                                    _ => &y[(i * time + t - 1) * h..][..h],
                                });
                            }
                            grid.round(&mut rounded, h);
                            View::rows(&rounded, count, h)
                        }
                    };
                    for (piece, weight) in C::RECURRENT.iter().zip(&recurrent) {
                        let out = &mut frames[at + piece.part * h..];
                        weight.matmul(out, stride, states, piece.adds);
                    }
                    for i in 0..count {
                        let (before, now) = y[i * time * h..].split_at_mut(t * h);
                        let before = match t {
                            0 => &first[i * h..][..h],
                            _ => &before[(t - 1) * h..],
                        };
                        let c = &mut c[i * cells..][..cells];
                        match self.present(rows.start + i, t) {
                            true => {
                                let frame = &mut frames[i * stride + at..][..PARTS * h];
                                C::forward(&mut now[..h], c, frame, &bias, before);
                            }
                            false => now[..h].copy_from_slice(before),
                        }
                        if keep {
                            previous[(i * time + t) * h..][..h].copy_from_slice(before);
                            all_c[(i * time + t) * cells..][..cells].copy_from_slice(c);
                        }
                    }
                }
            }
        });
        ((y, c), trace)
    }

    /// Turns the frames of the trace into gradients, backwards through time. Returns the gradients of x, of the first
    /// states and of the bias for each row.
    fn through_time(
        &self,
        inputs: &Inputs<'_>,
        trace: &mut Trace,
        dy: Option<&[f32]>,
        last: [Option<&[f32]>; 2],
        wanted: bool,
    ) -> [Vec<f32>; 4] {
        let (batch, time, h, cells) = (self.batch, self.time, self.hidden, self.cells());
        let d = if wanted { self.input } else { 0 };
        let given = |last: Option<&[f32]>, width| match last {
            Some(last) => last.to_vec(),
            None => memory::zeros(batch * width),
        };
        let (mut dh, mut dc) = (given(last[0], h), given(last[1], cells));
        let mut dx = memory::zeros(batch * time * d);
        let mut d_bias = memory::zeros(batch * PARTS * h);
        let gates = 0..C::GATES * h;
        let input = self.gates.weight_ih.operand(inputs.weight_ih, gates, false, batch * time);
        let recurrent = self.recurrent(inputs.weight_hh, false);
        let (previous, all_c) = (&trace.previous, &trace.cells);
        let buffers = [
            (&mut trace.frames[..], time * PARTS * h),
            (&mut dx[..], time * d),
            (&mut dh[..], h),
            (&mut dc[..], cells),
            (&mut d_bias[..], PARTS * h),
        ];
        for_each_shard(batch, self.shard(), buffers, |rows, [frames, dx, dh, dc, d_bias]| {
            let count = rows.len();
            let stride = time * PARTS * h;
            for t in (0..time).rev() {
                for i in 0..count {
                    let (row, at) = (rows.start + i, (rows.start + i) * time + t);
                    let (dh, dc) = (&mut dh[i * h..][..h], &mut dc[i * cells..][..cells]);
                    if let Some(dy) = dy {
                        add_assign(dh, &dy[at * h..][..h]);
                    }
                    let frame = &mut frames[i * stride + t * PARTS * h..][..PARTS * h];
                    if !self.present(row, t) {
                        frame.fill(0.0);
                        continue;
                    }
                    let kept = Kept {
                        h: &previous[at * h..][..h],
                        c: match t {
                            0 => &inputs.c[row * cells..][..cells],
                            _ => &all_c[(at - 1) * cells..][..cells],
                        },
                        c_new: &all_c[at * cells..][..cells],
                    };
                    let d_bias = &mut d_bias[i * PARTS * h..][..PARTS * h];
                    C::backward(States { h: dh, c: dc }, frame, d_bias, &kept);
                }
                for (piece, weight) in C::RECURRENT.iter().zip(&recurrent) {
                    let from = &frames[(t * PARTS + piece.part) * h..];
                    let d = View::strided(from, count, piece.gates.len() * h, stride);
                    weight.matmul(dh, h, d, true);
                }
            }
            if wanted {
                let d = View::strided(frames, count * time, C::GATES * h, PARTS * h);
                input.matmul(dx, self.input, d, false);
            }
        });
        [dx, dh, dc, d_bias]
    }

    /// Accumulates the gradients in the weights: `d^T x`, and `d^T h` with the previous states.
    fn weight_gradients(&self, inputs: &Inputs<'_>, trace: &Trace, d_bias: &[f32]) {
        let (m, h) = (self.batch * self.time, self.hidden);
        let d = |part: usize, gates: usize| {
            View::strided(&trace.frames[part * h..], m, gates * h, PARTS * h)
        };
        let x = Operand::of(View::rows(inputs.x, m, self.input));
        let previous = Operand::of(View::rows(&trace.previous, m, h));
        let Gates { weight_ih, weight_hh, bias_ih, bias_hh, .. } = &self.gates;
        weight_ih.accumulate(|dw, adds| weight_gradient(dw, d(0, C::GATES), &x, adds));
        weight_hh.accumulate(|dw, adds| {
            for Piece { gates, part, .. } in C::RECURRENT {
                let dw = &mut dw[gates.start * h * h..gates.end * h * h];
                weight_gradient(dw, d(*part, gates.len()), &previous, adds);
            }
        });
        let mut sum = memory::zeros(PARTS * h);
        row_sum(&mut sum, d_bias, false);
        bias_ih.accumulate(|db, adds| row_sum(db, &sum[..C::GATES * h], adds));
        bias_hh.accumulate(|db, adds| {
            for Piece { gates, part, .. } in C::RECURRENT {
                let sum = &sum[part * h..(part + gates.len()) * h];
                row_sum(&mut db[gates.start * h..gates.end * h], sum, adds);
            }
        });
    }
}

/// The values of all inputs; c is empty if the cell has none.
struct Inputs<'a> {
    x: &'a [f32],
    weight_ih: &'a [f32],
    weight_hh: &'a [f32],
    bias_ih: &'a [f32],
    bias_hh: &'a [f32],
    h: &'a [f32],
    c: &'a [f32],
}

impl<'a> Inputs<'a> {
    fn new(inputs: &[&'a [f32]]) -> Self {
        let input = |i: usize| inputs.get(i).copied().unwrap_or_default();
        Inputs {
            x: input(0),
            weight_ih: input(1),
            weight_hh: input(2),
            bias_ih: input(3),
            bias_hh: input(4),
            h: input(5),
            c: input(6),
        }
    }
}

impl<C: Cell> Op for Layer<C> {
    fn forward(&mut self, inputs: &[&[f32]], track: bool) -> Result<Vec<Vec<f32>>> {
        let (t, h) = (self.time, self.hidden);
        let ((y, c), trace) = self.run(&Inputs::new(inputs), track);
        self.trace = trace;
        let last = y.chunks_exact(t * h).flat_map(|y| &y[(t - 1) * h..]).copied().collect();
        Ok(if C::CELLS { vec![y, last, c] } else { vec![y, last] })
    }

    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let inputs = Inputs::new(pass.inputs);
        let mut trace = std::mem::take(&mut self.trace);
        let output = |i: usize| pass.gradients.get(i).copied().flatten();
        let (last, wanted) = ([output(1), output(2)], pass.wants(0));
        let [dx, dh, dc, d_bias] = self.through_time(&inputs, &mut trace, output(0), last, wanted);
        if let Some(grid) = self.gates.weight_hh.input_grid() {
            // The products read the rounded states.
            grid.round(&mut trace.previous, self.hidden);
        }
        self.weight_gradients(&inputs, &trace, &d_bias);
        self.gates.give_back(trace);
        Ok(vec![dx, vec![], vec![], vec![], vec![], dh, dc])
    }
}
