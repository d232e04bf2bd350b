//! Dropout with a counter-based generator (Srivastava et al. 2014), inverted: what stays is scaled
//! by `1 / (1 - p)`, so that play needs no change.

use candle_core::{CpuStorage, CustomOp1, Layout, Shape, Tensor};

use crate::ops::{simd::dispatch, tensor};
use crate::rng::{Rng, unit};
use crate::{Result, pool};

/// Rows of one shard.
const ROWS: usize = 64;

/// Where the rows of a chunk stand in the windows they were cut from: row `i` is frame
/// `before + i % frames` of window `i / frames`.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    pub window: usize,
    pub before: usize,
    pub frames: usize,
}

impl Default for Place {
    /// Rows of their own.
    fn default() -> Self {
        Place { window: 1, before: 0, frames: 1 }
    }
}

impl Place {
    fn row(self, i: usize) -> usize {
        i / self.frames * self.window + self.before + i % self.frames
    }
}

/// Every number of `x [.., d]` is dropped on its own.
pub fn dropout(x: &Tensor, p: f32, rng: Rng) -> Result<Tensor> {
    dropout_at(x, p, rng, Place::default())
}

/// As a pass over the whole windows would drop them.
pub fn dropout_at(x: &Tensor, p: f32, rng: Rng, place: Place) -> Result<Tensor> {
    apply(x, Dropout { p, rng, repeat: 1, place })
}

/// The same columns of `x [b, t, d]` are missing in all frames of a window.
pub fn dropout_columns(x: &Tensor, p: f32, rng: Rng) -> Result<Tensor> {
    let (_, t, _) = x.dims3()?;
    apply(x, Dropout { p, rng, repeat: t, place: Place::default() })
}

fn apply(x: &Tensor, op: Dropout) -> Result<Tensor> {
    if op.p <= 0.0 {
        return Ok(x.clone());
    }
    Ok(x.contiguous()?.apply_op1(op)?)
}

/// Blocks of random words that are drawn together.
const BLOCKS: usize = 16;

dispatch! {
    /// `y = x * scale` where the random number that belongs to it is at least `p`, else 0. Four
    /// numbers to a block, from block `first` on.
    fn mask_row(y: &mut [f32], x: &[f32], rng: &Rng, first: u64, p: f32, scale: f32) {
        let mut index = first;
        for (y, x) in y.chunks_mut(4 * BLOCKS).zip(x.chunks(4 * BLOCKS)) {
            let words = rng.blocks::<BLOCKS>(index);
            let mut factors = [0.0; 4 * BLOCKS];
            for i in 0..BLOCKS {
                for w in 0..4 {
                    factors[4 * i + w] = if unit(words[w][i]) < p { 0.0 } else { scale };
                }
            }
            for ((y, x), factor) in y.iter_mut().zip(x).zip(&factors) {
                *y = x * factor;
            }
            index += BLOCKS as u64;
        }
    }
}

struct Dropout {
    p: f32,
    rng: Rng,
    /// Consecutive rows that share one mask.
    repeat: usize,
    place: Place,
}

impl Dropout {
    fn mask(&self, x: &[f32], width: usize) -> Vec<f32> {
        let mut y = vec![0.0; x.len()];
        let scale = 1.0 / (1.0 - self.p);
        let blocks = width.div_ceil(4) as u64;
        pool::for_each_rows(&mut y, width, ROWS, |first, y| {
            let x = &x[first * width..first * width + y.len()];
            for (i, (y, x)) in y.chunks_exact_mut(width).zip(x.chunks_exact(width)).enumerate() {
                let row = self.place.row((first + i) / self.repeat) as u64;
                mask_row(y, x, &self.rng, row * blocks, self.p, scale);
            }
        });
        y
    }
}

impl CustomOp1 for Dropout {
    fn name(&self) -> &'static str {
        "dropout"
    }

    fn cpu_fwd(&self, x: &CpuStorage, xl: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let (_, width) = tensor::rows(xl.dims());
        Ok((CpuStorage::F32(self.mask(tensor::slice(x, xl)?, width)), xl.shape().clone()))
    }

    fn bwd(&self, x: &Tensor, _y: &Tensor, dy: &Tensor) -> candle_core::Result<Option<Tensor>> {
        let (_, width) = tensor::rows(x.dims());
        let dx = tensor::with(dy, |dy| Ok(self.mask(dy, width)))?;
        Ok(Some(tensor::tensor(dx, x.shape())?))
    }
}
