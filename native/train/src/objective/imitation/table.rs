//! The imitation loss in the layout of its kernel.

/// The heads in the layout of the kernel `loss.cu`.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// Kind in `heads.cuh`, first logit, number of logits and first label of each head, `[heads, 4]`.
    pub places: Vec<i32>,
    /// Scale, smoothing, gamma, edge weight, least label and largest label of each head, `[heads, 6]`.
    pub terms: Vec<f32>,
    /// Factor on the loss of a pressed bit, `[num_logits]`; 1 for other logits.
    pub pos_weights: Vec<f32>,
    /// Labels in a row.
    pub num_labels: usize,
    /// Factor on the entropy, which is subtracted from the loss.
    pub entropy_weight: f32,
    /// Largest magnitude of a logit.
    pub clamp: f32,
}
