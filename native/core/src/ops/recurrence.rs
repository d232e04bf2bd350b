//! What LSTM and GRU share: a sequence cut over the batch, walked over time.

use std::sync::{Arc, Mutex};

use candle_core::Tensor;

use super::matmul::{View, matmul};
use crate::{Error, Result, pool};

/// How many frames each row has, `[b]`; `None`: all of them. Frames from there on do not exist: their
/// outputs mean nothing, they give no gradient, and the state after the sequence is the one before them.
pub type Lengths = Option<Arc<[usize]>>;

/// Checks that there is a length for each row, and none beyond the sequence.
pub fn check_lengths(lengths: &Lengths, batch: usize, time: usize) -> Result<()> {
    let Some(lengths) = lengths else { return Ok(()) };
    if lengths.len() != batch {
        return Err(Error::mismatch("lengths of a batch", batch, lengths.len()));
    }
    match lengths.iter().find(|&&length| length > time) {
        Some(&n) => Err(Error::out_of_range("length of a row", n as f64, 0.0, time as f64)),
        None => Ok(()),
    }
}

/// Shapes of one run over `[b, t, ..]`.
#[derive(Debug, Clone)]
pub struct Sequence {
    pub batch: usize,
    pub time: usize,
    pub hidden: usize,
    pub lengths: Lengths,
}

impl Sequence {
    /// Checks `projected [b, t, gates * h]`, `weight [gates * h, h]` and the states `[b, h]`.
    pub fn new(
        gates: usize,
        projected: &Tensor,
        weight: &Tensor,
        states: &[&Tensor],
        lengths: Lengths,
    ) -> Result<Self> {
        let (batch, time, width) = projected.dims3()?;
        let (rows, hidden) = weight.dims2()?;
        let check = |what: &str, expected: Vec<usize>, got: &[usize]| match got == expected {
            true => Ok(()),
            false => Err(Error::mismatch(what, format!("{expected:?}"), format!("{got:?}"))),
        };
        check("recurrent weight", vec![gates * hidden, hidden], &[rows, hidden])?;
        check("projected input", vec![batch, time, gates * hidden], &[batch, time, width])?;
        for state in states {
            check("recurrent state", vec![batch, hidden], state.dims())?;
        }
        check_lengths(&lengths, batch, time)?;
        Ok(Sequence { batch, time, hidden, lengths })
    }

    /// Rows of the batch in one shard: at most four shards, none smaller than eight rows.
    pub fn shard(&self) -> usize {
        self.batch.div_ceil(4).max(8)
    }

    pub fn present(&self, row: usize, t: usize) -> bool {
        self.lengths.as_ref().is_none_or(|lengths| t < lengths[row])
    }

    /// The state before each frame, `[b, t, h]`, from the states after them and the first.
    pub fn previous(&self, y: &[f32], first: &[f32]) -> Vec<f32> {
        let (t, h) = (self.time, self.hidden);
        let mut previous = Vec::with_capacity(y.len());
        for (y, first) in y.chunks_exact(t * h).zip(first.chunks_exact(h)) {
            previous.extend_from_slice(first);
            previous.extend_from_slice(&y[..(t - 1) * h]);
        }
        previous
    }
}

/// The recurrent weight `[n, h]`, turned once when many steps of many rows will use it: gemm then
/// need not pack it at every step. A few steps, and those of a single row, read it as it lies.
pub struct Recurrent<'a> {
    weight: &'a [f32],
    turned: Option<Vec<f32>>,
    n: usize,
    h: usize,
}

impl<'a> Recurrent<'a> {
    const WORTH_TURNING: usize = 4;

    pub fn new(weight: &'a [f32], n: usize, sequence: &Sequence) -> Self {
        let Sequence { batch, time, hidden: h, .. } = *sequence;
        let turned = (batch > 1 && time >= Self::WORTH_TURNING).then(|| {
            let mut turned = vec![0.0; n * h];
            for (i, row) in weight.chunks_exact(h).enumerate() {
                for (j, v) in row.iter().enumerate() {
                    turned[j * n + i] = *v;
                }
            }
            turned
        });
        Recurrent { weight, turned, n, h }
    }

    /// `out [rows, n] (+)= x [rows, h] W^T`
    pub fn project(&self, out: &mut [f32], x: View<'_>, accumulate: bool) {
        let weight = match &self.turned {
            Some(turned) => View::rows(turned, self.h, self.n),
            None => View::rows(self.weight, self.n, self.h).transposed(),
        };
        matmul(out, self.n, x, weight, accumulate);
    }
}

/// Buffers `[b, ..]` of several widths, cut into the same shards of the batch.
pub fn for_each_shard<const N: usize>(
    batch: usize,
    rows: usize,
    buffers: [(&mut [f32], usize); N],
    work: impl Fn(std::ops::Range<usize>, [&mut [f32]; N]) + Sync + Send,
) {
    let mut shards: Vec<Vec<&mut [f32]>> =
        (0..batch.div_ceil(rows)).map(|_| Vec::with_capacity(N)).collect();
    for (buffer, width) in buffers {
        let mut rest = buffer;
        for (i, shard) in shards.iter_mut().enumerate() {
            let count = rows.min(batch - i * rows) * width;
            let (head, tail) = rest.split_at_mut(count);
            shard.push(head);
            rest = tail;
        }
    }
    let cells: Vec<_> = shards.into_iter().map(|s| Mutex::new(Some(s))).collect();
    pool::for_each(cells.len(), |i| {
        let shard = cells[i].lock().unwrap_or_else(|e| e.into_inner()).take();
        if let Some(Ok(buffers)) = shard.map(<[&mut [f32]; N]>::try_from) {
            work(i * rows..(i * rows + rows).min(batch), buffers);
        }
    });
}
