//! The request for the decision in progress.

use std::sync::Arc;

use sconce_nn::packed::Frame;
use sconce_nn::projection::Projection;
use sconce_nn::sampling::Sampling;
use sconce_nn::spec::Embedding;
use sconce_tensor::rng::Rng;

use crate::frames::EmbeddedFrame;

/// The request for the decision in progress.
pub(super) struct Query {
    pub way: Way,
    /// Whether the policy's heads choose the inputs of the game.
    pub reads_inputs: bool,
    pub row: EmbeddedFrame,
    /// A raw row with its previous action written into it, or a row whose numbers are normalised.
    pub raw: Vec<f32>,
    pub sampling: Sampling,
    pub rng: Rng,
    pub projection: Option<Arc<Projection>>,
}

impl Query {
    /// The frame before normalisation, which outlives the weights: later ones may normalise it by other statistics.
    pub(super) fn plain(&self, embedding: &Embedding) -> Frame<'_> {
        match embedding.normalises() {
            true => Frame { continuous: &self.raw, ..self.row.frame() },
            false => self.row.frame(),
        }
    }
}

/// How a decision is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// No decision is in progress: the answer is the decision at this index, counted back from the present one.
    Made(usize),
    /// The plan steps the state.
    Plan,
    /// A card steps several games together.
    Games,
    /// The policy's own ops decide, from the state or on a window.
    Ops,
}
