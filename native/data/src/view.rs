//! One player's view of a game: states, and the inputs that answered them.
//!
//! Time order: the input of frame f produces the state after frame f. State `t` is the state after frame
//! `first + t`, and its previous action is the input that produced it. The label of
//! state `t` is the player's input of frame `first + t + 1 + delay`. A state therefore never shows the effect of its label.
//!
//! Frames that were met in play and relabelled have the same inputs, but the label of state `t` is the expert's answer to
//! it, whatever the delay. The expert answers the state as the player did, whose input takes effect `delay` frames later.
//! A game that records the delay with which it was played is read with this delay, and not with that of the reader.

use std::sync::Arc;

use sconce_game::{InputPart, mirror_input};
use sconce_nn::embedding::{chooses, discretise_fitting, with_numbers};
use sconce_nn::heads::NONE;
use sconce_nn::spec::Heads;
use sconce_tensor::mapped::Mapped;
use sconce_tensor::{Error, Result};

use crate::game::GameInfo;
use crate::melee;
use crate::rows::{Relabelled, Rows, Table, Vectors};
use crate::schema::{Beside, Form, Schema};
use crate::shard::Shard;

/// One player's view of a game. Cheap to clone.
#[derive(Debug, Clone)]
pub struct View {
    shard: Arc<Shard>,
    schema: Schema,
    rows: Arc<dyn Rows>,
    game: usize,
    player: usize,
    /// Row of state 0.
    first: usize,
    /// Count of states.
    frames: usize,
}

impl View {
    pub(crate) fn new(
        shard: Arc<Shard>,
        schema: &Schema,
        game: usize,
        player: usize,
    ) -> Result<Self> {
        let (frames, rows) = (shard.frames(), rows_of(schema));
        let first = shard.reading(|| rows.first(&shard)).min(frames);
        shard.files().iter().try_for_each(|file| file.verify())?;
        shard.sound()?;
        Ok(View {
            shard,
            schema: schema.clone(),
            rows,
            game,
            player,
            first,
            frames: frames - first,
        })
    }

    /// The schema of the view's corpus.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// Runs `work`, which reads several frames of this view. Without such a call each read finds its place anew.
    pub(crate) fn reading<T>(&self, work: impl FnOnce() -> T) -> T {
        self.shard.reading(work)
    }

    pub(crate) fn shard(&self) -> &Shard {
        &self.shard
    }

    /// Index of the game in the corpus.
    pub fn game(&self) -> usize {
        self.game
    }

    /// Player index: 0 or 1 in a replay, 0 in a game with one view.
    pub fn player(&self) -> usize {
        self.player
    }

    /// Metadata of the game.
    pub fn info(&self) -> &GameInfo {
        &self.shard.game
    }

    /// Internal id of the player's character after the first frame; `None` if the game is not a replay.
    pub fn character(&self) -> Option<u8> {
        self.info().characters.get(self.player).copied()
    }

    /// The player's tag; `None` if the game is not a replay.
    pub fn tag(&self) -> Option<&str> {
        self.info().tags.get(self.player).map(String::as_str)
    }

    /// Count of states.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// Count of states with a label. A state has one if the input that answers it lies inside the game. An expert's
    /// answer lies beside its state, but the inputs before the answer must lie inside the game.
    pub fn len(&self, delay: usize) -> usize {
        let after = if self.rows.is_relabelled() { 0 } else { self.rows.answers_after() };
        self.frames.saturating_sub(after + self.delay(delay))
    }

    /// The delay with which the labels of this view are read: that of its play if the game records one, or `asked`.
    pub fn delay(&self, asked: usize) -> usize {
        let played = self.info().frame_delay.filter(|_| self.rows.is_relabelled());
        played.map_or(asked, usize::from)
    }

    /// The states with a label, without those that an expert has not answered.
    pub fn answered(&self, delay: usize) -> Vec<usize> {
        let all = 0..self.len(delay);
        if !self.rows.is_relabelled() {
            return all.collect();
        }
        let weight = |t: &usize| self.rows.beside(&self.shard, Beside::Weight, self.first + t);
        let is_answered = |t: &usize| weight(t).is_none_or(|weight| weight > 0.0);
        self.shard.reading(|| all.filter(is_answered).collect())
    }

    /// The row of the label of state `t`.
    fn label_row(&self, t: usize, delay: usize) -> usize {
        match self.rows.is_relabelled() {
            true => self.first + t,
            false => self.first + t + delay + self.rows.answers_after(),
        }
    }

    /// Whether no state has a label.
    pub fn is_empty(&self) -> bool {
        self.len(0) == 0
    }

    /// The game's own frame number of state `t`; counted from 0 if the game has none.
    pub fn frame_number(&self, t: usize) -> i32 {
        let row = self.first + t;
        self.shard.reading(|| self.rows.frame_number(&self.shard, row))
    }

    /// Checks that no data was missing when this view was read. If a file is truncated while in use, its
    /// missing bytes read as zeros. Batches are already checked.
    pub fn verify(&self) -> Result<()> {
        verify([self])
    }

    /// Number of values in a raw row.
    pub fn raw_width(&self) -> usize {
        self.schema.game().width()
    }

    /// Writes the raw row of state `t`: the values that the embedding takes, including the previous input.
    ///
    /// # Shapes
    /// `out [raw_width]`.
    pub fn raw(&self, t: usize, out: &mut [f32]) -> Result<()> {
        self.check(t, self.frames)?;
        if out.len() != self.raw_width() {
            return Err(Error::mismatch("raw row", self.raw_width(), out.len()));
        }
        let game = self.schema.game();
        self.shard.reading(|| {
            self.rows.state(&self.shard, self.player, self.first + t, out);
            let place = game.previous_place();
            if place.is_empty() {
                return;
            }
            let led = self.led_to(t);
            out[game.previous_column()] = f32::from(u8::from(led.is_some()));
            match led {
                Some(row) => self.rows.input(&self.shard, self.player, row, &mut out[place]),
                None => out[place].fill(0.0),
            }
        });
        Ok(())
    }

    /// The row of the input that led to state `t`, if this input is known.
    fn led_to(&self, t: usize) -> Option<usize> {
        let row = (self.first + t + self.rows.answers_after()).checked_sub(1)?;
        if !self.rows.is_relabelled() {
            return Some(row);
        }
        self.shard.reading(|| self.rows.has_input(&self.shard, row)).then_some(row)
    }

    /// The raw values of the player's input that produced state `t`, or `None` if the input is unknown.
    pub fn input(&self, t: usize) -> Result<Option<Vec<f32>>> {
        self.check(t, self.frames)?;
        let mut numbers = vec![0.0; self.input_numbers()];
        let Some(row) = self.led_to(t) else { return Ok(None) };
        let read = || self.rows.input(&self.shard, self.player, row, &mut numbers);
        self.shard.reading(read);
        Ok(Some(numbers))
    }

    fn parts(&self) -> &[InputPart] {
        self.schema.parts()
    }

    fn input_numbers(&self) -> usize {
        self.parts().iter().map(|part| part.kind.numbers()).sum()
    }

    /// The value of column `what` in the row of the label of state `t`; `None` if the corpus has no such
    /// column.
    pub fn beside(&self, what: Beside, t: usize, delay: usize) -> Result<Option<f32>> {
        if self.schema.beside().is_empty() {
            return Ok(None);
        }
        self.check(t, self.len(delay))?;
        let row = self.label_row(t, delay);
        Ok(self.shard.reading(|| self.rows.beside(&self.shard, what, row)))
    }

    /// Writes the discounted returns of `out.len()` consecutive inputs, the first of which answers state `t`.
    /// A return is the sum of the rewards until the game ends, with a factor of `discount` per frame (Sutton
    /// & Barto 2018, equation 3.8). If a game was truncated, later rewards count as 0. Rewards whose factor is below
    /// 1e-9 are left out. Without a reward column all returns are 0.
    pub fn returns(&self, t: usize, delay: usize, discount: f32, out: &mut [f32]) -> Result<()> {
        let Some(last) = out.len().checked_sub(1) else { return Ok(()) };
        self.check(t + last, self.len(delay))?;
        let first = self.label_row(t, delay);
        self.shard.reading(|| {
            let mut sum = 0.0;
            let seen = first.saturating_add(out.len()).saturating_add(horizon(discount));
            for row in (first..seen.min(self.first + self.frames)).rev() {
                let reward = self.rows.beside(&self.shard, Beside::Reward, row).unwrap_or(0.0);
                sum = f64::from(reward) + f64::from(discount) * sum;
                if let Some(out) = out.get_mut(row - first) {
                    *out = sum as f32;
                }
            }
        });
        Ok(())
    }

    /// Writes the label of state `t`: the player's input of frame `t + 1 + delay` (in a vector corpus, the
    /// label of row `t + delay`), optionally mirrored.
    ///
    /// # Shapes
    /// `out [num_labels]`.
    pub fn labels(
        &self,
        t: usize,
        delay: usize,
        mirror: bool,
        heads: &Heads,
        out: &mut [f32],
    ) -> Result<()> {
        self.check(t, self.len(delay))?;
        let row = self.label_row(t, delay);
        match self.rows.is_relabelled() {
            true => self.discretised(row, mirror, heads, out, &|numbers| {
                self.rows.answer(&self.shard, row, numbers);
            }),
            false => self.chosen(row, mirror, heads, out),
        }
    }

    /// Writes the player's input of the frame before the label of state `t`. Returns false if there is no such frame.
    pub fn labels_before(
        &self,
        t: usize,
        delay: usize,
        mirror: bool,
        heads: &Heads,
        out: &mut [f32],
    ) -> Result<bool> {
        self.check(t, self.len(delay))?;
        match (t + self.delay(delay)).checked_sub(1) {
            Some(before) => self.led(before + 1, mirror, heads, out),
            None => self.previous(t, mirror, heads, out),
        }
    }

    /// Writes the latest inputs before the label of state `t`, newest first, [`NONE`] where there is no
    /// input. With a delay, the player knows these inputs before the state shows them.
    ///
    /// # Shapes
    /// `out [depth, num_labels]`.
    pub fn queue(
        &self,
        t: usize,
        delay: usize,
        mirror: bool,
        heads: &Heads,
        out: &mut [f32],
    ) -> Result<()> {
        self.check(t, self.len(delay))?;
        let delay = self.delay(delay);
        for (k, out) in out.chunks_exact_mut(heads.num_labels().max(1)).enumerate() {
            let known = match (t + delay).checked_sub(k + 1) {
                Some(before) => self.led(before + 1, mirror, heads, out)?,
                // The input that led to the first state is the oldest known input.
                None if t + delay == k => self.led(0, mirror, heads, out)?,
                None => false,
            };
            if !known {
                out.fill(NONE);
            }
        }
        Ok(())
    }

    /// Writes the action that led to state `t`, as labels. Returns false if that action is unknown.
    pub fn previous(&self, t: usize, mirror: bool, heads: &Heads, out: &mut [f32]) -> Result<bool> {
        self.check(t, self.frames)?;
        self.led(t, mirror, heads, out)
    }

    /// [`previous`](Self::previous), where the caller has checked `t`. A state after the last one has no row, but its
    /// input may have one.
    fn led(&self, t: usize, mirror: bool, heads: &Heads, out: &mut [f32]) -> Result<bool> {
        match self.led_to(t) {
            Some(row) => self.chosen(row, mirror, heads, out).map(|()| true),
            None => Ok(false),
        }
    }

    /// Writes the input of a row, as labels.
    fn chosen(&self, row: usize, mirror: bool, heads: &Heads, out: &mut [f32]) -> Result<()> {
        self.discretised(row, mirror, heads, out, &|numbers| {
            self.rows.input(&self.shard, self.player, row, numbers);
        })
    }

    /// Writes the raw values of a row that `read` writes, as labels.
    fn discretised(
        &self,
        row: usize,
        mirror: bool,
        heads: &Heads,
        out: &mut [f32],
        read: &dyn Fn(&mut [f32]),
    ) -> Result<()> {
        self.check_heads(heads, out.len())?;
        let parts = self.parts();
        with_numbers(out.len(), |numbers| {
            self.shard.reading(|| read(numbers));
            if mirror {
                mirror_input(parts, numbers)?;
            }
            discretise_fitting(parts, numbers, heads, out);
            Result::Ok(())
        })?;
        match self.schema.stores_labels() {
            true => self.check_labels(row, heads, out),
            false => Ok(()),
        }
    }

    fn check_heads(&self, heads: &Heads, labels: usize) -> Result<()> {
        if chooses(self.parts(), heads) && labels == heads.num_labels() {
            return Ok(());
        }
        let kinds = |heads: &Heads| {
            let each = heads.parts.iter().map(|h| format!("{} {:?}", h.name, h.kind));
            each.collect::<Vec<_>>().join(", ")
        };
        Err(Error::mismatch("heads", kinds(&self.schema.heads()), kinds(heads)))
    }

    /// Checks that a damaged file does not produce a label that is invalid for its head.
    fn check_labels(&self, row: usize, heads: &Heads, labels: &[f32]) -> Result<()> {
        let kinds = heads.parts.iter().flat_map(|h| std::iter::repeat_n(h, h.kind.labels()));
        match labels.iter().zip(kinds).find(|(label, head)| !head.kind.is_label(**label)) {
            Some((label, head)) => {
                let reason = format!("label {label} of {} at frame {row}", head.name);
                Err(Error::corrupt(self.shard.path().display().to_string(), reason))
            }
            None => Ok(()),
        }
    }

    fn check(&self, t: usize, len: usize) -> Result<()> {
        if t < len {
            return Ok(());
        }
        Err(Error::out_of_range("frame of a view", t as f64, 0.0, len as f64 - 1.0))
    }
}

/// Frames after which the discount factor of a reward is below 1e-9.
fn horizon(discount: f32) -> usize {
    match discount {
        discount if discount >= 1.0 => usize::MAX,
        discount if discount <= 0.0 => 0,
        discount => (1e-9f64.ln() / f64::from(discount).ln()).ceil() as usize,
    }
}

/// The row reader of a schema.
fn rows_of(schema: &Schema) -> Arc<dyn Rows> {
    match schema.form() {
        Form::Melee => Arc::new(melee::Replays),
        Form::Vector { size, heads } => {
            Arc::new(Vectors { size: *size, labels: heads.iter().map(|h| h.1.labels()).sum() })
        }
        Form::Game { beside, .. } => {
            Arc::new(Table { game: schema.game().clone(), beside: beside.clone() })
        }
        Form::Relabelled { .. } => Arc::new(Relabelled { game: schema.game().clone() }),
    }
}

/// Checks that no data was missing when these views were read.
pub(crate) fn verify<'a>(views: impl IntoIterator<Item = &'a View>) -> Result<()> {
    let mut files: Vec<&Arc<Mapped>> = vec![];
    for view in views {
        view.shard.sound()?;
        files.extend(view.shard.files());
    }
    files.sort_unstable_by_key(|file| Arc::as_ptr(file));
    files.dedup_by_key(|file| Arc::as_ptr(file));
    files.into_iter().try_for_each(|file| file.verify())
}
