//! No memory: each frame on its own.

use candle_core::Tensor;

use super::{Backbone, Context, State};
use crate::Result;
use crate::layer::{LayerNorm, Linear};
use crate::ops::Activation;
use crate::spec::MlpConfig;
use crate::weights::Builder;

/// Per layer `dropout(relu(norm(dense(x)))) + skip`. The skip of a residual layer is projected for
/// layer 0 and where the width changes (He et al. 2016, eq. 1 and 2); the norm and the residual are
/// options.
pub struct Mlp {
    layers: Vec<Layer>,
    dropout: f32,
    input_dropout: f32,
    residual: bool,
}

struct Layer {
    dense: Linear,
    norm: Option<LayerNorm>,
    projection: Option<Linear>,
}

impl Mlp {
    /// Weights `layers.I.dense`, `layers.I.norm`, `layers.I.proj`.
    pub fn new(config: &MlpConfig, input: usize, b: &Builder) -> Result<Self> {
        let mut width = input;
        let mut layers = Vec::with_capacity(config.hidden_sizes.len());
        for (i, &size) in config.hidden_sizes.iter().enumerate() {
            let b = b.under("layers").under(i);
            let dense = Linear::new(width, size, Activation::Relu, &b.under("dense"))?;
            let norm =
                config.layer_norm.then(|| LayerNorm::new(size, &b.under("norm"))).transpose()?;
            let projection = (config.residual && (i == 0 || size != width))
                .then(|| Linear::new(width, size, Activation::None, &b.under("proj")))
                .transpose()?;
            layers.push(Layer { dense, norm, projection });
            width = size;
        }
        let (dropout, input_dropout) = (config.dropout, config.input_dropout);
        Ok(Mlp { layers, dropout, input_dropout, residual: config.residual })
    }
}

impl Backbone for Mlp {
    fn zero_state(&self, _batch: usize) -> Result<State> {
        Ok(State(vec![]))
    }

    fn forward(&self, x: &Tensor, state: &State, context: &Context) -> Result<(Tensor, State)> {
        let mut x = context.dropout_columns(x, self.input_dropout, "input")?;
        for (i, layer) in self.layers.iter().enumerate() {
            let mut h = match &layer.norm {
                Some(norm) => layer.dense.forward_norm(&x, norm)?,
                None => layer.dense.forward(&x)?,
            };
            h = context.dropout(&h, self.dropout, &i.to_string())?;
            if self.residual {
                let skip = match &layer.projection {
                    Some(projection) => projection.forward(&x)?,
                    None => x,
                };
                h = (h + skip)?;
            }
            x = h;
        }
        Ok((x, state.clone()))
    }
}
