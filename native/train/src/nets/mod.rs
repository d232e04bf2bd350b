//! Training and evaluation of the networks of `sconce_net` on examples in memory.
//!
//! | file | contents |
//! |---|---|
//! | `options` | options of a run |
//! | `examples` | inputs and targets |
//! | `loss` | losses of one example, and their gradients |
//! | `step` | one update of the weights |
//! | `fit` | a run |
//! | `evaluate` | losses in the packed form |
//!
//! Sums are over examples in a fixed order, so results are bit-identical with any number of threads.

mod evaluate;
mod examples;
mod fit;
mod loss;
mod options;
mod step;

pub use evaluate::{Evaluation, evaluate};
pub use examples::Examples;
pub use fit::{Event, Failure, Fitted, Report, Stopped, Validation, fit};
pub use loss::Loss;
pub use options::{Decay, FitOptions};
