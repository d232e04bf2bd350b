//! Rows of a trained table by id.

mod card;
mod composed;

use std::sync::Arc;

use candle_core::Tensor;
pub use card::one_hot;

use crate::form::Form;
use crate::op::{self, Op, Pass};
use crate::{Error, Result, memory, simd, tensor};

/// Ids of rows of a table, checked against its number of rows.
#[derive(Clone)]
pub enum Ids {
    /// Ids in memory, for a table on the CPU.
    Here(Arc<[u32]>),
    /// Ids on the table's device, u32 `[n]`, for a table whose ops are not those of the CPU.
    There(Tensor),
}

impl Ids {
    /// Ids of `table`, on its device.
    ///
    /// # Errors
    /// `OutOfRange` for an id outside the table; the error names the id and the table, `what`.
    pub fn of(table: &Tensor, ids: Arc<[u32]>, what: &str) -> Result<Self> {
        Self::check(table, &ids, what)?;
        match Form::of(table) != Form::Cpu {
            true => Ok(Ids::There(Tensor::from_slice(&ids, ids.len(), table.device())?)),
            false => Ok(Ids::Here(ids)),
        }
    }

    /// Checks ids as [`of`](Self::of) does.
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

/// `table [rows, w]`, `ids [n]` -> `[n, w]`. The backward pass adds the gradients of repeated ids.
///
/// # Errors
/// `OutOfRange` for an id outside the table; the error names the id and the table, `what`.
pub fn gather(table: &Tensor, ids: Arc<[u32]>, what: &str) -> Result<Tensor> {
    gather_of(table, &Ids::of(table, ids, what)?)
}

/// Computes [`gather`] for checked ids.
pub fn gather_of(table: &Tensor, ids: &Ids) -> Result<Tensor> {
    match ids {
        Ids::Here(ids) => {
            let (shape, (_, width)) = ((ids.len(), table.dim(1)?), tensor::rows(table.dims()));
            op::apply(Gather { ids: ids.clone(), width }, &[table], shape)
        }
        Ids::There(ids) => match Form::of(table) {
            Form::Card => card::gather(table, ids),
            Form::Cpu | Form::Composed => composed::gather(table, ids),
        },
    }
}

struct Gather {
    ids: Arc<[u32]>,
    /// Values of a row.
    width: usize,
}

impl Op for Gather {
    fn forward(&mut self, inputs: &[&[f32]], _track: bool) -> Result<Vec<Vec<f32>>> {
        let (table, w) = (inputs[0], self.width);
        let mut y = memory::with_capacity(self.ids.len() * w);
        for &id in self.ids.iter() {
            y.extend_from_slice(&table[id as usize * w..][..w]);
        }
        Ok(vec![y])
    }

    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let (w, mut dt) = (self.width, memory::zeros(pass.inputs[0].len()));
        for (&id, dy) in self.ids.iter().zip(pass.gradient()?.chunks_exact(w.max(1))) {
            simd::add_assign(&mut dt[id as usize * w..][..w], dy);
        }
        Ok(vec![dt])
    }
}
