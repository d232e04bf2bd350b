//! Vectors as matrices read them.

use std::ops::Range;

use super::{AHEAD, ROWS};

/// What a vector has at one place.
#[derive(Debug, Clone, Copy, Default)]
pub struct Entry {
    pub row: u32,
    pub value: f32,
}

/// Vectors of one width: of one alone the numbers that are not 0 and their places, of several all numbers.
#[derive(Default)]
pub struct Input {
    /// Followed by [`AHEAD`] that only say what may be fetched.
    entries: Vec<Entry>,
    count: usize,
    numbers: Vec<f32>,
    rows: usize,
    width: usize,
}

impl Input {
    /// Room for so many vectors of up to `widest` numbers.
    pub fn new(widest: usize, rows: usize) -> Self {
        let entries = vec![Entry::default(); widest + AHEAD];
        Input { entries, numbers: vec![0.0; widest * rows], ..Input::default() }
    }

    /// Takes the place of what was read before; vectors are of one width.
    pub fn read<'a>(&mut self, rows: impl IntoIterator<Item = &'a [f32]>) {
        let mut rows = rows.into_iter();
        let Some(first) = rows.next() else { return };
        (self.rows, self.width) = (1, first.len());
        let Some(second) = rows.next() else { return self.read_one(first) };
        self.write(0, first);
        for row in std::iter::once(second).chain(rows) {
            self.write(self.rows, row);
            self.rows += 1;
        }
    }

    fn write(&mut self, at: usize, row: &[f32]) {
        self.numbers[at * self.width..][..self.width].copy_from_slice(row);
    }

    fn read_one(&mut self, x: &[f32]) {
        self.count = 0;
        for (row, &value) in x.iter().enumerate() {
            self.entries[self.count] = Entry { row: row as u32, value };
            self.count += usize::from(value != 0.0);
        }
        // Behind the last row of a panel begins the next.
        for i in 0..AHEAD {
            self.entries[self.count + i] = Entry { row: (self.width + i) as u32, value: 0.0 };
        }
    }

    pub fn width(&self) -> usize {
        self.width
    }

    /// The vector, if it is one: its entries and [`AHEAD`] more.
    pub fn sparse(&self) -> Option<&[Entry]> {
        (self.rows == 1).then(|| &self.entries[..self.count + AHEAD])
    }

    /// A vector of several.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.numbers[row * self.width..][..self.width]
    }

    /// The vectors in parts of at most [`ROWS`], as even as can be.
    pub fn tiles(&self) -> impl Iterator<Item = Range<usize>> {
        let (rows, parts) = (self.rows, self.rows.div_ceil(ROWS));
        let each = rows.div_ceil(parts.max(1)).max(1);
        (0..rows).step_by(each).map(move |first| first..rows.min(first + each))
    }
}
