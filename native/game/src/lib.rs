//! Frames and inputs of a game, declared as data.
//!
//! A [`Game`] is a table: the [`Field`]s of a frame, the [`InputPart`]s of an input, and the tables that ids are looked
//! up in. The table determines the raw row and its checks, the mirror image, the conversion between inputs and labels,
//! and the features of a frame. Melee is one such table, in [`melee`]; a game of plain vectors is the smallest.

#![warn(unreachable_pub)]

mod check;
mod declaration;
mod feature;
mod field;
mod input;
pub mod melee;
mod row;
mod table;

pub use check::fits;
pub use declaration::Declaration;
pub use feature::{Block, Class, Feature, Formula, Live, Term, features};
pub use field::{Field, FieldKind, Mirror, Scale};
pub use input::{InputKind, InputMirror, InputPart, MAX_CLASSES, encode, mirror_input};
pub use row::{Column, Game};
pub use table::{Ids, Table};
