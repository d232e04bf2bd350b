//! Stacks of LSTM and GRU layers in PyTorch's conventions (gates i, f, g, o and r, z, n).

use std::sync::{Arc, OnceLock};

use sconce_realtime::{self as packed, Matrix, Packer, Scratch};
use sconce_tensor::Tensor;
use sconce_tensor::simd::{dispatch, sigmoid_with, tanh_with};

use super::config::RecurrentConfig;
use super::initial::{Initial, PackedInitial};
use super::recompute::recomputed;
use super::{Backbone, Context, State};
use crate::layer::Norm;
use crate::ops::recurrent::Gates;
use crate::ops::{self, matmul};
use crate::packed::{Game, Step};
use crate::weights::{Block, Builder, Init, WORTH_PACKING, Weight};
use crate::{Error, Result, pool};

/// The recurrence of a [`Recurrent`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cell {
    /// Long short-term memory, with the states h and c.
    Lstm,
    /// Gated recurrent unit, with the state h.
    Gru,
}

impl Cell {
    fn gates(self) -> usize {
        match self {
            Cell::Lstm => 4,
            Cell::Gru => 3,
        }
    }

    /// Number of tensors in the state of one layer: h, and c for an LSTM.
    pub fn states(self) -> usize {
        match self {
            Cell::Lstm => 2,
            Cell::Gru => 1,
        }
    }
}

/// `norm(x) -> [cell -> norm -> dropout] x layers`. The norms are optional (`input_norm`, `layer_norm`).
///
/// Taps: `I.hidden [b, t, h]`, the output of the cell of layer I.
///
/// State: h `[b, h]` of each layer, and c `[b, h]` for an LSTM. A GRU's state takes 4 bytes x `hidden_size` x layers,
/// an LSTM's twice as much. It begins as zero, or as stored vectors (`initial_state`).
pub struct Recurrent {
    cell: Cell,
    hidden_size: usize,
    initial: Initial,
    input_norm: Option<Norm>,
    layers: Vec<Arc<Layer>>,
    input_dropout: f32,
    weights: Arc<[Weight]>,
}

struct Layer {
    cell: Cell,
    gates: Gates,
    norm: Option<Norm>,
    dropout: f32,
}

impl Recurrent {
    /// Weights: `weight_ih_lI`, `weight_hh_lI`, `bias_ih_lI`, `bias_hh_lI`, `input_norm`, `norms.I`, `initial_state`.
    pub fn new(cell: Cell, config: &RecurrentConfig, input: usize, b: &Builder) -> Result<Self> {
        let (h, rows) = (config.hidden_size, cell.gates() * config.hidden_size);
        let eps = config.norm_eps.0;
        let norm = |wanted: bool, size, b: Builder| -> Result<Option<Norm>> {
            let norm = wanted.then(|| Norm::layer(size, &b)).transpose()?;
            Ok(norm.map(|norm| norm.with_eps(eps)))
        };
        let input_norm = norm(config.input_norm, input, b.under("input_norm"))?;
        let (init, gate) = (Init::fan_in(h), Block { rows: h, gain: 1.0 });
        let of_gates = b.in_blocks(vec![gate; cell.gates()]);
        let mut layers = Vec::with_capacity(config.num_layers);
        for i in 0..config.num_layers {
            let width = if i == 0 { input } else { h };
            let gates = Gates::new(
                of_gates.get(&format!("weight_ih_l{i}"), &[rows, width], init)?,
                of_gates.get(&format!("weight_hh_l{i}"), &[rows, h], init)?,
                b.get(&format!("bias_ih_l{i}"), &[rows], init)?,
                b.get(&format!("bias_hh_l{i}"), &[rows], init)?,
            );
            layers.push(Arc::new(Layer {
                cell,
                gates,
                norm: norm(config.layer_norm, h, b.under("norms").under(i))?,
                dropout: config.dropout,
            }));
        }
        let initial = Initial::new(cell.states(), config.initial_state, [config.num_layers, h], b)?;
        let (input_dropout, weights) = (config.input_dropout, b.taken());
        Ok(Recurrent { cell, hidden_size: h, initial, input_norm, layers, input_dropout, weights })
    }
}

impl Recurrent {
    /// The same layers with another norm of the input.
    pub(super) fn reading(self, input_norm: Option<Norm>) -> Self {
        Recurrent { input_norm, ..self }
    }

    /// The same layers with another initial state.
    pub(super) fn starting(self, initial: Initial) -> Self {
        Recurrent { initial, ..self }
    }
}

/// A stack of LSTM layers.
pub(super) fn lstm(config: &RecurrentConfig, input: usize, b: &Builder) -> Result<Recurrent> {
    Recurrent::new(Cell::Lstm, config, input, b)
}

/// A stack of GRU layers.
pub(super) fn gru(config: &RecurrentConfig, input: usize, b: &Builder) -> Result<Recurrent> {
    Recurrent::new(Cell::Gru, config, input, b)
}

impl Layer {
    /// Returns the outputs of all frames, and the next state.
    fn cell(
        &self,
        x: &Tensor,
        state: &[Tensor],
        context: &Context,
    ) -> Result<(Tensor, Vec<Tensor>)> {
        let lengths = context.lengths();
        match (self.cell, state) {
            (Cell::Gru, [h]) => {
                let (y, h) = ops::gru(x, &self.gates, h, lengths)?;
                Ok((y, vec![h]))
            }
            (Cell::Lstm, [h, c]) => {
                let (y, h, c) = ops::lstm(x, &self.gates, h, c, lengths)?;
                Ok((y, vec![h, c]))
            }
            (cell, state) => Err(Error::mismatch("state of a layer", cell.states(), state.len())),
        }
    }
}

/// Runs layers `first..` and returns the parts of their next states.
fn run(
    layers: &[Arc<Layer>],
    first: usize,
    x: &Tensor,
    state: &[Tensor],
    context: &Context,
) -> Result<(Tensor, Vec<Tensor>)> {
    let mut x = x.clone();
    let mut next = Vec::with_capacity(state.len());
    let per_layer = state.len() / layers.len().max(1);
    for (i, (layer, state)) in layers.iter().zip(state.chunks(per_layer.max(1))).enumerate() {
        let (y, state) = layer.cell(&x, state, context)?;
        context.under(first + i).tap("hidden", &y);
        next.extend(state);
        x = match &layer.norm {
            Some(norm) => norm.forward(&y)?,
            None => y,
        };
        x = context.dropout(&x, layer.dropout, &(first + i).to_string())?;
    }
    Ok((x, next))
}

/// Minimum number of frames in a stretch, from which packing a weight pays.
const STRETCH: usize = WORTH_PACKING;
/// Games that one shard of a layer processes together.
const GAMES: usize = 16;

impl Recurrent {
    /// Number of stretches for [`wave`](Self::wave), or none if a wave would be slower or not bit-identical to [`run`].
    /// A wave is faster for few games, where one thread computes a layer. The results are bit-identical if a frame's
    /// result does not depend on the number of frames computed together, which holds from [`STRETCH`] frames on.
    fn stretches(&self, x: &Tensor, context: &Context) -> Result<Option<usize>> {
        let (batch, time, _) = x.dims3()?;
        let few = batch <= GAMES && time >= 2 * STRETCH && self.layers.len() > 1;
        let bare = context.is_bare() && !self.weights.iter().any(|weight| weight.track_op());
        let shared = few && bare && matmul::rows_are_apart() && pool::is_shared();
        Ok(shared.then_some(time / STRETCH))
    }

    /// Does the work of [`run`] with all layers in parallel; each layer is one stretch of frames behind the layer
    /// below.
    fn wave(
        &self,
        x: &Tensor,
        state: &[Tensor],
        count: usize,
        context: &Context,
    ) -> Result<(Tensor, Vec<Tensor>)> {
        let (time, layers) = (x.dim(1)?, self.layers.len());
        let begin = |i: usize| i * time / count;
        let cut = (0..count).map(|i| x.narrow(1, begin(i), begin(i + 1) - begin(i)));
        // Inputs of each layer, by stretch, and the outputs of the last layer.
        let mut given = vec![cut.collect::<sconce_tensor::candle::Result<Vec<_>>>()?];
        given.resize(layers + 1, vec![]);
        let mut states: Vec<_> = state.chunks(self.cell.states()).map(<[_]>::to_vec).collect();
        for wave in 0..count + layers - 1 {
            let busy = (wave + 1).saturating_sub(count)..layers.min(wave + 1);
            let done: Vec<_> = busy.clone().map(|_| OnceLock::new()).collect();
            pool::for_each(busy.len(), |k| {
                let i = busy.start + k;
                let layer = &self.layers[i..i + 1];
                let _ = done[k].set(run(layer, i, &given[i][wave - i], &states[i], context));
            });
            for (i, done) in busy.zip(done.into_iter().filter_map(OnceLock::into_inner)) {
                let (y, state) = done?;
                given[i + 1].push(y);
                states[i] = state;
            }
        }
        sconce_tensor::tensor::granted(&given[layers].iter().collect::<Vec<_>>());
        Ok((Tensor::cat(&given[layers], 1)?, states.concat()))
    }
}

impl Backbone for Recurrent {
    fn zero_state(&self, batch: usize) -> Result<State> {
        self.initial.state(batch)
    }

    fn forward(&self, x: &Tensor, state: &State, context: &Context) -> Result<(Tensor, State)> {
        let per_layer = self.cell.states();
        if state.0.len() != self.layers.len() * per_layer {
            return Err(Error::mismatch(
                "parts of a state",
                self.layers.len() * per_layer,
                state.0.len(),
            ));
        }
        let mut x = match &self.input_norm {
            Some(norm) => norm.forward(x)?,
            None => x.clone(),
        };
        x = context.dropout_columns(&x, self.input_dropout, "input")?;
        if let Some(count) = self.stretches(&x, context)? {
            let (x, next) = self.wave(&x, &state.0, count, context)?;
            return Ok((x, State(next)));
        }
        let Some(every) = context.recompute_every() else {
            let (x, next) = run(&self.layers, 0, &x, &state.0, context)?;
            return Ok((x, State(next)));
        };
        let mut next = Vec::with_capacity(state.0.len());
        let groups = self.layers.chunks(every).zip(state.0.chunks(every * per_layer));
        for (group, (layers, own)) in groups.enumerate() {
            let layers = layers.to_vec();
            let block = move |x: &Tensor, state: &State, context: &Context| {
                run(&layers, group * every, x, &state.0, context).map(|(x, next)| (x, State(next)))
            };
            let own = State(own.to_vec());
            let (y, after) = recomputed(&x, &own, context, &self.weights, block)?;
            x = y;
            next.extend(after.0);
        }
        Ok((x, State(next)))
    }

    fn pack(&self, packer: &mut Packer) -> Result<Box<dyn Step>> {
        Ok(Box::new(self.packed(packer)?))
    }
}

impl Recurrent {
    pub(super) fn packed(&self, packer: &mut Packer) -> Result<Packed> {
        let norm = |norm: &Option<Norm>, packer: &mut Packer| {
            norm.as_ref().map(|norm| norm.pack(packer)).transpose()
        };
        let input_norm = norm(&self.input_norm, packer)?;
        let mut layers = Vec::with_capacity(self.layers.len());
        for layer in &self.layers {
            let Gates { weight_ih, weight_hh, bias_ih, bias_hh, .. } = &layer.gates;
            layers.push(PackedLayer {
                input: Matrix::dense(packer, weight_ih, Some(bias_ih))?,
                state: Matrix::dense(packer, weight_hh, Some(bias_hh))?,
                norm: norm(&layer.norm, packer)?,
            });
        }
        let (cell, hidden, initial) = (self.cell, self.hidden_size, self.initial.pack(packer)?);
        Ok(Packed { cell, hidden, initial, input_norm, layers })
    }
}

/// A [`Recurrent`] packed for one frame at a time.
pub(super) struct Packed {
    cell: Cell,
    hidden: usize,
    initial: PackedInitial,
    input_norm: Option<packed::Norm>,
    layers: Vec<PackedLayer>,
}

struct PackedLayer {
    /// `W_ih` and `b_ih`.
    input: Matrix,
    /// `W_hh` and `b_hh`.
    state: Matrix,
    norm: Option<packed::Norm>,
}

impl Step for Packed {
    /// Length of h of each layer, and of c for an LSTM.
    fn state_len(&self) -> usize {
        self.cell.states() * self.hidden * self.layers.len()
    }

    fn start(&self, arena: &[f32], state: &mut [f32], at: usize) {
        self.initial.write(arena, &mut state[at..at + self.state_len()]);
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
                    Cell::Gru => gru_frame(h, y, z),
                    Cell::Lstm => lstm_frame(h, c, y, z),
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
    /// Computes the next state from the outputs of both matrices. Gates are in the order r, z, n (Cho et al. 2014, with
    /// the reset gate after the product).
    fn gru_frame(h: &mut [f32], input: &[f32], state: &[f32]) {
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
    /// Computes the next state from the outputs of both matrices. Gates are in the order i, f, g, o (Hochreiter and
    /// Schmidhuber 1997, with the forget gate of Gers et al. 2000).
    fn lstm_frame(h: &mut [f32], c: &mut [f32], input: &[f32], state: &[f32]) {
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

#[cfg(test)]
mod tests {
    use sconce_tensor::tensor::{tensor, to_vec};

    use super::*;
    use crate::rng::Rng;

    #[test]
    fn layers_in_parallel_give_the_same_bits_as_in_sequence() -> Result<()> {
        pool::set_threads(2)?;
        for (cell, num_layers, batch, time) in [
            (Cell::Lstm, 2, 1, 60),
            (Cell::Gru, 3, 2, 101),
            (Cell::Gru, 2, 1, 73),
            (Cell::Lstm, 4, 16, 601),
        ] {
            let config = RecurrentConfig {
                hidden_size: 70,
                num_layers,
                layer_norm: true,
                input_norm: true,
                dropout: 0.1,
                input_dropout: 0.1,
                ..Default::default()
            };
            let b = Builder::new(crate::weights::Source::Seed(1), false);
            let layers = Recurrent::new(cell, &config, 40, &b)?;
            let rng = Rng::new(2, "x", 0);
            let draw = |count: usize, shape: &[usize]| {
                tensor((0..count as u64).map(|i| rng.normal(i)).collect(), shape)
            };
            let x = draw(batch * time * 40, &[batch, time, 40])?;
            let parts = layers.zero_state(batch)?.0.len();
            let state: Vec<_> = (0..parts)
                .map(|_| draw(batch * 70, &[batch, 70]))
                .collect::<sconce_tensor::candle::Result<_>>()?;
            let context = Context::default();
            let count = layers.stretches(&x, &context)?;
            assert_eq!(count.is_some(), matmul::rows_are_apart());
            let whole = run(&layers.layers, 0, &x, &state, &context)?;
            let waves = layers.wave(&x, &state, count.unwrap_or(2), &context)?;
            if count.is_some() {
                assert_eq!(to_vec(&waves.0)?, to_vec(&whole.0)?);
            }
            for (next, want) in waves.1.iter().zip(&whole.1) {
                let close = |(a, b): (f32, f32)| (a - b).abs() < 1e-5;
                assert!(to_vec(next)?.into_iter().zip(to_vec(want)?).all(close));
            }
            assert_eq!(waves.1.len(), parts);
            assert_eq!(pool::serial(|| layers.stretches(&x, &context))?, None);
        }
        Ok(())
    }
}
