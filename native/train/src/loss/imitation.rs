//! The loss of a whole batch on one thread.

use sconce_nn::spec::Heads;
use sconce_tensor::Result;

use super::objective::Objective;
use super::options::LossOptions;
use super::sums::{LabelledLogits, Loss, Sums};

/// Rows of a shard. Part of the result's last bits, so it is not an option.
pub const SHARD_ROWS: usize = 256;

/// Loss of a whole batch on one thread, with its gradient if `grad` is given.
///
/// # Shapes
/// `logits` and `grad` `[n, num_logits]`, `labels [n, num_labels]`, `frame_weights [n]`.
///
/// # Errors
/// `Mismatch` for lengths, `OutOfRange` for a label, a frame weight or an option, `NonFinite`.
pub fn imitation(
    heads: &Heads,
    logits: &[f32],
    labels: &[u16],
    frame_weights: Option<&[f32]>,
    options: &LossOptions,
    mut grad: Option<&mut [f32]>,
) -> Result<Loss> {
    let objective = Objective::new(heads, options)?;
    let batch = LabelledLogits { logits, labels, weights: frame_weights };
    let n = objective.check(&batch, grad.as_deref(), None)?;
    let first = if objective.normalises() { Some(sum_shards(&objective, batch)?) } else { None };
    let denominators = objective.denominators(n, frame_weights, first.as_ref())?;
    let mut per_sample = vec![0.0; n];
    let mut sums = Sums::zero(objective.terms.len());
    for (i, rows) in shards(&objective, batch).enumerate() {
        let width = objective.num_logits;
        let (from, count) = (i * SHARD_ROWS, rows.logits.len() / width);
        let grad = grad.as_deref_mut().map(|g| &mut g[from * width..][..count * width]);
        let per_sample = Some(&mut per_sample[from..][..count]);
        sums.add(&objective.pass(rows, &denominators, grad, per_sample)?);
    }
    Ok(Loss { per_sample, ..objective.finish(&sums, &denominators)? })
}

fn sum_shards(objective: &Objective, batch: LabelledLogits) -> Result<Sums> {
    let mut sums = Sums::zero(objective.terms.len());
    for rows in shards(objective, batch) {
        sums.add(&objective.sums(rows)?);
    }
    Ok(sums)
}

/// The batch in shards of [`SHARD_ROWS`] rows; lengths have been checked.
fn shards<'a>(
    objective: &Objective,
    batch: LabelledLogits<'a>,
) -> impl Iterator<Item = LabelledLogits<'a>> + use<'a> {
    let logits = batch.logits.chunks(SHARD_ROWS * objective.num_logits);
    let labels = batch.labels.chunks(SHARD_ROWS * objective.num_labels);
    logits.zip(labels).enumerate().map(move |(i, (logits, labels))| {
        let weights = batch.weights.map(|w| w.chunks(SHARD_ROWS).nth(i).unwrap_or_default());
        LabelledLogits { logits, labels, weights }
    })
}
