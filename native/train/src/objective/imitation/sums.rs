//! What is asked of the imitation loss, and what it says.

/// The loss of a batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Loss {
    pub value: f64,
    /// Mean of each head over the rows: with its weights, without frame weights or normaliser.
    pub per_head: Vec<f64>,
    /// Mean entropy in nats, all heads added, a bernoulli head averaged over its bits.
    pub entropy_bonus: f64,
    /// All heads of each row added, before frame weights.
    pub per_sample: Vec<f32>,
}

/// Rows of a batch, or of one shard of it.
///
/// # Shapes
/// `logits [n, num_logits]`, `labels [n, num_labels]`, `weights [n]`. A row of weight 0 is not part
/// of the batch at all: burn-in and padding take no part in any mean, and their labels are not read.
#[derive(Debug, Clone, Copy)]
pub struct LabelledLogits<'a> {
    pub logits: &'a [f32],
    pub labels: &'a [f32],
    pub weights: Option<&'a [f32]>,
}
