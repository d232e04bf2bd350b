//! Single-threaded products of strided row-major matrices. All products go through this module: Sconce's kernels where
//! the CPU has AVX-512 and, for operands packed for many rows, a matrix unit; `gemm` elsewhere.
//!
//! With each of Sconce's kernels a row is bit-identical whatever the other rows hold. AVX-512 and the matrix unit agree
//! to the rounding error of f32.
//!
//! In a [`Precision`] below f32 both operands are rounded first. A matrix unit then multiplies bf16 directly, with one
//! product instead of six; all other kernels multiply the rounded values as f32.
//!
//! Candle's own matmul is not called (clippy refuses it): it reads /proc/cpuinfo at every call if `RAYON_NUM_THREADS`
//! is unset, and chooses its own threads.

mod amx;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) mod card;
pub(crate) mod composed;
pub(crate) mod matrices;
#[cfg(target_arch = "x86_64")]
mod turn;

use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::sync::Arc;

#[cfg(target_arch = "x86_64")]
use super::simd::{Level, level};
use crate::Precision;
use crate::uninit::{copy, writable};

/// A matrix as a view of a slice: element (i, j) is `data[i * row_stride + j * column_stride]`.
#[derive(Clone, Copy)]
pub struct View<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> View<'a> {
    /// A matrix of contiguous rows.
    pub fn rows(data: &'a [f32], rows: usize, columns: usize) -> Self {
        Self::strided(data, rows, columns, columns)
    }

    /// A matrix whose rows begin `row_stride` apart.
    pub fn strided(data: &'a [f32], rows: usize, columns: usize, row_stride: usize) -> Self {
        assert!(columns <= row_stride || rows <= 1, "rows overlap");
        assert!(
            span(rows, columns, row_stride) <= data.len(),
            "the slice is too small for the matrix"
        );
        View { data, rows, columns, row_stride, column_stride: 1 }
    }

    /// The number of columns.
    pub fn width(self) -> usize {
        self.columns
    }

    /// The columns in `range`.
    pub fn columns(self, range: std::ops::Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.columns, "columns out of range");
        let from = range.start * self.column_stride;
        View { data: self.data.get(from..).unwrap_or_default(), columns: range.len(), ..self }
    }

    /// The transpose, without a copy.
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

/// The initial sums of a product.
#[derive(Clone, Copy)]
enum Start<'a> {
    Zero,
    /// The values in `out`.
    Out,
    /// One row, the same for every row of `out`.
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

thread_local! {
    /// Buffers for rounded operands.
    static ROUNDED: RefCell<[Vec<f32>; 2]> = const { RefCell::new([const { vec![] }; 2]) };
}

/// Rounds the matrix into `memory`, in the same layout; returns the view itself in f32.
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

/// Computes `out = start + a b` with both operands rounded; with `Start::Out` every row of `out` is initialised.
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

/// Computes the product without rounding. Requires `prepare`.
fn multiply(
    out: &mut [MaybeUninit<f32>],
    out_stride: usize,
    a: View<'_>,
    b: View<'_>,
    start: Start<'_>,
) {
    #[cfg(target_arch = "x86_64")]
    if level() == Level::Avx512 {
        // SAFETY: `level` found the features that the kernels need; `prepare` has checked the shapes.
        return unsafe { avx512::matmul(out, out_stride, a, avx512::Right::View(b), start) };
    }
    portable(out, out_stride, a, b, start);
}

/// The number of values from the first to the last of a matrix; on overflow more than memory can hold.
fn span(rows: usize, columns: usize, row_stride: usize) -> usize {
    match rows.checked_sub(1) {
        Some(before) if columns > 0 => before.saturating_mul(row_stride).saturating_add(columns),
        _ => 0,
    }
}

/// Whether there is anything to multiply; if not, writes the start, which is the result. Panics unless the shapes agree
/// and `out` holds the result.
fn prepare(
    out: &mut [MaybeUninit<f32>],
    out_stride: usize,
    a: View<'_>,
    depth: usize,
    columns: usize,
    start: Start<'_>,
) -> bool {
    assert_eq!(a.columns, depth, "inner dimensions of a product");
    if a.rows == 0 || columns == 0 {
        return false;
    }
    assert!(columns <= out_stride || a.rows == 1, "rows of `out` overlap");
    assert!(span(a.rows, columns, out_stride) <= out.len(), "`out` is too small for the product");
    if let Start::Row(row) = start {
        assert_eq!(row.len(), columns, "length of the start row");
    }
    if depth == 0 {
        begin(out, out_stride, a.rows, columns, start);
    }
    depth > 0
}

/// Writes the initial sums to `out`.
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

/// Computes the product by `gemm`. Requires `prepare`.
fn portable(
    out: &mut [MaybeUninit<f32>],
    out_stride: usize,
    a: View<'_>,
    b: View<'_>,
    start: Start<'_>,
) {
    begin(out, out_stride, a.rows, b.columns, start);
    let (m, n, k) = (a.rows, b.columns, a.columns);
    // SAFETY: every value of `out` that is read is initialised. The checks above and in `View` keep every element that
    // gemm touches inside its slice, `out` is borrowed mutably and so does not alias `a` or `b`, and all strides are
    // positive.
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

/// Whether each row of a product is bit-identical whatever the other rows hold.
pub fn rows_are_apart() -> bool {
    #[cfg(target_arch = "x86_64")]
    return level() == Level::Avx512;
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Whether products of many rows gain nothing from a packed `b`: their first tiles pack it at no cost.
fn is_packed_in_passing(b: View<'_>) -> bool {
    #[cfg(target_arch = "x86_64")]
    if level() == Level::Avx512 {
        return !has_unit() && b.column_stride == 1;
    }
    let _ = b;
    // `gemm` packs in any case.
    true
}

/// Whether products of many rows run on a matrix unit.
pub fn has_unit() -> bool {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    return amx::available();
    #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
    false
}

/// Whether products in `precision` are faster on this CPU than products in f32: only bf16 on a matrix unit is. All
/// other precisions multiply rounded operands as f32.
pub fn gains(precision: Precision) -> bool {
    precision == Precision::Bf16 && has_unit()
}

/// Runs `rounds` of multiply-adds on the matrix unit and returns the flops of one thread; `None` if there is no unit.
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

/// Rows that keep a matrix unit busy, if there are `2 * MANY` steps and `4 * MANY` columns.
pub const MANY: usize = 16;

/// A right operand of many products, packed once for the kernel of this CPU. Its products have the precision in which
/// it was packed.
pub struct Packed {
    arranged: Arranged,
    precision: Precision,
}

enum Arranged {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    Tiles(amx::Tiles),
    #[cfg(target_arch = "x86_64")]
    Panels(avx512::Panels),
    /// Contiguous rows.
    Rows { data: Vec<f32>, rows: usize, columns: usize },
}

impl Packed {
    /// Packs for products of many rows each.
    pub fn new(b: View<'_>) -> Self {
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        if b.rows >= 2 * MANY && b.columns >= 4 * MANY && amx::available() {
            return Self::arranged(Arranged::Tiles(amx::Tiles::default()), b);
        }
        Self::for_few_rows(b)
    }

    /// Packs for products of fewer than [`MANY`] rows each.
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

    /// Packs another operand, in place if it has the same shape.
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
            // SAFETY: there are panels only where `level` found the features that the kernels need.
            Arranged::Panels(panels) => unsafe { panels.pack(b) },
            rows => *rows = Arranged::rows(b),
        }
    }

    /// Computes [`matmul`] with the packed operand as `b`.
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
                    // For bf16, the matrix unit's kernel rounds `a` as it splits it.
                    self.with_left(a, self.precision != Precision::Bf16, |a| {
                        // SAFETY: there are tiles only where the unit is available; `prepare` has checked the shapes.
                        unsafe { amx::matmul(out, out_stride, a, b, start) }
                    });
                }
            }
            #[cfg(target_arch = "x86_64")]
            Arranged::Panels(b) => {
                if prepare(out, out_stride, a, b.depth(), b.columns(), start) {
                    let b = avx512::Right::Panels(b);
                    self.with_left(a, true, |a| {
                        // SAFETY: there are panels only where `level` found the features that the kernels need;
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

    /// Calls `multiply` with the left operand, rounded if `rounds`.
    fn with_left(&self, a: View<'_>, rounds: bool, multiply: impl FnOnce(View<'_>)) {
        let precision = if rounds { self.precision } else { Precision::F32 };
        ROUNDED.with_borrow_mut(|[left, _]| multiply(rounded(a, precision, left)));
    }
}

/// The most columns of a right operand that would leave half of the lanes of a vector empty.
pub(crate) const FEW_COLUMNS: usize = 8;

/// A right operand, packed or as a view.
pub enum Operand<'a> {
    /// Unpacked values.
    View(View<'a>),
    /// Values packed for the kernel of this CPU.
    Packed(Arc<Packed>),
}

impl<'a> Operand<'a> {
    /// A right operand of a product of many rows in the present precision; packed unless it has few columns or the
    /// products pack it in passing.
    pub(crate) fn of(b: View<'a>) -> Self {
        let is_plain = b.columns <= FEW_COLUMNS || is_packed_in_passing(b);
        match Precision::current() == Precision::F32 && is_plain {
            true => Operand::View(b),
            false => Operand::Packed(Arc::new(Packed::new(b))),
        }
    }

    /// The unpacked values.
    pub(crate) fn view(&self) -> Option<View<'a>> {
        match self {
            Operand::View(b) => Some(*b),
            Operand::Packed(_) => None,
        }
    }
}

impl Operand<'_> {
    /// Computes [`matmul`] with this operand as `b`.
    pub fn matmul(&self, out: &mut [f32], out_stride: usize, a: View<'_>, accumulate: bool) {
        match self {
            Operand::View(b) => matmul(out, out_stride, a, *b, accumulate),
            Operand::Packed(b) => b.matmul(out, out_stride, a, accumulate),
        }
    }

    /// Writes `out = bias + a b` into uninitialised memory of contiguous rows; returns `out` as initialised.
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
        assert_eq!(a.rows * columns, out.len(), "length of `out`");
        match self {
            Operand::View(b) => product(out, columns, a, *b, start, Precision::current()),
            Operand::Packed(b) => b.product(out, columns, a, start),
        }
        // SAFETY: the product has as many rows and columns as fill `out`, and wrote each value.
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
