//! Pools: the largest number or the mean of windows, channels in the lanes of vectors.

use sconce_tensor::simd::dispatch;

use crate::packed::values::{Value, Window};

/// A pool. Its windows are cut where they leave the input.
pub(crate) struct Pool {
    pub(crate) window: Window,
    pub(crate) kind: Kind,
}

/// The result of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Max,
    /// The mean over the whole window, zeros outside of the input included.
    Mean,
    /// The mean over the part inside the input.
    MeanInside,
}

/// The part of a window that lies inside an axis, whose size is `size`.
fn inside(at: usize, kernel: usize, stride: usize, padding: usize, size: usize) -> (usize, usize) {
    let start = at * stride;
    (start.saturating_sub(padding).min(size), (start + kernel).saturating_sub(padding).min(size))
}

impl Pool {
    /// `sums` has a number for each channel: a mean adds rows, so that large windows lose no digits.
    pub(crate) fn run(
        &self,
        (xs, x): (&Value, &[f32]),
        (ys, y): (&Value, &mut [f32]),
        sums: &mut [f32],
    ) {
        let Window { kernel, stride, padding, .. } = self.window;
        let channels = xs.size.channels;
        for row in 0..ys.size.rows {
            let (top, bottom) = inside(row, kernel[0], stride[0], padding[0], xs.size.rows);
            for at in 0..ys.size.width {
                let (left, right) = inside(at, kernel[1], stride[1], padding[1], xs.size.width);
                let to = ys.place(row, at);
                let y = &mut y[to..to + channels];
                y.fill(if self.kind == Kind::Max { f32::NEG_INFINITY } else { 0.0 });
                for row in top..bottom {
                    let x = &x[xs.place(row, left)..][..(right - left) * channels];
                    match self.kind {
                        Kind::Max => largest(x, y),
                        _ => {
                            let sums = &mut sums[..channels];
                            sums.fill(0.0);
                            add(x, sums);
                            add(sums, y);
                        }
                    }
                }
                let count = match self.kind {
                    Kind::Max => continue,
                    Kind::Mean => kernel[0] * kernel[1],
                    Kind::MeanInside => (bottom - top) * (right - left),
                };
                y.iter_mut().for_each(|y| *y /= count as f32);
            }
        }
    }
}

dispatch! {
    fn largest(x: &[f32], y: &mut [f32]) {
        for x in x.chunks_exact(y.len()) {
            for (y, x) in y.iter_mut().zip(x) {
                // NaN wins.
                *y = if *x <= *y { *y } else { *x };
            }
        }
    }
}

dispatch! {
    fn add(x: &[f32], y: &mut [f32]) {
        for x in x.chunks_exact(y.len()) {
            for (y, x) in y.iter_mut().zip(x) {
                *y += x;
            }
        }
    }
}
