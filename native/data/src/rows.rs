//! Converts the columns of a shard into rows: the frame that a player saw, and the player's input.

use std::fmt;
use std::sync::Arc;

use sconce_game::Game;

use crate::schema::Beside;
use crate::shard::Shard;

/// Converts the columns of a shard into rows. Must be called inside [`sconce_tensor::mapped::guarded`].
pub(crate) trait Rows: fmt::Debug + Send + Sync {
    /// The first row of a view.
    fn first(&self, _shard: &Shard) -> usize {
        0
    }

    /// Offset in rows from a state to the input that answers it: 0 if a row holds the answer to its state,
    /// 1 if it holds the input that led to its state.
    fn answers_after(&self) -> usize {
        0
    }

    /// The game's own frame number of a row.
    fn frame_number(&self, _shard: &Shard, row: usize) -> i32 {
        i32::try_from(row).unwrap_or(i32::MAX)
    }

    /// Writes the frame that a player saw, without the previous input.
    ///
    /// # Shapes
    /// `out [width]`.
    fn state(&self, shard: &Shard, player: usize, row: usize, out: &mut [f32]);

    /// Writes a player's input as raw values.
    fn input(&self, shard: &Shard, player: usize, row: usize, out: &mut [f32]);

    /// The value of an extra column in a row, if the column exists.
    fn beside(&self, _shard: &Shard, _what: Beside, _row: usize) -> Option<f32> {
        None
    }
}

/// Rows of vectors with labels.
#[derive(Debug)]
pub(crate) struct Vectors {
    pub(crate) size: usize,
    /// Labels in a row.
    pub(crate) labels: usize,
}

/// Bytes of a frame's labels in a corpus of ExPhil.
pub(crate) const LABEL_BYTES: usize = 6;
/// Column indices in a shard of vectors.
const X: usize = 0;
const LABELS: usize = 1;
/// Buttons in the first label byte of ExPhil, one bit each.
const NUM_BUTTONS: usize = 8;

impl Rows for Vectors {
    fn state(&self, shard: &Shard, _player: usize, row: usize, out: &mut [f32]) {
        shard.copy(X, row * self.size, out);
    }

    fn input(&self, shard: &Shard, _player: usize, row: usize, out: &mut [f32]) {
        if !shard.is_packed(LABELS) {
            return shard.copy(LABELS, row * self.labels, out);
        }
        let number = |i: usize| shard.get(LABELS, row * LABEL_BYTES + i);
        let mask = number(0) as u8;
        for (i, out) in out.iter_mut().enumerate() {
            *out = match i.checked_sub(NUM_BUTTONS) {
                None => f32::from(mask >> i & 1),
                Some(axis) => number(1 + axis),
            };
        }
    }
}

/// Rows of a declared game, with one column per field and part.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) game: Arc<Game>,
    pub(crate) beside: Vec<Beside>,
}

impl Rows for Table {
    fn state(&self, shard: &Shard, _player: usize, row: usize, out: &mut [f32]) {
        for (column, (at, field)) in self.game.placed().enumerate() {
            let width = field.kind.width();
            shard.copy(column, row * width, &mut out[at..at + width]);
        }
    }

    fn input(&self, shard: &Shard, _player: usize, row: usize, out: &mut [f32]) {
        let (mut rest, first) = (out, self.game.fields().len());
        for (i, part) in self.game.parts().iter().enumerate() {
            let width = part.kind.numbers();
            let (own, tail) = rest.split_at_mut(width);
            shard.copy(first + i, row * width, own);
            rest = tail;
        }
    }

    fn beside(&self, shard: &Shard, what: Beside, row: usize) -> Option<f32> {
        let column = self.beside.iter().position(|beside| *beside == what)?;
        let first = self.game.fields().len() + self.game.parts().len();
        Some(shard.get(first + column, row))
    }
}
