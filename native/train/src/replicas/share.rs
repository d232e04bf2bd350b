//! What a replica has of a batch.

use std::ops::Range;

use sconce_data::Batch;
use sconce_tensor::{Error, Result};

use crate::source::Loaded;
use crate::states::States;

/// What a replica has of a batch.
pub(super) struct Share {
    /// Its first window.
    pub first: usize,
    pub batch: Batch,
    pub fresh: Vec<bool>,
    /// Before the windows, once a replica has begun with them.
    pub states: Option<States>,
}

impl Share {
    /// A batch in as many parts of as many windows each.
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
