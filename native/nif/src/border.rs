//! What every file of this crate shares: running the work of a NIF, errors as terms, data as terms,
//! and answers from threads of our own.
//!
//! A NIF decodes its arguments, says what to do inside [`call`] and returns what `call` gave:
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
mod handle;
mod outcome;
pub mod pool;
mod reply;
mod task;
mod value;

pub use answer::{Answer, Bytes, Data};
pub use binary::{from_binary, to_binary};
pub use call::{call, inline, next_turn, perform, timed};
pub use events::Events;
#[cfg(feature = "fixtures")]
pub use events::{MOST_EVENTS, MOST_PROGRESS};
pub use handle::{Handle, Handled};
pub use outcome::{error, guard};
pub use reply::Reply;
pub use task::{REPLIES, Task};
pub use value::{decode, encode};
