//! What learning from a batch cost, and the figures of a step.

use sconce_nn::backbone::State;
use serde::{Deserialize, Serialize};

use crate::gradients::WeightGradient;

/// What learning from a batch cost, in nats.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Losses {
    pub total: f64,
    /// The mean of each head, see [`Loss::per_head`](crate::loss::Loss::per_head).
    pub heads: Vec<f64>,
    /// The mean divergence from the teacher, which times its weight is in the total.
    pub teacher_kl: Option<f64>,
}

impl Losses {
    /// Adds so many times those of another batch.
    pub fn add(&mut self, other: &Losses, times: f64) {
        self.total += times * other.total;
        self.heads.resize(self.heads.len().max(other.heads.len()), 0.0);
        self.heads.iter_mut().zip(&other.heads).for_each(|(sum, loss)| *sum += times * loss);
        if let Some(kl) = other.teacher_kl {
            *self.teacher_kl.get_or_insert_default() += times * kl;
        }
    }

    /// The mean, of a sum of so many.
    pub fn over(mut self, count: f64) -> Losses {
        self.total /= count;
        self.heads.iter_mut().for_each(|sum| *sum /= count);
        self.teacher_kl = self.teacher_kl.map(|sum| sum / count);
        self
    }
}

/// What came of a batch.
#[derive(Debug, Default)]
pub struct Learned {
    pub losses: Losses,
    /// The learner's after the windows, cut from the graph, where they [carry](super::Unroll::carry) theirs on.
    pub state: Option<State>,
    /// The teacher's.
    pub taught: Option<State>,
}

/// One step's figures.
#[derive(Debug, Clone, PartialEq)]
pub struct StepMetrics {
    pub losses: Losses,
    /// Before the clip. Of a gradient that overflowed f16, by which no weight was changed, infinite.
    pub grad_norm: f64,
    /// Whether any frame counted. Where all weigh nothing, losses and norm are 0 and no weight changes.
    pub learned: bool,
    /// Of each weight, if it was asked for.
    pub gradients: Vec<WeightGradient>,
}
