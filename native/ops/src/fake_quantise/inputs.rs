//! Inputs of matrices with codes, rounded as packed steps round them.
//!
//! | codes of the matrix | grid of a vector |
//! |---|---|
//! | 8 bits | multiples of `max|x| / 32512` of the vector |
//! | 4 bits | multiples of `max|x| / 127` of each block of 32 values |
//!
//! Rounding is half to even. The gradient is that of the straight-through estimator: the grid contains the largest
//! magnitude, so no value is clamped and the gradient passes unchanged.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use candle_core::Tensor;

use crate::form::Form;
use crate::op::{self, Op, Pass};
use crate::simd::dispatch;
use crate::{Error, Result, memory, pool, tensor};

/// Values of a vector that share a grid before codes of 4 bits.
const BLOCK: usize = 32;
/// The largest code of a value before codes of 4 and of 8 bits.
const MOST: [f32; 2] = [127.0, 127.0 * 256.0];
/// Adding 1.5 * 2^23 and subtracting it again rounds to the nearest integer.
const ROUND: f32 = 12_582_912.0;
/// Values of a shard.
const SHARD: usize = 1 << 14;

/// The rounding of the inputs of one matrix.
#[derive(Debug)]
pub struct InputGrid {
    /// Bits of the codes of the matrix: 4 or 8.
    bits: u32,
    /// Whether products round their inputs.
    on: AtomicBool,
    /// Whether a product has rounded its inputs.
    used: AtomicBool,
}

impl InputGrid {
    /// The rounding before codes of 4 or 8 bits, turned on.
    ///
    /// # Errors
    /// `OutOfRange` for other bits.
    pub fn new(bits: u32) -> Result<Self> {
        match bits {
            4 | 8 => Ok(InputGrid { bits, on: true.into(), used: false.into() }),
            _ => Err(Error::out_of_range("bits", f64::from(bits), 4.0, 8.0)),
        }
    }

    /// Turns the rounding on or off.
    pub fn turn(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
    }

    /// Whether products round their inputs.
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Whether the rounding is on and no product has rounded its inputs yet.
    pub fn is_ignored(&self) -> bool {
        self.is_on() && !self.used.load(Ordering::Relaxed)
    }

    /// Rounds vectors of `width` values in place.
    pub fn round(&self, x: &mut [f32], width: usize) {
        self.used.store(true, Ordering::Relaxed);
        let width = width.max(1);
        let [most_of_4, most_of_8] = MOST;
        match self.bits {
            4 => x
                .chunks_mut(width)
                .flat_map(|x| x.chunks_mut(BLOCK))
                .for_each(|x| round(x, most_of_4)),
            _ => x.chunks_mut(width).for_each(|x| round(x, most_of_8)),
        }
    }

    /// [`round`](Self::round) for a tensor `[.., width]`, with straight-through gradients.
    ///
    /// # Errors
    /// `Unavailable` for tensors that are not f32 on a CPU.
    pub(crate) fn apply(self: Arc<Self>, x: &Tensor) -> Result<Tensor> {
        if Form::of(x) != Form::Cpu {
            let reason = "inputs are rounded on a CPU in f32 only".into();
            return Err(Error::Unavailable { what: "rounding of inputs".into(), reason });
        }
        op::apply(Rounded { grid: self, width: tensor::rows(x.dims()).1 }, &[x], x.shape())
    }
}

impl Clone for InputGrid {
    /// A copy that is turned on and off by itself.
    fn clone(&self) -> Self {
        InputGrid { bits: self.bits, on: self.is_on().into(), used: false.into() }
    }
}

dispatch! {
    /// Rounds to the nearest multiples of `1 / most` of the largest magnitude. If a value is not finite, all become NaN.
    fn round(x: &mut [f32], most: f32) {
        // Comparing magnitudes as integers makes NaN the largest.
        let largest = x.iter().fold(0, |most, x| x.abs().to_bits().max(most));
        let largest = f32::from_bits(largest);
        let scale = if largest.is_finite() { largest / most } else { f32::NAN };
        let inverse = if scale.is_normal() { 1.0 / scale } else { 0.0 };
        for x in x.iter_mut() {
            *x = scale * ((*x * inverse + ROUND) - ROUND);
        }
    }
}

struct Rounded {
    grid: Arc<InputGrid>,
    width: usize,
}

impl Op for Rounded {
    fn forward(&mut self, inputs: &[&[f32]], _track: bool) -> Result<Vec<Vec<f32>>> {
        let mut y = memory::copied(inputs[0]);
        let rows = (SHARD / self.width.max(1)).max(1);
        pool::for_each_rows(&mut y, self.width.max(1), rows, |_, y| self.grid.round(y, self.width));
        Ok(vec![y])
    }

    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>> {
        Ok(vec![memory::copied(pass.gradient()?)])
    }
}
