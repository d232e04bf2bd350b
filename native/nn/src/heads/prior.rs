//! The prior: an offset of a head's logits that depends on the head's previous choice.

use std::sync::Arc;

use sconce_tensor::{Tensor, tensor};

use super::Heads;
use crate::head::{PriorRead, known};
use crate::ops::{Activation, Ids, arrange};
use crate::weights::{Builder, Init, Weight};
use crate::{Error, Result, ops, spec};

/// Inputs of a prior, made from previous labels.
pub(crate) enum Read {
    /// Row indices of the prior's table.
    Rows(Ids),
    /// Factors `[n, ..]` that the table is multiplied by.
    Numbers(Tensor),
}

impl Read {
    /// The tensor on the device, as a destination for words.
    pub(crate) fn tensor(&self) -> Option<&Tensor> {
        match self {
            Read::Rows(Ids::There(ids)) => Some(ids),
            Read::Rows(Ids::Here(_)) => None,
            Read::Numbers(numbers) => Some(numbers),
        }
    }
}

impl Heads {
    /// Inputs of the priors for previous labels, by head.
    pub(crate) fn prior_reads(&self, rows: usize, previous: &[f32]) -> Result<Vec<Read>> {
        let keys = self.prior_keys(rows, previous)?.into_iter();
        let of_head = |((part, table), key): ((spec::Part<'_>, &Weight), Vec<u32>)| match part
            .head
            .kind
            .prior_read()
        {
            PriorRead::Rows(width) => {
                let key: Arc<[u32]> = key.into();
                Ok(Read::Rows(Ids::of(&by_rows(table, width)?, key, &part.head.name)?))
            }
            PriorRead::Product(inputs) => {
                let numbers = key.into_iter().map(f32::from_bits).collect();
                let shape = (rows, inputs);
                Ok(Read::Numbers(tensor::beside(table, numbers, shape)?))
            }
        };
        self.priors().zip(keys).map(of_head).collect()
    }

    /// Inputs of the priors for previous labels, by head, as words: ids, or f32 factors as bits.
    pub(crate) fn prior_keys(&self, rows: usize, previous: &[f32]) -> Result<Vec<Vec<u32>>> {
        let width = self.spec.num_labels();
        if !self.prior.is_empty() && previous.len() != rows * width {
            return Err(Error::mismatch("previous labels", rows * width, previous.len()));
        }
        self.spec.check_labels(previous, true)?;
        let of_head = |(part, _): (spec::Part<'_>, &Weight)| {
            let (kind, mut key) = (part.head.kind, vec![]);
            for row in previous.chunks_exact(width.max(1)) {
                kind.prior_key(known(&row[part.labels..][..kind.labels()]), &mut key);
            }
            key
        };
        Ok(self.priors().map(of_head).collect())
    }

    /// Offsets of the logits, `[n, num_logits]`; none without a prior.
    pub(super) fn prior_logits(&self, rows: usize, reads: &[Read]) -> Result<Option<Tensor>> {
        if self.prior.is_empty() {
            return Ok(None);
        }
        let mut reads = self.priors().zip(reads);
        let mut parts = Vec::with_capacity(self.spec.parts.len());
        for head in &self.spec.parts {
            let width = head.kind.logits();
            if head.kind.labels() == 0 {
                parts.push(tensor::beside(&self.prior[0], vec![0.0; rows * width], (rows, width))?);
                continue;
            }
            let Some(((part, table), read)) = reads.next() else {
                return Err(Error::mismatch("reads of the prior", "one for each head", "fewer"));
            };
            let logits = match (read, part.head.kind.prior_read()) {
                (Read::Rows(ids), PriorRead::Rows(width)) => {
                    ops::gather_of(&by_rows(table, width)?, ids)?
                }
                (Read::Numbers(numbers), _) => ops::linear(numbers, table, None, Activation::None)?,
                (Read::Rows(_), PriorRead::Product(_)) => {
                    return Err(Error::mismatch("read of the prior", "numbers", "rows"));
                }
            };
            parts.push(arrange::reshape(&logits, [rows, width])?);
        }
        Ok(Some(arrange::join(&parts.iter().collect::<Vec<_>>())?))
    }

    /// Heads that choose an action, with their tables; none without a prior.
    pub(super) fn priors(&self) -> impl Iterator<Item = (spec::Part<'_>, &Weight)> {
        self.spec.iter().filter(|part| part.head.kind.labels() > 0).zip(&self.prior)
    }
}

/// A prior's table as rows of `width`. The table of n bits, `[3, n]`, becomes `[3 n, 1]`.
fn by_rows(table: &Weight, width: usize) -> Result<Tensor> {
    match table.dims() {
        [_, columns] if *columns == width => Ok(Tensor::clone(table)),
        _ => Ok(table.reshape((table.elem_count() / width.max(1), width))?),
    }
}

/// Creates a table for each head that chooses an action. A table is zero until the trainer fits it.
pub(super) fn tables(spec: &spec::Heads, b: &Builder) -> Result<Vec<Weight>> {
    let choosing = spec.parts.iter().filter(|head| head.kind.labels() > 0);
    choosing.map(|head| b.get(&head.name, &head.kind.prior(), Init::Constant(0.0))).collect()
}
