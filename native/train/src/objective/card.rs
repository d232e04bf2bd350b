//! An objective's form on a card, which a recorded step can replay.

use sconce_cuda::kernels::LOSS;
use sconce_tensor::device::launch::Launch;
use sconce_tensor::{Result, Tensor, candle};

use super::Denominators;

const WARP: usize = 32;
/// Threads of a block.
const THREADS: usize = 256;

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

/// Adds up the sums of parts, f64 `[parts, ..]`, on their card, in a fixed order. With `add` they are added to the
/// earlier totals, otherwise they replace them.
pub fn add_parts(parts: &Tensor, totals: &Tensor, add: bool) -> candle::Result<()> {
    let (count, n) = (parts.dim(0)?, totals.elem_count());
    if parts.elem_count() != count * n {
        candle::bail!("{parts:?} has no parts of {n} sums");
    }
    let launch = Launch::of(LOSS, "loss_totals", parts)?.tensor(parts)?.tensor(totals)?;
    let launch = launch.int(count).int(n).int(add.into());
    // SAFETY: the launch is what loss.cu requires: a warp for each sum.
    unsafe { launch.run([(n * WARP).div_ceil(THREADS), 1, 1], [THREADS, 1, 1], 0) }
}
