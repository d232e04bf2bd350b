//! Dropout on a card. Masks are drawn where they are used.

use std::cell::RefCell;

use candle_core::{Result, Tensor, bail};
use sconce_cuda::kernels::DROPOUT;

use crate::device::launch::{Launch, output, suffix};
use crate::dropout::Dropout;
use crate::op::card::{Op, Pass, apply};
use crate::tensor;

/// Threads of a block, and values of each thread.
const THREADS: usize = 128;
const EACH: usize = 4;

/// Applies dropout to `x`, then adds `residual`, which is not dropped, if there is one.
pub(super) fn dropout(
    x: &Tensor,
    residual: Option<&Tensor>,
    dropout: &Dropout,
) -> crate::Result<Tensor> {
    match residual {
        Some(residual) => apply(Masked::new(dropout), &[x, residual]),
        None => apply(Masked::new(dropout), &[x]),
    }
}

thread_local! {
    static COUNTER: RefCell<Option<Tensor>> = const { RefCell::new(None) };
}

/// Runs `work` with masks whose step is increased by `counter`, one i64 on the card. The counter is read when masks are
/// drawn, so a recorded graph draws new masks at every replay.
pub fn counted<R>(counter: &Tensor, work: impl FnOnce() -> R) -> R {
    struct Back(Option<Tensor>);
    impl Drop for Back {
        fn drop(&mut self) {
            COUNTER.set(self.0.take());
        }
    }
    let _back = Back(COUNTER.replace(Some(counter.clone())));
    work()
}

struct Masked(Dropout, Option<Tensor>);

impl Masked {
    fn new(dropout: &Dropout) -> Self {
        Masked(*dropout, COUNTER.with_borrow(Clone::clone))
    }

    fn launch(&self, x: &Tensor, residual: Option<&Tensor>, track: bool) -> Result<Tensor> {
        let (rows, d) = tensor::rows(x.dims());
        let y = output(x.shape(), x.dtype(), x, track)?;
        let Dropout { p, rng, repeat, origin } = self.0;
        let [key0, key1, low, high] = rng.words();
        let step = (high as usize) << 32 | low as usize;
        let launch = Launch::of(DROPOUT, &format!("dropout_{}", suffix(x)), x)?;
        let launch = launch.tensor(x)?.option(residual)?.tensor(&y)?.option(self.1.as_ref())?;
        let launch = launch.long(step).word(key0).word(key1);
        let launch = launch.long(rows).int(d).int(repeat).int(origin.window).int(origin.before);
        let launch = launch.int(origin.frames).float(p).float(1.0 / (1.0 - p));
        let blocks = (rows * d.div_ceil(EACH)).div_ceil(THREADS);
        // SAFETY: as dropout.cu requires, a thread for every EACH values of a row.
        unsafe { launch.run([blocks, 1, 1], [THREADS, 1, 1], 0) }?;
        Ok(y)
    }
}

impl Op for Masked {
    fn forward(&self, inputs: &[Tensor], track: bool) -> Result<(Tensor, Vec<Tensor>)> {
        let [x, residual @ ..] = inputs else { bail!("dropout takes at least one input") };
        Ok((self.launch(x, residual.first(), track)?, vec![]))
    }

    fn backward(&self, pass: &Pass) -> Result<Vec<Option<Tensor>>> {
        let mut gradients = vec![Some(self.launch(pass.dy, None, false)?)];
        gradients.extend(pass.inputs.get(1).map(|_| Some(pass.dy.clone())));
        Ok(gradients)
    }
}
