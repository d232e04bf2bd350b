//! What an objective may have beside its rows: a form on a card, which a recorded step can play.

use sconce_tensor::{Result, Tensor};

use super::Denominators;

/// Rows of a batch whose labels and weights are on the card: `logits [n, num_logits]`, `labels
/// [n, num_labels]` and `weights [n]` f32.
#[derive(Debug, Clone, Copy)]
pub struct PlacedRows<'a> {
    pub logits: &'a Tensor,
    pub labels: &'a Tensor,
    pub weights: &'a Tensor,
}

/// An objective where the outputs are, and the sums of the rows that it has seen.
pub trait OnCard: Send + Sync {
    /// Sets what is known of the whole batch, for all that is launched from now on.
    fn prepare(&self, whole: &Denominators) -> Result<()>;

    /// The gradient at the outputs of these rows by what was [prepared](Self::prepare); adds them to the sums, or begins
    /// with them.
    fn gradient(&self, rows: PlacedRows<'_>, add: bool) -> Result<Tensor>;

    /// Begins the sums with these rows, without a gradient.
    fn sums(&self, rows: PlacedRows<'_>) -> Result<()>;

    /// Where the sums are: the numbers of [`Sums`](super::Sums), f64.
    fn totals(&self) -> &Tensor;
}
