//! One player's view of a game: states, and the inputs that answered them.
//!
//! What is before what: the input of frame f produces the state after frame f. State `t` is the
//! state after frame `first + t`, with the input that produced it as its previous action; its label
//! is the player's input of frame `first + t + 1 + delay`. So no state holds its label's frame.

use std::sync::Arc;

use sconce_nn::embedding::melee::{
    self, DISTANCE, FRAME, NAME_ID, OPPONENT, OWN, PREVIOUS, PROJECTILE_WIDTH, PROJECTILES,
    RAW_WIDTH, STAGE,
};
use sconce_nn::heads::NONE;
use sconce_nn::spec::{HeadKind, Heads};
use sconce_tensor::{Error, Result};

use crate::exphil::LABEL_BYTES;
use crate::game::GameInfo;
use crate::mapped::{Mapped, guarded};
use crate::melee::place::{self, ITEM_SLOTS, NUM_ITEM, NUM_PLAYER};
use crate::schema::Schema;
use crate::shard::Shard;

/// Players have control from frame -39 on; the state before it is the first that has a label.
const FIRST_STATE: f32 = -40.0;
const NUM_BUTTONS: usize = 8;
/// A controller as numbers: eight buttons, four axes, the shoulder.
pub type Controller = [f32; melee::CONTROLLER_WIDTH];

/// One player's view of a game. Cheap to clone.
#[derive(Debug, Clone)]
pub struct View {
    shard: Arc<Shard>,
    game: usize,
    kind: Kind,
    /// Row of state 0.
    first: usize,
    /// States.
    frames: usize,
}

#[derive(Debug, Clone)]
enum Kind {
    Melee { player: usize },
    Vector { size: usize, heads: Arc<[(String, HeadKind)]>, labels: usize, packed: bool },
}

/// Columns of a vector's shard.
const X: usize = 0;
const LABELS: usize = 1;

impl View {
    pub(crate) fn new(
        shard: Arc<Shard>,
        schema: &Schema,
        game: usize,
        player: usize,
    ) -> Result<Self> {
        let rows = shard.frames();
        let (kind, first) = match schema {
            Schema::Melee => {
                let begun = |&row: &usize| shard.get(place::FRAME, row) >= FIRST_STATE;
                let first = guarded(shard.files(), || (0..rows).find(begun).unwrap_or(rows));
                (Kind::Melee { player }, first)
            }
            Schema::Vector { size, heads } => {
                let labels = heads.iter().map(|h| h.1.labels()).sum();
                let (heads, packed) = (heads.as_slice().into(), shard.is_packed(LABELS));
                (Kind::Vector { size: *size, heads, labels, packed }, 0)
            }
        };
        shard.files().iter().try_for_each(|file| file.verify())?;
        Ok(View { shard, game, kind, first, frames: rows - first })
    }

    /// Place of the game in its corpus.
    pub fn game(&self) -> usize {
        self.game
    }

    /// 0 or 1 for the players of a replay, 0 for vectors.
    pub fn player(&self) -> usize {
        match self.kind {
            Kind::Melee { player } => player,
            Kind::Vector { .. } => 0,
        }
    }

    pub fn info(&self) -> &GameInfo {
        &self.shard.game
    }

    /// Internal id of the player's character after the first frame; vectors have none.
    pub fn character(&self) -> Option<u8> {
        self.info().characters.get(self.player()).copied()
    }

    /// The player's tag; vectors have none.
    pub fn tag(&self) -> Option<&str> {
        self.info().tags.get(self.player()).map(String::as_str)
    }

    /// Number of states.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// Number of states that have a label: those whose answer lies inside the game.
    pub fn len(&self, delay: usize) -> usize {
        let answer = match self.kind {
            Kind::Melee { .. } => 1 + delay,
            Kind::Vector { .. } => delay,
        };
        self.frames.saturating_sub(answer)
    }

    /// True without any labelled state.
    pub fn is_empty(&self) -> bool {
        self.len(0) == 0
    }

    /// Frame number of state `t` as the game counts (vectors count from 0).
    pub fn frame_number(&self, t: usize) -> i32 {
        match self.kind {
            Kind::Melee { .. } => {
                guarded(self.shard.files(), || self.shard.get(place::FRAME, self.first + t)) as i32
            }
            Kind::Vector { .. } => t as i32,
        }
    }

    /// Whether all that was read of it was there. Of a file that was cut while it is in use zeros are read;
    /// batches have been checked.
    pub fn verify(&self) -> Result<()> {
        verify([self])
    }

    /// Numbers in a raw row.
    pub fn raw_width(&self) -> usize {
        match self.kind {
            Kind::Melee { .. } => RAW_WIDTH,
            Kind::Vector { size, .. } => size,
        }
    }

    /// The raw row of state `t`: what the embedding reads, the previous action in it.
    ///
    /// # Shapes
    /// `out [raw_width]`.
    pub fn raw(&self, t: usize, out: &mut [f32]) -> Result<()> {
        self.check(t, self.frames)?;
        if out.len() != self.raw_width() {
            return Err(Error::mismatch("raw row", self.raw_width(), out.len()));
        }
        guarded(self.shard.files(), || match &self.kind {
            Kind::Melee { player } => self.melee_row(*player, self.first + t, out),
            Kind::Vector { size, .. } => self.shard.copy(X, t * size, out),
        });
        Ok(())
    }

    fn melee_row(&self, own: usize, row: usize, out: &mut [f32]) {
        for (at, player) in [(OWN, own), (OPPONENT, 1 - own)] {
            for i in 0..NUM_PLAYER {
                out[at + i] = self.shard.get(place::player(player) + i, row);
            }
        }
        out[STAGE] = self.shard.game.stage.into();
        out[FRAME] = self.shard.get(place::FRAME, row);
        // 0 lets the embedding compute it, and nobody's name is known.
        out[DISTANCE] = 0.0;
        out[NAME_ID] = 0.0;
        out[PREVIOUS] = 1.0;
        out[PREVIOUS + 1..PROJECTILES].copy_from_slice(&self.read_input(own, row));
        out[PROJECTILES] = self.shard.get(place::ITEM_COUNT, row);
        for slot in 0..ITEM_SLOTS {
            let at = PROJECTILES + 1 + slot * PROJECTILE_WIDTH;
            for i in 0..NUM_ITEM {
                out[at + i] = self.shard.get(place::item(slot) + i, row);
            }
            out[at] = owner_for(own, out[at]);
        }
    }

    fn input(&self, player: usize, row: usize) -> Controller {
        guarded(self.shard.files(), || self.read_input(player, row))
    }

    fn read_input(&self, player: usize, row: usize) -> Controller {
        let at = place::controller(player);
        let mask = self.shard.get(at, row) as u8;
        std::array::from_fn(|i| match i.checked_sub(NUM_BUTTONS) {
            None => f32::from(mask >> i & 1),
            Some(axis) => self.shard.get(at + 1 + axis, row),
        })
    }

    /// The player's input that produced state `t`; 0 where there are no controllers.
    pub fn controller(&self, t: usize) -> Result<Controller> {
        self.check(t, self.frames)?;
        match self.kind {
            Kind::Melee { player } => Ok(self.input(player, self.first + t)),
            Kind::Vector { .. } => Err(Error::mismatch("corpus", "melee", "vector")),
        }
    }

    /// The label of state `t`: the player's input of frame `t + 1 + delay` (of a vector, the label
    /// beside row `t + delay`), mirrored if asked for.
    ///
    /// # Shapes
    /// `out [num_labels]`.
    pub fn labels(
        &self,
        t: usize,
        delay: usize,
        mirror: bool,
        heads: &Heads,
        out: &mut [u16],
    ) -> Result<()> {
        self.check(t, self.len(delay))?;
        self.answer(t + delay, mirror, heads, out)
    }

    /// The label before that of state `t`, the one it may repeat; false where there is none.
    pub fn labels_before(
        &self,
        t: usize,
        delay: usize,
        mirror: bool,
        heads: &Heads,
        out: &mut [u16],
    ) -> Result<bool> {
        self.check(t, self.len(delay))?;
        match (t + delay).checked_sub(1) {
            Some(before) => self.answer(before, mirror, heads, out).map(|()| true),
            None => self.previous(t, mirror, heads, out),
        }
    }

    /// The latest inputs before the label of state `t`, the newest first and [`NONE`] where there is none:
    /// with a delay a player knows them while the state does not show them yet.
    ///
    /// # Shapes
    /// `out [depth, num_labels]`.
    pub fn queue(
        &self,
        t: usize,
        delay: usize,
        mirror: bool,
        heads: &Heads,
        out: &mut [u16],
    ) -> Result<()> {
        self.check(t, self.len(delay))?;
        for (k, out) in out.chunks_exact_mut(heads.num_labels().max(1)).enumerate() {
            let known = match (t + delay).checked_sub(k + 1) {
                Some(before) => self.answer(before, mirror, heads, out).map(|()| true)?,
                // What led to the first state is as old as a view knows.
                None if t + delay == k => self.previous(0, mirror, heads, out)?,
                None => false,
            };
            if !known {
                out.fill(NONE);
            }
        }
        Ok(())
    }

    /// The action that led to state `t`, as labels; false where there is none.
    pub fn previous(&self, t: usize, mirror: bool, heads: &Heads, out: &mut [u16]) -> Result<bool> {
        self.check(t, self.frames)?;
        match (&self.kind, t.checked_sub(1)) {
            (Kind::Melee { player }, _) => {
                let input = self.input(*player, self.first + t);
                discretise(input, mirror, heads, out).map(|()| true)
            }
            (Kind::Vector { .. }, Some(before)) => {
                self.answer(before, mirror, heads, out).map(|()| true)
            }
            (Kind::Vector { .. }, None) => Ok(false),
        }
    }

    /// The answer to state `t` at no delay, whose place the caller has checked.
    fn answer(&self, t: usize, mirror: bool, heads: &Heads, out: &mut [u16]) -> Result<()> {
        match &self.kind {
            Kind::Melee { player } => {
                discretise(self.input(*player, self.first + t + 1), mirror, heads, out)
            }
            Kind::Vector { heads: own, labels, packed, .. } => {
                self.check_heads(own, heads, out.len())?;
                guarded(self.shard.files(), || match packed {
                    true => self.unpack(t, out),
                    false => {
                        for (i, o) in out.iter_mut().enumerate() {
                            *o = self.shard.get(LABELS, t * labels + i) as u16;
                        }
                    }
                });
                self.check_labels(t, heads, out)
            }
        }
    }

    /// Labels of which the eight bits of the first head are one number.
    fn unpack(&self, t: usize, out: &mut [u16]) {
        let number = |i: usize| self.shard.get(LABELS, t * LABEL_BYTES + i) as u16;
        let mask = number(0);
        for (i, out) in out.iter_mut().enumerate() {
            *out = match i.checked_sub(NUM_BUTTONS) {
                None => mask >> i & 1,
                Some(axis) => number(1 + axis),
            };
        }
    }

    fn check_heads(&self, own: &[(String, HeadKind)], heads: &Heads, out: usize) -> Result<()> {
        let same = own.len() == heads.parts.len()
            && own.iter().zip(&heads.parts).all(|(a, b)| a.0 == b.name && a.1 == b.kind);
        if same && out == heads.num_labels() {
            return Ok(());
        }
        let got: Vec<_> = heads.parts.iter().map(|h| (&h.name, h.kind)).collect();
        Err(Error::mismatch("heads", format!("{own:?}"), format!("{got:?}")))
    }

    /// A damaged file must not send a class beyond its head.
    fn check_labels(&self, t: usize, heads: &Heads, labels: &[u16]) -> Result<()> {
        let classes =
            heads.parts.iter().flat_map(|h| std::iter::repeat_n(h.kind.classes(), h.kind.labels()));
        match labels.iter().zip(classes).find(|(label, n)| usize::from(**label) >= *n) {
            Some((label, n)) => {
                let reason = format!("label {label} of {n} classes at frame {t}");
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

/// Makes sure that what was read of these views was all there.
pub(crate) fn verify<'a>(views: impl IntoIterator<Item = &'a View>) -> Result<()> {
    let mut files: Vec<&Arc<Mapped>> =
        views.into_iter().flat_map(|view| view.shard.files()).collect();
    files.sort_unstable_by_key(|file| Arc::as_ptr(file));
    files.dedup_by_key(|file| Arc::as_ptr(file));
    files.into_iter().try_for_each(|file| file.verify())
}

fn discretise(mut input: Controller, mirror: bool, heads: &Heads, out: &mut [u16]) -> Result<()> {
    if mirror {
        melee::mirror_controller(&mut input)?;
    }
    melee::discretise(&input, heads, out)
}

/// The shard counts owners by player (1 for p0, 2 for p1), a view by own (1) and opponent (2).
fn owner_for(own: usize, owner: f32) -> f32 {
    if own == 1 && owner > 0.0 { 3.0 - owner } else { owner }
}
