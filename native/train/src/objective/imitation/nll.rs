//! The plain negative log-likelihood, in nats.

use sconce_nn::spec::{HeadKind, Heads};
use sconce_tensor::simd::exp;
use sconce_tensor::{Error, Result};

use super::options::LossOptions;
use super::shaped::Imitation;
use super::sums::LabelledLogits;
use super::term::outside;

/// Plain negative log-likelihood in nats of each head, bits summed, logits as they are.
///
/// # Shapes
/// `logits [n, num_logits]`, `labels [n, num_labels]` -> `out [n, heads]`
pub fn nll_rows(heads: &Heads, logits: &[f32], labels: &[u16], out: &mut [f32]) -> Result<()> {
    let imitation = Imitation::new(heads, &LossOptions::plain())?;
    let n = imitation.check(&LabelledLogits { logits, labels, weights: None }, None, None)?;
    if out.len() != n * imitation.terms.len() {
        return Err(Error::mismatch("NLL", n * imitation.terms.len(), out.len()));
    }
    let rows = logits.chunks(imitation.num_logits).zip(labels.chunks(imitation.num_labels));
    for ((x, labels), out) in rows.zip(out.chunks_mut(imitation.terms.len())) {
        for (term, out) in imitation.terms.iter().zip(out) {
            let (x, labels) = (&x[term.logits.clone()], &labels[term.labels.clone()]);
            *out = nll(&term.name, term.kind, x, labels)? as f32;
        }
    }
    Ok(())
}

/// Nats of one head in one row; the slices have the head's lengths.
pub(crate) fn nll(name: &str, kind: HeadKind, x: &[f32], labels: &[u16]) -> Result<f64> {
    let max = kind.classes() - 1;
    if let Some(&label) = labels.iter().find(|l| usize::from(**l) > max) {
        return Err(outside(name, label, max));
    }
    Ok(match kind {
        HeadKind::Bernoulli(_) => x.iter().zip(labels).map(|(x, bit)| bit_nll(*x, *bit)).sum(),
        HeadKind::Categorical(_) => {
            let largest = x.iter().fold(f32::NEG_INFINITY, |m, &v| m.max(v));
            let sum: f64 = x.iter().map(|&v| f64::from(exp(v - largest))).sum();
            let own = labels.first().and_then(|l| x.get(usize::from(*l)));
            sum.ln() + f64::from(largest) - f64::from(own.copied().unwrap_or(f32::NAN))
        }
    })
}

fn bit_nll(x: f32, bit: u16) -> f64 {
    let z = if bit == 0 { x } else { -x };
    f64::from(z.max(0.0)) + f64::from(exp(-z.abs()).ln_1p())
}
