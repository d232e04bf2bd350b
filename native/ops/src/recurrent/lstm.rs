//! LSTM over a whole sequence.

use candle_core::Tensor;

use super::{card, composed};
use crate::Result;
use crate::form::Form;
use crate::lengths::Lengths;
use crate::recurrent::{Cell, Gates, Kept, Layer, Piece, States};
use crate::simd::{dispatch, sigmoid_with, tanh_with};

/// The states `y [b, t, h]` after each frame, and `h_n` and `c_n [b, h]` after the last (Hochreiter and Schmidhuber
/// 1997, with the forget gate of Gers et al. 2000), from `x [b, t, d]` and `h0`, `c0 [b, h]`. Gates have the order i,
/// f, g, o.
///
/// ```text
/// i, f, o = sigmoid(W_ih x + b_ih + W_hh h + b_hh)    g = tanh(W_ih x + b_ih + W_hh h + b_hh)
/// c' = f * c + i * g    h' = o * tanh(c')
/// ```
pub fn lstm(
    x: &Tensor,
    gates: &Gates,
    h0: &Tensor,
    c0: &Tensor,
    lengths: Lengths,
) -> Result<(Tensor, Tensor, Tensor)> {
    let layer = Layer::<Lstm>::new(x, gates, &[h0, c0], lengths.clone())?;
    match Form::of(x) {
        Form::Cpu => {}
        Form::Card => return card::lstm(x, gates, h0, c0, &lengths),
        Form::Composed => return composed::lstm(x, gates, h0, c0, lengths),
    }
    Ok(layer.apply::<3>(x, gates, &[h0, c0])?.into())
}

/// The row of a frame stores the gates i, f, g, o in this order.
struct Lstm;

impl Cell for Lstm {
    const NAME: &'static str = "lstm";
    const GATES: usize = 4;
    const CELLS: bool = true;
    const RECURRENT: &'static [Piece] = &[Piece { gates: 0..4, part: 0, adds: true }];

    fn forward(h_new: &mut [f32], c: &mut [f32], frame: &mut [f32], bias: &[f32], _h: &[f32]) {
        cell(h_new, c, frame, bias);
    }

    fn backward(d: States<&mut [f32]>, frame: &mut [f32], d_bias: &mut [f32], kept: &Kept<'_>) {
        cell_backward(d.h, d.c, frame, d_bias, kept.c, kept.c_new);
    }
}

dispatch! {
    fn cell(h_new: &mut [f32], c: &mut [f32], frame: &mut [f32], bias: &[f32]) {
        let n = c.len();
        let h_new = &mut h_new[..n];
        let (i, rest) = frame[..4 * n].split_at_mut(n);
        let (f, rest) = rest.split_at_mut(n);
        let (g, o) = rest.split_at_mut(n);
        let (bi, bf, bg, bo) = (&bias[..n], &bias[n..2 * n], &bias[2 * n..3 * n], &bias[3 * n..4 * n]);
        for k in 0..n {
            i[k] = sigmoid_with::<FMA>(i[k] + bi[k]);
            f[k] = sigmoid_with::<FMA>(f[k] + bf[k]);
            g[k] = tanh_with::<FMA>(g[k] + bg[k]);
            o[k] = sigmoid_with::<FMA>(o[k] + bo[k]);
            c[k] = f[k] * c[k] + i[k] * g[k];
            h_new[k] = o[k] * tanh_with::<FMA>(c[k]);
        }
    }
}

dispatch! {
    fn cell_backward(dh: &mut [f32], dc: &mut [f32], frame: &mut [f32], d_bias: &mut [f32], c: &[f32], c_new: &[f32]) {
        let n = c.len();
        let (i, rest) = frame[..4 * n].split_at_mut(n);
        let (f, rest) = rest.split_at_mut(n);
        let (g, o) = rest.split_at_mut(n);
        let (bi, rest) = d_bias[..4 * n].split_at_mut(n);
        let (bf, rest) = rest.split_at_mut(n);
        let (bg, bo) = rest.split_at_mut(n);
        let (dh, dc, c_new) = (&mut dh[..n], &mut dc[..n], &c_new[..n]);
        for k in 0..n {
            let tc = tanh_with::<FMA>(c_new[k]);
            let dck = dc[k] + dh[k] * o[k] * (1.0 - tc * tc);
            let di = dck * g[k] * i[k] * (1.0 - i[k]);
            let df = dck * c[k] * f[k] * (1.0 - f[k]);
            let dg = dck * i[k] * (1.0 - g[k] * g[k]);
            let d_o = dh[k] * tc * o[k] * (1.0 - o[k]);
            dc[k] = dck * f[k];
            // h enters h' only through the gates, so the gradient of h comes through the weight alone.
            dh[k] = 0.0;
            (i[k], f[k], g[k], o[k]) = (di, df, dg, d_o);
            bi[k] += di;
            bf[k] += df;
            bg[k] += dg;
            bo[k] += d_o;
        }
    }
}
