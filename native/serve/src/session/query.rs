//! What the decision that is being made was asked for.

use std::sync::Arc;

use sconce_nn::projection::Projection;
use sconce_nn::sampling::Sampling;
use sconce_tensor::rng::Rng;

use crate::frames::EmbeddedFrame;

/// What the decision that is being made was asked for.
pub(super) struct Query {
    pub way: Way,
    pub row: EmbeddedFrame,
    /// A raw row whose previous action was put in its place.
    pub raw: Vec<f32>,
    pub sampling: Sampling,
    pub rng: Rng,
    pub projection: Option<Arc<Projection>>,
}

/// How a decision is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// None is being made: the answer is the decision so many before the present one.
    Made(usize),
    /// By a step of the plan.
    Plan,
    /// By a step together with other games, on a card.
    Games,
    /// By the policy's own ops, behind the state or on a window.
    Ops,
}
