//! Small networks of images, signals and sensors: layers as data, their weights, and a packed form for one CPU core.
//!
//! | file | contents |
//! |---|---|
//! | `spec` | the declaration |
//! | `outline` | shapes, sizes and names that follow from a declaration |
//! | `net` | a declaration with its weights |
//! | `file` | a network as one safetensors file |
//! | `packed` | the form that runs |
//! | `phases` | transposed convolutions as convolutions |
//! | [`training`] | the form that is trained |
#![warn(unreachable_pub)]

mod bounds;
mod file;
mod net;
mod outline;
mod packed;
mod phases;
mod spec;
pub mod training;

pub use bounds::{MAX_DEPTH, MAX_LAYERS, MAX_PARAMETERS, MAX_SIZE, MAX_VALUES};
pub use net::{Net, Weight};
pub use outline::{Initial, LayerOutline, Outline, Slot};
pub use packed::{Packed, Program, Storage};
pub use sconce_tensor::{Error, Result};
pub use spec::{Function, Input, Layer, NetSpec};
