//! GRU over a whole sequence, with the input projection taken out of the loop.

use std::sync::OnceLock;

use candle_core::{CpuStorage, CustomOp3, Layout, Shape, Tensor};

use super::linear::{row_sum, weight_gradient};
use super::matmul::{View, matmul};
use super::recurrence::{Lengths, Recurrent, Sequence, for_each_shard};
use super::simd::{dispatch, sigmoid, tanh};
use super::tensor;
use crate::Result;

/// The states `[b, t, h]` after each frame (Cho et al. 2014, reset gate after the product).
///
/// `projected [b, t, 3h] = x W_ih^T + b_ih` in the order r, z, n; `weight [3h, h]`, `bias [3h]` are
/// the recurrent ones, `h0 [b, h]`.
///
/// ```text
/// r, z = sigmoid(i_rz + W_rz h + b_rz)      n = tanh(i_n + r * (W_n h + b_n))
/// h' = (1 - z) * n + z * h
/// ```
pub fn gru(
    projected: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    h0: &Tensor,
    lengths: Lengths,
) -> Result<Tensor> {
    let sequence = Sequence::new(3, projected, weight, &[h0], lengths)?;
    let h = sequence.hidden;
    // Candle's ops take three tensors: bias and first state travel as one.
    let rest = Tensor::cat(&[h0, &bias.reshape((3, h))?], 0)?;
    let track = projected.track_op() || weight.track_op() || rest.track_op();
    let op = Gru { sequence, track, gates: OnceLock::new() };
    Ok(projected.contiguous()?.apply_op3(&weight.contiguous()?, &rest, op)?)
}

struct Gru {
    sequence: Sequence,
    /// Whether gates are kept for a backward pass.
    track: bool,
    /// r, z, n and `W_n h + b_n` of each frame, `[b, t, 4h]`.
    gates: OnceLock<Vec<f32>>,
}

dispatch! {
    /// One frame of one row; leaves r, z, n and `W_n h + b_n` in `gates`.
    fn cell(h_new: &mut [f32], gates: &mut [f32], input: &[f32], hidden: &[f32], h: &[f32]) {
        let n = h.len();
        let (ir, iz, inn) = (&input[..n], &input[n..2 * n], &input[2 * n..3 * n]);
        let (hr, hz, hn) = (&hidden[..n], &hidden[n..2 * n], &hidden[2 * n..3 * n]);
        let h_new = &mut h_new[..n];
        let (r, rest) = gates[..4 * n].split_at_mut(n);
        let (z, rest) = rest.split_at_mut(n);
        let (c, kept) = rest.split_at_mut(n);
        for i in 0..n {
            r[i] = sigmoid(ir[i] + hr[i]);
            z[i] = sigmoid(iz[i] + hz[i]);
            c[i] = tanh(inn[i] + r[i] * hn[i]);
            h_new[i] = (1.0 - z[i]) * c[i] + z[i] * h[i];
            kept[i] = hn[i];
        }
    }
}

dispatch! {
    /// Gradients of one frame of one row; `carry` holds dh on entry and the direct part of dh' after.
    fn cell_backward(d_input: &mut [f32], d_hidden: &mut [f32], carry: &mut [f32], gates: &[f32], h: &[f32]) {
        let n = h.len();
        let (r, z, c, hn) = (&gates[..n], &gates[n..2 * n], &gates[2 * n..3 * n], &gates[3 * n..4 * n]);
        let (dr, rest) = d_input[..3 * n].split_at_mut(n);
        let (dz, dn) = rest.split_at_mut(n);
        let carry = &mut carry[..n];
        for i in 0..n {
            let dc = carry[i] * (1.0 - z[i]) * (1.0 - c[i] * c[i]);
            dr[i] = dc * hn[i] * r[i] * (1.0 - r[i]);
            dz[i] = carry[i] * (h[i] - c[i]) * z[i] * (1.0 - z[i]);
            dn[i] = dc;
            carry[i] *= z[i];
        }
        let (hr, rest) = d_hidden[..3 * n].split_at_mut(n);
        let (hz, hc) = rest.split_at_mut(n);
        for i in 0..n {
            hr[i] = dr[i];
            hz[i] = dz[i];
            hc[i] = dn[i] * r[i];
        }
    }
}

impl Gru {
    fn forward(&self, projected: &[f32], weight: &[f32], h0: &[f32], bias: &[f32]) -> Vec<f32> {
        let Sequence { batch, time, hidden: h, .. } = self.sequence;
        let mut y = vec![0.0; batch * time * h];
        let kept = if self.track { 4 * time * h } else { 0 };
        let mut gates = vec![0.0; batch * kept];
        let weight = Recurrent::new(weight, 3 * h, &self.sequence);
        let buffers = [(&mut y[..], time * h), (&mut gates[..], kept)];
        for_each_shard(batch, self.sequence.shard(), buffers, |rows, [y, gates]| {
            let count = rows.len();
            let mut hidden = vec![0.0; count * 3 * h];
            let mut scratch = vec![0.0; 4 * h];
            let mut state = h0[rows.start * h..rows.end * h].to_vec();
            for t in 0..time {
                hidden.chunks_exact_mut(3 * h).for_each(|row| row.copy_from_slice(bias));
                weight.project(&mut hidden, View::rows(&state, count, h), true);
                for i in 0..count {
                    let at = i * time + t;
                    let state = &mut state[i * h..][..h];
                    let out = &mut y[at * h..][..h];
                    if self.sequence.present(rows.start + i, t) {
                        let gates = if kept > 0 {
                            &mut gates[at * 4 * h..][..4 * h]
                        } else {
                            &mut scratch[..]
                        };
                        let input = &projected[(rows.start * time + at) * 3 * h..][..3 * h];
                        cell(out, gates, input, &hidden[i * 3 * h..][..3 * h], state);
                        state.copy_from_slice(out);
                    } else {
                        out.copy_from_slice(state);
                    }
                }
            }
        });
        if self.track {
            let _ = self.gates.set(gates);
        }
        y
    }

    /// `(d_input, d_hidden, d_h0)`: gradients of the two pre-activations and of the first state.
    fn through_time(
        &self,
        weight: &[f32],
        previous: &[f32],
        gates: &[f32],
        dy: &[f32],
    ) -> [Vec<f32>; 3] {
        let Sequence { batch, time, hidden: h, .. } = self.sequence;
        let mut d_input = vec![0.0; batch * time * 3 * h];
        let mut d_hidden = vec![0.0; batch * time * 3 * h];
        let mut d_h0 = vec![0.0; batch * h];
        let buffers = [
            (&mut d_input[..], time * 3 * h),
            (&mut d_hidden[..], time * 3 * h),
            (&mut d_h0[..], h),
        ];
        for_each_shard(
            batch,
            self.sequence.shard(),
            buffers,
            |rows, [d_input, d_hidden, carry]| {
                let count = rows.len();
                for t in (0..time).rev() {
                    for i in 0..count {
                        let at = i * time + t;
                        let global = rows.start * time + at;
                        let carry = &mut carry[i * h..][..h];
                        super::simd::add_assign(carry, &dy[global * h..][..h]);
                        if self.sequence.present(rows.start + i, t) {
                            cell_backward(
                                &mut d_input[at * 3 * h..][..3 * h],
                                &mut d_hidden[at * 3 * h..][..3 * h],
                                carry,
                                &gates[global * 4 * h..][..4 * h],
                                &previous[global * h..][..h],
                            );
                        }
                    }
                    let d = View::strided(&d_hidden[t * 3 * h..], count, 3 * h, time * 3 * h);
                    matmul(carry, h, d, View::rows(weight, 3 * h, h), true);
                }
            },
        );
        [d_input, d_hidden, d_h0]
    }
}

impl CustomOp3 for Gru {
    fn name(&self) -> &'static str {
        "gru"
    }

    fn cpu_fwd(
        &self,
        p: &CpuStorage,
        pl: &Layout,
        w: &CpuStorage,
        wl: &Layout,
        r: &CpuStorage,
        rl: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let Sequence { batch, time, hidden, .. } = self.sequence;
        let (h0, bias) = tensor::slice(r, rl)?.split_at(batch * hidden);
        let y = self.forward(tensor::slice(p, pl)?, tensor::slice(w, wl)?, h0, bias);
        Ok((CpuStorage::F32(y), Shape::from((batch, time, hidden))))
    }

    fn bwd(
        &self,
        p: &Tensor,
        w: &Tensor,
        rest: &Tensor,
        y: &Tensor,
        dy: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let Sequence { batch, hidden: h, .. } = self.sequence;
        let Some(gates) = self.gates.get() else { candle_core::bail!("gru: no gates were kept") };
        let first = tensor::to_vec(&rest.narrow(0, 0, batch)?)?;
        let previous = tensor::with(y, |y| Ok(self.sequence.previous(y, &first)))?;
        let [d_input, d_hidden, mut d_rest] = tensor::with(w, |w| {
            tensor::with(dy, |dy| Ok(self.through_time(w, &previous, gates, dy)))
        })?;
        let mut dw = vec![0.0; 3 * h * h];
        weight_gradient(&mut dw, &d_hidden, &previous, 3 * h, h, false);
        let mut d_bias = vec![0.0; 3 * h];
        row_sum(&mut d_bias, &d_hidden, false);
        d_rest.extend(d_bias);
        Ok((
            Some(tensor::tensor(d_input, p.shape())?),
            Some(tensor::tensor(dw, w.shape())?),
            Some(tensor::tensor(d_rest, (batch + 3, h))?),
        ))
    }
}
