//! The one door to single-threaded products of row-major matrices with strides: our own kernel where
//! the CPU has AVX-512, `gemm` elsewhere.
//!
//! With our own kernel the bits of a row depend on that row alone, not on how many there are, so that
//! a batch of one and a batch of many agree.
//!
//! Candle's own matmul is not called anywhere (clippy refuses it): it re-reads /proc/cpuinfo at
//! every call where `RAYON_NUM_THREADS` is unset, and decides on threads by itself.

#[cfg(target_arch = "x86_64")]
mod avx512;

use std::sync::Arc;

#[cfg(target_arch = "x86_64")]
use super::simd::{Level, level};

/// A matrix seen through a slice: element (i, j) is `data[i * row_stride + j * column_stride]`.
#[derive(Clone, Copy)]
pub struct View<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> View<'a> {
    /// Rows lie one after the other.
    pub fn rows(data: &'a [f32], rows: usize, columns: usize) -> Self {
        Self::strided(data, rows, columns, columns)
    }

    /// Rows begin `row_stride` apart.
    pub fn strided(data: &'a [f32], rows: usize, columns: usize, row_stride: usize) -> Self {
        assert!(columns <= row_stride || rows <= 1, "rows overlap");
        assert!(span(rows, columns, row_stride) <= data.len(), "the matrix is too small");
        View { data, rows, columns, row_stride, column_stride: 1 }
    }

    /// Columns.
    pub fn width(self) -> usize {
        self.columns
    }

    /// Some of its columns.
    pub fn columns(self, range: std::ops::Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.columns, "no such columns");
        let from = range.start * self.column_stride;
        View { data: self.data.get(from..).unwrap_or_default(), columns: range.len(), ..self }
    }

    pub fn transposed(self) -> Self {
        View {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }
}

/// `out = a b`, or `out += a b` if `accumulate`; rows of `out` begin `out_stride` apart.
pub fn matmul(out: &mut [f32], out_stride: usize, a: View<'_>, b: View<'_>, accumulate: bool) {
    if !prepare(out, out_stride, a, b.rows, b.columns, accumulate) {
        return;
    }
    #[cfg(target_arch = "x86_64")]
    if level() == Level::Avx512 {
        // SAFETY: `level` found what the kernels need; `prepare` has checked the shapes.
        return unsafe { avx512::matmul(out, out_stride, a, avx512::Right::View(b), accumulate) };
    }
    portable(out, out_stride, a, b, accumulate);
}

/// Numbers from the first of a matrix to its last; more than memory can hold where that overflows.
fn span(rows: usize, columns: usize, row_stride: usize) -> usize {
    match rows.checked_sub(1) {
        Some(before) if columns > 0 => before.saturating_mul(row_stride).saturating_add(columns),
        _ => 0,
    }
}

/// Whether there is anything to multiply; panics unless the shapes agree and `out` holds the result.
fn prepare(
    out: &mut [f32],
    out_stride: usize,
    a: View<'_>,
    depth: usize,
    columns: usize,
    accumulate: bool,
) -> bool {
    assert_eq!(a.columns, depth, "inner dimensions");
    if a.rows == 0 || columns == 0 {
        return false;
    }
    assert!(columns <= out_stride || a.rows == 1, "rows of the result overlap");
    assert!(span(a.rows, columns, out_stride) <= out.len(), "the result is too small");
    if depth == 0 && !accumulate {
        out.chunks_mut(out_stride.max(1)).take(a.rows).for_each(|row| row[..columns].fill(0.0));
    }
    depth > 0
}

/// Call only after `prepare`.
fn portable(out: &mut [f32], out_stride: usize, a: View<'_>, b: View<'_>, accumulate: bool) {
    let (m, n, k) = (a.rows, b.columns, a.columns);
    // SAFETY: the checks above and in `View` keep every element that gemm touches inside its
    // slice, `out` is borrowed mutably and so apart from `a` and `b`, and all strides are positive.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            out_stride as isize,
            accumulate,
            a.data.as_ptr(),
            a.column_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.column_stride as isize,
            b.row_stride as isize,
            1.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

/// A right operand that many products use, arranged once for the kernel of this CPU.
pub struct Packed(Arranged);

enum Arranged {
    #[cfg(target_arch = "x86_64")]
    Panels(avx512::Panels),
    /// Row after row.
    Rows { data: Vec<f32>, rows: usize, columns: usize },
}

impl Packed {
    pub fn new(b: View<'_>) -> Self {
        #[cfg(target_arch = "x86_64")]
        if level() == Level::Avx512 {
            // SAFETY: `level` found what the kernels need.
            return Packed(Arranged::Panels(unsafe { avx512::Panels::new(b) }));
        }
        Packed(Arranged::rows(b))
    }

    /// Packs another operand, into the same memory if it has the same shape.
    pub fn pack(&mut self, b: View<'_>) {
        match &mut self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: there are panels only where `level` found what the kernels need.
            Arranged::Panels(panels) => unsafe { panels.pack(b) },
            rows => *rows = Arranged::rows(b),
        }
    }

    /// As [`matmul`] with the `b` that was packed; our own kernel gives the same bits.
    pub fn matmul(&self, out: &mut [f32], out_stride: usize, a: View<'_>, accumulate: bool) {
        match &self.0 {
            #[cfg(target_arch = "x86_64")]
            Arranged::Panels(b) => {
                if prepare(out, out_stride, a, b.depth(), b.columns(), accumulate) {
                    let b = avx512::Right::Panels(b);
                    // SAFETY: there are panels only where `level` found what the kernels need;
                    // `prepare` has checked the shapes.
                    unsafe { avx512::matmul(out, out_stride, a, b, accumulate) };
                }
            }
            Arranged::Rows { data, rows, columns } => {
                matmul(out, out_stride, a, View::rows(data, *rows, *columns), accumulate);
            }
        }
    }
}

/// A right operand, packed or as it lies.
pub enum Operand<'a> {
    View(View<'a>),
    Packed(Arc<Packed>),
}

impl Operand<'_> {
    /// As [`matmul`].
    pub fn matmul(&self, out: &mut [f32], out_stride: usize, a: View<'_>, accumulate: bool) {
        match self {
            Operand::View(b) => matmul(out, out_stride, a, *b, accumulate),
            Operand::Packed(b) => b.matmul(out, out_stride, a, accumulate),
        }
    }
}

impl Arranged {
    fn rows(b: View<'_>) -> Self {
        let row = |i| (0..b.columns).map(move |j| b.data[i * b.row_stride + j * b.column_stride]);
        let data = (0..b.rows).flat_map(row).collect();
        Arranged::Rows { data, rows: b.rows, columns: b.columns }
    }
}

#[cfg(test)]
mod tests;
