//! The shared parts of this crate: running the work of a NIF, errors as terms, data as terms, and answers from native
//! threads.
//!
//! A NIF decodes its arguments and does its work inside [`call`], and returns the result of `call`:
//!
//! ```ignore
//! #[rustler::nif(schedule = "DirtyIo")]
//! fn policy_load<'a>(env: Env<'a>, path: String, options: Term<'a>) -> Term<'a> {
//!     call(env, "load", || {
//!         let options: LoadOptions = decode(options)?;
//!         Ok(ResourceArc::new(PolicyHandle(Policy::load(&path, &options)?)))
//!     })
//! }
//! ```

mod answer;
mod binary;
mod call;
mod events;
mod given;
mod handle;
mod outcome;
pub(crate) mod pool;
mod questions;
mod reply;
mod task;
mod value;

pub(crate) use answer::{Answer, Bytes, Data};
pub(crate) use binary::{from_binary, labels_from, labels_to, to_binary};
pub(crate) use call::{call, inline, inline_counted, next_turn, perform, timed};
pub(crate) use events::Events;
#[cfg(feature = "fixtures")]
pub(crate) use events::{MOST_EVENTS, MOST_PROGRESS};
pub(crate) use given::Given;
pub(crate) use handle::{Handle, Handled};
pub(crate) use outcome::{error, guard};
pub(crate) use reply::Reply;
pub(crate) use task::{REPLIES, Task};
pub(crate) use value::{decode, encode};
