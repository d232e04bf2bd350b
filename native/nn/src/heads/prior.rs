//! What a head adds to its logits for its last choice.

use std::sync::Arc;

use sconce_tensor::Tensor;

use super::Heads;
use crate::ops::{Ids, arrange};
use crate::spec::HeadKind;
use crate::weights::{Builder, Init, Weight};
use crate::{Error, Result, ops, spec};

impl Heads {
    /// The rows of the prior tables that belong to the previous choices, by head.
    pub(crate) fn prior_rows(&self, rows: usize, previous: &[u16]) -> Result<Vec<Ids>> {
        let ids = self.prior_ids(rows, previous)?.into_iter();
        let heads = self.spec.iter().zip(&self.prior).zip(ids);
        let of_head = |((part, table), ids): ((spec::Part<'_>, &Weight), Arc<[u32]>)| {
            Ids::of(&flat_prior(part.head.kind, table)?, ids, &part.head.name)
        };
        heads.map(of_head).collect()
    }

    /// The same as numbers.
    pub(crate) fn prior_ids(&self, rows: usize, previous: &[u16]) -> Result<Vec<Arc<[u32]>>> {
        let width = self.spec.num_labels();
        if !self.prior.is_empty() && previous.len() != rows * width {
            return Err(Error::mismatch("previous labels", rows * width, previous.len()));
        }
        self.check_classes(previous, true)?;
        let of_head = |(part, _): (spec::Part<'_>, &Weight)| {
            let previous = previous.chunks_exact(width).map(|row| &row[part.labels..]);
            match part.head.kind {
                HeadKind::Categorical(n) => previous.map(|p| row(p[0], n)).collect(),
                // Each bit has a row for off, on and none.
                HeadKind::Bernoulli(n) => previous
                    .flat_map(|p| (0..n).map(move |i| row(p[i], 2) * n as u32 + i as u32))
                    .collect(),
            }
        };
        Ok(self.spec.iter().zip(&self.prior).map(of_head).collect())
    }

    /// These rows, `[n, num_logits]`.
    pub(super) fn prior_logits(&self, rows: usize, ids: &[Ids]) -> Result<Option<Tensor>> {
        if self.prior.is_empty() {
            return Ok(None);
        }
        let heads = self.spec.iter().zip(&self.prior).zip(ids);
        let parts = heads.map(|((part, table), ids)| {
            let logits = ops::gather_of(&flat_prior(part.head.kind, table)?, ids)?;
            arrange::reshape(&logits, [rows, part.head.kind.logits()])
        });
        let parts = parts.collect::<Result<Vec<Tensor>>>()?;
        Ok(Some(arrange::join(&parts.iter().collect::<Vec<_>>())?))
    }
}

/// A head's prior table as rows: that of n bits, `[3, n]`, as `[3 n, 1]`.
pub(super) fn flat_prior(kind: HeadKind, table: &Weight) -> Result<Tensor> {
    match kind {
        HeadKind::Categorical(_) => Ok(Tensor::clone(table)),
        HeadKind::Bernoulli(n) => Ok(table.reshape((3 * n, 1))?),
    }
}

/// The row of a prior table: the previous value, or the last row where there was none.
pub(super) fn row(previous: u16, classes: usize) -> u32 {
    u32::from(previous).min(classes as u32)
}

/// A table per head, zero until the trainer fits it: `[n + 1, n]`, for bits `[3, n]`.
pub(super) fn tables(spec: &spec::Heads, b: &Builder) -> Result<Vec<Weight>> {
    let table = |h: &spec::Head| {
        b.get(&h.name, &[h.kind.classes() + 1, h.kind.logits()], Init::Constant(0.0))
    };
    spec.parts.iter().map(table).collect()
}
