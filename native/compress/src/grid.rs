//! Grids of integer codes: `number = scale (code - zero)` (Jacob et al. 2018, eq. 1).

use sconce_ops::{Codes, Groups};
use sconce_tensor::Result;
use serde::{Deserialize, Serialize};

/// The numbers that share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Per {
    /// All numbers.
    Tensor,
    /// A row.
    Row,
    /// This many consecutive columns of a row; the last group may be shorter.
    Group(usize),
}

impl Per {
    /// The groups of a matrix.
    ///
    /// # Errors
    /// `OutOfRange` for groups of 0 columns.
    pub fn groups(self, rows: usize, cols: usize) -> Result<Groups> {
        match self {
            Per::Tensor => Groups::whole(rows * cols),
            Per::Row => Groups::rows(rows, cols),
            Per::Group(width) => Groups::new(rows, cols, width),
        }
    }
}

/// How a scale is found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// The largest magnitude is the largest code.
    #[default]
    Largest,
    /// The scale with the least squared error of the group.
    Search,
}

/// The form of a grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grid {
    /// Bits of a code, 2 to 8.
    pub bits: u32,
    /// The numbers that share a scale.
    pub per: Per,
    /// Codes `0..2^bits - 1` with a zero point for each scale, instead of `-hi..hi` with `hi = 2^(bits - 1) - 1`.
    pub zero_point: bool,
    /// How scales are found. Without zero points and below 8 bits a search has the codes `-hi - 1..hi` and scales of both
    /// signs, so that the code without a counterpart serves the side that needs it.
    #[serde(default)]
    pub scale: Scale,
}

/// Scale and zero point of a group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Fit {
    pub(crate) scale: f32,
    pub(crate) zero: i16,
}

/// The parts of the width of a group that a search tries, over [`WHOLE`]. A grid that is finer than the numbers are wide
/// clips the largest ones.
const PARTS: std::ops::RangeInclusive<u16> = 24..=84;
const WHOLE: u16 = 80;

impl Fit {
    /// The nearest number of the grid.
    fn nearest(self, codes: Codes, number: f64) -> f64 {
        let (scale, zero) = (f64::from(self.scale), f64::from(self.zero));
        let code = (number / scale).round_ties_even() + zero;
        scale * (code.clamp(f64::from(codes.lo), f64::from(codes.hi)) - zero)
    }
}

impl Grid {
    /// The range of the codes.
    ///
    /// # Errors
    /// `OutOfRange` unless there are 2 to 8 bits.
    pub fn codes(self) -> Result<Codes> {
        match (self.zero_point, self.scale) {
            (true, _) => Codes::unsigned(self.bits),
            (false, Scale::Search) if self.bits < 8 => Codes::full(self.bits),
            (false, _) => Codes::symmetric(self.bits),
        }
    }

    /// The grid of a group of numbers.
    pub(crate) fn fit(self, codes: Codes, numbers: impl Iterator<Item = f64> + Clone) -> Fit {
        let top = numbers.clone().fold(0.0, f64::max);
        let low = numbers.clone().fold(0.0, f64::min);
        let finest = self.finest(codes, low, top);
        if self.scale == Scale::Largest || low == top {
            return finest;
        }
        let error = |fit: Fit| -> f64 {
            numbers.clone().map(|w| (w - fit.nearest(codes, w)).powi(2)).sum()
        };
        let first = (error(finest), finest);
        let candidates = PARTS.flat_map(|part| {
            let part = f64::from(part) / f64::from(WHOLE);
            let own = self.finest(codes, low * part, top * part);
            let other = Fit { scale: -own.scale, ..own };
            [Some(own), (codes.lo + codes.hi == -1).then_some(other)]
        });
        let best = candidates.flatten().map(|fit| (error(fit), fit));
        best.fold(first, |best, own| if own.0 < best.0 { own } else { best }).1
    }

    /// The finest grid that contains numbers from `low` to `top` and 0. The scale of zeros is 1.
    fn finest(self, codes: Codes, low: f64, top: f64) -> Fit {
        let width = if self.zero_point { top - low } else { top.max(-low) };
        let scale = (width / f64::from(codes.hi)) as f32;
        // A width that f32 cannot divide is as good as 0.
        let scale = if scale > 0.0 { scale } else { 1.0 };
        let zero = if self.zero_point { (-low / f64::from(scale)).round_ties_even() } else { 0.0 };
        Fit { scale, zero: (zero as i16).min(codes.hi as i16) }
    }
}
