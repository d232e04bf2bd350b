//! The one door to single-threaded products of row-major matrices with strides: our own kernels where
//! the CPU has AVX-512 and, for what is packed for many rows, a matrix unit; `gemm` elsewhere.
//!
//! With each of our own kernels the bits of a row depend on that row alone, not on those beside it. The
//! two agree to the rounding of f32.
//!
//! In a [`Precision`] below f32 both operands are rounded first. A matrix unit then multiplies bf16 as it
//! is, one product for six; all other kernels multiply rounded numbers as they do others.
//!
//! Candle's own matmul is not called anywhere (clippy refuses it): it re-reads /proc/cpuinfo at
//! every call where `RAYON_NUM_THREADS` is unset, and decides on threads by itself.

mod amx;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) mod card;
pub(crate) mod composed;
pub(crate) mod matrices;

use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::sync::Arc;

#[cfg(target_arch = "x86_64")]
use super::simd::{Level, level};
use crate::Precision;
use crate::uninit::copy;

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

/// What the sums of a product begin with.
#[derive(Clone, Copy)]
enum Start<'a> {
    Zero,
    /// What is there already.
    Out,
    /// The same row for every row of the result.
    Row(&'a [f32]),
}

impl Start<'_> {
    fn new(accumulate: bool) -> Self {
        if accumulate { Start::Out } else { Start::Zero }
    }
}

/// `out = a b`, or `out += a b` if `accumulate`; rows of `out` begin `out_stride` apart.
pub fn matmul(out: &mut [f32], out_stride: usize, a: View<'_>, b: View<'_>, accumulate: bool) {
    product(writable(out), out_stride, a, b, Start::new(accumulate), Precision::current());
}

/// Numbers as a place to write numbers to.
fn writable(out: &mut [f32]) -> &mut [MaybeUninit<f32>] {
    // SAFETY: of the same layout; products write nothing but numbers.
    unsafe { std::slice::from_raw_parts_mut(out.as_mut_ptr().cast(), out.len()) }
}

thread_local! {
    /// Where operands are rounded.
    static ROUNDED: RefCell<[Vec<f32>; 2]> = const { RefCell::new([const { vec![] }; 2]) };
}

/// The matrix with its numbers rounded, which lie as they did, in `memory`; in f32 itself.
fn rounded<'a>(view: View<'a>, precision: Precision, memory: &'a mut Vec<f32>) -> View<'a> {
    if precision == Precision::F32 {
        return view;
    }
    let turned = view.column_stride != 1;
    let lines = if turned { view.transposed() } else { view };
    crate::memory::resize(memory, lines.rows * lines.columns);
    for (i, line) in memory.chunks_exact_mut(lines.columns.max(1)).enumerate() {
        precision.round(line, &lines.data[i * lines.row_stride..][..lines.columns]);
    }
    let view = View::rows(memory, lines.rows, lines.columns);
    if turned { view.transposed() } else { view }
}

/// `out = start + a b`, both rounded; with `Start::Out` the caller has written every row of `out`.
fn product(
    out: &mut [MaybeUninit<f32>],
    out_stride: usize,
    a: View<'_>,
    b: View<'_>,
    start: Start<'_>,
    precision: Precision,
) {
    if !prepare(out, out_stride, a, b.rows, b.columns, start) {
        return;
    }
    ROUNDED.with_borrow_mut(|[left, right]| {
        let (a, b) = (rounded(a, precision, left), rounded(b, precision, right));
        multiply(out, out_stride, a, b, start);
    });
}

/// Call only after `prepare`.
fn multiply(
    out: &mut [MaybeUninit<f32>],
    out_stride: usize,
    a: View<'_>,
    b: View<'_>,
    start: Start<'_>,
) {
    #[cfg(target_arch = "x86_64")]
    if level() == Level::Avx512 {
        // SAFETY: `level` found what the kernels need; `prepare` has checked the shapes.
        return unsafe { avx512::matmul(out, out_stride, a, avx512::Right::View(b), start) };
    }
    portable(out, out_stride, a, b, start);
}

/// Numbers from the first of a matrix to its last; more than memory can hold where that overflows.
fn span(rows: usize, columns: usize, row_stride: usize) -> usize {
    match rows.checked_sub(1) {
        Some(before) if columns > 0 => before.saturating_mul(row_stride).saturating_add(columns),
        _ => 0,
    }
}

/// Whether there is anything to multiply; where there is not, the start is all of the result. Panics
/// unless the shapes agree and `out` holds the result.
fn prepare(
    out: &mut [MaybeUninit<f32>],
    out_stride: usize,
    a: View<'_>,
    depth: usize,
    columns: usize,
    start: Start<'_>,
) -> bool {
    assert_eq!(a.columns, depth, "inner dimensions");
    if a.rows == 0 || columns == 0 {
        return false;
    }
    assert!(columns <= out_stride || a.rows == 1, "rows of the result overlap");
    assert!(span(a.rows, columns, out_stride) <= out.len(), "the result is too small");
    if let Start::Row(row) = start {
        assert_eq!(row.len(), columns, "the row to begin with");
    }
    if depth == 0 {
        begin(out, out_stride, a.rows, columns, start);
    }
    depth > 0
}

/// Writes what the sums begin with.
fn begin(
    out: &mut [MaybeUninit<f32>],
    out_stride: usize,
    rows: usize,
    columns: usize,
    start: Start<'_>,
) {
    for out in out.chunks_mut(out_stride.max(1)).take(rows) {
        match start {
            Start::Zero => out[..columns].fill(MaybeUninit::new(0.0)),
            Start::Row(row) => copy(&mut out[..columns], row),
            Start::Out => {}
        }
    }
}

/// Call only after `prepare`.
fn portable(
    out: &mut [MaybeUninit<f32>],
    out_stride: usize,
    a: View<'_>,
    b: View<'_>,
    start: Start<'_>,
) {
    begin(out, out_stride, a.rows, b.columns, start);
    let (m, n, k) = (a.rows, b.columns, a.columns);
    // SAFETY: what is read of `out` is written; the checks above and in `View` keep every element that gemm touches inside its
    // slice, `out` is borrowed mutably and so apart from `a` and `b`, and all strides are positive.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr().cast::<f32>(),
            1,
            out_stride as isize,
            !matches!(start, Start::Zero),
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

/// Whether each row of a product is the same to the bit whatever rows are beside it.
pub fn rows_are_apart() -> bool {
    #[cfg(target_arch = "x86_64")]
    return level() == Level::Avx512;
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Whether products of many rows run on a matrix unit.
pub fn has_unit() -> bool {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    return amx::available();
    #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
    false
}

/// Whether products of a precision are faster here than those of f32: those of bf16 on a matrix unit are. All others of a
/// CPU are products of f32 whose operands have been rounded before.
pub fn gains(precision: Precision) -> bool {
    precision == Precision::Bf16 && has_unit()
}

/// Flops that a thread made in `rounds` of nothing but sums of products on the matrix unit, if there is one.
pub(crate) fn spin(rounds: usize) -> Option<f64> {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    if amx::available() {
        // SAFETY: the unit is available.
        unsafe { amx::spin(rounds) };
        return Some(rounds as f64 * amx::SPIN_FLOPS);
    }
    let _ = rounds;
    None
}

/// So many rows, twice as many steps and four times as many columns keep a matrix unit busy.
pub const MANY: usize = 16;

/// A right operand that many products use, arranged once for the kernel of this CPU. Its products have the
/// precision that it was packed in.
pub struct Packed {
    arranged: Arranged,
    precision: Precision,
}

enum Arranged {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    Tiles(amx::Tiles),
    #[cfg(target_arch = "x86_64")]
    Panels(avx512::Panels),
    /// Row after row.
    Rows { data: Vec<f32>, rows: usize, columns: usize },
}

impl Packed {
    /// For products of many rows each.
    pub fn new(b: View<'_>) -> Self {
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        if b.rows >= 2 * MANY && b.columns >= 4 * MANY && amx::available() {
            return Self::arranged(Arranged::Tiles(amx::Tiles::default()), b);
        }
        Self::for_few_rows(b)
    }

    /// For products of fewer than [`MANY`] rows each.
    pub fn for_few_rows(b: View<'_>) -> Self {
        #[cfg(target_arch = "x86_64")]
        if level() == Level::Avx512 {
            return Self::arranged(Arranged::Panels(avx512::Panels::default()), b);
        }
        Self::arranged(Arranged::Rows { data: vec![], rows: 0, columns: 0 }, b)
    }

    fn arranged(arranged: Arranged, b: View<'_>) -> Self {
        let mut packed = Packed { arranged, precision: Precision::F32 };
        packed.pack(b);
        packed
    }

    /// Packs another operand, into the same memory if it has the same shape.
    pub fn pack(&mut self, b: View<'_>) {
        self.precision = Precision::current();
        let mut memory = vec![];
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        if let (Arranged::Tiles(tiles), Precision::Bf16) = (&mut self.arranged, self.precision) {
            // SAFETY: there are tiles only where the unit is available.
            return unsafe { tiles.pack_rounded(b) };
        }
        let b = rounded(b, self.precision, &mut memory);
        match &mut self.arranged {
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            // SAFETY: there are tiles only where the unit is available.
            Arranged::Tiles(tiles) => unsafe { tiles.pack(b) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: there are panels only where `level` found what the kernels need.
            Arranged::Panels(panels) => unsafe { panels.pack(b) },
            rows => *rows = Arranged::rows(b),
        }
    }

    /// As [`matmul`] with the `b` that was packed.
    pub fn matmul(&self, out: &mut [f32], out_stride: usize, a: View<'_>, accumulate: bool) {
        self.product(writable(out), out_stride, a, Start::new(accumulate));
    }

    fn columns(&self) -> usize {
        match &self.arranged {
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Arranged::Tiles(b) => b.columns(),
            #[cfg(target_arch = "x86_64")]
            Arranged::Panels(b) => b.columns(),
            Arranged::Rows { columns, .. } => *columns,
        }
    }

    fn product(
        &self,
        out: &mut [MaybeUninit<f32>],
        out_stride: usize,
        a: View<'_>,
        start: Start<'_>,
    ) {
        match &self.arranged {
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Arranged::Tiles(b) => {
                if prepare(out, out_stride, a, b.depth(), b.columns(), start) {
                    // The unit's bf16 are rounded as they are cut.
                    self.with_left(a, self.precision != Precision::Bf16, |a| {
                        // SAFETY: there are tiles only where the unit is available; `prepare` has
                        // checked the shapes.
                        unsafe { amx::matmul(out, out_stride, a, b, start) }
                    });
                }
            }
            #[cfg(target_arch = "x86_64")]
            Arranged::Panels(b) => {
                if prepare(out, out_stride, a, b.depth(), b.columns(), start) {
                    let b = avx512::Right::Panels(b);
                    self.with_left(a, true, |a| {
                        // SAFETY: there are panels only where `level` found what the kernels need;
                        // `prepare` has checked the shapes.
                        unsafe { avx512::matmul(out, out_stride, a, b, start) }
                    });
                }
            }
            Arranged::Rows { data, rows, columns } => {
                let b = View::rows(data, *rows, *columns);
                if prepare(out, out_stride, a, *rows, *columns, start) {
                    self.with_left(a, true, |a| multiply(out, out_stride, a, b, start));
                }
            }
        }
    }

    /// Calls `multiply` with the left operand, rounded if it `rounds`.
    fn with_left(&self, a: View<'_>, rounds: bool, multiply: impl FnOnce(View<'_>)) {
        let precision = if rounds { self.precision } else { Precision::F32 };
        ROUNDED.with_borrow_mut(|[left, _]| multiply(rounded(a, precision, left)));
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

    /// `out = bias + a b` into memory that may hold nothing yet, row after row: what was written.
    pub fn fill<'o>(
        &self,
        out: &'o mut [MaybeUninit<f32>],
        a: View<'_>,
        bias: Option<&[f32]>,
    ) -> &'o mut [f32] {
        let start = bias.map_or(Start::Zero, Start::Row);
        let columns = match self {
            Operand::View(b) => b.columns,
            Operand::Packed(b) => b.columns(),
        };
        assert_eq!(a.rows * columns, out.len(), "numbers of the result");
        match self {
            Operand::View(b) => product(out, columns, a, *b, start, Precision::current()),
            Operand::Packed(b) => b.product(out, columns, a, start),
        }
        // SAFETY: the product has as many rows and columns as fill `out`, and wrote each of them.
        unsafe { std::slice::from_raw_parts_mut(out.as_mut_ptr().cast(), out.len()) }
    }
}

impl Arranged {
    fn rows(b: View<'_>) -> Self {
        let row = |i| (0..b.columns).map(move |j| b.data[i * b.row_stride + j * b.column_stride]);
        let mut data = crate::memory::with_capacity(b.rows * b.columns);
        data.extend((0..b.rows).flat_map(row));
        Arranged::Rows { data, rows: b.rows, columns: b.columns }
    }
}

#[cfg(test)]
mod tests;
