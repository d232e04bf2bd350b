//! The forward pass of a block: [`LANES`] individuals, one in each lane.

use half::bf16;
use sconce_tensor::dispatch;
use sconce_tensor::simd::{LANES, mul_add};

/// A number of each individual of a block.
pub(super) type Lanes = [f32; LANES];

/// A stored weight of each individual of a block.
pub(super) trait Cell: Copy + Send + Sync + 'static {
    /// Whether weights are divided by a scale for each row.
    const SCALED: bool = false;

    /// The weights, before the scale of their rows.
    fn wide(&self) -> Lanes;

    /// Rounds weights that are divided by their scales.
    fn of(weights: Lanes) -> Self;
}

impl Cell for Lanes {
    #[inline(always)]
    fn wide(&self) -> Lanes {
        *self
    }

    #[inline(always)]
    fn of(weights: Lanes) -> Self {
        weights
    }
}

impl Cell for [bf16; LANES] {
    #[inline(always)]
    fn wide(&self) -> Lanes {
        self.map(|v| f32::from_bits(u32::from(v.to_bits()) << 16))
    }

    #[inline(always)]
    fn of(weights: Lanes) -> Self {
        weights.map(bf16::from_f32)
    }
}

impl Cell for [i8; LANES] {
    const SCALED: bool = true;

    #[inline(always)]
    fn wide(&self) -> Lanes {
        self.map(f32::from)
    }

    #[inline(always)]
    fn of(weights: Lanes) -> Self {
        // Adding 1.5 * 2^23 rounds to the nearest integer, ties to even, and leaves it in the lowest bits.
        weights.map(|v| (v + 12_582_912.0).to_bits() as i8)
    }
}

/// A layer of a block.
pub(super) struct Dense<'a, C> {
    /// `[outputs, inputs]`.
    pub(super) weights: &'a [C],
    /// `[outputs]`.
    pub(super) biases: &'a [Lanes],
    /// The factor of each row of weights, `[outputs]`; empty for factors of 1.
    pub(super) scales: &'a [Lanes],
}

/// Outputs that are computed together, so that each input is read once for all of them.
const ROWS: usize = 4;

dispatch! {
    /// Writes `y [outputs]` of `x [inputs]`.
    pub(super) fn apply<[C: Cell], [C]>(dense: &Dense<'_, C>, x: &[Lanes], y: &mut [Lanes]) {
        let inputs = x.len();
        let whole = y.len() / ROWS * ROWS;
        let (tiles, rest) = y.as_chunks_mut::<ROWS>();
        for (at, tile) in tiles.iter_mut().enumerate() {
            rows::<C, ROWS, FMA>(dense, at * ROWS, x, inputs, tile);
        }
        for (at, y) in rest.iter_mut().enumerate() {
            rows::<C, 1, FMA>(dense, whole + at, x, inputs, std::array::from_mut(y));
        }
    }
}

/// Writes the outputs `first..first + R`.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // one lane of all arrays at a time
fn rows<C: Cell, const R: usize, const FMA: bool>(
    dense: &Dense<'_, C>,
    first: usize,
    x: &[Lanes],
    n: usize,
    y: &mut [Lanes; R],
) {
    let rows: [&[C]; R] = std::array::from_fn(|r| &dense.weights[(first + r) * n..][..n]);
    // In the order of a session, so that a session of the individual's policy has the same bits.
    let mut sums: [Lanes; R] =
        std::array::from_fn(|r| if C::SCALED { [0.0; LANES] } else { dense.biases[first + r] });
    for (at, x) in x[..n].iter().enumerate() {
        for r in 0..R {
            let weights = rows[r][at].wide();
            for i in 0..LANES {
                sums[r][i] = mul_add::<FMA>(weights[i], x[i], sums[r][i]);
            }
        }
    }
    *y = sums;
    if C::SCALED {
        for r in 0..R {
            let (bias, scale) = (dense.biases[first + r], dense.scales[first + r]);
            for i in 0..LANES {
                y[r][i] = mul_add::<FMA>(sums[r][i], scale[i], bias[i]);
            }
        }
    }
}
