//! From the values read from the state to outputs, and back.

use candle_core::Tensor;

use crate::Result;
use crate::simd::{axpy, dispatch, dot};
use crate::tensor::{check_shape, to_vec};
use crate::weights::Weight;

/// The last step of an output, after the values were read from the state.
#[derive(Debug, Clone, Default)]
pub enum Readout {
    /// `y` equals the values read.
    #[default]
    Plain,
    /// `y + D v` with one weight for each head (the skip of Mamba-2).
    Skip(Weight),
    /// `y / max(|n q|, e^-m)`, where n is the state of a value that is always 1, and `m [b, t, heads]` is the logarithm
    /// of the state's scale (Beck et al. 2024, eq. 21, stabilised). n is one more row of the state: `[b, heads, value +
    /// 1, key]`. No gradient flows through m: y does not depend on m.
    Normalised(Tensor),
}

impl Readout {
    pub(crate) fn is_normalised(&self) -> bool {
        matches!(self, Readout::Normalised(_))
    }

    pub(super) fn check(&self, [batch, time, heads]: [usize; 3]) -> Result<()> {
        match self {
            Readout::Plain => Ok(()),
            Readout::Skip(skip) => check_shape("skip of a matrix state", &[heads], skip.dims()),
            Readout::Normalised(m) => {
                check_shape("stabiliser of a matrix state", &[batch, time, heads], m.dims())
            }
        }
    }
}

/// A readout with its values: D of a skip, m of a normaliser.
pub(super) struct Reading {
    pub readout: Readout,
    weights: Vec<f32>,
}

impl Reading {
    pub(super) fn new(readout: Readout) -> Result<Self> {
        let weights = match &readout {
            Readout::Plain => vec![],
            Readout::Skip(skip) => to_vec(skip)?,
            Readout::Normalised(m) => to_vec(m)?,
        };
        Ok(Reading { readout, weights })
    }

    /// Computes y from the values read. `at` is the index of the first frame and head, counted over all rows; a head
    /// has `value` values.
    pub(super) fn read(
        &self,
        y: &mut [f32],
        norms: &mut [f32],
        read: &[f32],
        v: &[f32],
        at: usize,
        value: usize,
    ) {
        match &self.readout {
            Readout::Plain => y.copy_from_slice(read),
            Readout::Skip(_) => read_skip(y, read, v, &self.weights, value),
            Readout::Normalised(_) => read_normalised(y, norms, read, &self.weights[at..], value),
        }
    }

    /// Computes the gradient of the values read from the gradient of y; `y` and `norms` come from [`Reading::read`] for
    /// all frames.
    pub(super) fn read_backward(
        &self,
        d_read: &mut [f32],
        dy: &[f32],
        [y, norms]: [&[f32]; 2],
        at: usize,
        value: usize,
    ) {
        match &self.readout {
            Readout::Normalised(_) => {
                let (y, norms, m) = (&y[at * value..], &norms[at..], &self.weights[at..]);
                read_normalised_backward(d_read, dy, y, norms, m, value);
            }
            _ => d_read.copy_from_slice(dy),
        }
    }

    /// Adds the gradients through a skip to the gradients of the values and of the skip's weights.
    pub(super) fn skip_backward(
        &self,
        dv: &mut [f32],
        d_skip: &mut [f32],
        dy: &[f32],
        v: &[f32],
        value: usize,
    ) {
        if matches!(self.readout, Readout::Skip(_)) {
            skip_backward(dv, d_skip, dy, v, &self.weights, value);
        }
    }
}

dispatch! {
    /// `y = read + D v`.
    fn read_skip(y: &mut [f32], read: &[f32], v: &[f32], weights: &[f32], value: usize) {
        let heads = y.chunks_exact_mut(value).zip(read.chunks_exact(value)).zip(v.chunks_exact(value));
        for (((y, read), v), d) in heads.zip(weights.iter().cycle()) {
            for ((y, read), v) in y.iter_mut().zip(read).zip(v) {
                *y = read + d * v;
            }
        }
    }
}

dispatch! {
    /// `y = read / max(|n|, e^-m)`; writes n to `norms`.
    fn read_normalised(y: &mut [f32], norms: &mut [f32], read: &[f32], m: &[f32], value: usize) {
        let heads = y.chunks_exact_mut(value).zip(read.chunks_exact(value + 1));
        for (((y, read), norm), m) in heads.zip(norms.iter_mut()).zip(m) {
            *norm = read[value];
            let scale = 1.0 / norm.abs().max((-m).exp());
            for (y, read) in y.iter_mut().zip(read) {
                *y = read * scale;
            }
        }
    }
}

dispatch! {
    /// Computes the gradient of the values read from the gradient of `y = read / max(|n|, e^-m)`.
    fn read_normalised_backward(d: &mut [f32], dy: &[f32], y: &[f32], norms: &[f32], m: &[f32], value: usize) {
        let heads = d.chunks_exact_mut(value + 1).zip(dy.chunks_exact(value)).zip(y.chunks_exact(value));
        for (((d, dy), y), (norm, m)) in heads.zip(norms.iter().zip(m)) {
            let floor = (-m).exp();
            let scale = 1.0 / norm.abs().max(floor);
            let slope = dot(dy, y);
            for (d, dy) in d.iter_mut().zip(dy) {
                *d = dy * scale;
            }
            d[value] = if norm.abs() > floor { -slope * scale * norm.signum() } else { 0.0 };
        }
    }
}

dispatch! {
    /// Gradients of a skip: `dv += D dy`, `dD += dy v`.
    fn skip_backward(dv: &mut [f32], dd: &mut [f32], dy: &[f32], v: &[f32], weights: &[f32], value: usize) {
        let heads = weights.len();
        let rows = dv.chunks_exact_mut(value).zip(dy.chunks_exact(value)).zip(v.chunks_exact(value));
        for (i, ((dv, dy), v)) in rows.enumerate() {
            axpy(dv, weights[i % heads], dy);
            dd[i % heads] += dot(dy, v);
        }
    }
}
