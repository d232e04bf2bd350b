//! Norms over the features of a frame, over all of them or head by head.

pub mod group_norm;
pub mod head_norm;
pub mod layer_norm;
pub mod rms_norm;

pub use group_norm::group_norm;
pub use head_norm::head_norm;
pub use layer_norm::{Norm, layer_norm};
pub use rms_norm::rms_norm;
