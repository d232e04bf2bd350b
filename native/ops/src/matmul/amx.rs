//! Products on the matrix unit (AMX) of CPUs that have one, with the accuracy of f32.
//!
//! The unit multiplies bf16 and adds in f32. A value is split into three parts of eight bits each, `x = hi + mid + lo`.
//! Of the nine products of the parts of two values, the six that reach the last bit of f32 are added (Henry, Tang &
//! Heinecke 2019, "Leveraging the bfloat16 artificial intelligence datatype for higher-precision computations"). That
//! is six operations instead of one, on a unit that is sixteen times as fast as the vector units. The file is long
//! because each shape of tiles has its own instructions.
//!
//! A tile holds 16 rows by 32 steps of the depth. A tile of `a` has a line of 64 bytes for each row, a tile of `b` one
//! for each pair of steps. Any pairing of steps works if both operands agree: here step `l` is paired with `l + 16`, so
//! that no value moves within a vector.
//!
//! Every element is the same chain of sums in every tile, so a row is bit-identical whatever the other rows hold.
//! Results differ from those of `avx512` by rounding errors of f32: the parts are truncated and not rounded, so the
//! omitted products are up to 2^-22 of the product, towards 0. A part below the smallest normal bf16 (1e-38) counts as
//! 0, so values below 1e-33 lose their last bits; an infinite operand gives NaN.
//!
//! In bf16, each value is rounded to a single part, and there is one product.

use std::arch::asm;
use std::arch::x86_64::*;
use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::copy_nonoverlapping;
use std::sync::OnceLock;

use super::avx512::pieces;
use super::turn::{lanes, turn, turn_ragged};
use super::{Start, View};
use crate::pool;
use crate::simd::{Level, is_limited, level};

/// Rows of a tile, and values in a vector.
const TILE: usize = 16;
/// Steps of the depth in a tile.
const STEPS: usize = 2 * TILE;
/// Parts of an f32 value.
const PARTS: usize = 3;
/// Lines of the tiles of all parts; in bf16 a value has one part, and its tile has `TILE` lines.
const LINES: usize = PARTS * TILE;
/// Bytes of a line of a tile.
const LINE: usize = 64;
/// Rows and columns of a block: two tiles by two.
const BLOCK: usize = 2 * TILE;
/// Columns of a strip: one tile of rows by four tiles of columns.
const STRIP: usize = 4 * TILE;
/// Rows of `a`, and steps of the depth, that are split at a time: 384 KiB of parts. A block of `out` is loaded and
/// stored once every `DEPTH` steps; its rows are far apart in memory, so this costs more than parts that exceed the
/// first-level cache.
const ROWS: usize = 128;
const DEPTH: usize = 512;
/// Tiles of columns that are split by one thread.
const COLUMN_TILES: usize = 4;
/// Tile products added to one sum between two stores. After the unit has stored nothing for about 700 ns, the next
/// store takes 250 ns (measured); an extra store, whose result is not read, takes 5 ns.
const AWAKE: usize = 24;

/// The number of tiles of `lines` lines that are multiplied between two stores.
const fn awake(lines: usize) -> usize {
    if lines == TILE { AWAKE } else { AWAKE / 6 }
}

/// A line of a tile: 32 bf16 values.
#[repr(C, align(64))]
struct Line([u16; STEPS]);

/// Only lines that were written are read.
type Lines = Box<[MaybeUninit<Line>]>;

/// Whether this CPU has the unit and the system lets this process use it.
pub(super) fn available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    let wanted = || level() == Level::Avx512 && !is_limited();
    *AVAILABLE.get_or_init(|| wanted() && has_unit() && permitted())
}

fn has_unit() -> bool {
    const BF16_AND_TILES: u32 = 1 << 22 | 1 << 24;
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & BF16_AND_TILES == BF16_AND_TILES
}

/// Requests the use of tiles: Linux saves their 8 KiB only for processes that request it.
fn permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const TILE_DATA: libc::c_long = 18;
    // SAFETY: the call changes only the permissions of this process.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 }
}

/// A right operand split into parts: the parts of columns `16 c..` and steps `32 s..` begin at line
/// `lines * (c * steps + s)`, where a tile with all its parts has `lines` lines. Tiles are padded with zeros past the
/// last columns and steps.
#[derive(Default)]
pub(super) struct Tiles {
    lines: Lines,
    depth: usize,
    columns: usize,
    /// Whether values are rounded to one part.
    rounded: bool,
}

impl Tiles {
    /// Splits `b` into three parts, for products with the accuracy of f32.
    ///
    /// # Safety
    ///
    /// The unit is available.
    pub(super) unsafe fn pack(&mut self, b: View<'_>) {
        // SAFETY: by the caller's promise.
        unsafe { self.pack_tiles::<LINES>(b) };
    }

    /// Rounds `b` to bf16, for products of bf16.
    ///
    /// # Safety
    ///
    /// The unit is available.
    pub(super) unsafe fn pack_rounded(&mut self, b: View<'_>) {
        // SAFETY: by the caller's promise.
        unsafe { self.pack_tiles::<TILE>(b) };
    }

    /// # Safety
    ///
    /// The unit is available.
    unsafe fn pack_tiles<const LINES: usize>(&mut self, b: View<'_>) {
        let of_columns = b.rows.div_ceil(STEPS) * LINES;
        let length = b.columns.div_ceil(TILE) * of_columns;
        if self.lines.len() != length {
            self.lines = crate::memory::uninit(length);
        }
        (self.depth, self.columns, self.rounded) = (b.rows, b.columns, LINES == TILE);
        let of_columns = of_columns.max(1);
        pool::for_each_rows(&mut self.lines, of_columns, COLUMN_TILES, |first, lines| {
            for (c, lines) in lines.chunks_exact_mut(of_columns).enumerate() {
                for (s, lines) in lines.as_chunks_mut::<LINES>().0.iter_mut().enumerate() {
                    // SAFETY: `b` has the column `TILE * (first + c)` and the step `STEPS * s`.
                    unsafe { cut_columns(lines, b, TILE * (first + c), STEPS * s) };
                }
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

/// A thread's buffers: the split rows of `a`, and an incomplete block of `out`.
struct Scratch {
    rows: Lines,
    block: Box<Block>,
}

#[repr(C, align(64))]
struct Block([f32; BLOCK * BLOCK]);

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch {
        rows: Box::new_uninit_slice(ROWS / TILE * (DEPTH / STEPS) * LINES),
        block: Box::new(Block([0.0; BLOCK * BLOCK])),
    });
}

/// `out = start + a b`.
///
/// # Safety
///
/// The unit is available; otherwise as for `avx512::matmul`.
pub(super) unsafe fn matmul(
    out: &mut [MaybeUninit<f32>],
    out_stride: usize,
    a: View<'_>,
    b: &Tiles,
    start: Start<'_>,
) {
    // SAFETY: by the caller's promise; the tiles have `LINES` lines.
    unsafe {
        match b.rounded {
            true => matmul_tiles::<TILE>(out, out_stride, a, b, start),
            false => matmul_tiles::<LINES>(out, out_stride, a, b, start),
        }
    }
}

/// # Safety
///
/// As for `matmul`; the tiles of `b` have `LINES` lines.
unsafe fn matmul_tiles<const LINES: usize>(
    out: &mut [MaybeUninit<f32>],
    out_stride: usize,
    a: View<'_>,
    b: &Tiles,
    start: Start<'_>,
) {
    SCRATCH.with_borrow_mut(|Scratch { rows: cut, block }| {
        let out = out.as_mut_ptr().cast::<f32>();
        let mut product = Product::<LINES> { out, out_stride, b, start, cut, block };
        // SAFETY: the caller promises the unit. From here to `release` only the functions below use tiles.
        unsafe { configure() };
        for steps in pieces(a.columns, DEPTH, STEPS) {
            for rows in pieces(a.rows, ROWS, BLOCK) {
                // SAFETY: the ranges are within `a`, and fit the scratch.
                unsafe { cut_rows::<LINES>(product.cut, a, rows.clone(), steps.clone()) };
                let strip = if rows.len() == TILE { b.columns / STRIP * STRIP } else { 0 };
                for column in (0..strip).step_by(STRIP) {
                    // SAFETY: the columns are within `out`, and the rows have just been split.
                    unsafe { product.strip(rows.start, &steps, column) };
                }
                for column in (strip..b.columns).step_by(BLOCK) {
                    for within in (0..rows.len()).step_by(BLOCK) {
                        // SAFETY: the block begins within `out`, and its rows have just been split.
                        unsafe { product.block(rows.clone(), within, &steps, column) };
                    }
                }
            }
        }
        // SAFETY: as for `configure` above.
        unsafe { release() };
    });
}

struct Product<'a, const LINES: usize> {
    out: *mut f32,
    out_stride: usize,
    b: &'a Tiles,
    start: Start<'a>,
    cut: &'a mut Lines,
    block: &'a mut Block,
}

impl<const LINES: usize> Product<'_, LINES> {
    /// Adds the products of `steps` to one tile of rows by four tiles of columns: as many sums as in a block, for fewer
    /// rows.
    ///
    /// # Safety
    ///
    /// The unit is configured; the strip is within `out`, and the steps begin with a tile of `b`.
    unsafe fn strip(&mut self, row: usize, steps: &Range<usize>, column: usize) {
        let Product { out, out_stride, b, start, .. } = *self;
        let of_columns = b.depth.div_ceil(STEPS) * LINES;
        // SAFETY: by the caller's promise.
        unsafe {
            let first = (column / TILE) * of_columns + steps.start / STEPS * LINES;
            let b = b.lines.as_ptr().add(first);
            let out = out.add(row * out_stride + column);
            let (from, from_stride) = match start {
                _ if steps.start > 0 => (out.cast_const(), out_stride),
                Start::Zero => (std::ptr::null(), 0),
                Start::Out => (out.cast_const(), out_stride),
                Start::Row(numbers) => (numbers.as_ptr().add(column), 0),
            };
            begin(from, from_stride, 2 * TILE);
            multiply_strip::<LINES>(steps.len().div_ceil(STEPS), self.cut.as_ptr(), b, of_columns);
            store(out, out_stride, 2 * TILE);
        }
    }

    /// Adds the products of `steps` to the block of `out` that begins at row `within` of `rows`, which have been split,
    /// and at `column`.
    ///
    /// # Safety
    ///
    /// The unit is configured, the block begins within `out`, and the steps begin with a tile of `b`.
    unsafe fn block(
        &mut self,
        rows: Range<usize>,
        within: usize,
        steps: &Range<usize>,
        column: usize,
    ) {
        let Product { out, out_stride, b, start, .. } = *self;
        let count = steps.len().div_ceil(STEPS);
        let (height, width) = (BLOCK.min(rows.len() - within), BLOCK.min(b.columns - column));
        let of_columns = b.depth.div_ceil(STEPS) * LINES;
        // At an edge there is no second tile: the first tile is used twice, and the second result is not read.
        let two = |at: usize, length: usize| [at / TILE, at / TILE + usize::from(length > TILE)];
        let first_step = steps.start / STEPS * LINES;
        // SAFETY: by the caller's promise, and the tiles are within `cut` and `b`.
        unsafe {
            let line = |i: usize| self.cut.as_ptr().add(i * count * LINES);
            let a_tiles = two(within, height).map(line);
            let line = |c: usize| b.lines.as_ptr().add(c * of_columns + first_step);
            let b_tiles = two(column, width).map(line);
            let out = out.add((rows.start + within) * out_stride + column);
            let (from, from_stride) = match start {
                _ if steps.start > 0 => (out.cast_const(), out_stride),
                Start::Zero => (std::ptr::null(), 0),
                Start::Out => (out.cast_const(), out_stride),
                Start::Row(numbers) => (numbers.as_ptr().add(column), 0),
            };
            if height == BLOCK && width == BLOCK {
                begin(from, from_stride, TILE * from_stride);
                multiply::<LINES>(count, a_tiles, b_tiles);
                return store(out, out_stride, TILE * out_stride);
            }
            let block = self.block.0.as_mut_ptr();
            if !from.is_null() {
                for i in 0..height {
                    copy_nonoverlapping(from.add(i * from_stride), block.add(i * BLOCK), width);
                }
            }
            begin(if from.is_null() { from } else { block }, BLOCK, TILE * BLOCK);
            multiply::<LINES>(count, a_tiles, b_tiles);
            store(block, BLOCK, TILE * BLOCK);
            for i in 0..height {
                copy_nonoverlapping(block.add(i * BLOCK), out.add(i * out_stride), width);
            }
        }
    }
}

/// Flops in one round of [`spin`]: the f32 equivalent of four products of tiles.
pub(super) const SPIN_FLOPS: f64 = (4 * 2 * TILE * TILE * STEPS) as f64 / 6.0;

/// Keeps the unit fully busy, to measure its peak.
///
/// # Safety
///
/// The unit is available.
pub(super) unsafe fn spin(rounds: usize) {
    // SAFETY: by the caller's promise.
    unsafe {
        configure();
        for _ in 0..rounds {
            asm!(
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                options(nostack, nomem, preserves_flags)
            );
        }
        release();
    }
}

/// Gives the eight tile registers their shape, 16 lines of 64 bytes each. The compiler never touches these registers:
/// they carry values from one of the functions below to the next.
///
/// # Safety
///
/// The unit is available.
unsafe fn configure() {
    #[repr(C, align(64))]
    struct Config {
        palette: u8,
        start_row: u8,
        reserved: [u8; 14],
        line_bytes: [u16; 16],
        lines: [u8; 16],
    }
    const CONFIG: Config = {
        let mut config = Config {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            line_bytes: [0; 16],
            lines: [0; 16],
        };
        let mut i = 0;
        while i < 8 {
            config.line_bytes[i] = LINE as u16;
            config.lines[i] = TILE as u8;
            i += 1;
        }
        config
    };
    // SAFETY: by the caller's promise.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &CONFIG, options(nostack, readonly, preserves_flags)) };
}

/// # Safety
///
/// The unit is available.
unsafe fn release() {
    // SAFETY: by the caller's promise.
    unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
}

/// Loads the initial sums, or zeros if `from` is null: two tiles side by side, and two more `apart` values further;
/// rows are `stride` values apart.
///
/// # Safety
///
/// The unit is configured, and these tiles are readable at `from` if it is not null.
unsafe fn begin(from: *const f32, stride: usize, apart: usize) {
    // SAFETY: by the caller's promise.
    unsafe {
        if from.is_null() {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                options(nostack, nomem, preserves_flags)
            );
            return;
        }
        asm!(
            "tileloadd tmm0, [{first} + {stride}*1]",
            "tileloadd tmm1, [{first} + {stride}*1 + 64]",
            "tileloadd tmm2, [{second} + {stride}*1]",
            "tileloadd tmm3, [{second} + {stride}*1 + 64]",
            first = in(reg) from,
            second = in(reg) from.add(apart),
            stride = in(reg) stride * size_of::<f32>(),
            options(nostack, readonly, preserves_flags)
        );
    }
}

/// Multiplies two rows of `count` tiles by two columns of `count` tiles, and adds the products to the sums.
///
/// # Safety
///
/// The unit is configured, and there are `count` tiles, `LINES` apart, of the parts hi, mid and lo, or of the only
/// part.
unsafe fn multiply<const LINES: usize>(
    count: usize,
    a: [*const MaybeUninit<Line>; 2],
    b: [*const MaybeUninit<Line>; 2],
) {
    for tiles in pieces(count, awake(LINES), 1) {
        // SAFETY: by the caller's promise.
        unsafe {
            let from = |tile: *const MaybeUninit<Line>| tile.add(tiles.start * LINES);
            match LINES == TILE {
                true => multiply_some_rounded(tiles.len(), a.map(from), b.map(from)),
                false => multiply_some(tiles.len(), a.map(from), b.map(from)),
            }
            stay_awake();
        }
    }
}

/// Stores an operand tile to memory that is not read, so that later stores stay fast (see [`AWAKE`]).
///
/// # Safety
///
/// The unit is configured.
unsafe fn stay_awake() {
    let mut lines = MaybeUninit::<[Line; TILE]>::uninit();
    // SAFETY: `lines` has as many lines as the tile.
    unsafe {
        asm!(
            "tilestored [{to} + {line}*1], tmm7",
            to = in(reg) lines.as_mut_ptr(),
            line = in(reg) LINE,
            options(nostack, preserves_flags)
        );
    }
}

/// Computes [`multiply`] with the smallest products first, in an order in which only one operand changes from one
/// product to the next.
///
/// # Safety
///
/// As for [`multiply`].
unsafe fn multiply_some(
    count: usize,
    a: [*const MaybeUninit<Line>; 2],
    b: [*const MaybeUninit<Line>; 2],
) {
    // SAFETY: by the caller's promise.
    unsafe {
        asm!(
            "2:",
            // lo hi
            "tileloadd tmm4, [{a0} + {line}*1 + 2048]",
            "tileloadd tmm6, [{b0} + {line}*1]",
            "tileloadd tmm7, [{b1} + {line}*1]",
            "tileloadd tmm5, [{a1} + {line}*1 + 2048]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            // mid hi
            "tileloadd tmm4, [{a0} + {line}*1 + 1024]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{a1} + {line}*1 + 1024]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            // mid mid
            "tileloadd tmm6, [{b0} + {line}*1 + 1024]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tileloadd tmm7, [{b1} + {line}*1 + 1024]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm3, tmm5, tmm7",
            // hi mid
            "tileloadd tmm4, [{a0} + {line}*1]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{a1} + {line}*1]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            // hi lo
            "tileloadd tmm6, [{b0} + {line}*1 + 2048]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tileloadd tmm7, [{b1} + {line}*1 + 2048]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm3, tmm5, tmm7",
            // hi hi
            "tileloadd tmm6, [{b0} + {line}*1]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tileloadd tmm7, [{b1} + {line}*1]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {a0}, 3072",
            "add {a1}, 3072",
            "add {b0}, 3072",
            "add {b1}, 3072",
            "dec {count}",
            "jnz 2b",
            a0 = inout(reg) a[0] => _,
            a1 = inout(reg) a[1] => _,
            b0 = inout(reg) b[0] => _,
            b1 = inout(reg) b[1] => _,
            count = inout(reg) count => _,
            line = in(reg) LINE,
            options(nostack, readonly)
        );
    }
}

/// Computes [`multiply_some`] for tiles of one part each.
///
/// # Safety
///
/// As for [`multiply`].
unsafe fn multiply_some_rounded(
    count: usize,
    a: [*const MaybeUninit<Line>; 2],
    b: [*const MaybeUninit<Line>; 2],
) {
    // SAFETY: by the caller's promise.
    unsafe {
        asm!(
            "2:",
            "tileloadd tmm4, [{a0} + {line}*1]",
            "tileloadd tmm6, [{b0} + {line}*1]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{b1} + {line}*1]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{a1} + {line}*1]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {a0}, 1024",
            "add {a1}, 1024",
            "add {b0}, 1024",
            "add {b1}, 1024",
            "dec {count}",
            "jnz 2b",
            a0 = inout(reg) a[0] => _,
            a1 = inout(reg) a[1] => _,
            b0 = inout(reg) b[0] => _,
            b1 = inout(reg) b[1] => _,
            count = inout(reg) count => _,
            line = in(reg) LINE,
            options(nostack, readonly)
        );
    }
}

/// Multiplies one part of a row of tiles by one part of four columns of tiles; the arguments are the offsets of the
/// parts in a tile, in bytes.
macro_rules! strip_products {
    ($a:literal, $b:literal) => {
        concat!(
            "tileloadd tmm4, [{a} + {line}*1 + ",
            $a,
            "]\n",
            "tileloadd tmm5, [{b0} + {line}*1 + ",
            $b,
            "]\n",
            "tdpbf16ps tmm0, tmm4, tmm5\n",
            "tileloadd tmm6, [{b1} + {line}*1 + ",
            $b,
            "]\n",
            "tdpbf16ps tmm1, tmm4, tmm6\n",
            "tileloadd tmm7, [{b2} + {line}*1 + ",
            $b,
            "]\n",
            "tdpbf16ps tmm2, tmm4, tmm7\n",
            "tileloadd tmm5, [{b3} + {line}*1 + ",
            $b,
            "]\n",
            "tdpbf16ps tmm3, tmm4, tmm5",
        )
    };
}

/// Computes [`multiply`] for one row of tiles and four columns of tiles, which are `of_columns` lines apart.
///
/// # Safety
///
/// As for [`multiply`].
unsafe fn multiply_strip<const LINES: usize>(
    count: usize,
    a: *const MaybeUninit<Line>,
    b: *const MaybeUninit<Line>,
    of_columns: usize,
) {
    for tiles in pieces(count, awake(LINES), 1) {
        let from = tiles.start * LINES;
        // SAFETY: by the caller's promise.
        unsafe {
            let (a, b) = (a.add(from), b.add(from));
            match LINES == TILE {
                true => multiply_some_of_rounded_strip(tiles.len(), a, b, of_columns),
                false => multiply_some_of_strip(tiles.len(), a, b, of_columns),
            }
            stay_awake();
        }
    }
}

/// # Safety
///
/// As for [`multiply_strip`].
unsafe fn multiply_some_of_strip(
    count: usize,
    a: *const MaybeUninit<Line>,
    b: *const MaybeUninit<Line>,
    of_columns: usize,
) {
    // SAFETY: by the caller's promise.
    unsafe {
        asm!(
            "2:",
            // In the order of `multiply_some`: lo hi, mid hi, mid mid, hi mid, hi lo, hi hi.
            strip_products!(2048, 0),
            strip_products!(1024, 0),
            strip_products!(1024, 1024),
            strip_products!(0, 1024),
            strip_products!(0, 2048),
            strip_products!(0, 0),
            "add {a}, 3072",
            "add {b0}, 3072",
            "add {b1}, 3072",
            "add {b2}, 3072",
            "add {b3}, 3072",
            "dec {count}",
            "jnz 2b",
            a = inout(reg) a => _,
            b0 = inout(reg) b => _,
            b1 = inout(reg) b.add(of_columns) => _,
            b2 = inout(reg) b.add(2 * of_columns) => _,
            b3 = inout(reg) b.add(3 * of_columns) => _,
            count = inout(reg) count => _,
            line = in(reg) LINE,
            options(nostack, readonly)
        );
    }
}

/// Computes [`multiply_some_of_strip`] for tiles of one part each.
///
/// # Safety
///
/// As for [`multiply_strip`].
unsafe fn multiply_some_of_rounded_strip(
    count: usize,
    a: *const MaybeUninit<Line>,
    b: *const MaybeUninit<Line>,
    of_columns: usize,
) {
    // SAFETY: by the caller's promise.
    unsafe {
        asm!(
            "2:",
            strip_products!(0, 0),
            "add {a}, 1024",
            "add {b0}, 1024",
            "add {b1}, 1024",
            "add {b2}, 1024",
            "add {b3}, 1024",
            "dec {count}",
            "jnz 2b",
            a = inout(reg) a => _,
            b0 = inout(reg) b => _,
            b1 = inout(reg) b.add(of_columns) => _,
            b2 = inout(reg) b.add(2 * of_columns) => _,
            b3 = inout(reg) b.add(3 * of_columns) => _,
            count = inout(reg) count => _,
            line = in(reg) LINE,
            options(nostack, readonly)
        );
    }
}

/// Stores the sums in the layout of [`begin`].
///
/// # Safety
///
/// The unit is configured, and these tiles are writable at `to`.
unsafe fn store(to: *mut f32, stride: usize, apart: usize) {
    // SAFETY: by the caller's promise.
    unsafe {
        asm!(
            "tilestored [{first} + {stride}*1], tmm0",
            "tilestored [{first} + {stride}*1 + 64], tmm1",
            "tilestored [{second} + {stride}*1], tmm2",
            "tilestored [{second} + {stride}*1 + 64], tmm3",
            first = in(reg) to,
            second = in(reg) to.add(apart),
            stride = in(reg) stride * size_of::<f32>(),
            options(nostack, preserves_flags)
        );
    }
}

/// Rounds values to the nearest bf16, ties to even; each result is the upper half of its lane.
#[target_feature(enable = "avx512f")]
#[inline]
fn nearest(x: __m512) -> __m512 {
    let bits = _mm512_castps_si512(x);
    let last = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
    let half = _mm512_add_epi32(last, _mm512_set1_epi32(0x7FFF));
    let rounded = _mm512_castsi512_ps(_mm512_add_epi32(bits, half));
    // Rounding up a NaN could carry into its sign.
    let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
    _mm512_mask_mov_ps(rounded, nan, _mm512_set1_ps(f32::NAN))
}

/// Writes the parts of two vectors, which hold the first and the second values of the pairs, to line `i` of each tile;
/// a single tile gets the nearest bf16.
#[target_feature(enable = "avx512f")]
#[inline]
fn cut<const LINES: usize>(
    lines: &mut [MaybeUninit<Line>; LINES],
    i: usize,
    mut first: __m512,
    mut second: __m512,
) {
    let upper = _mm512_set1_epi32(0xFFFF_0000_u32 as i32);
    if LINES == TILE {
        (first, second) = (nearest(first), nearest(second));
    }
    for part in 0..LINES / TILE {
        let (x, y) = (_mm512_castps_si512(first), _mm512_castps_si512(second));
        // x >> 16 | y & upper
        let pairs = _mm512_ternarylogic_epi32::<0xF8>(_mm512_srli_epi32::<16>(x), y, upper);
        let line = lines[part * TILE + i].as_mut_ptr();
        // SAFETY: a line has as many bytes as a vector, and its alignment.
        unsafe { _mm512_store_si512(line.cast(), pairs) };
        let less = |x: __m512, bits: __m512i| {
            _mm512_sub_ps(x, _mm512_castsi512_ps(_mm512_and_si512(bits, upper)))
        };
        (first, second) = (less(first, x), less(second, y));
    }
}

/// Splits sixteen columns and 32 steps of `b`, fewer at the end of `b`.
///
/// # Safety
///
/// The unit is available; `column` and `step` are within `b`.
#[target_feature(enable = "avx512f,avx512vl")]
unsafe fn cut_columns<const LINES: usize>(
    lines: &mut [MaybeUninit<Line>; LINES],
    b: View<'_>,
    column: usize,
    step: usize,
) {
    let (columns, steps) = (TILE.min(b.columns - column), STEPS.min(b.rows - step));
    // SAFETY: masks and counts end every line of `b` where the view ends.
    unsafe {
        let data = b.data.as_ptr().add(step * b.row_stride + column * b.column_stride);
        if b.column_stride == 1 {
            let line = |l: usize| {
                let mask = if l < steps { lanes(columns) } else { 0 };
                _mm512_maskz_loadu_ps(mask, data.wrapping_add(l * b.row_stride))
            };
            (0..TILE).for_each(|l| cut(lines, l, line(l), line(l + TILE)));
        } else {
            let half = |from: usize| turned(data, b.column_stride, columns, from, steps);
            let (first, second) = (half(0), half(TILE));
            for (l, (first, second)) in first.into_iter().zip(second).enumerate() {
                cut(lines, l, first, second);
            }
        }
    }
}

/// Splits `rows` and `steps` of `a`; tiles of the same rows follow each other.
///
/// # Safety
///
/// The unit is available; the ranges are within `a` and fit the scratch.
#[target_feature(enable = "avx512f,avx512vl")]
unsafe fn cut_rows<const LINES: usize>(
    lines: &mut [MaybeUninit<Line>],
    a: View<'_>,
    rows: Range<usize>,
    steps: Range<usize>,
) {
    let (tiles, _) = lines.as_chunks_mut::<LINES>();
    let of_row = steps.len().div_ceil(STEPS);
    // Walks `a` in memory order, since consecutive lines may be in pages far apart.
    if a.column_stride == 1 {
        for (i, row) in rows.clone().step_by(TILE).enumerate() {
            let count = TILE.min(rows.end - row);
            for (j, step) in steps.clone().step_by(STEPS).enumerate() {
                let steps = STEPS.min(steps.end - step);
                let (first, second) = (lanes(steps), lanes(steps.saturating_sub(TILE)));
                let present = |i, mask| if i < count { mask } else { 0 };
                let lines = &mut tiles[i * of_row + j];
                // SAFETY: masks end every line of `a` where the view ends.
                unsafe {
                    let data = a.data.as_ptr().add(row * a.row_stride + step);
                    for i in 0..TILE {
                        let at = data.wrapping_add(i * a.row_stride);
                        let first = _mm512_maskz_loadu_ps(present(i, first), at);
                        let at = at.wrapping_add(TILE);
                        let second = _mm512_maskz_loadu_ps(present(i, second), at);
                        cut(lines, i, first, second);
                    }
                }
            }
        }
        return;
    }
    for (j, step) in steps.clone().step_by(STEPS).enumerate() {
        let steps = STEPS.min(steps.end - step);
        for (i, row) in rows.clone().step_by(TILE).enumerate() {
            let count = TILE.min(rows.end - row);
            let lines = &mut tiles[i * of_row + j];
            // SAFETY: counts end every line of `a` where the view ends.
            unsafe {
                let data = a.data.as_ptr().add(row * a.row_stride + step * a.column_stride);
                let half = |from: usize| {
                    let steps = TILE.min(steps.saturating_sub(from));
                    let data = data.wrapping_add(from * a.column_stride);
                    turned(data, a.column_stride, steps, 0, count)
                };
                let (first, second) = (half(0), half(TILE));
                for (i, (first, second)) in first.into_iter().zip(second).enumerate() {
                    cut(lines, i, first, second);
                }
            }
        }
    }
}

/// Transposes the values `from..from + 16` of up to sixteen lines that are `stride` apart: vector i has the value `from
/// + i` of each line. There are `count` lines of `length` values; missing values are 0.
///
/// # Safety
///
/// The CPU has AVX-512 F and VL, and these values are readable.
#[target_feature(enable = "avx512f,avx512vl")]
#[inline]
unsafe fn turned(
    data: *const f32,
    stride: usize,
    count: usize,
    from: usize,
    length: usize,
) -> [__m512; TILE] {
    let mut vectors = [_mm512_setzero_ps(); TILE];
    for (i, eight) in vectors.chunks_exact_mut(TILE / 2).enumerate() {
        let from = from + i * TILE / 2;
        let numbers = (TILE / 2).min(length.saturating_sub(from));
        // SAFETY: by the caller's promise.
        unsafe {
            match (count, numbers) {
                (0, _) | (_, 0) => {}
                (TILE, 8) => eight.copy_from_slice(&turn(data.add(from), stride)),
                _ => eight.copy_from_slice(&turn_ragged(data.add(from), stride, count, numbers)),
            }
        }
    }
    vectors
}
