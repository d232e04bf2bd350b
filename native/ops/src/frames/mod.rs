//! Ops on neighbouring frames: convolutions, shifts, and the last frame of a window.
//!
//! An op of this folder looks along time by a fixed number of frames, without a state that decays.

mod card;
pub mod causal_conv;
pub(crate) mod composed;
pub mod last;
pub mod token_shift;

pub use causal_conv::causal_conv;
pub use last::last;
pub use token_shift::token_shift;
