//! Makes batches from views: gathers, mirrors, embeds and labels windows.

use std::ops::Range;

use sconce_game::InputPart;
use sconce_nn::embedding::delay_features;
use sconce_nn::heads::NONE;
use sconce_nn::policy::Frames;
use sconce_nn::spec::{Embedding, Heads};
use sconce_tensor::{Error, Result, memory};

use super::shard::{FrameMut, Shard, fill};
use super::{Batch, Extra, Seen};
use crate::schema::Beside;
use crate::view::{View, verify};

/// How views become batches.
#[derive(Debug, Clone, PartialEq)]
pub struct Reader {
    /// The embedding that turns raw rows into features.
    pub embedding: Embedding,
    /// The heads that the labels are made for.
    pub heads: Heads,
    /// Frames by which the label lies later than the input that directly follows the state.
    pub delay: usize,
    /// Count of latest inputs given with each state, newest first. With a delay, these are the inputs that
    /// the state does not show yet.
    pub queue_depth: usize,
    /// Weight of a frame whose input is at rest. A controller is at rest if no button is held and the main
    /// stick is centred.
    pub neutral_weight: f32,
    /// Factor on the weight of a frame whose action differs from the previous action.
    pub transition_weight: f32,
    /// Extra columns of the batch.
    pub beside: Vec<Extra>,
}

/// Options for reading a frame.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Look {
    pub mirror: bool,
    pub delay: usize,
    /// Reads the frame as if the previous actions were unknown.
    pub forget: bool,
}

/// Scratch space for reading the frames of one window in order.
pub(crate) struct Scratch {
    /// `[raw_width]`
    raw: Vec<f32>,
    /// Range of the delay id within the continuous features.
    delay: Range<usize>,
    /// Present if the embedding reads more inputs than the previous action.
    queue: Option<Queue>,
    /// Whether the view's frames are embedded already.
    embedded: bool,
}

/// The latest inputs before the answer to a frame. Each frame drops the oldest input and adds one.
struct Queue {
    /// Range of the inputs within the continuous features.
    place: Range<usize>,
    /// `[queue_depth, num_labels]`; after an incremental update only the newest row is valid.
    labels: Vec<f32>,
    /// `[queue_depth, input_width]`
    features: Vec<f32>,
    /// The frame that the inputs belong to; `None` after a failure.
    frame: Option<usize>,
}

impl Queue {
    fn new(reader: &Reader) -> Result<Option<Self>> {
        let depth = reader.embedding.queue_depth();
        if depth == 1 {
            return Ok(None);
        }
        Ok(Some(Queue {
            place: reader.embedding.queue_place(reader.embedding.continuous_width())?,
            labels: vec![NONE; depth * reader.heads.num_labels()],
            features: vec![0.0; depth * reader.embedding.input_width()],
            frame: None,
        }))
    }

    /// Moves to frame `t` of the window. All frames of a window are read with the same `look`.
    fn go(&mut self, view: &View, t: usize, look: Look, reader: &Reader) -> Result<()> {
        let Reader { heads, embedding, .. } = reader;
        let width = embedding.input_width().max(1);
        let follows = t > 0 && self.frame == Some(t - 1);
        // A failure below leaves the queue without a valid frame.
        self.frame = None;
        let new = match follows {
            true => heads.num_labels(),
            false => self.labels.len(),
        };
        let labels = &mut self.labels[..new];
        view.queue(t, look.delay, look.mirror, heads, labels)?;
        if follows {
            self.features.rotate_right(width);
        }
        let inputs = labels.chunks_exact(heads.num_labels().max(1));
        for (labels, out) in inputs.zip(self.features.chunks_exact_mut(width)) {
            embedding.input_features(labels, heads, out)?;
        }
        self.frame = Some(t);
        Ok(())
    }

    fn newest(&self, num_labels: usize) -> &[f32] {
        &self.labels[..num_labels]
    }
}

impl Reader {
    /// Creates a reader without extra columns, in which all frames have weight 1. `delay` is in frames.
    pub fn new(embedding: Embedding, heads: Heads, delay: usize) -> Self {
        let (neutral_weight, transition_weight) = (1.0, 1.0);
        let beside = vec![];
        Reader {
            embedding,
            heads,
            delay,
            queue_depth: 0,
            neutral_weight,
            transition_weight,
            beside,
        }
    }

    /// Bytes of a batch of `batch` windows of `window` frames.
    pub fn bytes(&self, batch: usize, window: usize) -> u64 {
        let labels = (2 + self.queue_depth) * self.heads.num_labels();
        let numbers = self.embedding.continuous_width() + self.embedding.num_ids() + 1;
        let row = size_of::<f32>() * (numbers + labels + self.beside.len());
        (batch as u64).saturating_mul(window as u64).saturating_mul(row as u64)
    }

    /// Returns states `range` of a view as one window, for evaluation with carried memory.
    pub fn sequence(&self, view: &View, range: Range<usize>) -> Result<Batch> {
        let window = range.len();
        let mut batch = self.blank(1, window);
        if window == 0 {
            return Ok(batch);
        }
        self.check(view, range.end - 1)?;
        let look = Look { delay: self.delay, ..Look::default() };
        // Each shard has a fixed number of frames, as in training.
        const SHARD: usize = 64;
        let shards = batch.shards(SHARD.min(window));
        fill(shards, |i, mut shard| {
            let mut scratch = self.scratch(view)?;
            view.reading(|| {
                (0..shard.len()).try_for_each(|k| {
                    self.read(view, range.start + i * SHARD + k, look, &mut scratch, shard.row(k))
                })
            })
        })?;
        verify([view])?;
        Ok(batch)
    }

    /// Returns, for each `t`, the `window` states that end at `t`: the input of a policy with a window of that
    /// size. Positions before the start of the view hold copies of its first state, with weight 0.
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
            frames: Frames {
                batch,
                time: window,
                continuous: memory::zeros(n * self.embedding.continuous_width()),
                ids: memory::repeated(0, n * self.embedding.num_ids()),
                previous: memory::repeated(NONE, n * self.heads.num_labels()),
            },
            seen: Seen::default(),
            queue: memory::repeated(NONE, n * self.queue_depth * self.heads.num_labels()),
            // Padding has weight 0, but its labels must be valid.
            labels: self.heads.least_labels().repeat(n),
            weights: memory::repeated(1.0, n),
            beside: self.beside.iter().map(|extra| (*extra, memory::zeros(n))).collect(),
        }
    }

    /// Creates scratch space, which the caller of [`Self::read`] reuses for all frames of a window of this view.
    pub(crate) fn scratch(&self, view: &View) -> Result<Scratch> {
        let continuous = self.embedding.continuous_width();
        Ok(Scratch {
            raw: vec![0.0; self.embedding.raw_width()],
            delay: self.embedding.delay_place(continuous)?,
            queue: Queue::new(self)?,
            embedded: view.schema().is_embedded_by(&self.embedding),
        })
    }

    /// Reads one frame: raw row, mirroring, embedding, labels, weight.
    pub(crate) fn read(
        &self,
        view: &View,
        t: usize,
        look: Look,
        scratch: &mut Scratch,
        row: FrameMut,
    ) -> Result<()> {
        let Look { mirror, delay, forget } = look;
        if scratch.embedded {
            return self.read_embedded(view, t, look, row);
        }
        let Scratch { raw, delay: delay_id, queue, .. } = scratch;
        view.raw(t, raw)?;
        if forget {
            self.embedding.forget_previous(raw)?;
        }
        if mirror {
            self.embedding.mirror(raw)?;
        }
        self.embedding.embed(raw, false, row.continuous, row.ids)?;
        delay_features(view.delay(delay), &mut row.continuous[delay_id.clone()]);
        match queue {
            _ if forget => row.previous.fill(NONE),
            Some(queue) => {
                queue.go(view, t, look, self)?;
                row.previous.copy_from_slice(queue.newest(row.previous.len()));
                row.continuous[queue.place.clone()].copy_from_slice(&queue.features);
            }
            None if view.previous(t, mirror, &self.heads, row.previous)? => {}
            None => row.previous.fill(NONE),
        }
        if self.queue_depth > 0 && !forget {
            view.queue(t, delay, mirror, &self.heads, row.queue)?;
        }
        view.labels(t, delay, mirror, &self.heads, row.labels)?;
        *row.weight = self.weight(view, t, look, row.labels)?;
        Ok(())
    }

    /// Reads a frame that is embedded already. Its latest inputs and its delay id are those that were stored.
    fn read_embedded(&self, view: &View, t: usize, look: Look, row: FrameMut) -> Result<()> {
        let Look { delay, forget, .. } = look;
        view.raw(t, row.continuous)?;
        self.embedding.hide_previous(row.continuous);
        let deep = self.embedding.queue_depth() > 1;
        let known = match deep {
            _ if forget => false,
            true => view.labels_before(t, delay, false, &self.heads, row.previous)?,
            false => view.previous(t, false, &self.heads, row.previous)?,
        };
        if !known {
            row.previous.fill(NONE);
        }
        if forget {
            let inputs = self.embedding.queue_place(row.continuous.len())?;
            row.continuous[inputs].fill(0.0);
        } else if self.queue_depth > 0 {
            view.queue(t, delay, false, &self.heads, row.queue)?;
        }
        view.labels(t, delay, false, &self.heads, row.labels)?;
        *row.weight = self.weight(view, t, look, row.labels)?;
        Ok(())
    }

    /// Fills the extra columns of the first `frames` frames of a window, which answer state `t` and the
    /// states after it.
    pub(crate) fn read_beside(
        &self,
        view: &View,
        t: usize,
        delay: usize,
        frames: usize,
        window: &mut Shard<'_>,
    ) -> Result<()> {
        for (extra, out) in self.beside.iter().zip(&mut window.beside) {
            let out = &mut out[..frames];
            match *extra {
                Extra::Return { discount } => view.returns(t, delay, discount, out)?,
                Extra::Played(column) => return Err(Error::not_found(column.name())),
                Extra::Stored(what) => {
                    for (k, out) in out.iter_mut().enumerate() {
                        *out = view.beside(what, t + k, delay)?.unwrap_or(0.0);
                    }
                }
            }
        }
        Ok(())
    }

    fn weight(&self, view: &View, t: usize, look: Look, labels: &[f32]) -> Result<f32> {
        let plain = self.neutral_weight == 1.0 && self.transition_weight == 1.0;
        let own = view.beside(Beside::Weight, t, look.delay)?.unwrap_or(1.0);
        if plain {
            return Ok(own);
        }
        let Some(parts) = self.embedding.parts(&self.heads) else { return Ok(own) };
        let neutral = is_neutral(parts, &self.heads, labels);
        let mut weight = if neutral { own * self.neutral_weight } else { own };
        let mut before = vec![0.0; labels.len()];
        let known = view.labels_before(t, look.delay, look.mirror, &self.heads, &mut before)?;
        if known && before != labels {
            weight *= self.transition_weight;
        }
        Ok(weight)
    }
}

/// Whether every part that has a rest value is at rest. A controller is at rest if no button is held and the
/// main stick is in its middle bucket.
fn is_neutral(parts: &[InputPart], heads: &Heads, labels: &[f32]) -> bool {
    let heads = heads.iter().filter(|head| head.head.kind.labels() > 0);
    heads.zip(parts).all(|(head, part)| {
        let own = labels.iter().skip(head.labels).take(head.head.kind.labels());
        let at_rest = |rest: f32| {
            let label = part.kind.label(rest, head.head.kind.classes());
            own.clone().all(|own| *own == label)
        };
        part.rest.is_none_or(at_rest)
    })
}
