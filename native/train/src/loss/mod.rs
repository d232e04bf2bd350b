//! The imitation loss: how far the logits of a batch are from the recorded inputs.
//!
//! Binary and softmax cross-entropy with label smoothing (Szegedy et al. 2016, section 7), the
//! focal factor (Lin et al. 2017, equation 4), weights of rare bits, of sticks near their edge and
//! of frames, and an entropy bonus. One pass over a row gives its loss and its gradient.
//!
//! A batch is cut into shards of [`SHARD_ROWS`] rows whose [`Sums`] are added in order, so any
//! number of threads gives the same bits:
//!
//! 1. [`Objective::sums`] of every shard, only if [`Objective::normalises`];
//! 2. [`Objective::denominators`] of the whole batch;
//! 3. [`Objective::backward`] of every shard, its sums added in order;
//! 4. [`Objective::finish`].

pub(crate) mod card;
mod imitation;
mod nll;
mod objective;
mod options;
mod sums;
mod term;

pub use imitation::{SHARD_ROWS, imitation};
pub(crate) use nll::nll;
pub use nll::nll_rows;
pub(crate) use objective::check_heads;
pub use objective::{Objective, Table};
pub use options::{FocalHeads, LossOptions, PosWeight, Reduction, pos_weight_auto};
pub use sums::{Denominators, LabelledLogits, Loss, Sums};
