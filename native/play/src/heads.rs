//! The heads of a policy as play and learning read them: what chooses an action, and the value.

use sconce_nn::sampling::{FORBIDDEN, forbid};
use sconce_nn::spec::{HeadKind, Heads};
use sconce_tensor::{Error, Result};

/// The heads that choose, and the value among the logits of a row.
#[derive(Debug, Clone)]
pub(crate) struct Choosing {
    pub parts: Vec<Part>,
    /// Index of the value among the logits.
    pub value: usize,
    pub num_logits: usize,
    /// Entries in an action mask.
    pub mask_size: usize,
    pub num_labels: usize,
}

/// A head that chooses, with the offsets of its logits and labels, and of its entries in an action mask.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    pub kind: HeadKind,
    pub logits: usize,
    pub labels: usize,
    pub mask: usize,
}

impl Choosing {
    /// # Errors
    /// `Mismatch` for heads without a value.
    pub(crate) fn of(heads: &Heads) -> Result<Self> {
        let value = heads.iter().find(|part| matches!(part.head.kind, HeadKind::Value(_)));
        let without = || Error::mismatch("heads", "a value (value_head: true)", "none");
        let choosing = heads.iter().filter(|part| part.head.kind.labels() > 0);
        let part = |part: sconce_nn::spec::Part<'_>| Part {
            kind: part.head.kind,
            logits: part.logits,
            labels: part.labels,
            mask: part.mask,
        };
        Ok(Choosing {
            value: value.ok_or_else(without)?.logits,
            parts: choosing.map(part).collect(),
            num_logits: heads.num_logits(),
            mask_size: heads.mask_size(),
            num_labels: heads.num_labels(),
        })
    }

    /// Makes the logits of a row's actions that are not allowed [`FORBIDDEN`]. An empty mask allows all.
    ///
    /// # Shapes
    /// `mask [mask_size]`
    pub(crate) fn forbid<T: PartialEq + Default>(&self, logits: &mut [f32], mask: &[T]) {
        for part in self.parts.iter().filter(|_| !mask.is_empty()) {
            let own = &mut logits[part.logits..part.logits + part.kind.mask_size()];
            forbid(own, &mask[part.mask..]);
        }
    }

    /// The mask with which a row's logits were chosen from: the inverse of [`forbid`](Self::forbid).
    pub(crate) fn mask_of<'a>(&'a self, logits: &'a [f32]) -> impl Iterator<Item = u8> + 'a {
        let own = |part: &Part| &logits[part.logits..part.logits + part.kind.mask_size()];
        self.parts.iter().flat_map(own).map(|logit| u8::from(*logit > FORBIDDEN))
    }

    /// Negative log-likelihood of a row's action, in nats.
    pub(crate) fn nll(&self, logits: &[f32], labels: &[f32]) -> f64 {
        let of_part = |part: &Part| {
            let own = &labels[part.labels..part.labels + part.kind.labels()];
            part.kind.nll(&logits[part.logits..part.logits + part.kind.logits()], own)
        };
        self.parts.iter().map(of_part).sum()
    }
}
