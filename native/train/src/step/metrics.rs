//! What came of a batch, and the figures of a step.

use crate::gradients::WeightGradient;
use crate::objective::Figures;
use crate::states::States;

/// What came of a batch.
#[derive(Debug, Default)]
pub struct Learned {
    pub figures: Figures,
    /// After the windows, cut from the graph, where they [carry](super::Unroll::carry) theirs on.
    pub states: Option<States>,
}

/// One step's figures.
#[derive(Debug, Clone, PartialEq)]
pub struct StepMetrics {
    pub figures: Figures,
    /// Before the clip. Of a gradient that overflowed f16, by which no weight was changed, infinite.
    pub grad_norm: f64,
    /// Whether any frame counted. Where all weigh nothing, figures and norm are 0 and no weight changes.
    pub learned: bool,
    /// Of each weight, if it was asked for.
    pub gradients: Vec<WeightGradient>,
}
