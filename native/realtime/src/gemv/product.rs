//! A matrix as the product of two smaller ones, which are read one after the other.

use sconce_ops::weights::Factors;
use sconce_tensor::{Error, Result};

use super::input::{Between, Vectors};
use super::whole::Whole;
use super::written::{Written, error};
use super::{Report, Sums};
use crate::arena::Packer;
use crate::format::{Encoding, Factor, Format};

/// Weights of a product as a part of those of the whole matrix, up to which the product is read.
const GAIN: f64 = 0.75;

/// `left (right x) + b`. Parts with the same input share the right matrix, whose rows are those of all parts.
pub(super) struct Product {
    right: Whole,
    lefts: Vec<Whole>,
}

/// Whether a step reads the products of these parts instead of their matrices. The answer depends on their sizes alone:
/// both round differently, and a choice by time would change bits from one process to the next.
pub(super) fn gains(parts: &[&Factors]) -> bool {
    let product: usize = parts.iter().map(|own| own.left().len() + own.right().len()).sum();
    let whole: usize = parts.iter().map(|own| own.outputs() * own.inputs()).sum();
    product as f64 <= GAIN * whole as f64
}

impl Product {
    /// Packs the factors of parts with the same input. `weight` and `bias` are those of all parts, row by row.
    pub(super) fn lay(
        packer: &mut Packer,
        parts: &[&Factors],
        weight: &[f32],
        bias: &[f32],
    ) -> (Self, Report) {
        let inputs = parts.iter().map(|own| own.inputs()).max().unwrap_or(0);
        let format = match packer.format() {
            Format::Stored => Format::F32,
            other => other,
        };
        let rows: Vec<f32> = parts.iter().flat_map(|own| own.right().iter().copied()).collect();
        let rank: usize = parts.iter().map(|own| own.rank()).sum();
        let (right, _) = Written::chosen(format, &rows, inputs);
        let mut encoding = right.encoding();
        packer.holds(rank);
        let mut factors = vec![Factor::new(rank, right.encoding())];
        let mut rounded = vec![];
        let whole = Whole::lay(packer, &right, &vec![0.0; rank]);
        let mut lefts = vec![];
        let (mut rest, mut rows) = (bias, &right.numbers()[..]);
        for own in parts {
            let (left, _) = Written::chosen(format, own.left(), own.rank());
            let (bias, next) = rest.split_at(own.outputs());
            let (right, below) = rows.split_at(own.rank() * inputs);
            (rest, rows) = (next, below);
            lefts.push(Whole::lay(packer, &left, bias));
            factors.push(Factor::new(own.rank(), left.encoding()));
            if left.encoding().bits() < encoding.bits() {
                encoding = left.encoding();
            }
            rounded.extend(Factors::product(own.rank(), &left.numbers(), right));
        }
        let error = if encoding == Encoding::F32 { 0.0 } else { error(weight, &rounded, inputs) };
        let report = Report { encoding, error, ratios: None, factors };
        (Product { right: whole, lefts }, report)
    }

    /// The product of an arena that was built before, with the outputs of its parts. Errors call it `name`.
    ///
    /// # Errors
    /// `Mismatch` for ranks that are not those of its parts.
    pub(super) fn recorded(
        packer: &mut Packer,
        name: &str,
        (right, lefts): (&Factor, &[Factor]),
        parts: &[usize],
        inputs: usize,
    ) -> Result<Self> {
        let add = |sum: usize, of: &Factor| sum.checked_add(of.rank).filter(|_| of.rank > 0);
        let ranks = lefts.iter().try_fold(0, add);
        // A product has fewer numbers than its matrix.
        let most = parts.iter().sum::<usize>().saturating_mul(inputs);
        if lefts.len() != parts.len() || ranks != Some(right.rank) || right.rank > most {
            let expected = format!("a factor of each of {} parts", parts.len());
            return Err(Error::mismatch(name, expected, format!("{right:?}, {lefts:?}")));
        }
        packer.holds(right.rank);
        let shape = [right.rank, inputs];
        let right = Whole::recorded(packer, name, (right.encoding()?, None), shape)?;
        let left = |(own, outputs): (&Factor, &usize)| {
            Whole::recorded(packer, name, (own.encoding()?, None), [*outputs, own.rank])
        };
        let lefts = lefts.iter().zip(parts).map(left).collect::<Result<_>>()?;
        Ok(Product { right, lefts })
    }

    /// As [`Whole::multiply`].
    pub(super) fn multiply<const RELU: bool>(
        &self,
        arena: &[f32],
        x: &mut Vectors,
        (sums, between): (&mut [Sums], &mut Between),
        (y, stride): (&mut [f32], usize),
    ) {
        let (rows, rank) = (x.rows(), self.right.outputs());
        let (numbers, own) = between.fit(rank, rows);
        self.right.multiply::<false>(arena, x, sums, (numbers, rank));
        let (mut from, mut to) = (0, 0);
        for left in &self.lefts {
            let part = from..from + left.inputs();
            own.read(numbers.chunks_exact(rank).map(|row| &row[part.clone()]));
            left.multiply::<RELU>(arena, own, sums, (&mut y[to..], stride));
            (from, to) = (from + left.inputs(), to + left.outputs());
        }
    }
}
