//! Every op once more, composed of candle's own: for devices that are not the CPU.
//!
//! There our kernels take over what is worth one. These are what they are compared with, short rather than fast, and
//! tested on a CPU against the ops themselves, values and gradients.
//!
//! 1. A function has the name, the arguments and the result of its op, and lies in the room of its name.
//! 2. All numbers stay on the device of the first argument; nothing is read back.

use std::cell::Cell;

use candle_core::Tensor;

pub mod attention;
pub mod dense;
pub mod elementwise;
pub mod frames;
pub mod matrix_state;
pub mod norm;
pub mod recurrent;
pub mod residual;
pub mod scan;

thread_local! {
    static FORCED: Cell<bool> = const { Cell::new(false) };
}

/// Whether an op of this tensor is composed.
pub fn wanted(x: &Tensor) -> bool {
    !x.device().is_cpu() || FORCED.get()
}

/// Runs `f` with ops that are composed on the CPU too, where they run on the present thread: for tests.
pub fn forced<R>(f: impl FnOnce() -> R) -> R {
    struct Back(bool);
    impl Drop for Back {
        fn drop(&mut self) {
            FORCED.set(self.0);
        }
    }
    let _back = Back(FORCED.replace(true));
    f()
}

/// `a b [.., n, m]` of `a [.., n, k]` and `b [.., k, m]`: all products of composed ops, on any device.
#[expect(clippy::disallowed_methods, reason = "ours run on a CPU only")]
pub(in crate::ops) fn product(a: &Tensor, b: &Tensor) -> candle_core::Result<Tensor> {
    a.matmul(b)
}
