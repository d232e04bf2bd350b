//! What surrounds one forward pass.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use sconce_tensor::{Precision, Tensor};

use super::{Lengths, Mask};
use crate::ops::dropout::{Dropout, Origin};
use crate::projection::Projection;
use crate::rng::Rng;
use crate::{Error, Result, ops};

/// The precision of products, dropout in training, missing frames, and on request: taps, a projection, blocks that are
/// recomputed. What is not asked for costs nothing.
#[derive(Default, Clone)]
pub struct Context {
    precision: Precision,
    dropout: Option<(u64, u64)>,
    /// Of a window that is worked through in chunks: its frames, those before this chunk, the chunk's.
    chunk: Option<[usize; 3]>,
    pub(super) mask: Mask,
    lengths: Lengths,
    recompute: Option<usize>,
    forgetful: bool,
    last: bool,
    projection: Option<Arc<Projection>>,
    taps: Option<Arc<Mutex<Taps>>>,
    /// Of the layer at work, in front of the names of taps and of dropout.
    path: String,
}

#[derive(Default)]
struct Taps {
    /// `None`: all.
    wanted: Option<BTreeSet<String>>,
    kept: BTreeMap<String, Tensor>,
    passed: BTreeSet<String>,
}

impl Context {
    /// A pass of training step `step`: dropout fires, drawn from `seed`.
    pub fn training(seed: u64, step: u64) -> Self {
        Context { dropout: Some((seed, step)), ..Context::default() }
    }

    /// A pass whose products have this precision, and its backward pass with it.
    pub fn in_precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }

    /// Makes the pass.
    pub(crate) fn run<T>(&self, pass: impl FnOnce() -> T) -> T {
        self.precision.during(pass)
    }

    /// A pass over windows of which some frames are missing.
    pub fn masked(mask: Mask) -> Self {
        Context { mask, ..Context::default() }
    }

    /// How many frames each row has. Backbones see no missing frames before present ones.
    pub fn lengths(&self) -> Lengths {
        self.lengths.clone()
    }

    /// A pass over the present frames of each row alone.
    pub(super) fn compact(&self, lengths: Arc<[usize]>) -> Self {
        Context { mask: None, lengths: Some(lengths), ..self.clone() }
    }

    /// A pass over frames `before..before + frames` of a window of `window`: dropout falls as it would
    /// in a pass over all of them.
    pub fn chunk(mut self, window: usize, before: usize, frames: usize) -> Self {
        self.chunk = Some([window, before, frames]);
        self
    }

    /// A pass over some windows of a batch, from window `first` on, which follows on what
    /// [`chunk`](Self::chunk) said: dropout falls as it would in a pass over all of them.
    pub fn from_window(mut self, first: usize) -> Self {
        if let Some([window, before, _]) = &mut self.chunk {
            *before += first * *window;
        }
        self
    }

    fn first_window(&self) -> usize {
        self.chunk.map_or(0, |[window, before, _]| before / window.max(1))
    }

    /// Of each `every` blocks only what they read is kept; the backward pass runs them again.
    pub fn recomputing(mut self, every: usize) -> Self {
        self.recompute = Some(every.max(1));
        self
    }

    /// A pass after which nobody asks for the state: a backbone may give back the one it got.
    pub fn forgetting(mut self) -> Self {
        self.forgetful = true;
        self
    }

    pub fn is_forgetful(&self) -> bool {
        self.forgetful
    }

    /// A pass of which only the output of the last frame is read: a backbone may give that one alone. Where more
    /// is asked of the pass than numbers it gives all.
    pub fn of_last(mut self) -> Self {
        self.last = self.is_bare();
        self
    }

    pub(super) fn is_of_last(&self) -> bool {
        self.last
    }

    /// A pass of which all outputs are read.
    pub(super) fn of_all(&self) -> Self {
        Context { last: false, ..self.clone() }
    }

    /// Of the frames `x [b, t, d]` those whose outputs are read: all, or the last. To be called where no memory
    /// reads them any more.
    pub(super) fn read_of(&self, x: &Tensor) -> Result<Tensor> {
        match (self.last, x.dim(1)?) {
            (true, time) if time > 1 => Ok(x.narrow(1, time - 1, 1)?),
            _ => Ok(x.clone()),
        }
    }

    /// How many blocks are recomputed together, if any are.
    pub fn recompute_every(&self) -> Option<usize> {
        self.recompute
    }

    /// Takes directions out of the trunk vector before the heads read it.
    pub fn projecting(mut self, projection: Option<Arc<Projection>>) -> Self {
        self.projection = projection;
        self
    }

    pub fn projection(&self) -> Option<&Projection> {
        self.projection.as_deref()
    }

    /// Keeps all named activations of this pass.
    pub fn tapped() -> Self {
        Context { taps: Some(Arc::default()), ..Context::default() }
    }

    /// Keeps these activations of this pass.
    pub fn tapping(mut self, names: impl IntoIterator<Item = String>) -> Self {
        let taps = Taps { wanted: Some(names.into_iter().collect()), ..Taps::default() };
        self.taps = Some(Arc::new(Mutex::new(taps)));
        self
    }

    /// What was kept. A name that nothing bore is an error that tells those there were.
    pub fn taps(&self) -> Result<BTreeMap<String, Tensor>> {
        let Some(mut taps) = self.open_taps() else { return Ok(BTreeMap::new()) };
        let missing = taps.wanted.iter().flatten().find(|name| !taps.passed.contains(*name));
        if let Some(name) = missing {
            let there: Vec<&str> = taps.passed.iter().map(String::as_str).collect();
            return Err(Error::mismatch("tap", there.join(", "), name));
        }
        Ok(std::mem::take(&mut taps.kept))
    }

    fn open_taps(&self) -> Option<MutexGuard<'_, Taps>> {
        self.taps.as_ref().map(|taps| taps.lock().unwrap_or_else(|e| e.into_inner()))
    }

    /// A pass through a block that is recomputed as a whole: its own layers are not once more.
    pub(super) fn within_block(&self) -> Self {
        Context { recompute: None, ..self.clone() }
    }

    /// A pass that computes the same and keeps no activation.
    pub(super) fn untapped(&self) -> Self {
        Context { taps: None, ..self.clone() }
    }

    pub fn tap(&self, name: &str, value: &Tensor) {
        let Some(mut taps) = self.open_taps() else { return };
        let name = self.name(name);
        if taps.wanted.as_ref().is_none_or(|wanted| wanted.contains(&name)) {
            taps.kept.insert(name.clone(), value.detach());
        }
        taps.passed.insert(name);
    }

    /// Whether taps were asked for, so that what an op would hide has to be shown.
    pub fn is_tapped(&self) -> bool {
        self.taps.is_some()
    }

    /// A pass of nothing but numbers: no dropout, no taps, no missing frames, no blocks that are recomputed.
    pub fn is_bare(&self) -> bool {
        let recorded = self.dropout.is_some() || self.taps.is_some() || self.recompute.is_some();
        !recorded && self.lengths.is_none() && self.mask.is_none()
    }

    /// As [`Context::tap`] for what has to be computed first: it is if taps were asked for.
    pub fn tap_with(&self, name: &str, value: impl FnOnce() -> Result<Tensor>) -> Result<()> {
        if self.taps.is_some() {
            self.tap(name, &value()?);
        }
        Ok(())
    }

    /// The context of a part: its taps are `part.NAME`, and its dropout is its own.
    pub fn under(&self, part: impl std::fmt::Display) -> Self {
        // Nobody asks for names where there is neither.
        let path = match self.taps.is_some() || self.dropout.is_some() {
            true => self.name(part),
            false => String::new(),
        };
        Context { path, ..self.clone() }
    }

    fn name(&self, name: impl std::fmt::Display) -> String {
        if self.path.is_empty() { name.to_string() } else { format!("{}.{name}", self.path) }
    }

    fn rng(&self, name: &str) -> Option<Rng> {
        let (seed, step) = self.dropout?;
        Some(Rng::new(seed, &format!("dropout.{}", self.name(name)), step))
    }

    /// What drops numbers of rows that are frames of this pass, with probability `p`, in training
    /// only.
    pub fn dropping(&self, p: f32, name: &str) -> Option<Dropout> {
        let origin = self.chunk.map_or(Origin::default(), |[window, before, frames]| Origin {
            window,
            before,
            frames: frames.max(1),
        });
        let rng = if p > 0.0 { self.rng(name) } else { None };
        Some(Dropout::new(p, rng?, origin))
    }

    /// Drops numbers of `x [.., d]`, frames of this pass row by row.
    pub fn dropout(&self, x: &Tensor, p: f32, name: &str) -> Result<Tensor> {
        self.dropping(p, name).map_or(Ok(x.clone()), |dropout| dropout.apply(x))
    }

    /// Drops whole columns of each window of `x [b, t, d]`, in training only.
    pub fn dropout_columns(&self, x: &Tensor, p: f32, name: &str) -> Result<Tensor> {
        match self.rng(name) {
            Some(rng) => ops::dropout_columns(x, p, rng, self.first_window()),
            None => Ok(x.clone()),
        }
    }
}
