//! Products in tiles of eight rows by three vectors of 16 columns. The file is long because each shape of tiles has its
//! own instructions.
//!
//! A tile keeps its 24 sums in registers and walks the depth `k` one step at a time: it loads three vectors of `b`,
//! broadcasts eight values of `a`, and multiplies each value with the three vectors. `b` is read from panels of 48
//! columns, in which step `l + 1` follows step `l`; `a` is read in place, element (i, l) at
//! `row_stride * i + column_stride * l`, unless its columns lie far apart: then blocks of it are packed.
//!
//! Every element is the chain `fma(a[k-1], b[k-1], .. fma(a[0], b[0], start))` in every tile, where `start` is 0, a
//! bias or the value in `out`. Between blocks of the depth the sum is stored in `out`, which is exact. So a row is
//! bit-identical whatever the other rows hold.

use std::arch::x86_64::*;
use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::turn::{EIGHT, LANES, lanes, turn, turn_ragged};
use super::{Start, View};
use crate::pool;

/// Vectors in a row of a tile.
const VECTORS: usize = 3;
/// Columns of a panel.
const WIDTH: usize = VECTORS * LANES;
/// Panels that are packed by one thread.
const PANELS: usize = 4;
/// Rows of a tile. Its 24 sums, three vectors of `b` and one of `a` take 28 of 32 registers. A step has 11 loads for 24
/// multiply-adds; the CPU executes two of each per cycle.
const ROWS: usize = 8;
/// Steps of a tile between loading its sums from `out` and storing them. The panel of 96 KiB stays in the second-level
/// cache while the rows of `a` pass; a shorter panel that fits the first level would lose more to these loads and
/// stores than it gains.
const DEPTH: usize = 512;
/// Replaces `DEPTH` for a panel that is transposed for one tile of rows: its 12 KiB stay in the first-level cache.
const DEPTH_FOR_FEW: usize = 64;
/// Steps between prefetching `b` and using it: about 400 cycles in the largest tile, as long as the memory takes.
const AHEAD: usize = 16;
/// Rows of a transposed `a` packed at a time. A block of 128 KiB stays in the second-level cache beside a panel; taller
/// blocks leave it.
const BLOCK: usize = 64;
/// The most rows of `a` for which a `b` stored by rows is read in place.
const FEW: usize = 2 * ROWS;
/// The largest distance of columns of `a` that is read in place whatever the number of products: so few pages and cache
/// sets are involved that packing costs more than it gains.
const NARROW: usize = 128;
/// The same for rows of `b`, which are read as whole lines that are prefetched.
const WIDE: usize = 256;

/// A cache line: a vector at the start of a line never straddles two lines.
#[repr(C, align(64))]
struct Line([f32; LANES]);

/// Only lines that were written are read.
type Lines = Box<[MaybeUninit<Line>]>;

/// A right operand in panels: step `l` of panel `p` begins at line `VECTORS * (p * depth + l)`. The last vector with
/// columns is padded with zeros; vectors without any column are not written.
#[derive(Default)]
pub(super) struct Panels {
    lines: Lines,
    depth: usize,
    columns: usize,
}

impl Panels {
    /// # Safety
    ///
    /// The CPU has AVX-512 F and VL.
    pub(super) unsafe fn pack(&mut self, b: View<'_>) {
        let length = b.columns.div_ceil(WIDTH) * b.rows * VECTORS;
        if self.lines.len() != length {
            self.lines = crate::memory::uninit(length);
        }
        (self.depth, self.columns) = (b.rows, b.columns);
        let panel_lines = (b.rows * VECTORS).max(1);
        pool::for_each_rows(&mut self.lines, panel_lines, PANELS, |first, lines| {
            for (p, panel) in lines.chunks_exact_mut(panel_lines).enumerate() {
                // SAFETY: the caller promises the CPU; the panel has all the steps of `b`, which has a column `(first +
                // p) * WIDTH`.
                unsafe { pack_panel(panel, b, 0..b.rows, (first + p) * WIDTH) };
            }
        });
    }

    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    pub(super) fn columns(&self) -> usize {
        self.columns
    }
}

/// A right operand.
#[derive(Clone, Copy)]
pub(super) enum Right<'a> {
    View(View<'a>),
    Panels(&'a Panels),
}

impl Right<'_> {
    fn columns(&self) -> usize {
        match self {
            Right::View(b) => b.columns,
            Right::Panels(b) => b.columns,
        }
    }
}

/// A thread's buffers: a block of `a` and a panel of `b`.
struct Scratch {
    block: Lines,
    panel: Lines,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch {
        block: Box::new_uninit_slice(BLOCK / ROWS * apart(DEPTH) / LANES),
        panel: Box::new_uninit_slice(DEPTH * VECTORS),
    });
}

/// `out = start + a b`.
///
/// # Safety
///
/// The CPU has AVX-512 F and VL, `a.columns` is the depth of `b`, and nothing is empty. `out` holds `a.rows` rows of as
/// many values as `b` has columns, `out_stride` apart. If `start` is `Out`, these values are initialised; a `Row` has
/// as many values as `b` has columns.
pub(super) unsafe fn matmul(
    out: &mut [MaybeUninit<f32>],
    out_stride: usize,
    a: View<'_>,
    b: Right<'_>,
    start: Start<'_>,
) {
    SCRATCH.with_borrow_mut(|Scratch { block, panel }| {
        let out = out.as_mut_ptr().cast::<f32>();
        let mut product = Product { out, out_stride, a, b, start, panel };
        let columns = || (0..b.columns()).step_by(WIDTH);
        if a.column_stride <= NARROW || a.rows == 1 {
            let few = TURNING_TILES.len() + 1..=ROWS;
            let depth = match b {
                Right::Panels(_) if a.rows <= ROWS => a.columns,
                Right::View(b) if few.contains(&a.rows) && b.column_stride > 1 => DEPTH_FOR_FEW,
                _ => DEPTH,
            };
            for column in columns() {
                for steps in pieces(a.columns, depth, ROWS) {
                    // SAFETY: the ranges are within the operands; they exceed `DEPTH` only with panels.
                    unsafe { product.panel(0..a.rows, steps, column, None) };
                }
            }
        } else {
            for steps in pieces(a.columns, DEPTH, ROWS) {
                for rows in pieces(a.rows, BLOCK, ROWS) {
                    // SAFETY: `a` is transposed, and the pieces fit the block.
                    unsafe { pack_block(block, a, rows.clone(), steps.clone()) };
                    for column in columns() {
                        let block = Some(&block[..]);
                        // SAFETY: the ranges are within the operands, and the block holds them.
                        unsafe { product.panel(rows.clone(), steps.clone(), column, block) };
                    }
                }
            }
        }
    });
}

/// Splits `0..count` into pieces of nearly equal length, at most `longest`, and multiples of `unit` where possible.
pub(super) fn pieces(
    count: usize,
    longest: usize,
    unit: usize,
) -> impl Iterator<Item = Range<usize>> {
    let length = count.div_ceil(count.div_ceil(longest)).next_multiple_of(unit).min(longest);
    (0..count).step_by(length).map(move |from| from..(from + length).min(count))
}

/// Whether every panel of `b` is read in place, for any number of rows.
pub(super) fn is_read_in_place(b: View<'_>) -> bool {
    b.column_stride == 1 && b.row_stride <= WIDE && b.columns.is_multiple_of(LANES)
}

struct Product<'a> {
    out: *mut f32,
    out_stride: usize,
    a: View<'a>,
    b: Right<'a>,
    start: Start<'a>,
    panel: &'a mut [MaybeUninit<Line>],
}

impl Product<'_> {
    /// Multiplies `rows` and `steps` of `a` by the panel of `b` that begins at `column`, and adds the products to the
    /// sums. `block` holds those rows and steps packed; without a block element (i, l) of `a` is read at
    /// `row_stride * i + column_stride * l` within the view.
    ///
    /// # Safety
    ///
    /// As for `matmul`. The ranges are within the operands and not empty, and `steps` has at most `DEPTH` steps unless
    /// `b` is packed.
    unsafe fn panel(
        &mut self,
        rows: Range<usize>,
        steps: Range<usize>,
        column: usize,
        block: Option<&[MaybeUninit<Line>]>,
    ) {
        let Product { out, out_stride, a, b, start, .. } = *self;
        let width = WIDTH.min(b.columns() - column);
        let vectors = width.div_ceil(LANES);
        let depth = steps.len();
        let whole = width == vectors * LANES;
        // SAFETY: `steps.start` and `column` are within `b`. If `b` is read in place, `width` fills its vectors, so
        // that they end inside the view.
        let (b, b_step, kernels) = unsafe {
            match b {
                Right::Panels(b) => {
                    let line = VECTORS * (column / WIDTH * b.depth + steps.start);
                    (b.lines.as_ptr().add(line).cast::<f32>(), WIDTH, &TILES[..])
                }
                Right::View(b)
                    if b.column_stride == 1
                        && whole
                        && (rows.len() <= FEW || b.row_stride == width || b.row_stride <= WIDE) =>
                {
                    let at = steps.start * b.row_stride + column;
                    (b.data.as_ptr().add(at), b.row_stride, &TILES[..])
                }
                Right::View(b)
                    if b.row_stride == 1
                        && whole
                        && rows.len() <= TURNING_TILES.len()
                        && depth.is_multiple_of(EIGHT) =>
                {
                    let at = steps.start + column * b.column_stride;
                    (b.data.as_ptr().add(at), b.column_stride, &TURNING_TILES[..])
                }
                Right::View(b) => {
                    pack_panel(self.panel, b, steps.clone(), column);
                    (self.panel.as_ptr().cast::<f32>(), WIDTH, &TILES[..])
                }
            }
        };
        for row in rows.clone().step_by(ROWS) {
            let count = ROWS.min(rows.end - row);
            // SAFETY: `row` and `steps.start` are within `a`, or within the block that holds them. The tile reads element
            // (i, l) of `a` at `row_stride * i + column_stride * l`, which is within the view for `count` rows and `depth`
            // steps. Its rows and columns are within `out`.
            unsafe {
                let (a, a_row, a_step) = match block {
                    Some(block) => {
                        let at = (row - rows.start) / ROWS * apart(depth);
                        (block.as_ptr().cast::<f32>().add(at), 1, ROWS)
                    }
                    None => {
                        let at = row * a.row_stride + steps.start * a.column_stride;
                        (a.data.as_ptr().add(at), a.row_stride, a.column_stride)
                    }
                };
                let out = out.add(row * out_stride + column);
                let (start, start_stride) = match start {
                    _ if steps.start > 0 => (out.cast_const(), out_stride),
                    Start::Zero => (std::ptr::null(), 0),
                    Start::Out => (out.cast_const(), out_stride),
                    Start::Row(numbers) => (numbers.as_ptr().add(column), 0),
                };
                kernels[count - 1][vectors - 1](&Tile {
                    depth,
                    a,
                    a_row,
                    a_step,
                    b,
                    b_step,
                    out,
                    out_stride,
                    start,
                    start_stride,
                    last: lanes(width - (vectors - 1) * LANES),
                });
            }
        }
    }
}

/// A tile of `out`: element (i, l) of `a` is at `a_row * i + a_step * l`, step l of `b` at `b_step * l`.
struct Tile {
    depth: usize,
    a: *const f32,
    a_row: usize,
    a_step: usize,
    b: *const f32,
    b_step: usize,
    out: *mut f32,
    out_stride: usize,
    /// The initial sums, rows `start_stride` apart; null for 0.
    start: *const f32,
    start_stride: usize,
    /// Lanes of the last vector of each row that are columns of `out`.
    last: __mmask16,
}

type Kernel = unsafe fn(&Tile);

const TILES: [[Kernel; VECTORS]; ROWS] = [
    [tile::<1, 1>, tile::<1, 2>, tile::<1, 3>],
    [tile::<2, 1>, tile::<2, 2>, tile::<2, 3>],
    [tile::<3, 1>, tile::<3, 2>, tile::<3, 3>],
    [tile::<4, 1>, tile::<4, 2>, tile::<4, 3>],
    [tile::<5, 1>, tile::<5, 2>, tile::<5, 3>],
    [tile::<6, 1>, tile::<6, 2>, tile::<6, 3>],
    [tile::<7, 1>, tile::<7, 2>, tile::<7, 3>],
    [tile::<8, 1>, tile::<8, 2>, tile::<8, 3>],
];

/// Kernels that transpose `b` themselves, for so few rows that a separate transposition would be most of the work.
const TURNING_TILES: [[Kernel; VECTORS]; 4] = [
    [turning_tile::<1, 1>, turning_tile::<1, 2>, turning_tile::<1, 3>],
    [turning_tile::<2, 1>, turning_tile::<2, 2>, turning_tile::<2, 3>],
    [turning_tile::<3, 1>, turning_tile::<3, 2>, turning_tile::<3, 3>],
    [turning_tile::<4, 1>, turning_tile::<4, 2>, turning_tile::<4, 3>],
];

/// # Safety
///
/// The CPU has AVX-512 F. `a` is readable at R rows of `depth` steps, `b` at `depth` steps of V whole vectors. `out` is
/// writable at R rows of V vectors, the last one under the mask `last`; `start`, if it is not null, is readable at the
/// same positions.
#[target_feature(enable = "avx512f")]
unsafe fn tile<const R: usize, const V: usize>(tile: &Tile) {
    let &Tile { depth, mut a, a_row, a_step, mut b, b_step, out, out_stride, last, .. } = tile;
    let mask = |v: usize| if v + 1 == V { last } else { !0 };
    let rows: [usize; R] = std::array::from_fn(|i| opaque(i * a_row));
    let mut sums = [[_mm512_setzero_ps(); V]; R];
    // SAFETY: by the caller's promise, for every address; a prefetch may point anywhere.
    unsafe {
        if !tile.start.is_null() {
            for (i, sums) in sums.iter_mut().enumerate() {
                let row = tile.start.add(i * tile.start_stride);
                for (v, sum) in sums.iter_mut().enumerate() {
                    *sum = _mm512_maskz_loadu_ps(mask(v), row.add(v * LANES));
                }
            }
        }
        for _ in 0..depth {
            let b_row: [_; V] = std::array::from_fn(|v| {
                let ahead = b.wrapping_add(AHEAD * b_step + v * LANES);
                _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
                _mm512_loadu_ps(b.add(v * LANES))
            });
            for (sums, row) in sums.iter_mut().zip(rows) {
                let a = _mm512_set1_ps(*a.add(row));
                for (sum, b) in sums.iter_mut().zip(b_row) {
                    *sum = _mm512_fmadd_ps(a, b, *sum);
                }
            }
            a = a.wrapping_add(a_step);
            b = b.wrapping_add(b_step);
        }
        for (i, sums) in sums.iter().enumerate() {
            for (v, sum) in sums.iter().enumerate() {
                _mm512_mask_storeu_ps(out.add(i * out_stride + v * LANES), mask(v), *sum);
            }
        }
    }
}

/// Hides from the compiler how `x` was computed. Otherwise it would walk the rows of a tile by repeated addition of the
/// stride, on ports that the multiply-adds need.
#[inline(always)]
fn opaque(mut x: usize) -> usize {
    // SAFETY: an empty instruction that touches only its register.
    unsafe {
        std::arch::asm!("/* {0} */", inout(reg) x, options(pure, nomem, nostack, preserves_flags));
    }
    x
}

/// The distance of tiles in a block, a line more than `depth` steps: the tiles are written side by side, a step at a
/// time, and at distances of whole pages they would share the ways of one set of the cache.
const fn apart(depth: usize) -> usize {
    ROWS * depth + LANES
}

/// Packs `rows` and `steps` of a transposed `a`, tile beside tile; the eight values of a step are contiguous. A step of
/// all rows is read at once, because the processor prefetches long runs.
///
/// # Safety
///
/// The CPU has AVX-512 F and VL; the ranges are within `a`, at most `BLOCK` and `DEPTH` long.
#[target_feature(enable = "avx512f,avx512vl")]
unsafe fn pack_block(
    block: &mut [MaybeUninit<Line>],
    a: View<'_>,
    rows: Range<usize>,
    steps: Range<usize>,
) {
    let depth = steps.len();
    let apart = apart(depth);
    debug_assert!(a.row_stride == 1 && rows.len().div_ceil(ROWS) * apart <= block.len() * LANES);
    let block = block.as_mut_ptr().cast::<f32>();
    let (tiles, rest) = (rows.len() / ROWS, rows.len() % ROWS);
    for l in 0..depth {
        // SAFETY: the rows are within `a`, and their tiles within the block.
        unsafe {
            let from = a.data.as_ptr().add((steps.start + l) * a.column_stride + rows.start);
            let to = block.add(l * ROWS);
            for t in 0..tiles {
                let eight = _mm256_loadu_ps(from.add(t * ROWS));
                _mm256_store_ps(to.add(t * apart), eight);
            }
            if rest > 0 {
                let eight = _mm256_maskz_loadu_ps((1 << rest) - 1, from.add(tiles * ROWS));
                _mm256_store_ps(to.add(tiles * apart), eight);
            }
        }
    }
}

/// Packs `steps` of the panel of `b` that begins at `column`: every vector that has a column is written.
///
/// # Safety
///
/// The CPU has AVX-512 F and VL; `steps` and `column` are within `b`, and the panel has as many steps.
#[target_feature(enable = "avx512f,avx512vl")]
unsafe fn pack_panel(
    panel: &mut [MaybeUninit<Line>],
    b: View<'_>,
    steps: Range<usize>,
    column: usize,
) {
    let depth = steps.len();
    debug_assert!(depth * VECTORS <= panel.len());
    let width = WIDTH.min(b.columns - column);
    let panel = panel.as_mut_ptr().cast::<f32>();
    // SAFETY: by the caller's promise; masks and counts end every row of `b` where the view ends.
    unsafe {
        let data = b.data.as_ptr().add(steps.start * b.row_stride + column * b.column_stride);
        if b.column_stride == 1 {
            let masks: [_; VECTORS] =
                std::array::from_fn(|v| lanes(width.saturating_sub(v * LANES)));
            for l in 0..depth {
                let row = data.add(l * b.row_stride);
                for (v, mask) in masks.into_iter().enumerate() {
                    let x = _mm512_maskz_loadu_ps(mask, row.wrapping_add(v * LANES));
                    _mm512_store_ps(panel.add(l * WIDTH + v * LANES), x);
                }
            }
            return;
        }
        for v in 0..width.div_ceil(LANES) {
            let count = LANES.min(width - v * LANES);
            for l in (0..depth).step_by(EIGHT) {
                let steps = EIGHT.min(depth - l);
                let at = data.add(v * LANES * b.column_stride + l);
                let turned = match count == LANES && steps == EIGHT {
                    true => turn(at, b.column_stride),
                    false => turn_ragged(at, b.column_stride, count, steps),
                };
                let to = panel.add(l * WIDTH + v * LANES);
                for (i, vector) in turned.into_iter().enumerate() {
                    if i < steps {
                        _mm512_store_ps(to.add(i * WIDTH), vector);
                    }
                }
            }
        }
    }
}

/// Computes `tile` for a `b` whose columns are contiguous and begin `b_step` apart; the depth is a multiple of eight.
/// `b` is transposed in registers, which pays while few rows share the work.
///
/// # Safety
///
/// As for `tile`, with `b` readable at V * 16 columns of `depth` steps, a multiple of eight.
#[target_feature(enable = "avx512f")]
unsafe fn turning_tile<const R: usize, const V: usize>(tile: &Tile) {
    let &Tile { depth, mut a, a_row, a_step, b, b_step, out, out_stride, .. } = tile;
    let mut sums = [[_mm512_setzero_ps(); V]; R];
    // SAFETY: by the caller's promise, for every address.
    unsafe {
        if !tile.start.is_null() {
            for (i, sums) in sums.iter_mut().enumerate() {
                let row = tile.start.add(i * tile.start_stride);
                for (v, sum) in sums.iter_mut().enumerate() {
                    *sum = _mm512_loadu_ps(row.add(v * LANES));
                }
            }
        }
        for l in (0..depth).step_by(EIGHT) {
            for v in 0..V {
                let steps = turn(b.add(v * LANES * b_step + l), b_step);
                for (i, b) in steps.into_iter().enumerate() {
                    for (j, sums) in sums.iter_mut().enumerate() {
                        let a = _mm512_set1_ps(*a.add(j * a_row + i * a_step));
                        sums[v] = _mm512_fmadd_ps(a, b, sums[v]);
                    }
                }
            }
            a = a.wrapping_add(EIGHT * a_step);
        }
        for (i, sums) in sums.iter().enumerate() {
            for (v, sum) in sums.iter().enumerate() {
                _mm512_storeu_ps(out.add(i * out_stride + v * LANES), *sum);
            }
        }
    }
}
