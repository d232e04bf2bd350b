//! The imitation loss: how far the logits of a batch are from the recorded inputs.
//!
//! Binary and softmax cross-entropy with label smoothing (Szegedy et al. 2016, section 7), the
//! focal factor (Lin et al. 2017, equation 4), weights of rare bits, of sticks near their edge and
//! of frames, and an entropy bonus. One pass over a row gives its loss and its gradient.

pub(crate) mod card;
mod nll;
mod options;
mod shaped;
mod sums;
mod table;
mod term;
mod whole;

pub(crate) use nll::nll;
pub use nll::nll_rows;
pub use options::{FocalHeads, LossOptions, PosWeight, Reduction, pos_weight_auto};
pub use shaped::Imitation;
pub(crate) use shaped::{check_heads, of};
pub use sums::{LabelledLogits, Loss};
pub use table::Table;
pub use whole::imitation;
