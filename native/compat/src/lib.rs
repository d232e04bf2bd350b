//! Reads and writes policies of ExPhil and Axon: their files, their names of layers, and their formulas.
//!
//! [`term`] reads Erlang terms, [`file`] finds the parameters in a file, [`layers`] holds them by layer, [`config`] says
//! which policy they are, and [`names`] pairs each parameter with a weight of Sconce. [`import`] and [`export`] use the
//! same pairs.
#![warn(unreachable_pub)]

mod answers;
mod arrays;
pub mod config;
mod encode;
mod export;
pub mod file;
mod import;
pub mod layers;
pub mod names;
pub mod state;
pub mod term;

pub use answers::{Compared, compare};
pub use export::{Format, export};
pub use import::{Asked, From, Imported, import};
use sconce_nn::{Policy, Spec};
use sconce_tensor::{Error, Result};
