//! Melee replays: the table of what is read from them, and the reader.

mod fields;
pub(crate) mod place;
mod read;
mod rows;

pub(crate) use fields::columns;
pub use fields::{Field, Group, fields};
pub(crate) use read::{Game, read};
pub(crate) use rows::Replays;
