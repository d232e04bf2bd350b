//! When work runs, on which thread, and for whom state is kept.

#![warn(unreachable_pub)]

mod digest;
pub mod frames;
pub mod model;
pub mod pass;
pub mod serving;
pub mod session;
pub mod worker;

pub use model::Model;
pub use sconce_nn::packed::Plan;
pub use sconce_realtime::Format;
pub use session::Session;
pub use worker::{Deadline, Pool};
