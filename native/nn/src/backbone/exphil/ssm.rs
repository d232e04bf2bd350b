//! The dense layers that ExPhil's state spaces share.

use sconce_ops::activation::clip;
use sconce_realtime::{Matrix, Packer};
use sconce_tensor::Tensor;

use super::super::mamba::softplus_of_a_step;
use crate::Result;
use crate::layer::Linear;
use crate::ops::Activation;
use crate::weights::{Builder, Init};

/// The bounds of a step size.
pub(super) const STEPS: [f32; 2] = [1e-3, 0.1];

/// Sizes of a layer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    /// Width of the input and of the output.
    pub(super) hidden_size: usize,
    /// Number of channels.
    pub(super) channels: usize,
    /// Number of states of each channel.
    pub(super) states: usize,
    /// Rank of the projection to the step sizes.
    pub(super) rank: usize,
}

/// The dense layers of a state space. All have a bias.
pub(super) struct Dense {
    pub(super) in_proj: Linear,
    bc_proj: Linear,
    dt_rank: Linear,
    dt_proj: Linear,
    pub(super) out_proj: Linear,
    pub(super) sizes: Sizes,
}

/// The numbers that a layer selects for each frame.
pub(super) struct Selected {
    /// The softplus of the projection, `[b, t, c]`.
    pub(super) dt: Tensor,
    /// B, `[b, t, n]`.
    pub(super) b: Tensor,
    /// C, `[b, t, n]`.
    pub(super) c: Tensor,
}

impl Dense {
    /// Weights: `in_proj`, `bc_proj`, `dt_rank`, `dt_proj`, `out_proj`, each with `weight` and `bias`.
    pub(super) fn new(sizes: Sizes, b: &Builder) -> Result<Self> {
        let Sizes { hidden_size, channels, states, rank } = sizes;
        let dense =
            |name, input, output| Linear::new(input, output, Activation::None, &b.under(name));
        let steps = Init::With(softplus_of_a_step);
        Ok(Dense {
            in_proj: dense("in_proj", hidden_size, 2 * channels)?,
            bc_proj: dense("bc_proj", channels, 2 * states)?,
            dt_rank: dense("dt_rank", channels, rank)?,
            dt_proj: Linear::with_bias(rank, channels, steps, &b.under("dt_proj"))?,
            out_proj: dense("out_proj", channels, hidden_size)?,
            sizes,
        })
    }

    /// The input u and the gate z of each channel, `[b, t, c]` each, of `x [b, t, h]`.
    pub(super) fn branches(&self, x: &Tensor) -> Result<[Tensor; 2]> {
        let both = self.in_proj.forward(x)?;
        let part = |i: usize| both.narrow(2, i * self.sizes.channels, self.sizes.channels);
        Ok([part(0)?, part(1)?])
    }

    /// Step sizes, B and C of `a [b, t, c]`, the output of the convolution.
    pub(super) fn select(&self, a: &Tensor) -> Result<Selected> {
        let both = self.bc_proj.forward(a)?;
        let part = |i: usize| both.narrow(2, i * self.sizes.states, self.sizes.states);
        let dt = self.dt_proj.forward(&self.dt_rank.forward(a)?)?;
        let dt = crate::ops::activate(&dt, Activation::Softplus)?;
        Ok(Selected { dt, b: part(0)?, c: part(1)? })
    }

    /// Packs the layers that read the output of the convolution, as one matrix with the rows of `dt_rank`, of B and of
    /// C, and `dt_proj`.
    pub(super) fn pack_selection(&self, packer: &mut Packer) -> Result<[Matrix; 2]> {
        let parts = [self.dt_rank.parts(), self.bc_proj.parts()];
        let [weights, steps] = [Matrix::side_by_side(packer, &parts)?, self.dt_proj.pack(packer)?];
        Ok([weights, steps])
    }
}

/// The step sizes within [`STEPS`].
pub(super) fn bounded(dt: &Tensor) -> Result<Tensor> {
    let [low, high] = STEPS;
    clip::clip(dt, low, high)
}
