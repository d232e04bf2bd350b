//! The imitation loss on an NVIDIA card, by `loss.cu`.

use sconce_cuda::kernels::LOSS;
use sconce_tensor::candle::{Result, bail};
use sconce_tensor::device::launch::{Launch, overwrite, suffix, unwritten};
use sconce_tensor::{DType, Tensor};

use super::Table;

const WARP: usize = 32;
/// Threads of a block, and rows of a part.
const THREADS: usize = 256;
const ROWS: usize = 32;
/// Loss, weighted loss and entropy of a head.
const SUMS: usize = 3;

/// Rows of a batch whose labels and weights are on the card: `labels` the bytes of u16, `weights [n]` f32.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Placed<'a> {
    pub logits: &'a Tensor,
    pub labels: &'a Tensor,
    pub weights: &'a Tensor,
}

/// Rows of a batch: `logits [n, num_logits]` on the card, `labels [n, num_labels]`, `weights [n]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub logits: &'a Tensor,
    pub labels: &'a [u16],
    pub weights: &'a [f32],
}

/// A loss on a card, and the sums of the rows that it has seen.
#[derive(Debug)]
pub(crate) struct Loss {
    places: Tensor,
    terms: Tensor,
    pos_weights: Tensor,
    denominators: Tensor,
    totals: Tensor,
    num_labels: usize,
    entropy_weight: f32,
    clamp: f32,
}

impl Loss {
    /// On the card of `x`.
    pub(crate) fn new(table: &Table, x: &Tensor) -> sconce_tensor::Result<Self> {
        let Table { places, terms, pos_weights, num_labels, entropy_weight, clamp } = table;
        let (device, count) = (x.device(), places.len() / 4);
        Ok(Loss {
            places: Tensor::from_slice(places, places.len(), device)?,
            terms: Tensor::from_slice(terms, terms.len(), device)?,
            pos_weights: Tensor::from_slice(pos_weights, pos_weights.len(), device)?,
            denominators: unwritten(2 + count, DType::F64, x)?,
            totals: unwritten((count, SUMS), DType::F64, x)?,
            num_labels: *num_labels,
            entropy_weight: *entropy_weight,
            clamp: *clamp,
        })
    }

    /// Adds these rows to the sums, or begins with them; gives the gradient of the logits of a loss with these
    /// denominators.
    pub(crate) fn gradient(
        &self,
        rows: Rows,
        denominators: &[f64],
        add: bool,
    ) -> sconce_tensor::Result<Tensor> {
        self.prepare(denominators)?;
        let gradient = unwritten(rows.logits.shape(), rows.logits.dtype(), rows.logits)?;
        self.pass(rows, Some(&gradient), add)?;
        Ok(gradient)
    }

    /// Sets the denominators of what is launched from now on.
    pub(crate) fn prepare(&self, denominators: &[f64]) -> sconce_tensor::Result<()> {
        Ok(overwrite(&self.denominators, denominators)?)
    }

    /// [`gradient`](Self::gradient) by what was prepared, and by rows of which nothing is uploaded; begins the sums.
    pub(crate) fn gradient_placed(&self, rows: Placed) -> sconce_tensor::Result<Tensor> {
        let gradient = unwritten(rows.logits.shape(), rows.logits.dtype(), rows.logits)?;
        self.launch(rows, Some(&gradient), false)?;
        Ok(gradient)
    }

    /// Where the [`totals`](Self::totals) are, f64 `[heads, 3]`.
    pub(crate) fn sums_there(&self) -> &Tensor {
        &self.totals
    }

    /// As [`gradient`](Self::gradient), without one.
    pub(crate) fn sums(&self, rows: Rows, add: bool) -> sconce_tensor::Result<()> {
        Ok(self.pass(rows, None, add)?)
    }

    /// The sums of the rows so far, `[heads, 3]`: what is waited for.
    pub(crate) fn totals(&self) -> sconce_tensor::Result<Vec<f64>> {
        Ok(self.totals.flatten_all()?.to_vec1()?)
    }

    fn pass(&self, rows: Rows, gradient: Option<&Tensor>, add: bool) -> Result<()> {
        let (n, num_logits) = rows.logits.dims2()?;
        let sizes = [num_logits, rows.labels.len(), rows.weights.len()];
        if sizes != [self.pos_weights.elem_count(), n * self.num_labels, n] {
            bail!("logits, labels and weights of {n} rows are {sizes:?}");
        }
        let device = rows.logits.device();
        let bytes: Vec<u8> = rows.labels.iter().flat_map(|label| label.to_ne_bytes()).collect();
        let labels = Tensor::from_slice(&bytes, bytes.len(), device)?;
        let weights = Tensor::from_slice(rows.weights, n, device)?;
        let placed = Placed { logits: rows.logits, labels: &labels, weights: &weights };
        self.launch(placed, gradient, add)
    }

    fn launch(&self, rows: Placed, gradient: Option<&Tensor>, add: bool) -> Result<()> {
        let Placed { logits, labels, weights } = rows;
        let (logits, heads) = (logits.contiguous()?, self.totals.dim(0)?);
        let (n, num_logits) = logits.dims2()?;
        let parts = unwritten((n.div_ceil(ROWS), heads, SUMS), DType::F64, &logits)?;
        let launch = Launch::of(LOSS, &format!("loss_{}", suffix(&logits)), &logits)?;
        let launch = launch.tensor(&logits)?.tensor(labels)?.tensor(weights)?;
        let launch = launch.tensor(&self.places)?.tensor(&self.terms)?.tensor(&self.pos_weights)?;
        let launch = launch.tensor(&self.denominators)?.option(gradient)?.tensor(&parts)?;
        let launch = launch.long(n).int(num_logits).int(self.num_labels);
        let launch = launch.float(self.entropy_weight).float(self.clamp);
        // SAFETY: as loss.cu says: a block for each part of each head.
        unsafe { launch.run([n.div_ceil(ROWS), heads, 1], [THREADS, 1, 1], 0) }?;

        let launch = Launch::of(LOSS, "loss_totals", &logits)?.tensor(&parts)?;
        let launch = launch.tensor(&self.totals)?.int(parts.dim(0)?).int(heads * SUMS);
        let warps = (heads * SUMS * WARP).div_ceil(THREADS);
        // SAFETY: as loss.cu says: a warp for each sum.
        unsafe { launch.int(add.into()).run([warps, 1, 1], [THREADS, 1, 1], 0) }
    }
}
