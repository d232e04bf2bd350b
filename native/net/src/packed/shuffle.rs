//! Phases of pixels as neighbouring pixels.

use crate::packed::values::Value;

/// Moves phases, which are channels, to their pixels, and leaves out those before and behind the output.
pub(crate) struct Shuffle {
    /// Phases of rows, and of pixels in a row.
    pub(crate) phases: [usize; 2],
    /// Rows and pixels before the output.
    pub(crate) crop: [usize; 2],
    /// Groups of channels, each of which has all phases.
    pub(crate) groups: usize,
    /// Channels of the output in a group.
    pub(crate) own: usize,
}

impl Shuffle {
    pub(crate) fn run(&self, (xs, x): (&Value, &[f32]), (ys, y): (&Value, &mut [f32])) {
        for row in 0..ys.size.rows {
            let at = row + self.crop[0];
            let x = &x[xs.row(at / self.phases[0])];
            self.row(x, xs.size.channels, at % self.phases[0], &mut y[ys.row(row)]);
        }
    }

    /// A row of the output, from a phase of a row of pixels.
    fn row(&self, x: &[f32], channels: usize, phase: usize, y: &mut [f32]) {
        let Shuffle { phases: [_, count], groups, own, .. } = *self;
        // The pixels of a group that become neighbours lie side by side.
        let block = count * own;
        let pixels = x.chunks_exact(channels);
        if groups == 1 {
            let numbers = pixels.map(|x| &x[phase * block..][..block]);
            let (mut skip, mut y) = (self.crop[1] * own, y);
            for numbers in numbers {
                let now = numbers.get(skip..).unwrap_or_default();
                skip = skip.saturating_sub(block);
                let (to, rest) = y.split_at_mut(now.len().min(y.len()));
                to.copy_from_slice(&now[..to.len()]);
                y = rest;
            }
            return;
        }
        let first = self.crop[1];
        let each = channels / groups;
        for (at, y) in y.chunks_exact_mut(groups * own).enumerate() {
            let (pixel, own_phase) = ((first + at) / count, (first + at) % count);
            let x = &x[pixel * channels + phase * block + own_phase * own..];
            for (y, x) in y.chunks_exact_mut(own).zip(x.chunks(each)) {
                y.copy_from_slice(&x[..own]);
            }
        }
    }
}
