//! Parts of a batch that several threads fill.

use std::sync::Mutex;

use sconce_tensor::{Error, Result, pool};

use super::Batch;

/// The slices of a batch that one frame is written to.
pub(crate) struct FrameMut<'a> {
    pub(super) continuous: &'a mut [f32],
    pub(super) ids: &'a mut [u32],
    pub(super) previous: &'a mut [f32],
    pub(super) queue: &'a mut [f32],
    pub(super) labels: &'a mut [f32],
    pub(crate) weight: &'a mut f32,
}

/// A range of frames of a batch, filled by one thread.
pub(crate) struct Shard<'a> {
    continuous: &'a mut [f32],
    ids: &'a mut [u32],
    previous: &'a mut [f32],
    queue: &'a mut [f32],
    labels: &'a mut [f32],
    weights: &'a mut [f32],
    pub(super) beside: Vec<&'a mut [f32]>,
}

impl Batch {
    /// Splits the batch into shards of `frames` frames; the last may be shorter.
    pub(crate) fn shards(&mut self, frames: usize) -> Vec<Shard<'_>> {
        let mut rest = Shard::whole(self);
        let mut shards = Vec::new();
        while rest.len() > frames {
            let (head, tail) = rest.split(frames);
            shards.push(head);
            rest = tail;
        }
        shards.push(rest);
        shards
    }
}

impl<'a> Shard<'a> {
    pub(super) fn whole(batch: &'a mut Batch) -> Self {
        Shard {
            continuous: &mut batch.frames.continuous,
            ids: &mut batch.frames.ids,
            previous: &mut batch.frames.previous,
            queue: &mut batch.queue,
            labels: &mut batch.labels,
            weights: &mut batch.weights,
            beside: batch.beside.iter_mut().map(|(_, numbers)| numbers.as_mut_slice()).collect(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.weights.len()
    }

    /// The continuous features of the shard's first `frames` frames.
    pub(crate) fn numbers(&mut self, frames: usize) -> &mut [f32] {
        let width = self.continuous.len() / self.len().max(1);
        let end = (frames * width).min(self.continuous.len());
        &mut self.continuous[..end]
    }

    fn split(self, frames: usize) -> (Self, Self) {
        let len = self.len();
        let (continuous, continuous_2) = split(self.continuous, len, frames);
        let (ids, ids_2) = split(self.ids, len, frames);
        let (previous, previous_2) = split(self.previous, len, frames);
        let (queue, queue_2) = split(self.queue, len, frames);
        let (labels, labels_2) = split(self.labels, len, frames);
        let (weights, weights_2) = split(self.weights, len, frames);
        let beside = self.beside.into_iter().map(|column| split(column, len, frames));
        let (beside, beside_2) = beside.unzip();
        let tail = Shard {
            continuous: continuous_2,
            ids: ids_2,
            previous: previous_2,
            queue: queue_2,
            labels: labels_2,
            weights: weights_2,
            beside: beside_2,
        };
        (Shard { continuous, ids, previous, queue, labels, weights, beside }, tail)
    }

    pub(crate) fn row(&mut self, k: usize) -> FrameMut<'_> {
        let len = self.len();
        FrameMut {
            continuous: part(self.continuous, len, k),
            ids: part(self.ids, len, k),
            previous: part(self.previous, len, k),
            queue: part(self.queue, len, k),
            labels: part(self.labels, len, k),
            weight: &mut self.weights[k],
        }
    }

    pub(super) fn copy(&mut self, k: usize, from: FrameMut) {
        let to = self.row(k);
        to.continuous.copy_from_slice(from.continuous);
        to.ids.copy_from_slice(from.ids);
        to.previous.copy_from_slice(from.previous);
        to.queue.copy_from_slice(from.queue);
        to.labels.copy_from_slice(from.labels);
        *to.weight = *from.weight;
    }
}

/// Row `k` of data that has `len` rows.
fn part<T>(data: &mut [T], len: usize, k: usize) -> &mut [T] {
    let width = data.len() / len.max(1);
    &mut data[k * width..(k + 1) * width]
}

fn split<T>(data: &mut [T], len: usize, rows: usize) -> (&mut [T], &mut [T]) {
    let width = data.len() / len.max(1);
    data.split_at_mut(rows * width)
}

/// Fills shards on the thread pool. If several fail, returns the error of the first of them, whatever the
/// thread count.
pub(crate) fn fill<'a>(
    shards: Vec<Shard<'a>>,
    work: impl Fn(usize, Shard<'a>) -> Result<()> + Sync + Send,
) -> Result<()> {
    let cells: Vec<_> = shards.into_iter().map(|s| Mutex::new(Some(s))).collect();
    let failure: Mutex<Option<(usize, Error)>> = Mutex::new(None);
    pool::for_each(cells.len(), |i| {
        let shard = cells[i].lock().unwrap_or_else(|e| e.into_inner()).take();
        let Some(Err(error)) = shard.map(|shard| work(i, shard)) else { return };
        let mut failure = failure.lock().unwrap_or_else(|e| e.into_inner());
        if failure.as_ref().is_none_or(|f| i < f.0) {
            *failure = Some((i, error));
        }
    });
    match failure.into_inner().unwrap_or_else(|e| e.into_inner()) {
        Some((_, error)) => Err(error),
        None => Ok(()),
    }
}
