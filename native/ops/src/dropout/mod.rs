//! Dropout with a counter-based generator (Srivastava et al. 2014), inverted: kept values are scaled by `1 / (1 - p)`,
//! so that inference needs no scaling.

mod card;
mod composed;

use candle_core::Tensor;
pub use card::counted;

use crate::form::Form;
use crate::op::{self, Op, Pass};
use crate::rng::{Rng, unit};
use crate::simd::dispatch;
use crate::{Result, arrange, memory, pool, tensor};

/// Rows of one shard.
const ROWS: usize = 64;

/// The position of a chunk's rows in the windows that contain them: row `i` is frame `before + i % frames` of window `i
/// / frames`.
#[derive(Debug, Clone, Copy)]
pub struct Origin {
    /// Frames of a window.
    pub window: usize,
    /// Frames of the window before the chunk.
    pub before: usize,
    /// Frames of the chunk.
    pub frames: usize,
}

impl Default for Origin {
    /// Each row is a window of one frame.
    fn default() -> Self {
        Origin { window: 1, before: 0, frames: 1 }
    }
}

impl Origin {
    fn row(self, i: usize) -> usize {
        i / self.frames * self.window + self.before + i % self.frames
    }
}

/// Dropout of each value of `x [.., d]` independently.
pub fn dropout(x: &Tensor, p: f32, rng: Rng) -> Result<Tensor> {
    Dropout::new(p, rng, Origin::default()).apply(x)
}

/// Dropout of whole columns of `x [b, t, d]`: a dropped column is 0 in all frames of a window. `first` is the index of
/// the first window of `x` in its batch.
pub fn dropout_columns(x: &Tensor, p: f32, rng: Rng, first: usize) -> Result<Tensor> {
    let (_, t, _) = x.dims3()?;
    let origin = Origin { before: first, ..Origin::default() };
    Dropout { repeat: t, ..Dropout::new(p, rng, origin) }.apply(x)
}

/// Blocks of random words that are drawn together.
const BLOCKS: usize = 16;

dispatch! {
    /// Multiplies each value whose random number is at least `p` by `scale`, and sets the others to 0. A block covers
    /// four values; the first block is `first`.
    fn mask_row(y: &mut [f32], rng: &Rng, first: u64, p: f32, scale: f32) {
        let mut index = first;
        for y in y.chunks_mut(4 * BLOCKS) {
            let words = rng.blocks::<BLOCKS>(index);
            let mut factors = [0.0; 4 * BLOCKS];
            for i in 0..BLOCKS {
                for w in 0..4 {
                    factors[4 * i + w] = if unit(words[w][i]) < p { 0.0 } else { scale };
                }
            }
            for (y, factor) in y.iter_mut().zip(&factors) {
                *y *= factor;
            }
            index += BLOCKS as u64;
        }
    }
}

/// A dropout mask, the same at every use.
#[derive(Debug, Clone, Copy)]
pub struct Dropout {
    pub(crate) p: f32,
    pub(crate) rng: Rng,
    /// Consecutive rows that share one mask.
    pub(crate) repeat: usize,
    pub(crate) origin: Origin,
}

impl Dropout {
    /// A mask that drops each value independently; rows of a chunk get the mask that they have in whole windows.
    pub fn new(p: f32, rng: Rng, origin: Origin) -> Self {
        Dropout { p, rng, repeat: 1, origin }
    }

    /// `x [.., d]` after dropout.
    pub fn apply(self, x: &Tensor) -> Result<Tensor> {
        if self.p <= 0.0 {
            return Ok(x.clone());
        }
        match Form::of(x) {
            Form::Cpu => {
                let op = Masked { dropout: self, width: tensor::rows(x.dims()).1 };
                op::apply(op, &[x], x.shape())
            }
            Form::Card => card::dropout(x, None, &self),
            Form::Composed => composed::dropout(x, &self),
        }
    }

    /// `rest + apply(x)`, of one shape.
    pub fn apply_and_add(self, x: &Tensor, rest: &Tensor) -> Result<Tensor> {
        match Form::of(x) {
            Form::Card => card::dropout(x, Some(rest), &self),
            Form::Cpu | Form::Composed => arrange::add(rest, &self.apply(x)?),
        }
    }

    /// Masks rows `first..`, in place.
    pub(crate) fn mask_rows(&self, first: usize, y: &mut [f32], width: usize) {
        let (scale, blocks) = (1.0 / (1.0 - self.p), width.div_ceil(4) as u64);
        for (i, y) in y.chunks_exact_mut(width.max(1)).enumerate() {
            let row = self.origin.row((first + i) / self.repeat) as u64;
            mask_row(y, &self.rng, row * blocks, self.p, scale);
        }
    }

    pub(crate) fn mask(&self, x: &[f32], width: usize) -> Vec<f32> {
        let mut y = memory::zeros(x.len());
        pool::for_each_rows(&mut y, width, ROWS, |first, y| {
            y.copy_from_slice(&x[first * width..first * width + y.len()]);
            self.mask_rows(first, y, width);
        });
        y
    }
}

/// A mask over rows of `width` values.
struct Masked {
    dropout: Dropout,
    width: usize,
}

impl Op for Masked {
    fn forward(&mut self, inputs: &[&[f32]], _track: bool) -> Result<Vec<Vec<f32>>> {
        Ok(vec![self.dropout.mask(inputs[0], self.width)])
    }

    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>> {
        Ok(vec![self.dropout.mask(pass.gradient()?, self.width)])
    }
}
