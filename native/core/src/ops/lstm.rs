//! LSTM over a whole sequence, with the input projection taken out of the loop.

use std::sync::OnceLock;

use candle_core::{CpuStorage, CustomOp3, Layout, Shape, Tensor};

use super::linear::weight_gradient;
use super::matmul::{View, matmul};
use super::recurrence::{Lengths, Recurrent, Sequence, for_each_shard};
use super::simd::{dispatch, sigmoid, tanh};
use super::tensor;
use crate::Result;

/// The states h `[b, t, h]` after each frame, and the cells c `[b, t, h]` (Hochreiter and
/// Schmidhuber 1997, with the forget gate of Gers et al. 2000).
///
/// `projected [b, t, 4h] = x W_ih^T + b_ih + b_hh` in the order i, f, g, o; `weight [4h, h]` is the
/// recurrent one, `h0` and `c0 [b, h]`.
///
/// ```text
/// i, f, o = sigmoid(p + W h)    g = tanh(p_g + W_g h)    c' = f * c + i * g    h' = o * tanh(c')
/// ```
pub fn lstm(
    projected: &Tensor,
    weight: &Tensor,
    h0: &Tensor,
    c0: &Tensor,
    lengths: Lengths,
) -> Result<(Tensor, Tensor)> {
    let sequence = Sequence::new(4, projected, weight, &[h0, c0], lengths)?;
    let h = sequence.hidden;
    let state = Tensor::cat(&[h0, c0], 0)?;
    let track = projected.track_op() || weight.track_op() || state.track_op();
    let op = Lstm { sequence, track, gates: OnceLock::new() };
    let y = projected.contiguous()?.apply_op3(&weight.contiguous()?, &state, op)?;
    Ok((y.narrow(2, 0, h)?, y.narrow(2, h, h)?))
}

struct Lstm {
    sequence: Sequence,
    /// Whether gates are kept for a backward pass.
    track: bool,
    /// i, f, g, o of each frame, `[b, t, 4h]`.
    gates: OnceLock<Vec<f32>>,
}

dispatch! {
    /// One frame of one row: `out` is h then c; `pre` becomes the gates.
    fn cell(out: &mut [f32], pre: &mut [f32], input: &[f32], c: &[f32]) {
        let n = c.len();
        for (p, x) in pre.iter_mut().zip(input) {
            *p += x;
        }
        let (i, rest) = pre[..4 * n].split_at_mut(n);
        let (f, rest) = rest.split_at_mut(n);
        let (g, o) = rest.split_at_mut(n);
        let (h_new, c_new) = out[..2 * n].split_at_mut(n);
        for k in 0..n {
            i[k] = sigmoid(i[k]);
            f[k] = sigmoid(f[k]);
            g[k] = tanh(g[k]);
            o[k] = sigmoid(o[k]);
            c_new[k] = f[k] * c[k] + i[k] * g[k];
            h_new[k] = o[k] * tanh(c_new[k]);
        }
    }
}

dispatch! {
    /// Gradients of one frame of one row. `dc` holds the gradient of c' on entry, of c after.
    fn cell_backward(d: &mut [f32], dh: &[f32], dc: &mut [f32], gates: &[f32], c: &[f32], c_new: &[f32]) {
        let n = c.len();
        let (i, f, g, o) = (&gates[..n], &gates[n..2 * n], &gates[2 * n..3 * n], &gates[3 * n..4 * n]);
        let (di, rest) = d[..4 * n].split_at_mut(n);
        let (df, rest) = rest.split_at_mut(n);
        let (dg, d_o) = rest.split_at_mut(n);
        let (dh, dc, c_new) = (&dh[..n], &mut dc[..n], &c_new[..n]);
        for k in 0..n {
            let tc = tanh(c_new[k]);
            let dck = dc[k] + dh[k] * o[k] * (1.0 - tc * tc);
            di[k] = dck * g[k] * i[k] * (1.0 - i[k]);
            df[k] = dck * c[k] * f[k] * (1.0 - f[k]);
            dg[k] = dck * i[k] * (1.0 - g[k] * g[k]);
            d_o[k] = dh[k] * tc * o[k] * (1.0 - o[k]);
            dc[k] = dck * f[k];
        }
    }
}

impl Lstm {
    /// h and c of each frame side by side, `[b, t, 2h]`.
    fn forward(&self, projected: &[f32], weight: &[f32], h0: &[f32], c0: &[f32]) -> Vec<f32> {
        let Sequence { batch, time, hidden: h, .. } = self.sequence;
        let mut y = vec![0.0; batch * time * 2 * h];
        let kept = if self.track { 4 * time * h } else { 0 };
        let mut gates = vec![0.0; batch * kept];
        let weight = Recurrent::new(weight, 4 * h, &self.sequence);
        let buffers = [(&mut y[..], time * 2 * h), (&mut gates[..], kept)];
        for_each_shard(batch, self.sequence.shard(), buffers, |rows, [y, gates]| {
            let count = rows.len();
            let mut pre = vec![0.0; count * 4 * h];
            let mut state = h0[rows.start * h..rows.end * h].to_vec();
            let mut cells = c0[rows.start * h..rows.end * h].to_vec();
            for t in 0..time {
                weight.project(&mut pre, View::rows(&state, count, h), false);
                for i in 0..count {
                    let at = i * time + t;
                    let out = &mut y[at * 2 * h..][..2 * h];
                    let (state, c) = (&mut state[i * h..][..h], &mut cells[i * h..][..h]);
                    if self.sequence.present(rows.start + i, t) {
                        let pre = &mut pre[i * 4 * h..][..4 * h];
                        let input = &projected[(rows.start * time + at) * 4 * h..][..4 * h];
                        cell(out, pre, input, c);
                        if kept > 0 {
                            gates[at * 4 * h..][..4 * h].copy_from_slice(pre);
                        }
                        state.copy_from_slice(&out[..h]);
                        c.copy_from_slice(&out[h..]);
                    } else {
                        out[..h].copy_from_slice(state);
                        out[h..].copy_from_slice(c);
                    }
                }
            }
        });
        if self.track {
            let _ = self.gates.set(gates);
        }
        y
    }

    /// `(d_pre, d_h0, d_c0)`: gradients of the pre-activations and of the first state.
    fn through_time(
        &self,
        weight: &[f32],
        c0: &[f32],
        y: &[f32],
        gates: &[f32],
        dy: &[f32],
    ) -> [Vec<f32>; 3] {
        let Sequence { batch, time, hidden: h, .. } = self.sequence;
        let mut d_pre = vec![0.0; batch * time * 4 * h];
        let mut dh = vec![0.0; batch * h];
        let mut dc = vec![0.0; batch * h];
        let buffers = [(&mut d_pre[..], time * 4 * h), (&mut dh[..], h), (&mut dc[..], h)];
        for_each_shard(batch, self.sequence.shard(), buffers, |rows, [d_pre, dh, dc]| {
            let count = rows.len();
            for t in (0..time).rev() {
                for i in 0..count {
                    let global = (rows.start + i) * time + t;
                    let (dh, dc) = (&mut dh[i * h..][..h], &mut dc[i * h..][..h]);
                    let dy = &dy[global * 2 * h..][..2 * h];
                    super::simd::add_assign(dh, &dy[..h]);
                    super::simd::add_assign(dc, &dy[h..]);
                    if !self.sequence.present(rows.start + i, t) {
                        continue;
                    }
                    let c = match t {
                        0 => &c0[(rows.start + i) * h..][..h],
                        _ => &y[(global - 1) * 2 * h + h..][..h],
                    };
                    let d = &mut d_pre[(i * time + t) * 4 * h..][..4 * h];
                    let c_new = &y[global * 2 * h + h..][..h];
                    cell_backward(d, dh, dc, &gates[global * 4 * h..][..4 * h], c, c_new);
                    // All of h' went into the gates; what reaches h comes back through the weight.
                    dh.fill(0.0);
                }
                let d = View::strided(&d_pre[t * 4 * h..], count, 4 * h, time * 4 * h);
                matmul(dh, h, d, View::rows(weight, 4 * h, h), true);
            }
        });
        [d_pre, dh, dc]
    }
}

impl CustomOp3 for Lstm {
    fn name(&self) -> &'static str {
        "lstm"
    }

    fn cpu_fwd(
        &self,
        p: &CpuStorage,
        pl: &Layout,
        w: &CpuStorage,
        wl: &Layout,
        s: &CpuStorage,
        sl: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let Sequence { batch, time, hidden, .. } = self.sequence;
        let (h0, c0) = tensor::slice(s, sl)?.split_at(batch * hidden);
        let y = self.forward(tensor::slice(p, pl)?, tensor::slice(w, wl)?, h0, c0);
        Ok((CpuStorage::F32(y), Shape::from((batch, time, 2 * hidden))))
    }

    fn bwd(
        &self,
        p: &Tensor,
        w: &Tensor,
        state: &Tensor,
        y: &Tensor,
        dy: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let Sequence { batch, hidden: h, .. } = self.sequence;
        let Some(gates) = self.gates.get() else { candle_core::bail!("lstm: no gates were kept") };
        let state = tensor::to_vec(state)?;
        let (h0, c0) = state.split_at(batch * h);
        let previous = tensor::with(&y.narrow(2, 0, h)?, |y| Ok(self.sequence.previous(y, h0)))?;
        let [d_pre, mut dh, dc] = tensor::with(w, |w| {
            tensor::with(y, |y| tensor::with(dy, |dy| Ok(self.through_time(w, c0, y, gates, dy))))
        })?;
        let mut dw = vec![0.0; 4 * h * h];
        weight_gradient(&mut dw, &d_pre, &previous, 4 * h, h, false);
        dh.extend(dc);
        Ok((
            Some(tensor::tensor(d_pre, p.shape())?),
            Some(tensor::tensor(dw, w.shape())?),
            Some(tensor::tensor(dh, (2 * batch, h))?),
        ))
    }
}
