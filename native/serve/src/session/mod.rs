//! The memory of one running game over a policy.
//!
//! A decision is made in two parts: [`Session::decide`] makes the next moment beside the present one,
//! [`Session::commit`] makes it the present. A frame that is refused, a decision that came too late or whose
//! numbers are not finite, or a panic on the way so leaves the session as it was.

mod carried;
mod decide;
mod info;
mod lane;
mod moments;
mod open;
mod options;
mod past;
mod query;
mod read;
mod ring;
mod rollback;
mod snapshot;
mod step;

pub use decide::{Act, Call, decide_many};
pub use info::Info;
pub use lane::lane;
pub use open::{Session, live};
pub(crate) use options::{INLINE_US, check_inline};
pub use options::{Lane, MAX_INLINE_US, Mode, Options, Overrides, Path};
pub(crate) use step::SCRATCH;
