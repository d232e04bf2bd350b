//! Every op once more, composed of candle's own and of other ops, on any device.
//!
//! A card runs these where it has no kernel; kernels and the CPU's forms are compared with them, values and gradients.
//! They are short rather than fast.
//!
//! 1. A function has the name, the arguments and the result of its op, and lies in the room of its name.
//! 2. All numbers stay on the device of the first argument; nothing is read back.
//! 3. An op that is made of other ops calls their front doors, so that a card runs the kernels that it has for them.

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

/// Whether ops on the CPU are composed too.
pub(in crate::ops) fn is_forced() -> bool {
    FORCED.get()
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
