//! The plain negative log-likelihood, in nats.

use sconce_nn::spec::{Heads, Part};
use sconce_tensor::{Error, Result};

use super::options::LossOptions;
use super::shaped::Imitation;
use super::sums::LabelledLogits;
use super::term::check;

/// Plain negative log-likelihood of each head in nats, summed over bits, of logits that are not clamped.
///
/// # Shapes
/// `logits [n, num_logits]`, `labels [n, num_labels]` -> `out [n, heads]`
pub fn nll_rows(heads: &Heads, logits: &[f32], labels: &[f32], out: &mut [f32]) -> Result<()> {
    let imitation = Imitation::new(heads, &LossOptions::plain())?;
    let n = imitation.check(&LabelledLogits { logits, labels, weights: None }, None, None)?;
    if out.len() != n * heads.parts.len() {
        return Err(Error::mismatch("NLL", n * heads.parts.len(), out.len()));
    }
    let rows = logits.chunks(imitation.num_logits).zip(labels.chunks(imitation.num_labels));
    for ((x, labels), out) in rows.zip(out.chunks_mut(heads.parts.len())) {
        for (part, out) in heads.iter().zip(out) {
            let kind = part.head.kind;
            let (x, labels) = (&x[part.logits..], &labels[part.labels..]);
            *out = nll(&part, &x[..kind.logits()], &labels[..kind.labels()])? as f32;
        }
    }
    Ok(())
}

/// NLL of one head in one row, in nats. The slices have the head's lengths.
pub(crate) fn nll(part: &Part<'_>, x: &[f32], labels: &[f32]) -> Result<f64> {
    check(&part.head.name, part.head.kind, labels)?;
    Ok(part.head.kind.nll(x, labels))
}
