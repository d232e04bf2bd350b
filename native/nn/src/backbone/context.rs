//! The options of one forward pass.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use sconce_tensor::{Precision, Tensor};

use super::{Lengths, Mask};
use crate::ops::dropout::{Dropout, Origin};
use crate::projection::Projection;
use crate::rng::Rng;
use crate::{Error, Result, ops};

/// Options of a pass: the precision of products, dropout in training, missing frames, taps, a projection, recomputed
/// blocks. Unused options cost nothing.
#[derive(Default, Clone)]
pub struct Context {
    precision: Precision,
    dropout: Option<(u64, u64)>,
    /// If the window is processed in chunks: number of frames of the window, before this chunk, and in this chunk.
    chunk: Option<[usize; 3]>,
    pub(super) mask: Mask,
    lengths: Lengths,
    recompute: Option<usize>,
    forgetful: bool,
    last: bool,
    projection: Option<Arc<Projection>>,
    taps: Option<Arc<Mutex<Taps>>>,
    /// Path of the current layer, the prefix of the names of taps and of dropout.
    path: String,
}

#[derive(Default)]
struct Taps {
    /// Names of the activations to keep; `None` keeps all.
    wanted: Option<BTreeSet<String>>,
    kept: BTreeMap<String, Tensor>,
    passed: BTreeSet<String>,
}

impl Context {
    /// Options of training step `step`: dropout is active and drawn from `seed`.
    pub fn training(seed: u64, step: u64) -> Self {
        Context { dropout: Some((seed, step)), ..Context::default() }
    }

    /// Sets the precision of the matrix products of the pass and of its backward pass.
    pub fn in_precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }

    /// Runs `pass` in the precision of this context.
    pub(crate) fn run<T>(&self, pass: impl FnOnce() -> T) -> T {
        self.precision.during(pass)
    }

    /// Options of a pass over windows with missing frames.
    pub fn masked(mask: Mask) -> Self {
        Context { mask, ..Context::default() }
    }

    /// Number of present frames in each row. A backbone never sees a missing frame before a present one.
    pub fn lengths(&self) -> Lengths {
        self.lengths.clone()
    }

    /// Options for the present frames of each row alone, after missing frames were removed.
    pub(super) fn compact(&self, lengths: Arc<[usize]>) -> Self {
        Context { mask: None, lengths: Some(lengths), ..self.clone() }
    }

    /// Restricts the pass to frames `before..before + frames` of a window of `window` frames. Dropout is the same as in
    /// a pass over the whole window.
    pub fn chunk(mut self, window: usize, before: usize, frames: usize) -> Self {
        self.chunk = Some([window, before, frames]);
        self
    }

    /// Restricts the pass to some windows of a batch, from window `first` on. Call it after [`chunk`](Self::chunk).
    /// Dropout is the same as in a pass over all windows.
    pub fn from_window(mut self, first: usize) -> Self {
        if let Some([window, before, _]) = &mut self.chunk {
            *before += first * *window;
        }
        self
    }

    fn first_window(&self) -> usize {
        self.chunk.map_or(0, |[window, before, _]| before / window.max(1))
    }

    /// Keeps only the input of each group of `every` blocks; the backward pass runs them again.
    pub fn recomputing(mut self, every: usize) -> Self {
        self.recompute = Some(every.max(1));
        self
    }

    /// Declares that the final state is not needed. A backbone may then return its input state.
    pub fn forgetting(mut self) -> Self {
        self.forgetful = true;
        self
    }

    /// True if the final state is not needed.
    pub fn is_forgetful(&self) -> bool {
        self.forgetful
    }

    /// Declares that only the last frame's output is needed. A backbone may then return that output alone. Ignored
    /// unless the pass [is bare](Self::is_bare).
    pub fn of_last(mut self) -> Self {
        self.last = self.is_bare();
        self
    }

    pub(super) fn is_of_last(&self) -> bool {
        self.last
    }

    /// The same options for a pass whose outputs are all needed.
    pub(super) fn of_all(&self) -> Self {
        Context { last: false, ..self.clone() }
    }

    /// Selects the frames of `x [b, t, d]` whose outputs are needed: all, or the last one. Call it only after the last
    /// layer with memory.
    pub(super) fn read_of(&self, x: &Tensor) -> Result<Tensor> {
        match (self.last, x.dim(1)?) {
            (true, time) if time > 1 => Ok(x.narrow(1, time - 1, 1)?),
            _ => Ok(x.clone()),
        }
    }

    /// Number of blocks that are recomputed together, or none.
    pub fn recompute_every(&self) -> Option<usize> {
        self.recompute
    }

    /// Removes directions from the trunk vector before the heads read it.
    pub fn projecting(mut self, projection: Option<Arc<Projection>>) -> Self {
        self.projection = projection;
        self
    }

    /// Directions that are removed from the trunk vector, or none.
    pub fn projection(&self) -> Option<&Projection> {
        self.projection.as_deref()
    }

    /// Options of a pass that keeps all named activations.
    pub fn tapped() -> Self {
        Context { taps: Some(Arc::default()), ..Context::default() }
    }

    /// Keeps the activations with these names.
    pub fn tapping(mut self, names: impl IntoIterator<Item = String>) -> Self {
        let taps = Taps { wanted: Some(names.into_iter().collect()), ..Taps::default() };
        self.taps = Some(Arc::new(Mutex::new(taps)));
        self
    }

    /// The kept activations. A name that no activation has is an error that lists the existing names.
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

    /// Options within a block that is recomputed as a whole, whose layers are not recomputed separately.
    pub(super) fn within_block(&self) -> Self {
        Context { recompute: None, ..self.clone() }
    }

    /// The same options, but no activations are kept.
    pub(super) fn untapped(&self) -> Self {
        Context { taps: None, ..self.clone() }
    }

    /// Keeps `value` under `name`, if that activation is to be kept.
    pub fn tap(&self, name: &str, value: &Tensor) {
        let Some(mut taps) = self.open_taps() else { return };
        let name = self.name(name);
        if taps.wanted.as_ref().is_none_or(|wanted| wanted.contains(&name)) {
            taps.kept.insert(name.clone(), value.detach());
        }
        taps.passed.insert(name);
    }

    /// True if activations are kept. Ops must then not hide an activation by fusion.
    pub fn is_tapped(&self) -> bool {
        self.taps.is_some()
    }

    /// True for a pass without dropout, taps, missing frames or recomputed blocks.
    pub fn is_bare(&self) -> bool {
        let recorded = self.dropout.is_some() || self.taps.is_some() || self.recompute.is_some();
        !recorded && self.lengths.is_none() && self.mask.is_none()
    }

    /// Keeps a value as [`Context::tap`] does, but computes it only if activations are kept.
    pub fn tap_with(&self, name: &str, value: impl FnOnce() -> Result<Tensor>) -> Result<()> {
        if self.taps.is_some() {
            self.tap(name, &value()?);
        }
        Ok(())
    }

    /// The context of a layer or block `part`: its taps are named `part.NAME`, and its dropout draws separate random
    /// numbers.
    pub fn under(&self, part: impl std::fmt::Display) -> Self {
        // Without taps and dropout the path is never used.
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

    /// Dropout with probability `p` for rows that are frames of this pass; none outside training.
    pub fn dropping(&self, p: f32, name: &str) -> Option<Dropout> {
        let origin = self.chunk.map_or(Origin::default(), |[window, before, frames]| Origin {
            window,
            before,
            frames: frames.max(1),
        });
        let rng = if p > 0.0 { self.rng(name) } else { None };
        Some(Dropout::new(p, rng?, origin))
    }

    /// Whether a pass drops numbers with probability `p`.
    pub fn drops(&self, p: f32) -> bool {
        p > 0.0 && self.dropout.is_some()
    }

    /// Applies dropout to `x [.., d]`, whose rows are frames of this pass.
    pub fn dropout(&self, x: &Tensor, p: f32, name: &str) -> Result<Tensor> {
        self.dropping(p, name).map_or(Ok(x.clone()), |dropout| dropout.apply(x))
    }

    /// Drops whole columns of each window of `x [b, t, d]`, only in training.
    pub fn dropout_columns(&self, x: &Tensor, p: f32, name: &str) -> Result<Tensor> {
        match self.rng(name) {
            Some(rng) => ops::dropout_columns(x, p, rng, self.first_window()),
            None => Ok(x.clone()),
        }
    }
}
