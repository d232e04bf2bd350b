//! The imitation loss as kernels have it.

/// The heads as the kernel `loss.cu` reads them.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// `[heads, 4]`: its number in `heads.cuh`, its first logit, how many it has, its first label
    pub places: Vec<i32>,
    /// `[heads, 6]`: scale, smoothing, gamma, weight of an edge, the least and the largest number of a label
    pub terms: Vec<f32>,
    /// `[num_logits]`
    pub pos_weights: Vec<f32>,
    pub num_labels: usize,
    pub entropy_weight: f32,
    pub clamp: f32,
}
