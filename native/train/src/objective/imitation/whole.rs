//! The loss of a whole batch on one thread.

use sconce_nn::spec::Heads;
use sconce_tensor::Result;

use super::options::LossOptions;
use super::shaped::Imitation;
use super::sums::{LabelledLogits, Loss};
use crate::objective::{Denominators, Objective, SHARD_ROWS, Sums};

/// Loss of a whole batch on one thread, with its gradient if `grad` is given.
///
/// # Shapes
/// `logits` and `grad` `[n, num_logits]`, `labels [n, num_labels]`, `frame_weights [n]`.
///
/// # Errors
/// `Mismatch` for lengths, `OutOfRange` for a label, a frame weight or an option, `NonFinite` for a logit or the loss.
pub fn imitation(
    heads: &Heads,
    logits: &[f32],
    labels: &[f32],
    frame_weights: Option<&[f32]>,
    options: &LossOptions,
    mut grad: Option<&mut [f32]>,
) -> Result<Loss> {
    let imitation = Imitation::new(heads, options)?;
    let batch = LabelledLogits { logits, labels, weights: frame_weights };
    let n = imitation.check(&batch, grad.as_deref(), None)?;
    let ones;
    let weights = match frame_weights {
        Some(weights) => weights,
        None => {
            ones = vec![1.0; n];
            &ones
        }
    };
    let first = imitation.two_passes().then(|| sum_shards(&imitation, batch)).transpose()?;
    let whole = imitation.divisors(weights, first.as_ref())?;
    let mut per_sample = vec![0.0; n];
    let mut sums = Sums::default();
    for (i, rows) in shards(&imitation, batch).enumerate() {
        let width = imitation.num_logits;
        let (from, count) = (i * SHARD_ROWS, rows.logits.len() / width);
        let grad = grad.as_deref_mut().map(|g| &mut g[from * width..][..count * width]);
        let per_sample = Some(&mut per_sample[from..][..count]);
        sums.add(&imitation.pass(rows, &whole, grad, per_sample)?);
    }
    Ok(Loss { per_sample, ..imitation.loss(&sums, &whole)? })
}

fn sum_shards(imitation: &Imitation, batch: LabelledLogits) -> Result<Sums> {
    let (mut sums, unit) = (Sums::default(), Denominators::of(&[1.0])?);
    for rows in shards(imitation, batch) {
        sums.add(&imitation.pass(rows, &unit, None, None)?);
    }
    Ok(sums)
}

/// The batch in shards of [`SHARD_ROWS`] rows; lengths have been checked.
fn shards<'a>(
    imitation: &Imitation,
    batch: LabelledLogits<'a>,
) -> impl Iterator<Item = LabelledLogits<'a>> + use<'a> {
    let logits = batch.logits.chunks(SHARD_ROWS * imitation.num_logits);
    let labels = batch.labels.chunks(SHARD_ROWS * imitation.num_labels);
    logits.zip(labels).enumerate().map(move |(i, (logits, labels))| {
        let weights = batch.weights.map(|w| w.chunks(SHARD_ROWS).nth(i).unwrap_or_default());
        LabelledLogits { logits, labels, weights }
    })
}
