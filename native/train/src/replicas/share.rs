//! The part of a batch that a replica learns from.

use std::ops::Range;

use sconce_data::Batch;
use sconce_tensor::{Error, Result};

use crate::source::Loaded;
use crate::states::States;

/// The part of a batch that a replica learns from.
pub(super) struct Share {
    /// Index of the share's first window in the batch.
    pub first: usize,
    pub batch: Batch,
    pub fresh: Vec<bool>,
    /// States before the windows; `None` until a replica has found them.
    pub states: Option<States>,
}

impl Share {
    /// Cuts a batch into `parts` shares with equal numbers of windows.
    pub(super) fn all(loaded: Loaded, parts: usize) -> Vec<Share> {
        let Loaded { batch, fresh, .. } = loaded;
        let whole = Share { first: 0, batch, fresh, states: None };
        if parts == 1 {
            return vec![whole];
        }
        let each = whole.batch.frames.batch / parts;
        (0..parts).map(|i| whole.part(i * each..(i + 1) * each)).collect()
    }

    fn part(&self, rows: Range<usize>) -> Share {
        let all = 0..self.batch.frames.time;
        Share {
            first: rows.start,
            batch: self.batch.part(&rows, &all),
            fresh: self.fresh.get(rows).unwrap_or_default().to_vec(),
            states: None,
        }
    }

    pub(super) fn states(&self) -> Result<&States> {
        self.states.as_ref().ok_or_else(|| Error::not_found("states before a batch"))
    }
}
