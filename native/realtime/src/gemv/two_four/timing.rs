//! Measured times of a product with weights in 2:4 and in f32.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sconce_ops::weights::Weights;
use sconce_tensor::Result;

use super::super::{Input, Matrix, PANEL};
use super::{FOUR, ROWS};
use crate::arena::{Arena, Packer};
use crate::format::{Encoding, Format, Ratios};

/// Weights of the largest matrix that is timed. Larger ones leave the caches, where half of the bytes gain more.
const MOST: usize = 1 << 18;
/// Weights that are read between two looks at the clock.
const AT_ONCE: usize = 1 << 18;
/// Samples of each encoding.
const SAMPLES: usize = 15;
/// Part of the time of f32 below which 2:4 is faster. Above it, the difference may be noise.
const FASTER: f64 = 0.95;

/// The times of a matrix of this shape on this CPU; `None` if 2:4 is not faster with one vector. The first call for a
/// shape measures it, which takes milliseconds. The answer changes no bit of a product, up to the sign of a zero.
pub(in super::super) fn ratios(inputs: usize, outputs: usize) -> Option<Ratios> {
    static KNOWN: Mutex<BTreeMap<(usize, usize), Option<Ratios>>> = Mutex::new(BTreeMap::new());
    if inputs == 0 || outputs == 0 {
        return None;
    }
    let shape = (inputs, outputs.min((MOST / inputs).next_multiple_of(PANEL).max(PANEL)));
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(ratios) = known().get(&shape) {
        return *ratios;
    }
    // Does not hold the lock, so that no caller waits for the measurement of another.
    let measured = measure(shape.0, shape.1).filter(|ratios| ratios.of(1) < FASTER);
    *known().entry(shape).or_insert(measured)
}

fn measure(inputs: usize, outputs: usize) -> Option<Ratios> {
    let mut both = [
        Product::new(Encoding::TwoFour, inputs, outputs)?,
        Product::new(Encoding::F32, inputs, outputs)?,
    ];
    let mut ratio = |rows: usize| {
        let mut least = [Duration::MAX; 2];
        for _ in 0..SAMPLES {
            for (product, least) in both.iter_mut().zip(&mut least) {
                *least = (*least).min(product.time(rows).ok()?);
            }
        }
        Some(least[0].as_secs_f64() / least[1].as_secs_f64())
    };
    Some(Ratios::new(ratio(1)?, ratio(ROWS)?))
}

/// A matrix of which the last two of four inputs have weights, and vectors without a 0.
struct Product {
    matrix: Matrix,
    arena: Arena,
    input: Input,
    x: Vec<f32>,
    y: Vec<f32>,
    repeats: usize,
}

impl Product {
    fn new(encoding: Encoding, inputs: usize, outputs: usize) -> Option<Self> {
        let weight = |at: usize| if at % inputs % FOUR < 2 { 0.0 } else { 1.0 / 1024.0 };
        let weight: Vec<f32> = (0..inputs * outputs).map(weight).collect();
        let weights = Weights::new();
        let mut packer = Packer::new(&weights, Format::F32);
        let matrix = Matrix::encoded(&mut packer, encoding, &weight, inputs)?;
        let input = Input::new(packer.widest(), ROWS);
        let (x, y) = (vec![1.0; ROWS * inputs], vec![0.0; ROWS * outputs]);
        let repeats = (AT_ONCE / weight.len()).max(1);
        let (arena, _) = packer.finish()?;
        Some(Product { matrix, arena, input, x, y, repeats })
    }

    /// Reads vectors, and multiplies them.
    fn time(&mut self, rows: usize) -> Result<Duration> {
        let start = Instant::now();
        self.arena.read(|arena| {
            for _ in 0..self.repeats {
                self.matrix.read(&mut self.input, &self.x, rows);
                self.matrix.apply(arena, &mut self.input, &mut self.y);
                std::hint::black_box(&mut self.y);
            }
        })?;
        Ok(start.elapsed())
    }
}
