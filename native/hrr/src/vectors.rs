//! Batches of vectors.

use std::mem::MaybeUninit;
use std::sync::{Arc, OnceLock};

use sconce_tensor::{Error, Result, memory, pool, simd};

use crate::fourier::Plan;
use crate::tile;

/// Most numbers of a vector.
pub const MOST_DIMENSION: usize = 1 << 24;
const LEAST_DIMENSION: usize = 8;
/// Most vectors of a batch.
const MOST_COUNT: usize = 1 << 31;
/// Rows that a shard of parallel work computes, for work of about a microsecond a row.
pub(crate) const ROWS: usize = 8;
/// Rows of a shard for work of ten microseconds a row.
pub(crate) const FEW: usize = 2;

/// The meaning of the numbers of a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Domain {
    /// The numbers themselves.
    Time,
    /// The half spectrum of `d / 2 + 1` bins `X[k]`, divided by `sqrt(d)`: the real parts of the bins `0..d/2`, then
    /// the real part of bin `d/2`, then the imaginary parts of the bins `1..d/2`. The bins `1..d/2` count twice in
    /// the full spectrum, so they are multiplied by `sqrt(2)`. Bins 0 and `d/2` are real.
    Spectrum,
}

/// `count` vectors of `dimension` numbers each, at least one. They never change.
#[derive(Debug)]
pub struct Vectors {
    dimension: usize,
    domain: Domain,
    numbers: Vec<f32>,
    norms: OnceLock<Vec<f32>>,
}

/// Checks the numbers of a vector.
pub(crate) fn check_dimension(dimension: usize) -> Result<()> {
    if !(LEAST_DIMENSION..=MOST_DIMENSION).contains(&dimension) {
        let (least, most) = (LEAST_DIMENSION as f64, MOST_DIMENSION as f64);
        return Err(Error::out_of_range("dimension", dimension as f64, least, most));
    }
    match dimension % 2 {
        0 => Ok(()),
        _ => Err(Error::mismatch("dimension", "an even number", dimension)),
    }
}

/// Checks that `count` rows of `width` numbers fit in memory.
fn check_room(count: usize, width: usize) -> Result<usize> {
    if !(1..=MOST_COUNT).contains(&count) {
        return Err(Error::out_of_range("count", count as f64, 1.0, MOST_COUNT as f64));
    }
    let numbers = count.saturating_mul(width);
    memory::room("vectors", numbers.saturating_mul(size_of::<f32>()) as u64)?;
    Ok(numbers)
}

/// Refuses vectors of another width.
pub(crate) fn check_width(dimension: usize, other: usize, what: &str) -> Result<()> {
    match dimension == other {
        true => Ok(()),
        false => Err(Error::mismatch(format!("dimension of the {what}"), dimension, other)),
    }
}

/// The count of a result that pairs the rows of batches of these counts.
pub(crate) fn paired(one: usize, two: usize, what: &str) -> Result<usize> {
    match (one, two) {
        (one, two) if one == two || two == 1 => Ok(one),
        (1, two) => Ok(two),
        (one, two) => {
            Err(Error::mismatch(format!("count of the {what}"), format!("1 or {one}"), two))
        }
    }
}

/// Zeros for `count` rows, after a check of the available memory.
pub(crate) fn rows(count: usize, width: usize) -> Result<Vec<f32>> {
    let numbers = check_room(count, width)?;
    memory::caught(|| Ok(memory::zeros(numbers)))
}

/// Rows that `work(buffers, at, row)` computes in parallel from zeros, for shards of `per_shard` rows with buffers of
/// their own.
///
/// The zeros of a row are written directly before its work, while they are in the cache of its CPU. A zeroed buffer
/// would be written and read once more through memory.
pub(crate) fn computed<B>(
    count: usize,
    width: usize,
    per_shard: usize,
    buffers: impl Fn() -> B + Sync + Send,
    work: impl Fn(&mut B, usize, &mut [f32]) + Sync + Send,
) -> Result<Vec<f32>> {
    let numbers = check_room(count, width)?;
    let mut all = memory::caught(|| Ok(memory::uninit::<f32>(numbers)))?;
    pool::for_each_rows(&mut all, width, per_shard, |first, rows| {
        let mut buffers = buffers();
        for (at, row) in rows.chunks_exact_mut(width).enumerate() {
            row.fill(MaybeUninit::new(0.0));
            // SAFETY: all numbers of `row` are initialised. `MaybeUninit<f32>` has the layout of `f32`.
            let row = unsafe { &mut *(std::ptr::from_mut(row) as *mut [f32]) };
            work(&mut buffers, first + at, row);
        }
    });
    // SAFETY: there are `count` rows of `width` numbers, and shards cover and initialise all of them.
    Ok(unsafe { all.assume_init() }.into_vec())
}

impl Vectors {
    pub(crate) fn of(dimension: usize, domain: Domain, numbers: Vec<f32>) -> Self {
        Vectors { dimension, domain, numbers, norms: OnceLock::new() }
    }

    /// Vectors in time, from rows of `dimension` numbers.
    ///
    /// # Errors
    /// `OutOfRange` and `Mismatch` for a dimension that is too small, too large or odd; `OutOfRange` for no vector;
    /// `NonFinite` for the first vector with a number that is not finite.
    pub fn new(dimension: usize, numbers: Vec<f32>) -> Result<Self> {
        check_dimension(dimension)?;
        let count = numbers.len() / dimension;
        if !numbers.len().is_multiple_of(dimension) {
            let expected = format!("rows of {dimension}");
            return Err(Error::mismatch("numbers", expected, numbers.len()));
        }
        if !(1..=MOST_COUNT).contains(&count) {
            return Err(Error::out_of_range("count", count as f64, 1.0, MOST_COUNT as f64));
        }
        let vectors = Vectors::of(dimension, Domain::Time, numbers);
        vectors.check_finite()?;
        Ok(vectors)
    }

    /// The number of vectors.
    pub fn count(&self) -> usize {
        self.numbers.len() / self.dimension
    }

    /// Numbers of a vector.
    pub fn dimension(&self) -> usize {
        self.dimension
    }

    /// The domain of the numbers.
    pub fn domain(&self) -> Domain {
        self.domain
    }

    /// The numbers of all vectors, `[count, dimension]`, in [`domain`](Self::domain).
    pub fn numbers(&self) -> &[f32] {
        &self.numbers
    }

    /// Bytes of all numbers.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.numbers)
    }

    pub(crate) fn row(&self, at: usize) -> &[f32] {
        &self.numbers[at * self.dimension..][..self.dimension]
    }

    /// The row of a batch that belongs to row `at` of a larger one: the only row, or its own.
    pub(crate) fn shared_row(&self, at: usize) -> &[f32] {
        self.row(if self.count() == 1 { 0 } else { at })
    }

    fn check_finite(&self) -> Result<()> {
        match simd::non_finite(&self.numbers) {
            None => Ok(()),
            Some(value) => {
                let at = self.numbers.iter().position(|v| !v.is_finite()).unwrap_or_default();
                let what = format!("a number of vector {}", at / self.dimension);
                Err(Error::NonFinite { what, value: f64::from(value) })
            }
        }
    }

    /// A batch in another domain; `None` if it is in this one.
    pub(crate) fn moved(&self, domain: Domain) -> Result<Option<Vectors>> {
        if self.domain == domain {
            return Ok(None);
        }
        let plan = Plan::of(self.dimension);
        let numbers = computed(
            self.count(),
            self.dimension,
            FEW,
            || plan.scratch(),
            |scratch, at, out| match domain {
                Domain::Spectrum => plan.forward(self.row(at), out, scratch),
                Domain::Time => plan.inverse(self.row(at), out, scratch),
            },
        )?;
        Ok(Some(Vectors::of(self.dimension, domain, numbers)))
    }

    /// The same vectors in a domain. Vectors that are in it are shared.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn within(self: &Arc<Self>, domain: Domain) -> Result<Arc<Self>> {
        Ok(self.moved(domain)?.map_or_else(|| self.clone(), Arc::new))
    }

    /// Runs `work` on the same vectors in a domain.
    pub(crate) fn with_domain<T>(
        &self,
        domain: Domain,
        work: impl FnOnce(&Vectors) -> Result<T>,
    ) -> Result<T> {
        match self.moved(domain)? {
            None => work(self),
            Some(moved) => work(&moved),
        }
    }

    /// Refuses vectors of another width.
    pub(crate) fn check_width(&self, other: usize, what: &str) -> Result<()> {
        check_width(self.dimension, other, what)
    }

    /// The count of a result that pairs rows of two batches. A batch of one vector pairs with each row.
    pub(crate) fn paired(&self, other: &Vectors, what: &str) -> Result<usize> {
        self.check_width(other.dimension, what)?;
        paired(self.count(), other.count(), what)
    }

    /// The numbers in time, `[count, dimension]`.
    ///
    /// # Errors
    /// `NonFinite` for vectors that operations have made too large; `OutOfMemory`.
    pub fn to_numbers(&self) -> Result<Vec<f32>> {
        let numbers = match self.moved(Domain::Time)? {
            Some(moved) => moved,
            None => Vectors::of(self.dimension, Domain::Time, memory::copied(&self.numbers)),
        };
        numbers.check_finite()?;
        Ok(numbers.numbers)
    }

    /// The Euclidean length of each vector. The first call computes all, and later calls return these.
    ///
    /// # Errors
    /// `NonFinite` for a length whose square exceeds the range of f32.
    pub(crate) fn norms(&self, what: &str) -> Result<&[f32]> {
        let norms = self.norms.get_or_init(|| {
            let mut norms = vec![0.0; self.count()];
            pool::for_each_rows(&mut norms, 1, ROWS, |first, norms| {
                for (at, norm) in norms.iter_mut().enumerate() {
                    tile::square(self.row(first + at), norm);
                    *norm = norm.sqrt();
                }
            });
            norms
        });
        match norms.iter().position(|norm| !norm.is_finite()) {
            None => Ok(norms),
            Some(at) => {
                let what = format!("the length of vector {at} of the {what}");
                Err(Error::NonFinite { what, value: f64::from(norms[at]) })
            }
        }
    }

    /// The vectors at these indices, in this order.
    ///
    /// # Errors
    /// `OutOfRange` for an index that no vector has, and for no index; `OutOfMemory`.
    pub fn take(&self, indices: &[usize]) -> Result<Vectors> {
        if let Some(at) = indices.iter().find(|at| **at >= self.count()) {
            return Err(Error::out_of_range("index", *at as f64, 0.0, (self.count() - 1) as f64));
        }
        let mut numbers = rows(indices.len(), self.dimension)?;
        for (row, at) in numbers.chunks_exact_mut(self.dimension).zip(indices) {
            row.copy_from_slice(self.row(*at));
        }
        Ok(Vectors::of(self.dimension, self.domain, numbers))
    }

    /// All vectors of several batches, in the domain of the first batch.
    ///
    /// # Errors
    /// `NotFound` for no batch, `Mismatch` for other widths, `OutOfMemory`.
    pub fn concat(batches: &[Arc<Vectors>]) -> Result<Vectors> {
        let first = batches.first().ok_or_else(|| Error::not_found("a batch of vectors"))?;
        let mut all = Vec::with_capacity(batches.len());
        for batch in batches {
            first.check_width(batch.dimension, "batches")?;
            all.push(batch.within(first.domain)?);
        }
        let mut numbers = rows(all.iter().map(|batch| batch.count()).sum(), first.dimension)?;
        let mut rest = &mut *numbers;
        for batch in all {
            let (own, others) = rest.split_at_mut(batch.numbers.len());
            own.copy_from_slice(&batch.numbers);
            rest = others;
        }
        Ok(Vectors::of(first.dimension, first.domain, numbers))
    }

    /// The same vectors, each of length 1. A vector of zeros stays one.
    ///
    /// # Errors
    /// `NonFinite` for a length that exceeds the range of f32; `OutOfMemory`.
    pub fn normalised(&self) -> Result<Vectors> {
        let norms = self.norms("batch")?;
        let numbers = computed(
            self.count(),
            self.dimension,
            ROWS,
            || (),
            |(), at, row| {
                row.copy_from_slice(self.row(at));
                simd::scale_all(row, inverse(norms[at]));
            },
        )?;
        Ok(Vectors::of(self.dimension, self.domain, numbers))
    }
}

/// The factor that makes a length 1. That of a vector of zeros is 0.
pub(crate) fn inverse(norm: f32) -> f32 {
    if norm >= f32::MIN_POSITIVE { 1.0 / norm } else { 0.0 }
}
