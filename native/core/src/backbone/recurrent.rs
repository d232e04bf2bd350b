//! LSTM and GRU stacks in PyTorch's conventions (gates i, f, g, o and r, z, n).

use candle_core::Tensor;

use super::{Backbone, Context, State};
use crate::layer::LayerNorm;
use crate::ops::{self, recurrence::Gates};
use crate::spec::RecurrentConfig;
use crate::weights::{Builder, Init};
use crate::{Error, Result};

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
    fn states(self) -> usize {
        match self {
            Cell::Lstm => 2,
            Cell::Gru => 1,
        }
    }
}

/// `norm(x) -> [cell -> norm -> dropout] x layers`; the norms are options (`input_norm`, `layer_norm`).
///
/// State: h `[b, h]` of each layer, for the LSTM h and c: 4 or 8 bytes x `hidden_size` x layers.
pub struct Recurrent {
    cell: Cell,
    hidden_size: usize,
    input_norm: Option<LayerNorm>,
    layers: Vec<Layer>,
    dropout: f32,
    input_dropout: f32,
}

struct Layer {
    gates: Gates,
    norm: Option<LayerNorm>,
}

impl Recurrent {
    /// Weights `weight_ih_lI`, `weight_hh_lI`, `bias_ih_lI`, `bias_hh_lI`, `input_norm`, `norms.I`.
    pub fn new(cell: Cell, config: &RecurrentConfig, input: usize, b: &Builder) -> Result<Self> {
        let (h, rows) = (config.hidden_size, cell.gates() * config.hidden_size);
        let norm =
            |wanted: bool, size, b: Builder| wanted.then(|| LayerNorm::new(size, &b)).transpose();
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
            let norm = norm(config.layer_norm, h, b.under("norms").under(i))?;
            layers.push(Layer { gates, norm });
        }
        let (dropout, input_dropout) = (config.dropout, config.input_dropout);
        Ok(Recurrent { cell, hidden_size: h, input_norm, layers, dropout, input_dropout })
    }

    fn layer(
        &self,
        layer: &Layer,
        x: &Tensor,
        state: &[Tensor],
        context: &Context,
    ) -> Result<(Tensor, Vec<Tensor>)> {
        let lengths = context.lengths();
        match (self.cell, state) {
            (Cell::Gru, [h]) => {
                let (y, h) = ops::gru(x, &layer.gates, h, lengths)?;
                Ok((y, vec![h]))
            }
            (Cell::Lstm, [h, c]) => {
                let (y, h, c) = ops::lstm(x, &layer.gates, h, c, lengths)?;
                Ok((y, vec![h, c]))
            }
            (cell, state) => Err(Error::mismatch("state of a layer", cell.states(), state.len())),
        }
    }
}

impl Backbone for Recurrent {
    fn zero_state(&self, batch: usize) -> Result<State> {
        let part = || {
            Ok(ops::tensor::tensor(vec![0.0; batch * self.hidden_size], (batch, self.hidden_size))?)
        };
        (0..self.layers.len() * self.cell.states())
            .map(|_| part())
            .collect::<Result<_>>()
            .map(State)
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
        let mut next = Vec::with_capacity(state.0.len());
        for (i, (layer, state)) in self.layers.iter().zip(state.0.chunks(per_layer)).enumerate() {
            let (y, state) = self.layer(layer, &x, state, context)?;
            next.extend(state);
            x = match &layer.norm {
                Some(norm) => norm.forward(&y)?,
                None => y,
            };
            x = context.dropout(&x, self.dropout, &i.to_string())?;
        }
        Ok((x, State(next)))
    }
}
