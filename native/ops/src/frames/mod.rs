//! Frames beside one another: what a frame takes from its neighbours, and the last one of a window.
//!
//! What belongs here looks along the time by a fixed number of frames, without a state that decays.

mod card;
pub mod causal_conv;
pub(crate) mod composed;
pub mod last;
pub mod token_shift;

pub use causal_conv::causal_conv;
pub use last::last;
pub use token_shift::token_shift;
