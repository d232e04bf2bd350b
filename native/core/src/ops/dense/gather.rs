//! Rows of a trained table by id.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, Layout, Shape, Tensor};

use crate::memory;
use crate::ops::{composed, simd, tensor};
use crate::{Error, Result};

/// Rows of a table, all of which it has.
#[derive(Clone)]
pub enum Ids {
    Here(Arc<[u32]>),
    /// Beside a table whose ops are composed: u32 `[n]`.
    There(Tensor),
}

impl Ids {
    /// Ids of `table`, where that is.
    ///
    /// # Errors
    /// One outside the table is an error that names both (`what` is the table).
    pub fn of(table: &Tensor, ids: Arc<[u32]>, what: &str) -> Result<Self> {
        Self::check(table, &ids, what)?;
        match composed::wanted(table) {
            true => Ok(Ids::There(Tensor::from_slice(&ids, ids.len(), table.device())?)),
            false => Ok(Ids::Here(ids)),
        }
    }

    /// Refuses ids as [`of`](Self::of) does.
    pub fn check(table: &Tensor, ids: &[u32], what: &str) -> Result<()> {
        let rows = table.dims().first().copied().unwrap_or(0);
        match ids.iter().find(|&&id| id as usize >= rows) {
            Some(&id) => {
                let field = format!("id of table {what}");
                Err(Error::out_of_range(field, f64::from(id), 0.0, rows as f64 - 1.0))
            }
            None => Ok(()),
        }
    }
}

/// `table [rows, w]`, `ids [n]` -> `[n, w]`. Backward adds up the gradients of repeated ids.
///
/// An id outside the table is an error that names both (`what` is the table), never the nearest row.
pub fn gather(table: &Tensor, ids: Arc<[u32]>, what: &str) -> Result<Tensor> {
    gather_of(table, &Ids::of(table, ids, what)?)
}

/// [`gather`] of ids that have been looked at.
pub fn gather_of(table: &Tensor, ids: &Ids) -> Result<Tensor> {
    match ids {
        Ids::Here(ids) => Ok(table.contiguous()?.apply_op1(Gather { ids: ids.clone() })?),
        Ids::There(ids) => composed::dense::gather(table, ids),
    }
}

struct Gather {
    ids: Arc<[u32]>,
}

impl CustomOp1 for Gather {
    fn name(&self) -> &'static str {
        "gather"
    }

    fn cpu_fwd(
        &self,
        table: &CpuStorage,
        layout: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let (_, w) = tensor::rows(layout.dims());
        let table = tensor::slice(table, layout)?;
        let mut y = memory::with_capacity(self.ids.len() * w);
        for &id in self.ids.iter() {
            y.extend_from_slice(&table[id as usize * w..][..w]);
        }
        Ok((CpuStorage::F32(y), Shape::from((self.ids.len(), w))))
    }

    fn bwd(&self, table: &Tensor, _y: &Tensor, dy: &Tensor) -> candle_core::Result<Option<Tensor>> {
        let (_, w) = table.dims2()?;
        let mut dt = memory::zeros(table.elem_count());
        tensor::with(dy, |dy| {
            for (&id, dy) in self.ids.iter().zip(dy.chunks_exact(w)) {
                simd::add_assign(&mut dt[id as usize * w..][..w], dy);
            }
            Ok(())
        })?;
        Ok(Some(tensor::tensor(dt, table.shape())?))
    }
}
