//! A plane with its padding, whose columns are sorted so that every kernel position reads neighbours.

use std::ops::Range;

use super::Kernel;
use crate::Result;
use crate::simd::LANES;

/// The layout of a padded plane for the positions of a kernel.
///
/// Column `j` of a padded row is at `j % stride * width + j / stride`. Then a tap reads neighbouring values at
/// neighbouring positions, whatever the stride: it reads the row `i` of positions from [`at`](Self::at) on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Padded {
    kernel: Kernel,
    input: [usize; 2],
    pub(crate) output: [usize; 2],
    /// Columns of each phase of a row.
    width: usize,
}

impl Padded {
    pub(crate) fn new(kernel: Kernel, input: [usize; 2]) -> Result<Self> {
        let output = kernel.output(input)?;
        let width = (input[1] + 2 * kernel.padding[1]).div_ceil(kernel.stride[1]);
        // Fails if the padded plane overflows.
        let rows = input[0] + 2 * kernel.padding[0];
        super::shape(2, [1, kernel.stride[1]], [rows, width])?;
        Ok(Padded { kernel, input, output, width })
    }

    /// Values of a padded plane.
    pub(crate) fn len(&self) -> usize {
        (self.input[0] + 2 * self.kernel.padding[0]) * self.row()
    }

    /// Values of a padded row.
    fn row(&self) -> usize {
        self.kernel.stride[1] * self.width
    }

    /// The number of positions of the kernel.
    pub(crate) fn positions(&self) -> usize {
        self.output[0] * self.output[1]
    }

    /// Values of the plane without padding.
    pub(crate) fn input(&self) -> usize {
        self.input[0] * self.input[1]
    }

    /// The index at which a tap begins to read for the row `i` of positions.
    #[inline(always)]
    pub(crate) fn at(&self, tap: usize, i: usize) -> usize {
        let Kernel { size, stride, dilation, .. } = self.kernel;
        let (row, column) = (tap / size[1] * dilation[0], tap % size[1] * dilation[1]);
        (row + i * stride[0]) * self.row() + column % stride[1] * self.width + column / stride[1]
    }

    /// The distance of the values that a tap reads for two successive rows of positions.
    pub(crate) fn step(&self) -> usize {
        self.kernel.stride[0] * self.row()
    }

    /// The columns of an input row that belong to a phase, and the index of the first one in a padded row.
    fn phase(&self, phase: usize) -> (usize, usize) {
        let (stride, padding) = (self.kernel.stride[1], self.kernel.padding[1]);
        let first = (phase + stride - padding % stride) % stride;
        (first, phase * self.width + (first + padding) / stride)
    }

    /// Writes the values of a plane; the padding must be 0 already.
    pub(crate) fn fill(&self, padded: &mut [f32], x: &[f32]) {
        let ([_, w], stride, top) = (self.input, self.kernel.stride[1], self.kernel.padding[0]);
        if w == 0 {
            return;
        }
        let rows = padded.chunks_exact_mut(self.row().max(1)).skip(top);
        for (padded, x) in rows.zip(x.chunks_exact(w)) {
            if stride == 1 {
                padded[self.kernel.padding[1]..][..w].copy_from_slice(x);
                continue;
            }
            for (first, at) in (0..stride).map(|phase| self.phase(phase)) {
                let values = x.get(first..).unwrap_or_default().iter().step_by(stride);
                padded[at..].iter_mut().zip(values).for_each(|(padded, x)| *padded = *x);
            }
        }
    }

    /// Reads the values of a plane back, without padding.
    pub(crate) fn read(&self, x: &mut [f32], padded: &[f32]) {
        let ([_, w], stride, top) = (self.input, self.kernel.stride[1], self.kernel.padding[0]);
        if w == 0 {
            return;
        }
        let rows = padded.chunks_exact(self.row().max(1)).skip(top);
        for (padded, x) in rows.zip(x.chunks_exact_mut(w)) {
            if stride == 1 {
                x.copy_from_slice(&padded[self.kernel.padding[1]..][..w]);
                continue;
            }
            for (first, at) in (0..stride).map(|phase| self.phase(phase)) {
                let values = x.get_mut(first..).unwrap_or_default().iter_mut().step_by(stride);
                values.zip(&padded[at..]).for_each(|(x, padded)| *x = *padded);
            }
        }
    }

    /// Calls `part(to, from, len)` for each run of neighbouring values that a tap reads at the positions in `range`:
    /// `to` counts positions from the first one, `from` is an index in the padded plane.
    #[inline(always)]
    pub(crate) fn runs(
        &self,
        tap: usize,
        range: &Range<usize>,
        mut part: impl FnMut(usize, usize, usize),
    ) {
        let w = self.output[1];
        let mut at = self.at(tap, range.start / w);
        let (mut column, mut done) = (range.start % w, 0);
        while done < range.len() {
            let len = (w - column).min(range.len() - done);
            part(done, at + column, len);
            (column, done) = (0, done + len);
            at += self.step();
        }
    }

    /// Values beyond the end of a plane that a whole vector may read.
    pub(crate) const SLACK: usize = LANES;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_padded_plane_has_each_tap_at_its_index() {
        for stride in 1..4 {
            let kernel = Kernel::new(&[2, 3], &[2, stride], &[1, 2], &[2, 2]).unwrap();
            let (h, w) = (5, 7);
            let padded = Padded::new(kernel, [h, w]).unwrap();
            let x: Vec<f32> = (1..=h * w).map(|i| i as f32).collect();
            let mut plane = vec![0.0; padded.len()];
            padded.fill(&mut plane, &x);
            let [rows, columns] = padded.output;
            for (tap, i, j) in (0..6)
                .flat_map(|t| (0..rows).flat_map(move |i| (0..columns).map(move |j| (t, i, j))))
            {
                let (row, column) = (i * 2 + tap / 3 * 2, j * stride + tap % 3 * 2);
                let inside = (1..h + 1).contains(&row) && (2..w + 2).contains(&column);
                let want = if inside { x[(row - 1) * w + column - 2] } else { 0.0 };
                assert_eq!(plane[padded.at(tap, i) + j], want);
                let (mut found, place) = (None, i * columns + j);
                padded.runs(tap, &(place..place + 1), |_, from, len| found = Some((from, len)));
                assert_eq!(found, Some((padded.at(tap, i) + j, 1)));
            }
            let mut back = vec![0.0; x.len()];
            padded.read(&mut back, &plane);
            assert_eq!(back, x);
        }
    }
}
