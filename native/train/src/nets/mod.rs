//! Training and evaluation of the networks of `sconce_net` on examples in memory.
//!
//! | file | contents |
//! |---|---|
//! | `options` | options of a run |
//! | `examples` | inputs and targets |
//! | `loss` | losses of one example, and their gradients |
//! | `step` | one update of the weights |
//! | `fit` | a run |
//! | `report` | events and the report of a run |
//! | `checkpoint` | the state of a run as a file |
//! | `evaluate` | losses in the packed form |
//!
//! Sums are over examples in a fixed order, so results are bit-identical with any number of threads.

mod checkpoint;
mod evaluate;
mod examples;
mod fit;
mod loss;
mod options;
mod report;
mod step;

pub use evaluate::{Evaluation, evaluate};
pub use examples::Examples;
pub use fit::{Fitted, fit};
pub use loss::Loss;
pub use options::{Decay, FitOptions};
pub use report::{Event, Failure, Report, Stopped, Validation};
