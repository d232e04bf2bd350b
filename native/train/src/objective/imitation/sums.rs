//! Input and result of the imitation loss.

/// The loss of a batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Loss {
    /// The loss in nats.
    pub value: f64,
    /// Mean loss of each head over the rows, with the head's own weights but without frame weights or normaliser.
    pub per_head: Vec<f64>,
    /// Mean entropy in nats, summed over heads; the entropy of a bernoulli head is the mean over its bits.
    pub entropy_bonus: f64,
    /// Loss of each row, summed over heads, before frame weights.
    pub per_sample: Vec<f32>,
}

/// Rows of a batch, or of one shard of it.
///
/// # Shapes
/// `logits [n, num_logits]`, `labels [n, num_labels]`, `weights [n]`. A row of weight 0 is not part of the batch:
/// burn-in and padding take no part in any mean, and their labels are not read.
#[derive(Debug, Clone, Copy)]
pub struct LabelledLogits<'a> {
    /// Logits, row-major.
    pub logits: &'a [f32],
    /// Labels, row-major.
    pub labels: &'a [f32],
    /// Weights of the rows; `None` gives each row a weight of 1.
    pub weights: Option<&'a [f32]>,
}
