//! Rows of a table by id, and labels as one-hot rows, on a card.

use candle_core::{DType, Tensor};
use sconce_cuda::kernels::GATHER;

use crate::device::launch::{Launch, output, suffix, unwritten};
use crate::op::card::{Op, Pass, apply};
use crate::{Error, Result};

/// Threads of a block.
const THREADS: usize = 128;
const WARP: usize = 32;
/// Ids of a run; parts are made of runs.
const RUN: usize = 256;
/// Columns of a warp.
const COLUMNS: usize = 128;
/// The most values in all parts of a gradient, if there is more than one part.
const PARTS: usize = 1 << 22;

/// Gathers table rows; `ids` are u32, on the table's device.
pub(super) fn gather(table: &Tensor, ids: &Tensor) -> Result<Tensor> {
    apply(Gather { ids: ids.contiguous()? }, &[table])
}

/// f32 `[n, w]` of labels `[n, num_labels]` on the card, from column `first` on: a class of w classes as one-hot, or w
/// bits as values.
pub fn one_hot(
    labels: &Tensor,
    [n, num_labels]: [usize; 2],
    first: usize,
    w: usize,
    classes: bool,
) -> Result<Tensor> {
    if labels.dtype() != DType::F32 || labels.elem_count() != n * num_labels {
        return Err(Error::mismatch("labels", n * num_labels, labels.elem_count()));
    }
    let y = unwritten((n, w), DType::F32, labels)?;
    let launch = Launch::of(GATHER, "one_hot", labels)?.tensor(labels)?.tensor(&y)?.long(n).int(w);
    let launch = launch.int(num_labels).int(first).int(usize::from(classes));
    // SAFETY: as gather.cu requires, a thread for each value.
    unsafe { launch.run(by_number(n * w), [THREADS, 1, 1], 0) }?;
    Ok(y)
}

struct Gather {
    ids: Tensor,
}

/// A grid with a thread for each of `n` values.
fn by_number(n: usize) -> [usize; 3] {
    [n.div_ceil(THREADS), 1, 1]
}

impl Gather {
    fn launch(&self, step: &str, table: &Tensor) -> candle_core::Result<Launch> {
        Launch::of(GATHER, &format!("gather_{}_{step}", suffix(table)), table)
    }

    /// The smallest and the largest id of each run.
    fn runs(&self) -> candle_core::Result<Tensor> {
        let n = self.ids.elem_count();
        let runs = unwritten((n.div_ceil(RUN), 2), DType::U32, &self.ids)?;
        let launch = Launch::of(GATHER, "gather_runs", &self.ids)?;
        let launch = launch.tensor(&self.ids)?.tensor(&runs)?.long(n);
        // SAFETY: as gather.cu requires, a warp for each run.
        unsafe { launch.run(by_number(n.div_ceil(RUN) * WARP), [THREADS, 1, 1], 0) }?;
        Ok(runs)
    }
}

impl Op for Gather {
    fn forward(
        &self,
        inputs: &[Tensor],
        track: bool,
    ) -> candle_core::Result<(Tensor, Vec<Tensor>)> {
        let (table, n) = (&inputs[0], self.ids.elem_count());
        let w = table.dim(1)?;
        let y = output((n, w), table.dtype(), table, track)?;
        let launch = self.launch("forward", table)?.tensor(table)?.tensor(&self.ids)?;
        let launch = launch.tensor(&y)?.long(n).int(w);
        // SAFETY: as gather.cu requires, a thread for each value, and ids that the table has.
        unsafe { launch.run(by_number(n * w), [THREADS, 1, 1], 0) }?;
        Ok((y, vec![]))
    }

    fn backward(&self, pass: &Pass) -> candle_core::Result<Vec<Option<Tensor>>> {
        let (table, n) = (&pass.inputs[0], self.ids.elem_count());
        let (rows, w) = table.dims2()?;
        let (runs, all) = (self.runs()?, n.div_ceil(RUN));
        let most = (PARTS / (rows * w).max(1)).clamp(1, all.max(1));
        let runs_per_part = all.div_ceil(most).max(1);
        let count = all.div_ceil(runs_per_part);
        let parts = unwritten((count, rows, w), DType::F32, table)?;
        let launch = self.launch("backward", table)?.tensor(&self.ids)?.tensor(&runs)?;
        let launch = launch.tensor(pass.dy)?.tensor(&parts)?.long(n).int(rows).int(w);
        let launch = launch.int(count).int(runs_per_part);
        let warps = rows * w.div_ceil(COLUMNS) * count;
        // SAFETY: as gather.cu requires, a warp for each row, for each of its stretches, in each part.
        unsafe { launch.run(by_number(warps * WARP), [THREADS, 1, 1], 0) }?;

        let dtable = unwritten(table.shape(), table.dtype(), table)?;
        let launch = self.launch("sum", table)?.tensor(&parts)?.tensor(&dtable)?;
        let launch = launch.int(count).long(rows * w);
        // SAFETY: as gather.cu requires, a thread for each value.
        unsafe { launch.run(by_number(rows * w), [THREADS, 1, 1], 0) }?;
        Ok(vec![Some(dtable)])
    }
}
