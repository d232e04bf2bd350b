//! Where work is done: `Sconce.Device`.

use rustler::{Env, Term};
use sconce_core::device;

use crate::border::perform;

/// `:ok` where policies run on these cards.
// A driver takes its time to wake up.
#[rustler::nif(schedule = "DirtyIo")]
fn device_check(env: Env, ordinals: Vec<usize>) -> Term {
    perform(env, "device", || device::check(&ordinals))
}
