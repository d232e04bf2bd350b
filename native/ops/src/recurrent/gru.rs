//! GRU over a whole sequence.

use candle_core::Tensor;

use super::{card, composed};
use crate::Result;
use crate::form::Form;
use crate::lengths::Lengths;
use crate::recurrent::{Cell, Gates, Kept, Layer, Piece, States};
use crate::simd::{dispatch, sigmoid_with, tanh_with};

/// The states `y [b, t, h]` after each frame and `h_n [b, h]` after the last (Cho et al. 2014, with the reset gate
/// after the product), from `x [b, t, d]` and `h0 [b, h]`. Gates have the order r, z, n.
///
/// ```text
/// r, z = sigmoid(W_ih x + b_ih + W_hh h + b_hh)    n = tanh(W_in x + b_in + r * (W_hn h + b_hn))
/// h' = (1 - z) * n + z * h
/// ```
pub fn gru(x: &Tensor, gates: &Gates, h0: &Tensor, lengths: Lengths) -> Result<(Tensor, Tensor)> {
    let layer = Layer::<Gru>::new(x, gates, &[h0], lengths.clone())?;
    match Form::of(x) {
        Form::Cpu => {}
        Form::Card => return card::gru(x, gates, h0, &lengths),
        Form::Composed => return composed::gru(x, gates, h0, lengths),
    }
    Ok(layer.apply::<2>(x, gates, &[h0])?.into())
}

/// A frame holds r, z, n, and `W_hn h + b_hn`, which r multiplies.
struct Gru;

impl Cell for Gru {
    const NAME: &'static str = "gru";
    const GATES: usize = 3;
    const CELLS: bool = false;
    const RECURRENT: &'static [Piece] =
        &[Piece { gates: 0..2, part: 0, adds: true }, Piece { gates: 2..3, part: 3, adds: false }];

    fn forward(h_new: &mut [f32], _c: &mut [f32], frame: &mut [f32], bias: &[f32], h: &[f32]) {
        cell(h_new, frame, bias, h);
    }

    fn backward(d: States<&mut [f32]>, frame: &mut [f32], d_bias: &mut [f32], kept: &Kept<'_>) {
        cell_backward(d.h, frame, d_bias, kept.h);
    }
}

dispatch! {
    fn cell(h_new: &mut [f32], frame: &mut [f32], bias: &[f32], h: &[f32]) {
        let n = h.len();
        let h_new = &mut h_new[..n];
        let (r, rest) = frame[..4 * n].split_at_mut(n);
        let (z, rest) = rest.split_at_mut(n);
        let (c, hn) = rest.split_at_mut(n);
        let (br, bz, bc, bh) = (&bias[..n], &bias[n..2 * n], &bias[2 * n..3 * n], &bias[3 * n..4 * n]);
        for i in 0..n {
            r[i] = sigmoid_with::<FMA>(r[i] + br[i]);
            z[i] = sigmoid_with::<FMA>(z[i] + bz[i]);
            hn[i] += bh[i];
            c[i] = tanh_with::<FMA>(c[i] + bc[i] + r[i] * hn[i]);
            h_new[i] = (1.0 - z[i]) * c[i] + z[i] * h[i];
        }
    }
}

dispatch! {
    fn cell_backward(dh: &mut [f32], frame: &mut [f32], d_bias: &mut [f32], h: &[f32]) {
        let n = h.len();
        let dh = &mut dh[..n];
        let (r, rest) = frame[..4 * n].split_at_mut(n);
        let (z, rest) = rest.split_at_mut(n);
        let (c, hn) = rest.split_at_mut(n);
        let (br, rest) = d_bias[..4 * n].split_at_mut(n);
        let (bz, rest) = rest.split_at_mut(n);
        let (bc, bh) = rest.split_at_mut(n);
        for i in 0..n {
            let dc = dh[i] * (1.0 - z[i]) * (1.0 - c[i] * c[i]);
            let dz = dh[i] * (h[i] - c[i]) * z[i] * (1.0 - z[i]);
            let dr = dc * hn[i] * r[i] * (1.0 - r[i]);
            let dhn = dc * r[i];
            dh[i] *= z[i];
            (r[i], z[i], c[i], hn[i]) = (dr, dz, dc, dhn);
            br[i] += dr;
            bz[i] += dz;
            bc[i] += dc;
            bh[i] += dhn;
        }
    }
}
