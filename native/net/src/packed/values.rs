//! Values between steps, and the windows that read them.

use std::ops::Range;

/// The size of a value in memory: rows of pixels, each with all its channels. A signal has one row, a vector one pixel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) rows: usize,
    pub(crate) width: usize,
    pub(crate) channels: usize,
}

impl Size {
    pub(crate) fn pixels(&self) -> usize {
        self.rows * self.width
    }

    pub(crate) fn numbers(&self) -> usize {
        self.pixels() * self.channels
    }
}

/// A value with zeros around it, which convolutions with padding read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Value {
    pub(crate) size: Size,
    /// Rows of zeros above and below, and pixels of zeros left and right.
    pub(crate) halo: [usize; 2],
    /// Where the value begins in the arena, zeros included.
    pub(crate) at: usize,
}

impl Value {
    pub(crate) fn new(size: Size) -> Self {
        Value { size, halo: [0, 0], at: 0 }
    }

    /// Numbers from one row to the next.
    pub(crate) fn pitch(&self) -> usize {
        (self.size.width + 2 * self.halo[1]) * self.size.channels
    }

    /// Numbers with the zeros.
    pub(crate) fn len(&self) -> usize {
        (self.size.rows + 2 * self.halo[0]) * self.pitch()
    }

    pub(crate) fn range(&self) -> Range<usize> {
        self.at..self.at + self.len()
    }

    /// The place of a pixel among the numbers of the value. Pixels of the halo have places before row 0 and left of it.
    pub(crate) fn place(&self, row: usize, x: usize) -> usize {
        (row + self.halo[0]) * self.pitch() + (x + self.halo[1]) * self.size.channels
    }

    /// The numbers of a row, without zeros.
    pub(crate) fn row(&self, row: usize) -> Range<usize> {
        let at = self.place(row, 0);
        at..at + self.size.width * self.size.channels
    }

    /// Writes the zeros around the value.
    pub(crate) fn clear_halo(&self, numbers: &mut [f32]) {
        if self.halo == [0, 0] {
            return;
        }
        let mut from = 0;
        for row in 0..self.size.rows {
            let row = self.row(row);
            numbers[from..row.start].fill(0.0);
            from = row.end;
        }
        numbers[from..].fill(0.0);
    }
}

/// The window of a convolution or of a pool: numbers for rows and for pixels.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    pub(crate) kernel: [usize; 2],
    pub(crate) stride: [usize; 2],
    pub(crate) padding: [usize; 2],
    pub(crate) dilation: [usize; 2],
}

impl Window {
    /// Numbers of a window.
    pub(crate) fn numbers(&self) -> u64 {
        (self.kernel[0] * self.kernel[1]) as u64
    }

    /// Neighbouring taps that lie side by side in a row.
    pub(crate) fn joined(&self) -> usize {
        if self.dilation[1] == 1 { self.kernel[1] } else { 1 }
    }

    /// The window of one pixel.
    pub(crate) const ONE: Window =
        Window { kernel: [1, 1], stride: [1, 1], padding: [0, 0], dilation: [1, 1] };
}
