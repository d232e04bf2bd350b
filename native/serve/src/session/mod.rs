//! Sessions: the memory of one running game over a policy.
//!
//! A decision has two parts: [`Session::decide`] writes the next moment next to the present one, [`Session::commit`]
//! makes it the present. So a refused frame, a late decision, numbers that are not finite, or a panic leave the session
//! unchanged.

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
mod record;
mod recorder;
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
pub use recorder::{Recording, Reward};
pub(crate) use step::SCRATCH;
