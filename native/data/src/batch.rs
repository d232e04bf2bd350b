//! Views into batches: windows gathered, mirrored, embedded and labelled.
//!
//! All of it is arithmetic on (seed, step): a batch is the same on any number of threads, and a run
//! that resumes at a step needs nothing else to go on.

use std::ops::Range;
use std::sync::Mutex;

use sconce_core::heads::NONE;
use sconce_core::pool;
use sconce_core::rng::Rng;
use sconce_core::spec::{Embedding, HeadKind, Heads};
use sconce_core::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::permutation::Permutation;
use crate::view::View;

/// Windows of embedded frames with their labels, row-major.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    pub batch: usize,
    pub window: usize,
    /// `[batch, window, continuous_width]`.
    pub continuous: Vec<f32>,
    /// `[batch, window, num_ids]`.
    pub ids: Vec<u32>,
    /// `[batch, window, num_labels]`, [`NONE`] where there is none.
    pub previous: Vec<u16>,
    /// `[batch, window, num_labels]`.
    pub labels: Vec<u16>,
    /// `[batch, window]`, how much a frame counts; 0 for padding.
    pub weights: Vec<f32>,
}

/// How views become batches.
#[derive(Debug, Clone, PartialEq)]
pub struct Reader {
    pub embedding: Embedding,
    pub heads: Heads,
    /// Frames between a state and its label beyond the next.
    pub delay: usize,
    /// Weight of a frame without a button or a main stick off its centre (controller heads only).
    pub neutral_weight: f32,
    /// Factor on the weight of a frame whose action differs from the one before.
    pub transition_weight: f32,
}

/// Where each part of one frame ends up.
pub(crate) struct Row<'a> {
    continuous: &'a mut [f32],
    ids: &'a mut [u32],
    previous: &'a mut [u16],
    labels: &'a mut [u16],
    pub(crate) weight: &'a mut f32,
}

impl Reader {
    pub fn new(embedding: Embedding, heads: Heads, delay: usize) -> Self {
        Reader { embedding, heads, delay, neutral_weight: 1.0, transition_weight: 1.0 }
    }

    /// States `range` of a view as one window, for evaluation that carries its memory.
    pub fn sequence(&self, view: &View, range: Range<usize>) -> Result<Batch> {
        let window = range.len();
        let mut batch = self.blank(1, window);
        if window == 0 {
            return Ok(batch);
        }
        self.check(view, range.end - 1)?;
        // A fixed number of frames a shard, like a window in training.
        const SHARD: usize = 64;
        let shards = batch.shards(SHARD.min(window));
        fill(shards, |i, mut shard| {
            for k in 0..shard.len() {
                self.read(view, range.start + i * SHARD + k, false, shard.row(k))?;
            }
            Ok(())
        })?;
        Ok(batch)
    }

    /// For each `t` the `window` states that end there, as the memory of a player who looks back so
    /// far; before the view begins stand copies of its first state, of weight 0.
    pub fn windows_ending_at(&self, view: &View, ts: &[usize], window: usize) -> Result<Batch> {
        let mut batch = self.blank(ts.len(), window);
        let (Some(&low), Some(&high)) = (ts.iter().min(), ts.iter().max()) else {
            return Ok(batch);
        };
        self.check(view, high)?;
        // Windows overlap, so each state is embedded once and then copied.
        let base = (low + 1).saturating_sub(window);
        let mut rows = self.sequence(view, base..high + 1)?;
        let mut first = self.sequence(view, 0..1)?;
        let (mut rows, mut first) = (Shard::whole(&mut rows), Shard::whole(&mut first));
        let mut target = Shard::whole(&mut batch);
        for (b, &t) in ts.iter().enumerate() {
            for k in 0..window {
                let to = b * window + k;
                match (t + 1 + k).checked_sub(window) {
                    Some(state) => target.copy(to, rows.row(state - base)),
                    None => {
                        target.copy(to, first.row(0));
                        *target.row(to).weight = 0.0;
                    }
                }
            }
        }
        Ok(batch)
    }

    fn check(&self, view: &View, t: usize) -> Result<()> {
        let len = view.len(self.delay);
        if t < len {
            return Ok(());
        }
        Err(Error::out_of_range("frame of a view", t as f64, 0.0, len as f64 - 1.0))
    }

    pub(crate) fn blank(&self, batch: usize, window: usize) -> Batch {
        let n = batch * window;
        Batch {
            batch,
            window,
            continuous: vec![0.0; n * self.embedding.continuous_width()],
            ids: vec![0; n * self.embedding.num_ids()],
            previous: vec![NONE; n * self.heads.num_labels()],
            labels: vec![0; n * self.heads.num_labels()],
            weights: vec![1.0; n],
        }
    }

    /// One frame: raw row, mirror, embedding, labels, weight.
    pub(crate) fn read(&self, view: &View, t: usize, mirror: bool, row: Row) -> Result<()> {
        let mut raw = vec![0.0; view.raw_width()];
        view.raw(t, &mut raw)?;
        if mirror {
            self.embedding.mirror(&mut raw)?;
        }
        self.embedding.embed(&raw, false, row.continuous, row.ids)?;
        if !view.previous(t, mirror, &self.heads, row.previous)? {
            row.previous.fill(NONE);
        }
        view.labels(t, self.delay, mirror, &self.heads, row.labels)?;
        *row.weight = self.weight(view, t, mirror, row.labels)?;
        Ok(())
    }

    fn weight(&self, view: &View, t: usize, mirror: bool, labels: &[u16]) -> Result<f32> {
        let plain = self.neutral_weight == 1.0 && self.transition_weight == 1.0;
        if plain || !self.heads.is_controller() {
            return Ok(1.0);
        }
        let mut weight = if self.is_neutral(labels) { self.neutral_weight } else { 1.0 };
        let mut before = vec![0; labels.len()];
        let known = view.labels_before(t, self.delay, mirror, &self.heads, &mut before)?;
        if known && before != labels {
            weight *= self.transition_weight;
        }
        Ok(weight)
    }

    /// No button, and the main stick in its middle bucket.
    fn is_neutral(&self, labels: &[u16]) -> bool {
        self.heads.iter().all(|part| {
            let own = labels.get(part.labels..part.labels + part.head.kind.labels());
            match (part.head.kind, part.head.name.as_str()) {
                (HeadKind::Bernoulli(_), _) => own.is_some_and(|bits| bits.iter().all(|&b| b == 0)),
                (HeadKind::Categorical(n), "main_x" | "main_y") => own == Some(&[(n / 2) as u16]),
                _ => true,
            }
        })
    }
}

/// Some frames of a batch, which one thread fills.
pub(crate) struct Shard<'a> {
    continuous: &'a mut [f32],
    ids: &'a mut [u32],
    previous: &'a mut [u16],
    labels: &'a mut [u16],
    weights: &'a mut [f32],
}

impl Batch {
    /// Cuts the batch into stretches of `frames`; the last may be shorter.
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
    fn whole(batch: &'a mut Batch) -> Self {
        Shard {
            continuous: &mut batch.continuous,
            ids: &mut batch.ids,
            previous: &mut batch.previous,
            labels: &mut batch.labels,
            weights: &mut batch.weights,
        }
    }

    fn len(&self) -> usize {
        self.weights.len()
    }

    fn split(self, frames: usize) -> (Self, Self) {
        let len = self.len();
        let (continuous, continuous_2) = split(self.continuous, len, frames);
        let (ids, ids_2) = split(self.ids, len, frames);
        let (previous, previous_2) = split(self.previous, len, frames);
        let (labels, labels_2) = split(self.labels, len, frames);
        let (weights, weights_2) = split(self.weights, len, frames);
        let tail = Shard {
            continuous: continuous_2,
            ids: ids_2,
            previous: previous_2,
            labels: labels_2,
            weights: weights_2,
        };
        (Shard { continuous, ids, previous, labels, weights }, tail)
    }

    pub(crate) fn row(&mut self, k: usize) -> Row<'_> {
        let len = self.len();
        Row {
            continuous: part(self.continuous, len, k),
            ids: part(self.ids, len, k),
            previous: part(self.previous, len, k),
            labels: part(self.labels, len, k),
            weight: &mut self.weights[k],
        }
    }

    fn copy(&mut self, k: usize, from: Row) {
        let to = self.row(k);
        to.continuous.copy_from_slice(from.continuous);
        to.ids.copy_from_slice(from.ids);
        to.previous.copy_from_slice(from.previous);
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

/// Fills shards on the pool; of several failures the first shard's is told, on any thread count.
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

/// How windows are drawn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplerOptions {
    pub window: usize,
    /// Frames between the starts of two windows of a view; their common offset is drawn anew each
    /// epoch. An epoch therefore shows each frame about `window / stride` times.
    pub stride: usize,
    /// Share of windows shown with left and right swapped.
    pub mirror: f32,
    pub seed: u64,
}

impl Default for SamplerOptions {
    fn default() -> Self {
        SamplerOptions { window: 60, stride: 60, mirror: 0.0, seed: 0 }
    }
}

/// Refuses options that make no sense, and views of something else than the reader reads.
pub(crate) fn check_views(views: &[View], reader: &Reader, options: &SamplerOptions) -> Result<()> {
    for (field, n) in [("window", options.window), ("stride", options.stride)] {
        if n == 0 {
            return Err(Error::out_of_range(field, 0.0, 1.0, f64::from(u32::MAX)));
        }
    }
    if !(0.0..=1.0).contains(&options.mirror) {
        return Err(Error::out_of_range("mirror", options.mirror.into(), 0.0, 1.0));
    }
    if options.mirror > 0.0 && matches!(reader.embedding, Embedding::Vector(_)) {
        return Err(Error::mismatch("mirror", "the Melee embedding", "vector"));
    }
    let width = reader.embedding.raw_width();
    if let Some(view) = views.iter().find(|v| v.raw_width() != width) {
        return Err(Error::mismatch("corpus (numbers a frame)", width, view.raw_width()));
    }
    Ok(())
}

/// Draws batches of windows, each once an epoch in random order.
#[derive(Debug, Clone)]
pub struct Sampler {
    views: Vec<View>,
    reader: Reader,
    options: SamplerOptions,
    /// Windows before each view's first.
    before: Vec<u64>,
    windows: u64,
    short: usize,
}

impl Sampler {
    /// Views shorter than a window are left out; [`Self::short_views`] counts them.
    pub fn new(views: Vec<View>, reader: Reader, options: SamplerOptions) -> Result<Self> {
        check_views(&views, &reader, &options)?;
        let all = views.len();
        let long = |v: &View| v.len(reader.delay) >= options.window;
        let views: Vec<View> = views.into_iter().filter(long).collect();
        let mut sampler = Sampler {
            short: all - views.len(),
            views,
            reader,
            options,
            before: vec![],
            windows: 0,
        };
        for i in 0..sampler.views.len() {
            sampler.before.push(sampler.windows);
            sampler.windows += sampler.windows_of(i);
        }
        match sampler.windows {
            0 => Err(Error::not_found(format!("a view of {} frames", sampler.options.window))),
            _ => Ok(sampler),
        }
    }

    /// First frames that a window of this view may have.
    fn starts(&self, view: usize) -> usize {
        self.views[view].len(self.reader.delay) + 1 - self.options.window
    }

    fn windows_of(&self, view: usize) -> u64 {
        (self.starts(view) / self.options.stride).max(1) as u64
    }

    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    pub fn options(&self) -> &SamplerOptions {
        &self.options
    }

    pub fn views(&self) -> &[View] {
        &self.views
    }

    /// Views left out because they are shorter than a window.
    pub fn short_views(&self) -> usize {
        self.short
    }

    /// Windows in an epoch.
    pub fn windows(&self) -> u64 {
        self.windows
    }

    /// Batches in an epoch. What does not fill a batch waits for another epoch's order; fewer
    /// windows than one batch has are repeated within it.
    pub fn steps_per_epoch(&self, batch_size: usize) -> u64 {
        (self.windows / batch_size.max(1) as u64).max(1)
    }

    /// The batch of a step, counted from 0 over all epochs.
    pub fn batch(&self, step: u64, batch_size: usize) -> Result<Batch> {
        let windows = self.draw(step, batch_size);
        let mut batch = self.reader.blank(batch_size, self.options.window);
        let shards = batch.shards(self.options.window);
        fill(shards, |i, mut shard| {
            // An empty batch has one empty shard.
            let Some(&Window { view, start, mirror }) = windows.get(i) else { return Ok(()) };
            (0..shard.len()).try_for_each(|k| {
                self.reader.read(&self.views[view], start + k, mirror, shard.row(k))
            })
        })?;
        Ok(batch)
    }

    fn draw(&self, step: u64, batch_size: usize) -> Vec<Window> {
        let per_epoch = self.steps_per_epoch(batch_size);
        let (epoch, in_epoch) = (step / per_epoch, step % per_epoch);
        let order = Permutation::new(self.windows, Rng::new(self.options.seed, "shuffle", epoch));
        let offsets = Rng::new(self.options.seed, "window.offset", epoch);
        let mirrors = Rng::new(self.options.seed, "mirror", step);
        (0..batch_size as u64)
            .map(|b| {
                let place = (in_epoch * batch_size as u64 + b) % self.windows;
                let (view, start) = self.locate(order.get(place), &offsets);
                let mirror = mirrors.uniform(b) < self.options.mirror;
                Window { view, start, mirror }
            })
            .collect()
    }

    /// View and first frame of a window.
    fn locate(&self, window: u64, offsets: &Rng) -> (usize, usize) {
        let view = self.before.partition_point(|&b| b <= window) - 1;
        let k = (window - self.before[view]) as usize;
        let room = self.starts(view).min(self.options.stride) as u64;
        let offset = offsets.below(view as u64, room) as usize;
        (view, offset + k * self.options.stride)
    }
}

/// A window of a batch.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Window {
    view: usize,
    start: usize,
    mirror: bool,
}
