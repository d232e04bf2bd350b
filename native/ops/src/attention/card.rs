//! Attention over a sliding window on a card.

use std::sync::Arc;

use candle_core::{DType, Tensor};
use sconce_cuda::kernels::ATTENTION;

use crate::Result;
use crate::attention::cache::Cache;
#[cfg(feature = "flash-attn")]
use crate::attention::flash;
use crate::attention::window::{Pairing, Window};
use crate::device::launch::{Launch, output, suffix, unwritten};
use crate::lengths::{Lengths, on_card};
use crate::op::card::{Op, Pass, apply};

/// Threads of a block, except in the append kernels.
const THREADS: usize = 128;
/// Threads of a block in the append kernels.
const COPIERS: usize = 256;

/// Head sizes for which there are kernels; a smaller head uses the next one.
const WIDEST: [usize; 3] = [32, 64, 128];

/// Whether there is a kernel for heads of this size.
pub(super) fn has_heads_of(window: &Window) -> bool {
    widest(window).is_some()
}

fn widest(window: &Window) -> Option<usize> {
    WIDEST.into_iter().find(|&widest| window.head_dim() <= widest)
}

pub(super) fn attention(
    qkv: &Tensor,
    cache: &Cache,
    window: &Arc<Window>,
    lengths: &Lengths,
    cached: bool,
) -> Result<(Tensor, Option<Cache>)> {
    let (qkv, cache) = (&qkv.contiguous()?, &beside(cache, qkv)?);
    let attend = Attend::of(qkv, cache, window, lengths)?;
    let tracked = [qkv, &cache.keys, &cache.values].into_iter().any(Tensor::track_op);
    let next = cached.then(|| attend.next(qkv, cache, tracked)).transpose()?;
    #[cfg(feature = "flash-attn")]
    if let Some(numbers) = flash::numbers(qkv, cache, window) {
        return Ok((flash::card::attention(qkv, window, lengths, numbers)?, next));
    }
    let y = match attend.time {
        1 if !tracked => attend.last(qkv, cache)?,
        _ => apply(attend, &[qkv, &cache.keys, &cache.values])?,
    };
    Ok((y, next))
}

/// [`attention()`](super::attention()) of the last query, for inputs without gradient.
pub(super) fn attention_of_last(
    qkv: &Tensor,
    cache: &Cache,
    window: &Arc<Window>,
    cached: bool,
) -> Result<(Tensor, Option<Cache>)> {
    let (qkv, cache) = (&qkv.contiguous()?, &beside(cache, qkv)?);
    let attend = Attend::of(qkv, cache, window, &None)?;
    let next = cached.then(|| attend.next(qkv, cache, false)).transpose()?;
    Ok((attend.last(qkv, cache)?, next))
}

/// Converts the cache to the type of `qkv`.
fn beside(cache: &Cache, qkv: &Tensor) -> Result<Cache> {
    let of_type = |ring: &Tensor| ring.to_dtype(qkv.dtype());
    Ok(Cache {
        keys: of_type(&cache.keys)?,
        values: of_type(&cache.values)?,
        seen: cache.seen.clone(),
    })
}

/// The sizes and inputs of one call, and its kernels.
#[derive(Clone)]
struct Attend {
    window: Arc<Window>,
    batch: usize,
    time: usize,
    /// Frames seen by each row, f32 `[b, 1]`; `lengths` are the frames of each row in the sequence,
    /// i32 `[b]`.
    seen: Tensor,
    lengths: Option<Tensor>,
    rotations: [Tensor; 2],
}

impl Attend {
    fn of(qkv: &Tensor, cache: &Cache, window: &Arc<Window>, lengths: &Lengths) -> Result<Self> {
        let [batch, time] = window.check(qkv, cache, lengths)?;
        Ok(Attend {
            window: window.clone(),
            batch,
            time,
            seen: cache.seen.detach().to_dtype(DType::F32)?.contiguous()?,
            lengths: on_card(lengths, qkv)?,
            rotations: window.rotations(qkv.device())?,
        })
    }

    /// A launch of a head kernel, with the first arguments that all head kernels share.
    fn launch(&self, step: &str, given: &[Tensor]) -> candle_core::Result<Launch> {
        let Some(widest) = widest(&self.window) else {
            candle_core::bail!("no kernel for heads of {} numbers", self.window.head_dim())
        };
        let kernel = format!("attention_{}_{widest}_{step}", suffix(&given[0]));
        let launch = Launch::of(ATTENTION, &kernel, &given[0])?;
        let launch = given.iter().try_fold(launch, Launch::tensor)?;
        let launch = launch.tensor(&self.seen)?.option(self.lengths.as_ref())?;
        self.rotations.iter().try_fold(launch, Launch::tensor)
    }

    fn sizes(&self, launch: Launch) -> Launch {
        let w = &self.window;
        [self.time, w.heads(), w.head_dim(), w.frames()].into_iter().fold(launch, Launch::int)
    }

    /// Adds the sizes that end the arguments of all head kernels.
    fn all_sizes(&self, launch: Launch) -> Launch {
        self.sizes(launch).int(usize::from(self.window.pairing() == Pairing::Interleaved))
    }

    /// A grid with a block for each tile of `frames` frames of each head.
    fn by_tile(&self, frames: usize) -> [usize; 3] {
        let tile = if self.window.head_dim() <= 64 { 32 } else { 16 };
        [frames.div_ceil(tile) * self.window.heads() * self.batch, 1, 1]
    }

    /// A grid with a thread for each element of a ring, for keys and for values.
    fn by_number(&self) -> [usize; 3] {
        let numbers = self.batch * self.window.frames() * self.window.width();
        [numbers.div_ceil(COPIERS), 2, 1]
    }

    /// The output of only the last query of each row, `[b, 1, heads * head_dim]`, outside any graph.
    fn last(&self, qkv: &Tensor, cache: &Cache) -> Result<Tensor> {
        let y = unwritten((self.batch, 1, self.window.width()), qkv.dtype(), qkv)?;
        let given = [qkv.clone(), cache.keys.contiguous()?, cache.values.contiguous()?];
        let launch = self.all_sizes(self.launch("last", &given)?.tensor(&y)?);
        // SAFETY: as attention.cu requires, a block for each head of each row.
        unsafe { launch.run([self.window.heads() * self.batch, 1, 1], [THREADS, 1, 1], 0) }?;
        Ok(y)
    }

    /// The cache after the sequence, part of the graph if `tracked`.
    fn next(&self, qkv: &Tensor, cache: &Cache, tracked: bool) -> Result<Cache> {
        let seen = unwritten((self.batch, 1), DType::F32, qkv)?;
        let of_part = |part, ring| apply(Append { attend: self.clone(), part }, &[ring, qkv]);
        let [keys, values] = if tracked {
            self.append([None, None], qkv, [None, None], Some(&seen))?;
            [of_part(0, &cache.keys)?, of_part(1, &cache.values)?]
        } else {
            let [keys, values] = [cache.keys.contiguous()?, cache.values.contiguous()?];
            let next = || unwritten(keys.shape(), keys.dtype(), qkv);
            let next = [next()?, next()?];
            self.append([Some(&keys), Some(&values)], qkv, next.each_ref().map(Some), Some(&seen))?;
            next
        };
        Ok(Cache { keys, values, seen: seen.to_dtype(cache.seen.dtype())? })
    }

    fn append(
        &self,
        rings: [Option<&Tensor>; 2],
        qkv: &Tensor,
        next: [Option<&Tensor>; 2],
        seen: Option<&Tensor>,
    ) -> candle_core::Result<()> {
        let launch = Launch::of(ATTENTION, &format!("attention_{}_append", suffix(qkv)), qkv)?;
        let launch = launch.tensor(qkv)?.tensor(&self.seen)?.option(self.lengths.as_ref())?;
        let launch =
            rings.into_iter().chain(next).chain([seen]).try_fold(launch, Launch::option)?;
        let launch = self.sizes(launch.long(self.batch));
        // SAFETY: as attention.cu requires, a thread for each element of both rings.
        unsafe { launch.run(self.by_number(), [COPIERS, 1, 1], 0) }
    }
}

impl Op for Attend {
    fn forward(
        &self,
        inputs: &[Tensor],
        track: bool,
    ) -> candle_core::Result<(Tensor, Vec<Tensor>)> {
        let (x, shape) = (&inputs[0], (self.batch, self.time, self.window.width()));
        let y = output(shape, x.dtype(), x, track)?;
        let log_sums =
            unwritten((self.batch, self.window.heads(), self.time), DType::F32, &inputs[0])?;
        let launch = self.launch("forward", inputs)?.tensor(&y)?.tensor(&log_sums)?;
        // SAFETY: the grid and block are those of attention.cu.
        unsafe { self.all_sizes(launch).run(self.by_tile(self.time), [THREADS, 1, 1], 0) }?;
        Ok((y, vec![log_sums]))
    }

    fn backward(&self, pass: &Pass) -> candle_core::Result<Vec<Option<Tensor>>> {
        let Pass { inputs, kept: [log_sums], y, dy, wanted, .. } = pass else {
            candle_core::bail!("the backward pass of attention needs the denominators")
        };
        let gradient = |x: &Tensor| unwritten(x.shape(), x.dtype(), x);
        let (dqkv, along) = (gradient(&inputs[0])?, gradient(log_sums)?);
        let launch = self.launch("backward_queries", inputs)?.tensor(y)?.tensor(dy)?;
        let launch = self.all_sizes(launch.tensor(log_sums)?.tensor(&dqkv)?.tensor(&along)?);
        // SAFETY: the grid and block are those of attention.cu.
        unsafe { launch.run(self.by_tile(self.time), [THREADS, 1, 1], 0) }?;

        let cached = wanted[1..].contains(&true);
        let ring = |ring: &Tensor| cached.then(|| gradient(ring)).transpose();
        let (dkeys, dvalues) = (ring(&inputs[1])?, ring(&inputs[2])?);
        let launch = self.launch("backward_keys", inputs)?.tensor(dy)?.tensor(log_sums)?;
        let launch = launch.tensor(&along)?.tensor(&dqkv)?;
        let launch = launch.option(dkeys.as_ref())?.option(dvalues.as_ref())?;
        let launch = self.all_sizes(launch).int(usize::from(cached));
        let frames = self.time + if cached { self.window.frames() } else { 0 };
        // SAFETY: the grid and block are those of attention.cu; the kernel writes the rings'
        // gradients only if they are wanted.
        unsafe { launch.run(self.by_tile(frames), [THREADS, 1, 1], 0) }?;
        Ok(vec![Some(dqkv), dkeys, dvalues])
    }
}

/// Appends the keys (part 0) or values (part 1) of the last frames to their ring.
struct Append {
    attend: Attend,
    part: usize,
}

impl Append {
    fn of_part<'a>(&self, tensor: &'a Tensor) -> [Option<&'a Tensor>; 2] {
        std::array::from_fn(|part| (part == self.part).then_some(tensor))
    }
}

impl Op for Append {
    fn forward(
        &self,
        inputs: &[Tensor],
        track: bool,
    ) -> candle_core::Result<(Tensor, Vec<Tensor>)> {
        let [ring, qkv] = inputs else {
            candle_core::bail!("an append takes a ring and a sequence")
        };
        let next = output(ring.shape(), ring.dtype(), ring, track)?;
        self.attend.append(self.of_part(ring), qkv, self.of_part(&next), None)?;
        Ok((next, vec![]))
    }

    fn backward(&self, pass: &Pass) -> candle_core::Result<Vec<Option<Tensor>>> {
        let Pass { inputs: [ring, qkv], dy, .. } = pass else {
            candle_core::bail!("an append takes a ring and a sequence")
        };
        let (attend, kernel) = (&self.attend, format!("attention_{}_append_backward", suffix(dy)));
        let (dring, dqkv) = (unwritten(ring.shape(), ring.dtype(), ring)?, qkv.zeros_like()?);
        let launch = Launch::of(ATTENTION, &kernel, dy)?;
        let launch = launch.tensor(&attend.seen)?.option(attend.lengths.as_ref())?;
        let launch = self.of_part(dy).into_iter().try_fold(launch, Launch::option)?;
        let launch = self.of_part(&dring).into_iter().try_fold(launch, Launch::option)?;
        let launch = attend.sizes(launch.tensor(&dqkv)?.long(attend.batch));
        // SAFETY: as attention.cu requires, a thread for each element of both rings.
        unsafe { launch.run(attend.by_number(), [COPIERS, 1, 1], 0) }?;
        Ok(vec![Some(dring), Some(dqkv)])
    }
}
