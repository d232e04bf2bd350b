//! LSTM and GRU stacks, one frame at a time.

use crate::backbone::Cell;
use crate::spec::RecurrentConfig;
use sconce_tensor::Result;
use sconce_tensor::simd::{dispatch, sigmoid_with, tanh_with};

use super::layer::{Game, Step};
use sconce_realtime::Matrix;
use sconce_realtime::Norm;
use sconce_realtime::Packer;
use sconce_realtime::Scratch;

/// `norm(x) -> [cell -> norm] x layers`, as in `crate::backbone::Recurrent`.
pub(crate) struct Recurrent {
    cell: Cell,
    hidden: usize,
    input_norm: Option<Norm>,
    layers: Vec<Gates>,
}

struct Gates {
    /// `W_ih` and `b_ih`.
    input: Matrix,
    /// `W_hh` and `b_hh`.
    state: Matrix,
    norm: Option<Norm>,
}

impl Recurrent {
    /// Of the weights under `name`.
    pub(crate) fn new(
        cell: Cell,
        config: &RecurrentConfig,
        packer: &mut Packer,
        name: &str,
    ) -> Result<Self> {
        let input_norm = Norm::layer(config.input_norm, packer, &format!("{name}.input_norm"))?;
        let mut layers = Vec::with_capacity(config.num_layers);
        for i in 0..config.num_layers {
            let mut matrix = |part: &str| -> Result<Matrix> {
                let of = format!("{name}.weight_{part}_l{i}");
                let weight = packer.read_named(&of)?;
                let bias = packer.read_named(&format!("{name}.bias_{part}_l{i}"))?;
                Ok(Matrix::pack(packer, &of, &weight, &bias))
            };
            let (input, state) = (matrix("ih")?, matrix("hh")?);
            let norm = Norm::layer(config.layer_norm, packer, &format!("{name}.norms.{i}"))?;
            layers.push(Gates { input, state, norm });
        }
        Ok(Recurrent { cell, hidden: config.hidden_size, input_norm, layers })
    }
}

impl Step for Recurrent {
    /// h of each layer, for the LSTM h and c.
    fn state_len(&self) -> usize {
        self.cell.states() * self.hidden * self.layers.len()
    }

    fn step(&self, arena: &[f32], games: &mut [Game<'_>], at: usize, scratch: &mut Scratch) {
        if let Some(norm) = &self.input_norm {
            norm.apply(arena, games.len(), &scratch.x, &mut scratch.y);
            std::mem::swap(&mut scratch.x, &mut scratch.y);
        }
        let each = self.cell.states() * self.hidden;
        for (i, layer) in self.layers.iter().enumerate() {
            let Scratch { x, y, z, input, .. } = &mut *scratch;
            layer.input.read(input, x, games.len());
            layer.input.apply(arena, input, y);
            let at = at + i * each;
            input.read(games.iter_mut().map(|game| &*game.state(at, self.hidden)));
            layer.state.apply(arena, input, z);
            let gates = layer.state.outputs();
            let rows = y.chunks_exact(gates).zip(z.chunks_exact(gates));
            for ((game, (y, z)), x) in
                games.iter_mut().zip(rows).zip(x.chunks_exact_mut(self.hidden))
            {
                let (h, c) = game.state(at, each).split_at_mut(self.hidden);
                match self.cell {
                    Cell::Gru => gru(h, y, z),
                    Cell::Lstm => lstm(h, c, y, z),
                }
                match &layer.norm {
                    Some(norm) => norm.apply(arena, 1, h, x),
                    None => x.copy_from_slice(h),
                }
            }
        }
    }
}

dispatch! {
    /// The next state of what both matrices gave, gates in the order r, z, n (Cho et al. 2014, the reset
    /// gate after the product).
    fn gru(h: &mut [f32], input: &[f32], state: &[f32]) {
        let n = h.len();
        let (xr, xz, xn) = (&input[..n], &input[n..2 * n], &input[2 * n..3 * n]);
        let (hr, hz, hn) = (&state[..n], &state[n..2 * n], &state[2 * n..3 * n]);
        for i in 0..n {
            let r = sigmoid_with::<FMA>(xr[i] + hr[i]);
            let z = sigmoid_with::<FMA>(xz[i] + hz[i]);
            let new = tanh_with::<FMA>(xn[i] + r * hn[i]);
            h[i] = (1.0 - z) * new + z * h[i];
        }
    }
}

dispatch! {
    /// The next state of what both matrices gave, gates in the order i, f, g, o (Hochreiter and
    /// Schmidhuber 1997, with the forget gate of Gers et al. 2000).
    fn lstm(h: &mut [f32], c: &mut [f32], input: &[f32], state: &[f32]) {
        let n = h.len();
        let c = &mut c[..n];
        let (xi, xf, xg, xo) =
            (&input[..n], &input[n..2 * n], &input[2 * n..3 * n], &input[3 * n..4 * n]);
        let (hi, hf, hg, ho) =
            (&state[..n], &state[n..2 * n], &state[2 * n..3 * n], &state[3 * n..4 * n]);
        for k in 0..n {
            let i = sigmoid_with::<FMA>(xi[k] + hi[k]);
            let f = sigmoid_with::<FMA>(xf[k] + hf[k]);
            let g = tanh_with::<FMA>(xg[k] + hg[k]);
            let o = sigmoid_with::<FMA>(xo[k] + ho[k]);
            c[k] = f * c[k] + i * g;
            h[k] = o * tanh_with::<FMA>(c[k]);
        }
    }
}
