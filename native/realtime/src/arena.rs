//! The memory of a plan's weights: one contiguous block, in the order in which a step reads the weights.

use std::collections::HashMap;
use std::ops::Range;

use sconce_ops::weights::{Weight, Weights};
use sconce_tensor::candle::TensorId;
use sconce_tensor::simd::non_finite;
use sconce_tensor::{Result, memory, tensor};

use crate::format::{Format, Packed};

/// f32 values in a cache line.
const LINE: usize = 16;

/// A block of values that begins at a cache line.
pub struct Arena {
    memory: Vec<f32>,
    first: usize,
}

impl Arena {
    /// All values of the arena.
    pub fn numbers(&self) -> &[f32] {
        &self.memory[self.first..]
    }

    fn new(numbers: &[f32]) -> Self {
        let mut memory: Vec<f32> = memory::with_capacity(numbers.len() + LINE);
        let first = memory.as_ptr().align_offset(LINE * size_of::<f32>()).min(LINE);
        memory.resize(first, 0.0);
        memory.extend_from_slice(numbers);
        Arena { memory, first }
    }
}

/// Builds an arena: reads weights and appends them one after the other.
pub struct Packer<'a> {
    /// The names of the weights, for [`Packed::name`].
    names: HashMap<TensorId, &'a str>,
    numbers: Vec<f32>,
    format: Format,
    matrices: Vec<Packed>,
    widest: usize,
    finite: bool,
}

impl<'a> Packer<'a> {
    /// An empty packer. `format` applies to matrices; everything else is f32.
    pub fn new(weights: &'a Weights, format: Format) -> Self {
        let names = weights.iter().map(|(name, weight)| (weight.id(), name.as_str())).collect();
        let (numbers, matrices) = (vec![], vec![]);
        Packer { names, numbers, format, matrices, widest: 0, finite: true }
    }

    /// The format of matrices.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The path of a weight in the policy.
    pub fn name(&self, weight: &Weight) -> &'a str {
        self.names.get(&weight.id()).copied().unwrap_or_default()
    }

    /// The values of a weight, row by row.
    pub fn read(&mut self, weight: &Weight) -> Result<Vec<f32>> {
        let numbers = tensor::to_vec(weight)?;
        self.check(&numbers);
        Ok(numbers)
    }

    /// Appends a whole weight ([`lay`](Self::lay)).
    pub fn keep(&mut self, weight: &Weight) -> Result<Range<usize>> {
        let numbers = self.read(weight)?;
        Ok(self.lay(&numbers))
    }

    /// Records whether all values are finite.
    pub fn check(&mut self, numbers: &[f32]) {
        self.finite &= non_finite(numbers).is_none();
    }

    /// Appends values at the next cache line. Returns their range in the arena.
    pub fn lay(&mut self, numbers: &[f32]) -> Range<usize> {
        let at = self.numbers.len().next_multiple_of(LINE);
        memory::reserve(&mut self.numbers, LINE + numbers.len());
        self.numbers.resize(at, 0.0);
        self.numbers.extend_from_slice(numbers);
        at..self.numbers.len()
    }

    /// Adds the report of a packed matrix. Returns its place.
    pub fn packed(&mut self, matrix: Packed) -> usize {
        self.matrices.push(matrix);
        self.matrices.len() - 1
    }

    /// Records that a step holds a vector of `width` values.
    pub fn holds(&mut self, width: usize) {
        self.widest = self.widest.max(width);
    }

    /// The length of the longest vector that a step holds.
    pub fn widest(&self) -> usize {
        self.widest
    }

    /// Returns the arena and the reports of its matrices. `None` if a weight is not finite: a step skips products with
    /// 0, so it could miss NaN or infinity in a weight.
    pub fn finish(self) -> Option<(Arena, Vec<Packed>)> {
        self.finite.then(|| (Arena::new(&self.numbers), self.matrices))
    }
}
