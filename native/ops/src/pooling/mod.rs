//! The maximum or mean over windows of signals and images.

use std::ops::Range;

use candle_core::Tensor;

use crate::op::{self, Op, Pass};
use crate::planes::{Kernel, planes};
use crate::simd::{LANES, dispatch, sum};
use crate::{Error, Result, arrange, memory, pool};

/// Values of one shard, at least.
const SHARD: usize = 1 << 14;

/// The value of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// The largest value; padding is never the largest. NaN if the window has NaN. The gradient belongs to the first of
    /// equal values.
    Max,
    /// The mean; padding counts as zeros if `counted`, and is left out otherwise.
    Mean {
        /// Whether padding counts.
        counted: bool,
    },
}

/// The maximum or mean of `x [b, c, ..]` at each position of a kernel (Goodfellow et al. 2016, section 9.3) ->
/// `[b, c, ..]`. Only whole windows of the padded input count.
///
/// # Errors
/// `Mismatch` for a shape that does not fit, for a kernel larger than its padded input, for padding of more than half of
/// the kernel and for a dilation. `Unavailable` for tensors that are not f32 on a CPU.
pub fn pooling(x: &Tensor, pooling: Pooling, kernel: Kernel) -> Result<Tensor> {
    let ([batch, channels], input) = planes("pooling", x, kernel.rank())?;
    for axis in 0..2 {
        let half = kernel.size[axis] / 2;
        if kernel.padding[axis] > half {
            let most = format!("at most {half}, half of the kernel");
            return Err(Error::mismatch("padding of pooling", most, kernel.padding[axis]));
        }
    }
    if kernel.dilation != [1; 2] {
        let got = format!("{:?}", kernel.dilation);
        return Err(Error::mismatch("dilation of pooling", 1, got));
    }
    let output = kernel.output(input)?;
    let shape = kernel.shape(batch, channels, output)?;
    let windows = Windows { kernel, input, output };
    match pooling {
        Pooling::Max => op::apply(Max { windows, places: vec![] }, &[x], shape),
        Pooling::Mean { counted } => op::apply(Mean { windows, counted }, &[x], shape),
    }
}

/// The maximum or mean of `x [b, c, ..]` over all positions, `[b, c]`.
///
/// # Errors
/// `Mismatch` for a shape that does not fit or without any position. `Unavailable` for tensors that are not f32 on a CPU.
pub fn global_pooling(x: &Tensor, kind: Pooling) -> Result<Tensor> {
    let dims = x.dims();
    let ([batch, channels], _) = planes("global pooling", x, if dims.len() == 3 { 1 } else { 2 })?;
    let y = pooling(x, kind, Kernel::plain(&dims[2..])?)?;
    arrange::reshape(&y, [batch, channels])
}

/// The windows of a plane.
#[derive(Clone, Copy)]
struct Windows {
    kernel: Kernel,
    input: [usize; 2],
    output: [usize; 2],
}

impl Windows {
    fn plane(&self) -> usize {
        self.input[0] * self.input[1]
    }

    fn positions(&self) -> usize {
        self.output[0] * self.output[1]
    }

    /// Planes of a shard.
    fn per_shard(&self) -> usize {
        SHARD.div_ceil(self.plane().max(1))
    }

    /// The part of an axis of the input that the window at position `i` covers.
    #[inline(always)]
    fn range(&self, axis: usize, i: usize) -> Range<usize> {
        let Kernel { size, stride, padding, .. } = self.kernel;
        let begin = i * stride[axis];
        let end = (begin + size[axis]).saturating_sub(padding[axis]).min(self.input[axis]);
        begin.saturating_sub(padding[axis]).min(end)..end
    }

    /// Calls `each(index, rows, columns)` for every position, in order.
    #[inline(always)]
    fn for_each(&self, mut each: impl FnMut(usize, Range<usize>, Range<usize>)) {
        let [rows, columns] = self.output;
        for i in 0..rows {
            let covered = self.range(0, i);
            for j in 0..columns {
                each(i * columns + j, covered.clone(), self.range(1, j));
            }
        }
    }

    /// Runs `work(first plane, outputs)` in shards of whole planes.
    fn forward(&self, y: &mut [f32], work: impl Fn(usize, &mut [f32]) + Sync + Send) {
        pool::for_each_rows(y, self.positions(), self.per_shard(), work);
    }
}

struct Max {
    windows: Windows,
    /// The index of each output in its plane, if a backward pass may follow.
    places: Vec<u32>,
}

dispatch! {
    /// The maximum of each window of a plane.
    fn maxima(y: &mut [f32], x: &[f32], windows: &Windows) {
        let width = windows.input[1];
        windows.for_each(|at, rows, columns| {
            let mut most = f32::NEG_INFINITY;
            for row in rows {
                for value in &x[row * width..][columns.clone()] {
                    most = if *value > most || value.is_nan() { *value } else { most };
                }
            }
            y[at] = most;
        });
    }
}

dispatch! {
    /// [`maxima`], and the index of each in the plane.
    fn maxima_at(y: &mut [f32], places: &mut [u32], x: &[f32], windows: &Windows) {
        let width = windows.input[1];
        windows.for_each(|at, rows, columns| {
            let (mut most, mut place) = (f32::NEG_INFINITY, rows.start * width + columns.start);
            for row in rows {
                for column in columns.clone() {
                    let value = x[row * width + column];
                    if value > most || value.is_nan() {
                        (most, place) = (value, row * width + column);
                    }
                }
            }
            (y[at], places[at]) = (most, place as u32);
        });
    }
}

impl Op for Max {
    fn forward(&mut self, inputs: &[&[f32]], track: bool) -> Result<Vec<Vec<f32>>> {
        let (x, windows) = (inputs[0], self.windows);
        let (n, plane) = (windows.positions(), windows.plane());
        let mut y = memory::zeros(x.len() / plane.max(1) * n);
        if !track {
            windows.forward(&mut y, |first, y| {
                let planes = x[first * plane..].chunks_exact(plane);
                y.chunks_exact_mut(n).zip(planes).for_each(|(y, x)| maxima(y, x, &windows));
            });
            return Ok(vec![y]);
        }
        if u32::try_from(plane).is_err() {
            let most = f64::from(u32::MAX);
            return Err(Error::out_of_range("values of a plane", plane as f64, 0.0, most));
        }
        self.places = memory::repeated(0, y.len());
        let shards = windows.per_shard() * n;
        let shards = y.chunks_mut(shards).zip(self.places.chunks_mut(shards)).collect();
        pool::hand_out(shards, |i, (y, places): (&mut [f32], &mut [u32])| {
            let planes = x[i * windows.per_shard() * plane..].chunks_exact(plane);
            let outputs = y.chunks_exact_mut(n).zip(places.chunks_exact_mut(n));
            for ((y, places), x) in outputs.zip(planes) {
                maxima_at(y, places, x, &windows);
            }
        });
        Ok(vec![y])
    }

    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let (dy, windows) = (pass.gradient()?, self.windows);
        let (n, plane) = (windows.positions(), windows.plane());
        let mut dx = memory::zeros(pass.inputs[0].len());
        pool::for_each_rows(&mut dx, plane, windows.per_shard(), |first, dx| {
            let outputs =
                dy[first * n..].chunks_exact(n).zip(self.places[first * n..].chunks_exact(n));
            for (dx, (dy, places)) in dx.chunks_exact_mut(plane).zip(outputs) {
                dy.iter().zip(places).for_each(|(dy, place)| dx[*place as usize] += dy);
            }
        });
        Ok(vec![dx])
    }
}

struct Mean {
    windows: Windows,
    counted: bool,
}

impl Mean {
    /// The divisor of a window that covers this many values.
    fn divisor(&self, covered: usize) -> f32 {
        if self.counted { self.windows.kernel.taps() as f32 } else { covered as f32 }
    }
}

/// The sum of a row.
#[inline(always)]
fn row_total(row: &[f32]) -> f32 {
    if row.len() < LANES {
        return row.iter().sum();
    }
    let (chunks, rest) = row.as_chunks::<LANES>();
    let mut lanes = [0.0f32; LANES];
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] += chunk[i];
        }
    }
    sum(lanes) + rest.iter().sum::<f32>()
}

dispatch! {
    /// The mean of each window of a plane.
    fn means(y: &mut [f32], x: &[f32], mean: &Mean) {
        let width = mean.windows.input[1];
        mean.windows.for_each(|at, rows, columns| {
            let divisor = mean.divisor(rows.len() * columns.len());
            let total: f32 = rows.map(|row| row_total(&x[row * width..][columns.clone()])).sum();
            y[at] = total / divisor;
        });
    }
}

dispatch! {
    /// Adds the gradients of a plane.
    fn spread(dx: &mut [f32], dy: &[f32], mean: &Mean) {
        let width = mean.windows.input[1];
        mean.windows.for_each(|at, rows, columns| {
            let part = dy[at] / mean.divisor(rows.len() * columns.len());
            for row in rows {
                dx[row * width..][columns.clone()].iter_mut().for_each(|dx| *dx += part);
            }
        });
    }
}

impl Op for Mean {
    fn forward(&mut self, inputs: &[&[f32]], _track: bool) -> Result<Vec<Vec<f32>>> {
        let (x, windows) = (inputs[0], self.windows);
        let (n, plane) = (windows.positions(), windows.plane());
        let mut y = memory::zeros(x.len() / plane.max(1) * n);
        windows.forward(&mut y, |first, y| {
            let planes = x[first * plane..].chunks_exact(plane);
            y.chunks_exact_mut(n).zip(planes).for_each(|(y, x)| means(y, x, self));
        });
        Ok(vec![y])
    }

    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let (dy, windows) = (pass.gradient()?, self.windows);
        let (n, plane) = (windows.positions(), windows.plane());
        let mut dx = memory::zeros(pass.inputs[0].len());
        pool::for_each_rows(&mut dx, plane, windows.per_shard(), |first, dx| {
            let outputs = dy[first * n..].chunks_exact(n);
            dx.chunks_exact_mut(plane).zip(outputs).for_each(|(dx, dy)| spread(dx, dy, self));
        });
        Ok(vec![dx])
    }
}
