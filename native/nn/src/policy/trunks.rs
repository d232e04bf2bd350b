//! The backbones of a policy: the one that its heads read, and the critic's.

use crate::backbone::{self, Backbone, Context, State};
use crate::heads::Trunk;
use crate::layer::Linear;
use crate::ops::Activation;
use crate::weights::{Block, Builder};
use crate::{Error, Result, Spec};
use sconce_tensor::Tensor;

/// The backbones of a policy. Both read the same vectors. The state is the parts of the first backbone's state,
/// followed by those of the critic's.
pub(super) struct Trunks {
    first: Box<dyn Backbone>,
    critic: Option<Critic>,
    /// Number of parts of the first backbone's state.
    parts: usize,
}

/// A backbone that only the value reads, so that the losses of choices and of the value share no weights. The value is
/// linear in its trunk vector.
pub(crate) struct Critic {
    pub(crate) backbone: Box<dyn Backbone>,
    pub(crate) value: Linear,
}

impl Critic {
    /// Weights: `backbone`, `value`.
    fn new(config: &crate::spec::Backbone, width: usize, b: &Builder) -> Result<Self> {
        let value = b.under("value").in_blocks([Block { rows: 1, gain: 1.0 }]);
        Ok(Critic {
            backbone: backbone::new(config, width, &b.under("backbone"))?,
            value: Linear::new(config.output_size(width), 1, Activation::None, &value)?,
        })
    }

    /// Values `[b, t, 1]`, and the state after the last frame.
    fn forward(&self, x: &Tensor, state: &State, context: &Context) -> Result<(Tensor, State)> {
        let (trunk, state) = self.backbone.forward(x, state, &context.under("critic"))?;
        Ok((self.value.forward(&trunk)?, state))
    }
}

impl Trunks {
    /// Weights: `backbone`, and those of a `critic`.
    pub(super) fn new(spec: &Spec, b: &Builder) -> Result<Self> {
        let width = spec.embedding.width();
        let first = backbone::new(&spec.backbone, width, &b.under("backbone"))?;
        let critic = spec.critic.as_ref().map(|of| Critic::new(of, width, &b.under("critic")));
        let parts = first.zero_state(0)?.0.len();
        Ok(Trunks { first, critic: critic.transpose()?, parts })
    }

    /// The backbone that the heads read.
    pub(super) fn first(&self) -> &dyn Backbone {
        &*self.first
    }

    /// The critic, if the value has a backbone of its own.
    pub(super) fn critic(&self) -> Option<&Critic> {
        self.critic.as_ref()
    }

    /// The initial state of `batch` games.
    pub(super) fn zero_state(&self, batch: usize) -> Result<State> {
        let mut state = self.first.zero_state(batch)?;
        if let Some(critic) = &self.critic {
            state.0.extend(critic.backbone.zero_state(batch)?.0);
        }
        Ok(state)
    }

    /// The inputs of the heads for `x [b, t, width]`, and the state after the last frame.
    pub(super) fn forward(
        &self,
        x: &Tensor,
        state: &State,
        context: &Context,
    ) -> Result<(Trunk, State)> {
        let Some(critic) = &self.critic else {
            let (vectors, state) = self.first.forward(x, state, context)?;
            return Ok((vectors.into(), state));
        };
        let Some((own, rest)) = state.0.split_at_checked(self.parts) else {
            return Err(Error::mismatch("parts of a state", self.parts, state.0.len()));
        };
        let (vectors, mut next) = self.first.forward(x, &State(own.to_vec()), context)?;
        let (values, after) = critic.forward(x, &State(rest.to_vec()), context)?;
        next.0.extend(after.0);
        Ok((aligned(vectors, values)?, next))
    }
}

/// Trunk vectors and values of the same frames. A backbone may answer a [pass of the last frame](Context::of_last) with
/// that frame alone, and the other with all frames.
fn aligned(vectors: Tensor, values: Tensor) -> Result<Trunk> {
    let frames = vectors.dim(1)?.min(values.dim(1)?);
    let end = |x: Tensor| -> Result<Tensor> {
        match x.dim(1)? {
            all if all == frames => Ok(x),
            all => Ok(x.narrow(1, all - frames, frames)?),
        }
    };
    Ok(Trunk { vectors: end(vectors)?, values: Some(end(values)?) })
}
