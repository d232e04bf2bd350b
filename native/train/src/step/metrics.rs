//! Results of a batch and of a step.

use crate::gradients::WeightGradient;
use crate::objective::Figures;
use crate::states::States;

/// Result of learning from a batch.
#[derive(Debug, Default)]
pub struct Learned {
    /// Loss and other figures of the batch.
    pub figures: Figures,
    /// States after the windows, detached from the graph; `None` unless windows [carry](super::Unroll::carry) on.
    pub states: Option<States>,
}

/// Result of a step.
#[derive(Debug, Clone, PartialEq)]
pub struct StepMetrics {
    /// Loss and other figures of the step's batches.
    pub figures: Figures,
    /// Norm of the gradient before the clip. Infinite for a gradient that overflowed f16 and changed no weight.
    pub grad_norm: f64,
    /// Whether any frame had a weight above 0. Otherwise figures and norm are 0 and no weight changes.
    pub learned: bool,
    /// Statistics of each weight, on request.
    pub gradients: Vec<WeightGradient>,
}
