//! An objective's form on a card, which a recorded step can replay.

use sconce_tensor::{Result, Tensor};

use super::Denominators;

/// Rows of a batch whose labels and weights are on the card: `logits [n, num_logits]`, `labels
/// [n, num_labels]` and `weights [n]` f32.
#[derive(Debug, Clone, Copy)]
pub struct PlacedRows<'a> {
    /// Logits, `[n, num_logits]`.
    pub logits: &'a Tensor,
    /// Labels, `[n, num_labels]` f32.
    pub labels: &'a Tensor,
    /// Weights of the rows, `[n]` f32.
    pub weights: &'a Tensor,
}

/// An objective on the card of the outputs, and the sums of the rows that it has seen.
pub trait OnCard: Send + Sync {
    /// Sets the denominators of the whole batch, for all later launches.
    fn prepare(&self, whole: &Denominators) -> Result<()>;

    /// Returns the gradient at the logits of these rows, `[n, num_logits]`, by the [prepared](Self::prepare)
    /// denominators. With `add` the sums of the rows are added to the earlier sums, otherwise they replace them.
    fn gradient(&self, rows: PlacedRows<'_>, add: bool) -> Result<Tensor>;

    /// Replaces the sums by the sums of these rows, without computing a gradient.
    fn sums(&self, rows: PlacedRows<'_>) -> Result<()>;

    /// The values of [`Sums`](super::Sums) on the card, f64.
    fn totals(&self) -> &Tensor;
}
