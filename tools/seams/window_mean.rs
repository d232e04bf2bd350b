//! The mean of a window: a backbone without a step.

use sconce_tensor::Tensor;
use serde::{Deserialize, Serialize};

use super::config::Config;
use super::{Backbone, Context, State};
use crate::Result;
use crate::bounds::size;
use crate::layer::Linear;
use crate::ops::Activation;
use crate::weights::Builder;

/// Options of the backbone `window_mean`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WindowMeanConfig {
    /// Width of the output.
    pub hidden_size: usize,
}

impl Config for WindowMeanConfig {
    fn output_size(&self, _input: usize) -> usize {
        self.hidden_size
    }

    fn validate(&self) -> Result<()> {
        size("backbone.hidden_size", self.hidden_size, 1)
    }

    fn window_only(&self) -> bool {
        true
    }
}

/// `y = relu(W mean_t(x_t) + b)` for each frame of a window `x: [b, t, d]`. Weights: `linear`.
pub(super) struct WindowMean {
    linear: Linear,
}

impl WindowMean {
    pub(super) fn new(config: &WindowMeanConfig, input: usize, b: &Builder) -> Result<Self> {
        let width = config.hidden_size;
        Ok(WindowMean { linear: Linear::new(input, width, Activation::Relu, &b.under("linear"))? })
    }
}

impl Backbone for WindowMean {
    fn zero_state(&self, _batch: usize) -> Result<State> {
        Ok(State(vec![]))
    }

    fn forward(&self, x: &Tensor, state: &State, context: &Context) -> Result<(Tensor, State)> {
        let frames = context.read_of(x)?.dim(1)?;
        let mean = x.mean_keepdim(1)?.repeat((1, frames, 1))?;
        Ok((self.linear.forward(&mean)?, state.clone()))
    }
}
