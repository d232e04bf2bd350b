//! LSTM and GRU stacks in PyTorch's conventions (gates i, f, g, o and r, z, n).

use std::sync::{Arc, OnceLock};

use sconce_tensor::Tensor;

use super::recompute::recomputed;
use super::{Backbone, Context, State};
use crate::layer::Norm;
use crate::ops::{self, matmul, recurrent::Gates};
use crate::spec::RecurrentConfig;
use crate::weights::{Builder, Init, WORTH_PACKING, Weight};
use crate::{Error, Result, pool};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cell {
    Lstm,
    Gru,
}

impl Cell {
    fn gates(self) -> usize {
        match self {
            Cell::Lstm => 4,
            Cell::Gru => 3,
        }
    }

    /// Tensors of the state of one layer: h, and for the LSTM c.
    pub fn states(self) -> usize {
        match self {
            Cell::Lstm => 2,
            Cell::Gru => 1,
        }
    }
}

/// `norm(x) -> [cell -> norm -> dropout] x layers`; the norms are options (`input_norm`, `layer_norm`).
///
/// Taps: `I.hidden [b, t, h]`, what the cell of layer I gives.
///
/// State: h `[b, h]` of each layer, for the LSTM h and c: 4 or 8 bytes x `hidden_size` x layers.
pub struct Recurrent {
    cell: Cell,
    hidden_size: usize,
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
    /// Weights `weight_ih_lI`, `weight_hh_lI`, `bias_ih_lI`, `bias_hh_lI`, `input_norm`, `norms.I`.
    pub fn new(cell: Cell, config: &RecurrentConfig, input: usize, b: &Builder) -> Result<Self> {
        let (h, rows) = (config.hidden_size, cell.gates() * config.hidden_size);
        let norm =
            |wanted: bool, size, b: Builder| wanted.then(|| Norm::layer(size, &b)).transpose();
        let input_norm = norm(config.input_norm, input, b.under("input_norm"))?;
        let init = Init::fan_in(h);
        let mut layers = Vec::with_capacity(config.num_layers);
        for i in 0..config.num_layers {
            let width = if i == 0 { input } else { h };
            let gates = Gates::new(
                b.get(&format!("weight_ih_l{i}"), &[rows, width], init)?,
                b.get(&format!("weight_hh_l{i}"), &[rows, h], init)?,
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
        let (input_dropout, weights) = (config.input_dropout, b.taken());
        Ok(Recurrent { cell, hidden_size: h, input_norm, layers, input_dropout, weights })
    }
}

impl Layer {
    /// States after each frame, and the last ones.
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

/// Layers `first..` one after the other; gives the parts of their next states.
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

/// The least frames of a stretch: as many as pay for packing a weight.
const STRETCH: usize = WORTH_PACKING;
/// Games that one shard of a layer takes together.
const GAMES: usize = 16;

impl Recurrent {
    /// How many stretches of [`wave`](Self::wave) there are, where it pays: with few games a layer is work
    /// for one thread. Only where a frame has the same bits whatever frames are beside it, as with no fewer
    /// than [`STRETCH`] it has.
    fn stretches(&self, x: &Tensor, context: &Context) -> Result<Option<usize>> {
        let (batch, time, _) = x.dims3()?;
        let few = batch <= GAMES && time >= 2 * STRETCH && self.layers.len() > 1;
        let bare = context.is_bare() && !self.weights.iter().any(|weight| weight.track_op());
        let shared = few && bare && matmul::rows_are_apart() && pool::is_shared();
        Ok(shared.then_some(time / STRETCH))
    }

    /// [`run`] of all layers side by side, each a stretch of frames behind the one before it.
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
        // What each layer reads, stretch by stretch, and what the last one gives.
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
        State::zeros(batch, &vec![self.hidden_size; self.layers.len() * self.cell.states()])
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use sconce_tensor::tensor::{tensor, to_vec};

    #[test]
    fn layers_side_by_side_give_the_bits_of_one_after_the_other() -> Result<()> {
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
