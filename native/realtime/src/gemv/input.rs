//! Input vectors in the forms that matrix products take.

use std::mem;

use sconce_tensor::simd::{LANES, dispatch};

use super::int4::Blocks;
use super::int8::Codes;
use super::two_four::Groups;
use super::{AHEAD, Encoding, Sums, VECTORS};

/// A value of a vector and its index.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Entry {
    pub row: u32,
    pub value: f32,
}

/// The nonzero values of a single vector. Only [`Vectors::sparse`] makes one, and each row is less than the width.
#[derive(Clone, Copy)]
pub(super) struct Entries<'a> {
    entries: &'a [Entry],
    width: usize,
}

impl<'a> Entries<'a> {
    pub(super) fn own(self) -> &'a [Entry] {
        &self.entries[..self.entries.len() - AHEAD]
    }

    /// The entries, and [`AHEAD`] more that are only prefetched.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn with_ahead(self) -> &'a [Entry] {
        self.entries
    }

    /// Values of the vector.
    pub(super) fn width(self) -> usize {
        self.width
    }
}

/// Hears the place of a matrix among those of its plan, and a vector that it multiplies.
pub type Tap = Box<dyn FnMut(usize, &[f32]) + Send>;

/// Vectors of one width, and memory for a panel's sums.
#[derive(Default)]
pub struct Input {
    pub(super) vectors: Vectors,
    pub(super) sums: Vec<Sums>,
    pub(super) between: Between,
    pub(crate) tap: Option<Tap>,
}

/// The vectors between the two matrices of a product. The first product of a size allocates them.
#[derive(Default)]
pub(super) struct Between {
    numbers: Vec<f32>,
    vectors: Vectors,
    widest: usize,
    rows: usize,
}

impl Between {
    /// Memory for `rows` vectors of `width` values, and vectors that can read them.
    pub(super) fn fit(&mut self, width: usize, rows: usize) -> (&mut [f32], &mut Vectors) {
        if self.widest < width || self.rows < rows {
            let (widest, rows) = (width.max(self.widest), rows.max(self.rows));
            let (numbers, vectors) = (vec![0.0; widest * rows], Vectors::new(widest, rows));
            *self = Between { numbers, vectors, widest, rows };
        }
        (&mut self.numbers[..width * rows], &mut self.vectors)
    }
}

/// Vectors in the forms that matrix products take. Each form is computed on first use.
#[derive(Default)]
pub(super) struct Vectors {
    numbers: Vec<f32>,
    rows: usize,
    width: usize,
    sparse: Sparse,
    columns: Columns,
    codes: Codes,
    blocks: Blocks,
    groups: Groups,
    has_places: bool,
    has_codes: bool,
    has_blocks: bool,
    has_groups: bool,
}

/// The nonzero values of a single vector with their indices.
#[derive(Default)]
struct Sparse {
    /// The entries, followed by [`AHEAD`] entries that are only prefetched.
    entries: Vec<Entry>,
    count: usize,
}

/// The indices at which several vectors are not all 0.
#[derive(Default)]
struct Columns {
    places: Vec<u32>,
    count: usize,
    /// For each index, the bitwise or of all vectors' values.
    seen: Vec<u32>,
}

impl Input {
    /// Memory for `rows` vectors of up to `widest` values.
    pub fn new(widest: usize, rows: usize) -> Self {
        let sums = vec![[[0.0; LANES]; VECTORS]; rows];
        let (vectors, between) = (Vectors::new(widest, rows), Between::default());
        Input { vectors, sums, between, tap: None }
    }

    /// Replaces the vectors. All new vectors have the same width.
    pub fn read<'a>(&mut self, rows: impl IntoIterator<Item = &'a [f32]>) {
        self.vectors.read(rows);
    }
}

impl Vectors {
    fn new(widest: usize, rows: usize) -> Self {
        let sparse = Sparse { entries: vec![Entry::default(); widest + AHEAD], count: 0 };
        let (numbers, codes) = (vec![0.0; widest * rows], Codes::new(widest, rows));
        let (blocks, groups) = (Blocks::new(widest, rows), Groups::new(widest, rows));
        let columns = Columns { places: vec![0; widest], seen: vec![0; widest], count: 0 };
        Vectors { numbers, sparse, columns, codes, blocks, groups, ..Vectors::default() }
    }

    pub(super) fn read<'a>(&mut self, rows: impl IntoIterator<Item = &'a [f32]>) {
        (self.has_places, self.has_codes) = (false, false);
        (self.has_blocks, self.has_groups) = (false, false);
        self.rows = 0;
        for row in rows {
            self.width = row.len();
            self.numbers[self.rows * self.width..][..self.width].copy_from_slice(row);
            self.rows += 1;
        }
    }

    /// Computes the form that a matrix in this encoding takes.
    pub(super) fn prepare(&mut self, encoding: Encoding) {
        let numbers = &self.numbers[..self.rows * self.width];
        match encoding {
            Encoding::Int8 => {
                if !mem::replace(&mut self.has_codes, true) {
                    self.codes.read(numbers, self.width);
                }
            }
            Encoding::Int4(_) => {
                if !mem::replace(&mut self.has_blocks, true) {
                    self.blocks.read(numbers, self.width);
                }
            }
            Encoding::TwoFour => {
                if !mem::replace(&mut self.has_groups, true) {
                    self.groups.read(numbers, self.width);
                }
            }
            Encoding::F32 | Encoding::Bf16 => {
                if !mem::replace(&mut self.has_places, true) {
                    match self.rows {
                        1 => self.sparse.read(numbers),
                        _ => self.columns.read(numbers, self.width),
                    }
                }
            }
        }
    }

    pub(super) fn width(&self) -> usize {
        self.width
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// The entries of a single vector; `None` for several vectors.
    pub(super) fn sparse(&self) -> Option<Entries<'_>> {
        let entries = || &self.sparse.entries[..self.sparse.count + AHEAD];
        (self.rows == 1 && self.has_places)
            .then(|| Entries { entries: entries(), width: self.width })
    }

    /// The indices at which several vectors are not all 0. `None` if more than 7/8 of all indices qualify: reading all
    /// weights is then faster than skipping some.
    pub(super) fn columns(&self) -> Option<&[u32]> {
        let few = self.columns.count < self.width - self.width / 8;
        few.then(|| &self.columns.places[..self.columns.count])
    }

    pub(super) fn codes(&self) -> &Codes {
        &self.codes
    }

    pub(super) fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    pub(super) fn groups(&self) -> &Groups {
        &self.groups
    }

    /// Returns one of the vectors.
    pub(super) fn row(&self, row: usize) -> &[f32] {
        &self.numbers[row * self.width..][..self.width]
    }
}

impl Sparse {
    fn read(&mut self, x: &[f32]) {
        self.count = 0;
        collect(&mut self.entries, &mut self.count, x);
        // The next panel begins after the last row.
        for i in 0..AHEAD {
            self.entries[self.count + i] = Entry { row: (x.len() + i) as u32, value: 0.0 };
        }
    }
}

dispatch! {
    /// Writes the entries of the nonzero values, and counts them. Vectors without a 0 need no branch for each value.
    fn collect(entries: &mut [Entry], count: &mut usize, x: &[f32]) {
        let (whole, rest) = x.as_chunks::<LANES>();
        let mut n = 0;
        for (i, x) in whole.iter().enumerate() {
            let first = (i * LANES) as u32;
            let own = &mut entries[n..n + LANES];
            if x.iter().fold(true, |all, x| all & (*x != 0.0)) {
                for (j, (entry, x)) in own.iter_mut().zip(x).enumerate() {
                    *entry = Entry { row: first + j as u32, value: *x };
                }
                n += LANES;
            } else {
                n += append(own, first, x);
            }
        }
        n += append(&mut entries[n..], (whole.len() * LANES) as u32, rest);
        *count = n;
    }
}

/// Writes the entries of the nonzero values of the rows from `first` on, and returns their count.
#[inline(always)]
fn append(entries: &mut [Entry], first: u32, x: &[f32]) -> usize {
    let mut count = 0;
    for (row, &value) in (first..).zip(x) {
        entries[count] = Entry { row, value };
        count += usize::from(value != 0.0);
    }
    count
}

impl Columns {
    fn read(&mut self, numbers: &[f32], width: usize) {
        let seen = &mut self.seen[..width];
        seen.fill(0);
        numbers.chunks_exact(width.max(1)).for_each(|x| mark(seen, x));
        self.count = 0;
        for (place, seen) in seen.iter().enumerate() {
            self.places[self.count] = place as u32;
            self.count += usize::from(*seen != 0);
        }
    }
}

dispatch! {
    /// Ors the bits of values, without their signs, into `seen`.
    fn mark(seen: &mut [u32], x: &[f32]) {
        for (seen, x) in seen.iter_mut().zip(x) {
            *seen |= x.to_bits() << 1;
        }
    }
}
