//! Products in tiles of eight rows by three vectors of 16 columns. The file is long because each shape of tiles has its
//! own instructions.
//!
//! A tile keeps its 24 sums in registers and walks the depth `k` one step at a time: it loads three vectors of `b`,
//! broadcasts eight values of `a`, and multiplies each value with the three vectors. `b` is read from panels of 48
//! columns, in which step `l + 1` follows step `l`; `a` is read in place, element (i, l) at
//! `row_stride * i + column_stride * l`. Where steps lie far apart, the first tile that reads them also packs them for
//! the tiles after it, while its multiply-adds keep their units busy.
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
/// Steps between prefetching `b` and using it, about 400 cycles in the largest tile.
const AHEAD: usize = 16;
/// Replaces `AHEAD` for steps that lie far apart. They are prefetched into the second-level cache: in the first level
/// steps whole pages apart would evict each other.
const FAR_AHEAD: usize = 24;
/// The fewest steps between two prefetches of rows of `out`.
const BETWEEN: usize = 16;
/// Rows of a transposed `a` packed at a time. A block of 128 KiB stays in the second-level cache beside a panel.
const BLOCK: usize = 64;
/// The most rows of `a` for which a `b` stored by rows is read in place.
const FEW: usize = 2 * ROWS;
/// The largest distance of steps that are read in place whatever the number of products: so few pages and cache sets are
/// involved that packing costs more than it gains.
const NARROW: usize = 128;

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
        block: Box::new_uninit_slice(BLOCK * DEPTH / LANES),
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
                    unsafe { product.panel(0..a.rows, steps, column, Left::View) };
                }
            }
        } else {
            debug_assert_eq!(a.row_stride, 1, "a transposed `a`");
            for steps in pieces(a.columns, DEPTH, ROWS) {
                for rows in pieces(a.rows, BLOCK, ROWS) {
                    for column in columns() {
                        let left = match column {
                            0 => Left::Packing(block.as_mut_ptr().cast()),
                            _ => Left::Block(block.as_ptr().cast()),
                        };
                        // SAFETY: the ranges are within the operands. `a` is transposed, the pieces fit the block, and
                        // the first panel packs them.
                        unsafe { product.panel(rows.clone(), steps.clone(), column, left) };
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

/// Where the tiles of a panel read `a`.
#[derive(Clone, Copy)]
enum Left {
    /// In place.
    View,
    /// In place, and they pack what they read into this block.
    Packing(*mut f32),
    /// In the packed block.
    Block(*const f32),
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
    /// sums.
    ///
    /// # Safety
    ///
    /// As for `matmul`. The ranges are within the operands and not empty, and `steps` has at most `DEPTH` steps unless
    /// `b` is packed. A block has memory for these rows, rounded up to whole tiles, and steps. A `Left::Block` holds
    /// them; for `Left::Packing` the rows of `a` are adjacent.
    unsafe fn panel(&mut self, rows: Range<usize>, steps: Range<usize>, column: usize, left: Left) {
        let Product { out, out_stride, a, b, start, .. } = *self;
        let width = WIDTH.min(b.columns() - column);
        let vectors = width.div_ceil(LANES);
        let depth = steps.len();
        let whole = width == vectors * LANES;
        let mut packs_right = false;
        // SAFETY: `steps.start` and `column` are within `b`. If `b` is read in place, `width` fills its vectors, or the
        // kernel masks the last one, so that they end inside the view.
        let (in_place, b_step, turns) = unsafe {
            match b {
                Right::Panels(b) => {
                    let line = VECTORS * (column / WIDTH * b.depth + steps.start);
                    (Some(b.lines.as_ptr().add(line).cast::<f32>()), WIDTH, false)
                }
                Right::View(b) if b.column_stride == 1 => {
                    let few = rows.len() <= FEW || b.row_stride <= NARROW;
                    packs_right = !(whole && few);
                    let at = steps.start * b.row_stride + column;
                    (Some(b.data.as_ptr().add(at)), b.row_stride, false)
                }
                Right::View(b)
                    if b.row_stride == 1
                        && whole
                        && rows.len() <= TURNING_TILES.len()
                        && depth.is_multiple_of(EIGHT)
                        // These kernels pack no block.
                        && !matches!(left, Left::Packing(_)) =>
                {
                    let at = steps.start + column * b.column_stride;
                    (Some(b.data.as_ptr().add(at)), b.column_stride, true)
                }
                Right::View(b) => {
                    pack_panel(self.panel, b, steps.clone(), column);
                    (None, WIDTH, false)
                }
            }
        };
        let panel = self.panel.as_mut_ptr().cast::<f32>();
        let b = in_place.unwrap_or(panel.cast_const());
        for row in rows.clone().step_by(ROWS) {
            let count = ROWS.min(rows.end - row);
            let is_first = row == rows.start;
            // SAFETY: `row` and `steps.start` are within `a`, or within the block that holds them. The tile reads element
            // (i, l) of `a` at `row_stride * i + column_stride * l`, which is within the view for `count` rows and `depth`
            // steps. Its rows and columns are within `out`. The first tile packs all steps of the panel.
            unsafe {
                let in_block = (row - rows.start) * depth;
                let (a, a_row, a_step) = match left {
                    Left::Block(block) => (block.add(in_block), 1, ROWS),
                    Left::View | Left::Packing(_) => {
                        let at = row * a.row_stride + steps.start * a.column_stride;
                        (a.data.as_ptr().add(at), a.row_stride, a.column_stride)
                    }
                };
                let (packs_left, block) = match left {
                    Left::Packing(block) => (true, block.add(in_block)),
                    Left::View | Left::Block(_) => (false, std::ptr::null_mut()),
                };
                let (b, b_step) = match packs_right && !is_first {
                    true => (panel.cast_const(), WIDTH),
                    false => (b, b_step),
                };
                let kernels = match (packs_left, packs_right && is_first) {
                    _ if turns => &TURNING_TILES[..],
                    (false, false) => &TILES[..],
                    (true, false) => &TILES_PACKING_A[..],
                    (false, true) => &TILES_PACKING_B[..],
                    (true, true) => &TILES_PACKING_BOTH[..],
                };
                let out = out.add(row * out_stride + column);
                let (start, start_stride) = match start {
                    _ if steps.start > 0 => (out.cast_const(), out_stride),
                    Start::Zero => (std::ptr::null(), 0),
                    Start::Out => (out.cast_const(), out_stride),
                    Start::Row(numbers) => (numbers.as_ptr().add(column), 0),
                };
                let ahead = match start_stride {
                    0 => out,
                    _ if row + ROWS < rows.end => out.wrapping_add(ROWS * out_stride),
                    _ => self.out.wrapping_add(rows.start * out_stride + column + WIDTH),
                };
                kernels[count - 1][vectors - 1](&Tile {
                    depth,
                    a,
                    a_row,
                    a_step,
                    block,
                    b,
                    b_step,
                    panel,
                    out,
                    out_stride,
                    ahead,
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
    /// Where a kernel packs `a`, `ROWS` values for each step.
    block: *mut f32,
    b: *const f32,
    b_step: usize,
    /// Where a kernel packs `b`, `WIDTH` values for each step.
    panel: *mut f32,
    out: *mut f32,
    out_stride: usize,
    /// Rows of `out` to prefetch, because this tile will write them or because the next one reads them.
    ahead: *const f32,
    /// The initial sums, rows `start_stride` apart; null for 0.
    start: *const f32,
    start_stride: usize,
    /// Lanes of the last vector of each row that are columns of `out`.
    last: __mmask16,
}

type Kernel = unsafe fn(&Tile);

const TILES: Kernels = kernels::<false, false>();
const TILES_PACKING_A: Kernels = kernels::<true, false>();
const TILES_PACKING_B: Kernels = kernels::<false, true>();
const TILES_PACKING_BOTH: Kernels = kernels::<true, true>();

/// Kernels by rows and vectors.
type Kernels = [[Kernel; VECTORS]; ROWS];

const fn kernels<const A: bool, const B: bool>() -> Kernels {
    [
        [tile::<1, 1, A, B>, tile::<1, 2, A, B>, tile::<1, 3, A, B>],
        [tile::<2, 1, A, B>, tile::<2, 2, A, B>, tile::<2, 3, A, B>],
        [tile::<3, 1, A, B>, tile::<3, 2, A, B>, tile::<3, 3, A, B>],
        [tile::<4, 1, A, B>, tile::<4, 2, A, B>, tile::<4, 3, A, B>],
        [tile::<5, 1, A, B>, tile::<5, 2, A, B>, tile::<5, 3, A, B>],
        [tile::<6, 1, A, B>, tile::<6, 2, A, B>, tile::<6, 3, A, B>],
        [tile::<7, 1, A, B>, tile::<7, 2, A, B>, tile::<7, 3, A, B>],
        [tile::<8, 1, A, B>, tile::<8, 2, A, B>, tile::<8, 3, A, B>],
    ]
}

/// Kernels that transpose `b` themselves, for so few rows that a separate transposition would be most of the work.
const TURNING_TILES: [[Kernel; VECTORS]; 4] = [
    [turning_tile::<1, 1>, turning_tile::<1, 2>, turning_tile::<1, 3>],
    [turning_tile::<2, 1>, turning_tile::<2, 2>, turning_tile::<2, 3>],
    [turning_tile::<3, 1>, turning_tile::<3, 2>, turning_tile::<3, 3>],
    [turning_tile::<4, 1>, turning_tile::<4, 2>, turning_tile::<4, 3>],
];

/// Computes a tile of R rows and V vectors. With `A` it also packs what it reads of `a` into `block`, with `B` what it
/// reads of `b` into `panel`.
///
/// # Safety
///
/// The CPU has AVX-512 F and VL. `a` is readable at R rows of `depth` steps, with `A` at adjacent rows. `b` is readable at
/// `depth` steps of V vectors, with `B` the last one under the mask `last`. With `A` `block` is writable at `depth` steps,
/// with `B` `panel` is; `block` begins at a multiple of 32 bytes and `panel` at the start of a line. `out` is writable at R rows of V vectors, the last one
/// under the mask `last`; `start`, if it is not null, is readable at the same positions.
#[target_feature(enable = "avx512f,avx512vl")]
unsafe fn tile<const R: usize, const V: usize, const A: bool, const B: bool>(tile: &Tile) {
    let &Tile { depth, mut a, a_row, a_step, mut b, b_step, out, out_stride, last, .. } = tile;
    let Tile { mut block, mut panel, mut ahead, .. } = *tile;
    let mask = |v: usize| if v + 1 == V { last } else { !0 };
    let rows: [usize; R] = std::array::from_fn(|i| if A { i } else { opaque(i * a_row) });
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
        // Between two prefetches of rows of `out`.
        let between = depth.div_ceil(R).max(BETWEEN);
        let mut left = depth;
        while left > 0 {
            for v in 0..V {
                _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(v * LANES).cast());
            }
            ahead = ahead.wrapping_add(out_stride);
            let steps = left.min(between);
            left -= steps;
            for _ in 0..steps {
                let b_row: [_; V] = std::array::from_fn(|v| {
                    let from = b.wrapping_add(v * LANES);
                    if B {
                        let far = from.wrapping_add(FAR_AHEAD * b_step);
                        _mm_prefetch::<_MM_HINT_T1>(far.cast());
                        let x = _mm512_maskz_loadu_ps(mask(v), from);
                        _mm512_store_ps(panel.add(v * LANES), x);
                        return x;
                    }
                    _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(AHEAD * b_step).cast());
                    _mm512_loadu_ps(from)
                });
                if A {
                    _mm_prefetch::<_MM_HINT_T1>(a.wrapping_add(FAR_AHEAD * a_step).cast());
                    let eight = _mm256_maskz_loadu_ps(lanes(R) as __mmask8, a);
                    _mm256_store_ps(block, eight);
                    block = block.wrapping_add(ROWS);
                }
                for (sums, row) in sums.iter_mut().zip(rows) {
                    let a = _mm512_set1_ps(*a.add(row));
                    for (sum, b) in sums.iter_mut().zip(b_row) {
                        *sum = _mm512_fmadd_ps(a, b, *sum);
                    }
                }
                a = a.wrapping_add(a_step);
                b = b.wrapping_add(b_step);
                if B {
                    panel = panel.wrapping_add(WIDTH);
                }
            }
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
