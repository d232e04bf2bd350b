//! The imitation loss on an NVIDIA card, by `loss.cu`.

use sconce_cuda::kernels::LOSS;
use sconce_tensor::candle::{Result, bail};
use sconce_tensor::device::launch::{Launch, overwrite, suffix, unwritten};
use sconce_tensor::{DType, Tensor};

use super::table::Table;
use crate::objective::card::add_parts;
use crate::objective::{Denominators, OnCard, PlacedRows};

/// Threads of a block.
const THREADS: usize = 256;
/// Rows of a part.
const ROWS: usize = 32;
/// Number of sums of a head: loss, weighted loss and entropy.
const SUMS: usize = 3;

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
    /// The loss on the card of `x`.
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

    /// Launches the loss of these rows. The caller has checked the labels and weights of the whole batch.
    fn launch(&self, rows: PlacedRows<'_>, gradient: Option<&Tensor>, add: bool) -> Result<()> {
        let PlacedRows { logits, labels, weights } = rows;
        let (logits, heads) = (logits.contiguous()?, self.totals.dim(0)?);
        let (n, num_logits) = logits.dims2()?;
        let sizes = [num_logits, labels.elem_count(), weights.elem_count()];
        let (least, all) = (n * self.num_labels, self.pos_weights.elem_count());
        if sizes[0] != all || sizes[1] < least || sizes[2] != n {
            bail!("logits, labels and weights of {n} rows are {sizes:?}");
        }
        let parts = unwritten((n.div_ceil(ROWS), heads, SUMS), DType::F64, &logits)?;
        let launch = Launch::of(LOSS, &format!("loss_{}", suffix(&logits)), &logits)?;
        let launch = launch.tensor(&logits)?.tensor(labels)?.tensor(weights)?;
        let launch = launch.tensor(&self.places)?.tensor(&self.terms)?.tensor(&self.pos_weights)?;
        let launch = launch.tensor(&self.denominators)?.option(gradient)?.tensor(&parts)?;
        let launch = launch.long(n).int(num_logits).int(self.num_labels);
        let launch = launch.float(self.entropy_weight).float(self.clamp);
        // SAFETY: the launch is what loss.cu requires: a block for each part of each head.
        unsafe { launch.run([n.div_ceil(ROWS), heads, 1], [THREADS, 1, 1], 0) }?;

        add_parts(&parts, &self.totals, add)
    }
}

impl OnCard for Loss {
    fn prepare(&self, whole: &Denominators) -> sconce_tensor::Result<()> {
        Ok(overwrite(&self.denominators, &whole.numbers())?)
    }

    fn gradient(&self, rows: PlacedRows<'_>, add: bool) -> sconce_tensor::Result<Tensor> {
        let gradient = unwritten(rows.logits.shape(), rows.logits.dtype(), rows.logits)?;
        self.launch(rows, Some(&gradient), add)?;
        Ok(gradient)
    }

    fn sums(&self, rows: PlacedRows<'_>) -> sconce_tensor::Result<()> {
        let unit = vec![1.0; self.denominators.elem_count()];
        overwrite(&self.denominators, &unit)?;
        Ok(self.launch(rows, None, false)?)
    }

    fn totals(&self) -> &Tensor {
        &self.totals
    }
}
