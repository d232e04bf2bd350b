//! Named tensors in blocks over tiers of memory: RAM, compressed RAM and disk.
//!
//! A tensor is cut into blocks of about a megabyte; a block with the same content as another one is stored once. All
//! blocks lie on disk, in packs; RAM holds those that are in use, compressed RAM some of those that left it. Threads of
//! the store read ahead of readers whose pattern they know, and compress what leaves RAM.
//!
//! A commit survives a kill and a power cut. Each block has a checksum, which every read checks.
#![warn(unreachable_pub)]

mod budget;
pub mod codec;
mod cold;
pub mod disk;
mod options;
mod packs;
pub mod prefetch;
pub mod queue;
mod ram;
mod shared;
mod state;
mod store;
mod tensor;
mod work;
mod write;

pub use options::{Cold, StoreOptions};
pub use shared::{Part, Rows};
pub use state::Counts;
pub use store::{Damage, Stats, Store};
pub use tensor::{Dtype, MAX_BLOCK, Tensor};
