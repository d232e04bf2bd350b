//! A multilayer perceptron: each frame on its own, without memory.

use std::mem;
use std::sync::Arc;

use sconce_realtime::{self as packed, Matrix, Packer, Scratch};
use sconce_tensor::Tensor;
use sconce_tensor::simd::add_assign;

use super::config::MlpConfig;
use super::recompute::recomputed;
use super::{Backbone, Context, State};
use crate::Result;
use crate::layer::{Linear, Norm};
use crate::ops::arrange::add;
use crate::ops::{Activated, Activation, perceptron};
use crate::packed::{Game, Step};
use crate::weights::{Builder, Weight};

/// Each layer is `dropout(activation(norm(dense(x)))) + skip`. The norm and the skip are optional. The skip has a projection
/// in layer 0 and wherever the width changes (He et al. 2016, eq. 1 and 2). Taps: `I.hidden [b, t, size]`, the output
/// of layer I.
pub struct Mlp {
    layers: Vec<Arc<Layer>>,
    /// The layers as one op, if they have neither norms nor skips.
    plain: Option<Arc<[Activated]>>,
    dropout: f32,
    input_dropout: f32,
    weights: Arc<[Weight]>,
}

struct Layer {
    dense: Linear,
    norm: Option<Norm>,
    projection: Option<Linear>,
    dropout: f32,
    residual: bool,
}

impl Mlp {
    /// Weights: `layers.I.dense`, `layers.I.norm`, `layers.I.proj`.
    pub fn new(config: &MlpConfig, input: usize, b: &Builder) -> Result<Self> {
        let mut width = input;
        let mut layers = Vec::with_capacity(config.hidden_sizes.len());
        for (i, &size) in config.hidden_sizes.iter().enumerate() {
            let b = b.under("layers").under(i);
            let dense = Linear::new(width, size, config.activation.into(), &b.under("dense"))?;
            let norm =
                config.layer_norm.then(|| Norm::layer(size, &b.under("norm"))).transpose()?;
            let projection = (config.residual && (i == 0 || size != width))
                .then(|| Linear::new(width, size, Activation::None, &b.under("proj")))
                .transpose()?;
            let (dropout, residual) = (config.dropout, config.residual);
            layers.push(Arc::new(Layer { dense, norm, projection, dropout, residual }));
            width = size;
        }
        let is_plain = !config.layer_norm && !config.residual;
        let plain =
            is_plain.then(|| layers.iter().map(|layer| layer.dense.to_activated()).collect());
        let (dropout, input_dropout) = (config.dropout, config.input_dropout);
        Ok(Mlp { layers, plain, dropout, input_dropout, weights: b.taken() })
    }

    /// The layers as one op, if nothing stands between them in this pass.
    fn plain(&self, context: &Context) -> Option<&Arc<[Activated]>> {
        let is_apart = context.is_tapped() || context.drops(self.dropout);
        self.plain.as_ref().filter(|_| !is_apart)
    }
}

impl Backbone for Mlp {
    fn zero_state(&self, _batch: usize) -> Result<State> {
        Ok(State(vec![]))
    }

    fn forward(&self, x: &Tensor, state: &State, context: &Context) -> Result<(Tensor, State)> {
        let mut x = context.dropout_columns(&context.read_of(x)?, self.input_dropout, "input")?;
        let Some(every) = context.recompute_every() else {
            let y = match self.plain(context) {
                Some(layers) => perceptron(&x, layers)?,
                None => run(&self.layers, 0, &x, context)?,
            };
            return Ok((y, state.clone()));
        };
        for (group, layers) in self.layers.chunks(every).enumerate() {
            let layers = layers.to_vec();
            let block = move |x: &Tensor, state: &State, context: &Context| {
                Ok((run(&layers, group * every, x, context)?, state.clone()))
            };
            (x, _) = recomputed(&x, &State(vec![]), context, &self.weights, block)?;
        }
        Ok((x, state.clone()))
    }

    fn pack(&self, packer: &mut Packer) -> Result<Box<dyn Step>> {
        let layers = self.layers.iter().map(|layer| layer.pack(packer)).collect::<Result<_>>()?;
        Ok(Box::new(Packed { layers }))
    }
}

impl Layer {
    fn pack(&self, packer: &mut Packer) -> Result<Dense> {
        let (dense, activation) = (self.dense.pack(packer)?, self.dense.activation());
        let norm = self.norm.as_ref().map(|norm| norm.pack(packer)).transpose()?;
        let skip = match &self.projection {
            Some(projection) => Skip::Projected(projection.pack(packer)?),
            None if self.residual => Skip::Same,
            None => Skip::None,
        };
        Ok(Dense { dense, norm, activation, skip })
    }
}

/// Runs layers `first..`.
fn run(layers: &[Arc<Layer>], first: usize, x: &Tensor, context: &Context) -> Result<Tensor> {
    let mut x = x.clone();
    for (i, layer) in layers.iter().enumerate() {
        let mut h = match &layer.norm {
            Some(norm) => layer.dense.forward_norm(&x, norm)?,
            None => layer.dense.forward(&x)?,
        };
        h = context.dropout(&h, layer.dropout, &(first + i).to_string())?;
        if layer.residual {
            let skip = match &layer.projection {
                Some(projection) => projection.forward(&x)?,
                None => x,
            };
            h = add(&h, &skip)?;
        }
        context.under(first + i).tap("hidden", &h);
        x = h;
    }
    Ok(x)
}

/// An [`Mlp`] packed for one frame at a time.
struct Packed {
    layers: Vec<Dense>,
}

struct Dense {
    dense: Matrix,
    norm: Option<packed::Norm>,
    activation: Activation,
    skip: Skip,
}

enum Skip {
    None,
    Same,
    Projected(Matrix),
}

impl Step for Packed {
    fn state_len(&self) -> usize {
        0
    }

    fn step(&self, arena: &[f32], games: &mut [Game<'_>], _at: usize, scratch: &mut Scratch) {
        for layer in &self.layers {
            layer.step(arena, games.len(), scratch);
        }
    }
}

impl Dense {
    fn step(&self, arena: &[f32], rows: usize, scratch: &mut Scratch) {
        let Scratch { x, y, z, input, .. } = scratch;
        let n = rows * self.dense.outputs();
        self.dense.read(input, x, rows);
        match (&self.norm, self.activation) {
            (None, Activation::Relu) => self.dense.relu(arena, input, y),
            (None, activation) => {
                self.dense.apply(arena, input, y);
                activation.apply(&mut y[..n]);
            }
            (Some(norm), activation) => {
                self.dense.apply(arena, input, z);
                norm.apply(arena, rows, z, y);
                activation.apply(&mut y[..n]);
            }
        }
        match &self.skip {
            Skip::None => {}
            Skip::Same => add_assign(&mut y[..n], &x[..n]),
            Skip::Projected(projection) => {
                projection.apply(arena, input, z);
                add_assign(&mut y[..n], &z[..n]);
            }
        }
        mem::swap(x, y);
    }
}
