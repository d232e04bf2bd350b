//! Vectors as matrices read them.

use std::mem;

use sconce_tensor::simd::{LANES, dispatch};

use super::int8::Codes;
use super::{AHEAD, Encoding, Sums, VECTORS};

/// What a vector has at one place.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Entry {
    pub row: u32,
    pub value: f32,
}

/// Vectors of one width, and room for what a panel makes of them.
#[derive(Default)]
pub struct Input {
    pub(super) vectors: Vectors,
    pub(super) sums: Vec<Sums>,
}

/// Vectors in the forms in which matrices read them, each made when it is first wanted.
#[derive(Default)]
pub(super) struct Vectors {
    numbers: Vec<f32>,
    rows: usize,
    width: usize,
    sparse: Sparse,
    columns: Columns,
    codes: Codes,
    has_places: bool,
    has_codes: bool,
}

/// Of one vector alone the numbers that are not 0 and their places.
#[derive(Default)]
struct Sparse {
    /// Followed by [`AHEAD`] that only say what may be fetched.
    entries: Vec<Entry>,
    count: usize,
}

/// Of several vectors the places where not all of them have 0.
#[derive(Default)]
struct Columns {
    places: Vec<u32>,
    count: usize,
    /// Bits of the numbers at each place.
    seen: Vec<u32>,
}

impl Input {
    /// Room for so many vectors of up to `widest` numbers.
    pub fn new(widest: usize, rows: usize) -> Self {
        let sums = vec![[[0.0; LANES]; VECTORS]; rows];
        Input { vectors: Vectors::new(widest, rows), sums }
    }

    /// Takes the place of what was read before; vectors are of one width.
    pub fn read<'a>(&mut self, rows: impl IntoIterator<Item = &'a [f32]>) {
        self.vectors.read(rows);
    }
}

impl Vectors {
    fn new(widest: usize, rows: usize) -> Self {
        let sparse = Sparse { entries: vec![Entry::default(); widest + AHEAD], count: 0 };
        let (numbers, codes) = (vec![0.0; widest * rows], Codes::new(widest, rows));
        let columns = Columns { places: vec![0; widest], seen: vec![0; widest], count: 0 };
        Vectors { numbers, sparse, columns, codes, ..Vectors::default() }
    }

    fn read<'a>(&mut self, rows: impl IntoIterator<Item = &'a [f32]>) {
        (self.rows, self.has_places, self.has_codes) = (0, false, false);
        for row in rows {
            self.width = row.len();
            self.numbers[self.rows * self.width..][..self.width].copy_from_slice(row);
            self.rows += 1;
        }
    }

    /// Makes the form that a matrix of this encoding reads.
    pub(super) fn prepare(&mut self, encoding: Encoding) {
        let numbers = &self.numbers[..self.rows * self.width];
        if encoding == Encoding::Int8 {
            if !mem::replace(&mut self.has_codes, true) {
                self.codes.read(numbers, self.width);
            }
        } else if !mem::replace(&mut self.has_places, true) {
            match self.rows {
                1 => self.sparse.read(numbers),
                _ => self.columns.read(numbers, self.width),
            }
        }
    }

    pub(super) fn width(&self) -> usize {
        self.width
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// The vector, if it is one: its entries and [`AHEAD`] more.
    pub(super) fn sparse(&self) -> Option<&[Entry]> {
        (self.rows == 1).then(|| &self.sparse.entries[..self.sparse.count + AHEAD])
    }

    /// Of several vectors the places where not all of them have 0, if these are so few that reading the others takes
    /// longer than stepping over them.
    pub(super) fn columns(&self) -> Option<&[u32]> {
        let few = self.columns.count < self.width - self.width / 8;
        few.then(|| &self.columns.places[..self.columns.count])
    }

    pub(super) fn codes(&self) -> &Codes {
        &self.codes
    }

    /// A vector of several.
    pub(super) fn row(&self, row: usize) -> &[f32] {
        &self.numbers[row * self.width..][..self.width]
    }
}

impl Sparse {
    fn read(&mut self, x: &[f32]) {
        self.count = 0;
        for (row, &value) in x.iter().enumerate() {
            self.entries[self.count] = Entry { row: row as u32, value };
            self.count += usize::from(value != 0.0);
        }
        // Behind the last row of a panel begins the next.
        for i in 0..AHEAD {
            self.entries[self.count + i] = Entry { row: (x.len() + i) as u32, value: 0.0 };
        }
    }
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
    /// Adds the bits of numbers, but for their signs, to those that were seen.
    fn mark(seen: &mut [u32], x: &[f32]) {
        for (seen, x) in seen.iter_mut().zip(x) {
            *seen |= x.to_bits() << 1;
        }
    }
}
