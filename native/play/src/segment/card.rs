//! Steps that stay on a card.

use std::ops::Range;

use sconce_tensor::Tensor;

/// Steps of all rows of a player on a card, with their advantages. Frame `t * rows + row` is step `t` of a row.
#[derive(Debug)]
pub struct CardSegment {
    /// Number of rows.
    pub rows: usize,
    /// Number of steps.
    pub steps: usize,
    /// Observations, `[frames, observation_size]`.
    pub observations: Tensor,
    /// Actions, `[frames, num_labels]`.
    pub labels: Tensor,
    /// Log-likelihoods of the actions in nats, `[frames]`.
    pub log_likelihoods: Tensor,
    /// Values before each step, `[frames]`.
    pub values: Tensor,
    /// Advantages of the actions, `[frames]`.
    pub advantages: Tensor,
    /// Targets of the values, `[frames]`.
    pub targets: Tensor,
    /// Share of the variance of the targets that the values explain.
    pub explained_variance: f64,
    /// The rows that each shard of a player on the host would have.
    pub shards: Vec<Range<usize>>,
}

impl CardSegment {
    /// All frames, in the order in which a learner on the host counts them: that of the shards.
    pub fn frames(&self) -> Vec<u32> {
        let of_shard = |rows: &Range<usize>| {
            let rows = rows.clone();
            (0..self.steps).flat_map(move |t| rows.clone().map(move |row| (t, row)))
        };
        let all = self.shards.iter().flat_map(of_shard);
        all.map(|(t, row)| (t * self.rows + row) as u32).collect()
    }
}
