//! Where the weights of a plan lie: one stretch of memory, in the order in which a step reads it.

use std::collections::HashMap;
use std::ops::Range;

use sconce_ops::weights::{Weight, Weights};
use sconce_tensor::candle::TensorId;
use sconce_tensor::simd::non_finite;
use sconce_tensor::{Result, memory, tensor};

use crate::format::{Format, Packed};

/// Numbers in a cache line.
const LINE: usize = 16;

/// Numbers that begin at a cache line.
pub struct Arena {
    memory: Vec<f32>,
    first: usize,
}

impl Arena {
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

/// Reads weights and lays them one after the other.
pub struct Packer<'a> {
    /// For the report on matrices.
    names: HashMap<TensorId, &'a str>,
    numbers: Vec<f32>,
    format: Format,
    matrices: Vec<Packed>,
    widest: usize,
    finite: bool,
}

impl<'a> Packer<'a> {
    /// `format` is that of matrices; all else is f32.
    pub fn new(weights: &'a Weights, format: Format) -> Self {
        let names = weights.iter().map(|(name, weight)| (weight.id(), name.as_str())).collect();
        let (numbers, matrices) = (vec![], vec![]);
        Packer { names, numbers, format, matrices, widest: 0, finite: true }
    }

    pub fn format(&self) -> Format {
        self.format
    }

    /// The path of a weight.
    pub fn name(&self, weight: &Weight) -> &'a str {
        self.names.get(&weight.id()).copied().unwrap_or_default()
    }

    /// The numbers of a weight, row after row.
    pub fn read(&mut self, weight: &Weight) -> Result<Vec<f32>> {
        let numbers = tensor::to_vec(weight)?;
        self.check(&numbers);
        Ok(numbers)
    }

    /// [`lay`](Self::lay) of a whole weight.
    pub fn keep(&mut self, weight: &Weight) -> Result<Range<usize>> {
        let numbers = self.read(weight)?;
        Ok(self.lay(&numbers))
    }

    /// Notes whether all numbers are finite.
    pub fn check(&mut self, numbers: &[f32]) {
        self.finite &= non_finite(numbers).is_none();
    }

    /// Lays numbers behind the others, at a cache line.
    pub fn lay(&mut self, numbers: &[f32]) -> Range<usize> {
        let at = self.numbers.len().next_multiple_of(LINE);
        memory::reserve(&mut self.numbers, LINE + numbers.len());
        self.numbers.resize(at, 0.0);
        self.numbers.extend_from_slice(numbers);
        at..self.numbers.len()
    }

    /// Notes what became of a matrix.
    pub fn packed(&mut self, matrix: Packed) {
        self.matrices.push(matrix);
    }

    /// Notes a vector of so many numbers that a step holds.
    pub fn holds(&mut self, width: usize) {
        self.widest = self.widest.max(width);
    }

    /// The longest vector that a step holds.
    pub fn widest(&self) -> usize {
        self.widest
    }

    /// All that was laid, and what became of each matrix. None if a weight is not finite: what is not multiplied by
    /// zeros would be lost.
    pub fn finish(self) -> Option<(Arena, Vec<Packed>)> {
        self.finite.then(|| (Arena::new(&self.numbers), self.matrices))
    }
}
