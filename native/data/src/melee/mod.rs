//! Melee replays: the table of what is read from them, and the reader.

mod fields;
mod read;

pub use fields::{Field, Group, fields};
pub(crate) use fields::{ITEM_SLOTS, NUM_ITEM, NUM_PLAYER, columns, place};
pub(crate) use read::read;
