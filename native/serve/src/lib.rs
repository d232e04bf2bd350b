//! Worker threads, sessions and servings: when work runs, on which thread, and which state each caller keeps.

#![warn(unreachable_pub)]

mod digest;
pub mod frames;
pub mod model;
pub mod pass;
pub mod serving;
pub mod session;
pub mod votes;
pub mod worker;

pub use model::Model;
pub use sconce_nn::packed::Plan;
pub use sconce_realtime::{Encoding, Format};
pub use session::Session;
pub use worker::{Deadline, Pool};
