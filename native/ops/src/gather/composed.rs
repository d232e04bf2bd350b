//! Gathers table rows with candle's ops.

use candle_core::Tensor;

use crate::Result;

/// Gathers table rows; `ids` are u32, on the table's device.
pub(super) fn gather(table: &Tensor, ids: &Tensor) -> Result<Tensor> {
    Ok(table.index_select(ids, 0)?)
}
