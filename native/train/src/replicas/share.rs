//! What a replica has of a batch.

use std::ops::Range;

use sconce_nn::policy::{Frames, part};
use sconce_tensor::{Error, Result};

use crate::eval;
use crate::lesson::States;
use crate::source::Loaded;
use crate::step::Examples;

/// What a replica has of a batch.
pub(super) struct Share {
    /// Its first window.
    pub first: usize,
    pub frames: Frames,
    /// As the teacher reads them, if it does so in another way.
    pub seen: Option<Frames>,
    pub labels: Vec<u16>,
    pub weights: Vec<f32>,
    pub fresh: Vec<bool>,
    /// Before the windows, once a replica has begun with them.
    pub states: Option<States>,
}

impl Share {
    /// A batch in as many parts of as many windows each.
    pub(super) fn all(loaded: Loaded, parts: usize) -> Vec<Share> {
        let Loaded { mut batch, mut seen, fresh, .. } = loaded;
        let whole = Share {
            first: 0,
            frames: eval::frames(&mut batch),
            seen: seen.as_mut().map(eval::frames),
            labels: batch.labels,
            weights: batch.weights,
            fresh,
            states: None,
        };
        if parts == 1 {
            return vec![whole];
        }
        let each = whole.frames.batch / parts;
        (0..parts).map(|i| whole.part(i * each..(i + 1) * each)).collect()
    }

    fn part(&self, rows: Range<usize>) -> Share {
        let (shape, all) = ([self.frames.batch, self.frames.time], 0..self.frames.time);
        Share {
            first: rows.start,
            frames: self.frames.part(&rows, &all),
            seen: self.seen.as_ref().map(|seen| seen.part(&rows, &all)),
            labels: part(&self.labels, shape, &rows, &all),
            weights: part(&self.weights, shape, &rows, &all),
            fresh: self.fresh.get(rows).unwrap_or_default().to_vec(),
            states: None,
        }
    }

    pub(super) fn examples(&self) -> Examples<'_> {
        Examples { frames: &self.frames, labels: &self.labels, weights: &self.weights }
    }

    pub(super) fn states(&self) -> Result<&States> {
        self.states.as_ref().ok_or_else(|| Error::not_found("states before a batch"))
    }
}
