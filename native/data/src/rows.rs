//! Converts the columns of a shard into rows: the frame that a player saw, and the player's input.

use std::fmt;
use std::sync::Arc;

use sconce_game::Game;

use crate::schema::Beside;
use crate::shard::Shard;

/// Converts the columns of a shard into rows. Must be called inside [`Shard::reading`].
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

    /// Whether a row holds the input that led to its state.
    fn has_input(&self, _shard: &Shard, _row: usize) -> bool {
        true
    }

    /// Whether a row also holds an expert's answer to its state. This answer is then the label.
    fn is_relabelled(&self) -> bool {
        false
    }

    /// Writes the expert's answer to the state of a row as raw values.
    fn answer(&self, shard: &Shard, row: usize, out: &mut [f32]) {
        self.input(shard, 0, row, out);
    }

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
        copy_input(shard, &self.game, self.game.fields().len(), row, out);
    }

    fn beside(&self, shard: &Shard, what: Beside, row: usize) -> Option<f32> {
        let column = self.beside.iter().position(|beside| *beside == what)?;
        let first = self.game.fields().len() + self.game.parts().len();
        Some(shard.get(first + column, row))
    }
}

/// Copies the parts of an input, the first of which has this column.
fn copy_input(shard: &Shard, game: &Game, first: usize, row: usize, out: &mut [f32]) {
    let mut rest = out;
    for (i, part) in game.parts().iter().enumerate() {
        let width = part.kind.numbers();
        let (own, tail) = rest.split_at_mut(width);
        shard.copy(first + i, row * width, own);
        rest = tail;
    }
}

/// Rows of frames met in play: the state, the input that led to it, and an expert's answer to it.
#[derive(Debug)]
pub(crate) struct Relabelled {
    pub(crate) game: Arc<Game>,
}

impl Relabelled {
    /// Column of the flag that is 1 if the input that led to a state is known. The parts of this input follow.
    fn known(&self) -> usize {
        self.game.fields_before_previous()
    }

    /// First column of the expert's answer.
    fn answered(&self) -> usize {
        self.game.fields().len() + 1 + self.game.parts().len()
    }
}

impl Rows for Relabelled {
    fn answers_after(&self) -> usize {
        1
    }

    fn state(&self, shard: &Shard, _player: usize, row: usize, out: &mut [f32]) {
        let (known, input) = (self.known(), 1 + self.game.parts().len());
        for (i, (at, field)) in self.game.placed().enumerate() {
            let column = if i < known { i } else { i + input };
            let width = field.kind.width();
            shard.copy(column, row * width, &mut out[at..at + width]);
        }
    }

    fn input(&self, shard: &Shard, _player: usize, row: usize, out: &mut [f32]) {
        copy_input(shard, &self.game, self.known() + 1, row, out);
    }

    fn has_input(&self, shard: &Shard, row: usize) -> bool {
        shard.get(self.known(), row) != 0.0
    }

    fn is_relabelled(&self) -> bool {
        true
    }

    fn answer(&self, shard: &Shard, row: usize, out: &mut [f32]) {
        copy_input(shard, &self.game, self.answered(), row, out);
    }

    fn beside(&self, shard: &Shard, what: Beside, row: usize) -> Option<f32> {
        let column = self.answered() + self.game.parts().len();
        (what == Beside::Weight).then(|| shard.get(column, row))
    }
}
