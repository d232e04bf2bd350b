//! How a frame becomes a vector: raw numbers to continuous features, and ids for trained tables.
//!
//! A corpus and a live frame take the same path, [`Embedding::embed`]; only a live one is strict. What a frame and an
//! input are the [`Game`] says; nothing here knows which game it is.

mod form;
mod layout;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use form::Form;
pub use form::{Declared, Layout, Melee};
pub use sconce_game::melee;
use sconce_game::{Game, InputKind, InputPart, encode, fits};
use serde::{Deserialize, Serialize};

use crate::action::{Head, Heads};
use crate::head::NONE;
use crate::{Error, Result};

/// How the frames of a game become vectors.
#[derive(Clone, Serialize, Deserialize)]
#[serde(from = "Form", into = "Form")]
pub struct Embedding {
    form: Form,
    game: Arc<Game>,
    layout: Arc<layout::Layout>,
}

impl PartialEq for Embedding {
    fn eq(&self, other: &Self) -> bool {
        self.form == other.form
    }
}

impl fmt::Debug for Embedding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.form.fmt(f)
    }
}

impl From<Form> for Embedding {
    fn from(form: Form) -> Self {
        let game = form.game();
        Embedding { layout: Arc::new(form.layout(&game)), game, form }
    }
}

impl From<Embedding> for Form {
    fn from(embedding: Embedding) -> Self {
        embedding.form
    }
}

/// An id that is looked up in a trained table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct IdSlot {
    /// As in `own.action`.
    pub name: String,
    pub table: String,
    /// Rows of the table, the last one for whatever has no row of its own.
    pub rows: usize,
    /// Numbers in a row of the table.
    pub width: usize,
}

/// A trained table; its weight is `{name}_embedding.weight`, `[rows, width]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Table {
    pub name: String,
    pub rows: usize,
    pub width: usize,
}

/// A stretch of the embedded vector.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Described {
    pub name: String,
    pub offset: usize,
    pub width: usize,
    /// How it comes about from the raw row.
    pub formula: String,
}

impl Embedding {
    /// A vector of so many numbers, taken as it is.
    pub fn vector(size: usize) -> Self {
        Form::Vector(size).into()
    }

    pub fn melee(options: Melee) -> Self {
        Form::Melee(options).into()
    }

    /// By the declaration of a game.
    pub fn declared(declared: Declared) -> Self {
        Form::Game(declared).into()
    }

    /// Checks every number before memory is taken for it.
    pub fn validate(&self) -> Result<()> {
        self.form.validate()
    }

    /// The game whose frames it reads.
    pub fn game(&self) -> &Arc<Game> {
        &self.game
    }

    /// Numbers in a raw row.
    pub fn raw_width(&self) -> usize {
        self.game.width()
    }

    /// Numbers of the embedded vector that come straight from the raw row.
    pub fn continuous_width(&self) -> usize {
        self.layout.width
    }

    /// Ids of one frame, as many as [`Self::id_slots`].
    pub fn num_ids(&self) -> usize {
        self.layout.slots.len()
    }

    /// Ids of one frame, in the order in which [`Self::embed`] writes them and in which their rows
    /// follow the continuous features.
    pub fn id_slots(&self) -> &[IdSlot] {
        &self.layout.slots
    }

    /// Width of the embedded vector, continuous features and looked-up rows.
    pub fn width(&self) -> usize {
        let widths = self.id_slots().iter().map(|slot| slot.width);
        widths.fold(self.continuous_width(), usize::saturating_add)
    }

    /// The trained tables, each once.
    pub fn tables(&self) -> Vec<Table> {
        let mut tables: Vec<Table> = Vec::new();
        for IdSlot { table: name, rows, width, .. } in self.id_slots() {
            if tables.iter().all(|t| t.name != *name) {
                tables.push(Table { name: name.clone(), rows: *rows, width: *width });
            }
        }
        tables
    }

    /// Inputs in the vector, the one that led to the frame among them; a plain vector knows none but through the
    /// labels beside it.
    pub fn queue_depth(&self) -> usize {
        self.form.queue_depth()
    }

    /// Classes of the delay id; none where the vector does not have it.
    pub fn num_delays(&self) -> usize {
        self.form.num_delays()
    }

    /// Names that the vector tells apart and a corpus cannot give: those of trained layouts. The packed one has places for
    /// them in any case, as the application's has.
    pub fn named(&self) -> usize {
        self.form.names()
    }

    /// Features of one input.
    pub fn input_width(&self) -> usize {
        self.game.input_width()
    }

    /// Turns one raw row into continuous features and ids. A row says nothing of inputs before the
    /// previous one nor of a delay: these are zeros, for [`Self::write_queue`] and
    /// [`Self::write_delay`].
    ///
    /// Strict, for live frames: a value that is not finite, or is none of its field's, is an error
    /// that names it. Not strict, for corpora, whose import has counted them: an id without a row
    /// takes the table's last.
    ///
    /// # Shapes
    /// `raw [raw_width]`, `continuous [continuous_width]`, `ids [num_ids]`.
    pub fn embed(
        &self,
        raw: &[f32],
        strict: bool,
        continuous: &mut [f32],
        ids: &mut [u32],
    ) -> Result<()> {
        fits("raw row", self.raw_width(), raw.len())?;
        fits("continuous features", self.continuous_width(), continuous.len())?;
        fits("ids", self.num_ids(), ids.len())?;
        if strict {
            self.layout.check(&self.game, raw)?;
        }
        self.layout.write(&self.game, raw, continuous);
        self.layout.write_ids(raw, ids);
        Ok(())
    }

    /// What stands at which offset of the embedded vector, without a gap.
    pub fn schema(&self) -> Vec<Described> {
        self.layout.describe(&self.game)
    }

    /// Whether these heads choose what the game's inputs are made of: then a previous input is read, and one that was
    /// chosen can be shown.
    pub fn reads_inputs(&self, heads: &Heads) -> bool {
        chooses(self.game.parts(), heads)
    }

    /// The parts of an input that these heads choose, where they are known. Vectors can have a controller's labels
    /// beside them.
    pub fn parts(&self, heads: &Heads) -> Option<&[InputPart]> {
        [self.game.parts(), melee::game().parts()].into_iter().find(|parts| chooses(parts, heads))
    }

    /// Labels of the previous input; false, and `out` left alone, if the row has none.
    ///
    /// # Shapes
    /// `raw [raw_width]`, `out [num_labels]`.
    pub fn previous_labels(&self, raw: &[f32], heads: &Heads, out: &mut [f32]) -> Result<bool> {
        fits("frame", self.raw_width(), raw.len())?;
        match self.game.previous(raw) {
            Some(numbers) => discretise(self.game.parts(), numbers, heads, out).map(|()| true),
            None => Ok(false),
        }
    }

    /// Makes labels the previous input of a raw row.
    ///
    /// # Shapes
    /// `labels [num_labels]`, `raw [raw_width]`.
    pub fn set_previous(&self, labels: &[f32], heads: &Heads, raw: &mut [f32]) -> Result<()> {
        with_numbers(self.game.input_numbers(), |numbers| {
            undiscretise(self.game.parts(), labels, heads, numbers)?;
            self.game.set_previous(raw, numbers)
        })
    }

    /// Writes these inputs over the newest ones of an embedded row; one of [`NONE`] is zeros. A plain
    /// vector has no place for any.
    ///
    /// # Shapes
    /// `queue [k, num_labels]`, the newest first, `k` at most [`Self::queue_depth`];
    /// `continuous [continuous_width]`.
    pub fn write_queue(&self, queue: &[f32], heads: &Heads, continuous: &mut [f32]) -> Result<()> {
        let place = self.queue_place(continuous.len())?;
        let places = continuous[place].chunks_exact_mut(self.input_width().max(1));
        let inputs = queue.chunks_exact(heads.num_labels().max(1));
        places.zip(inputs).try_for_each(|(place, labels)| self.input_features(labels, heads, place))
    }

    /// Writes one input of an embedded row, the one so many places behind the newest.
    ///
    /// # Shapes
    /// `labels [num_labels]`, `continuous [continuous_width]`.
    pub fn write_input(
        &self,
        slot: usize,
        labels: &[f32],
        heads: &Heads,
        continuous: &mut [f32],
    ) -> Result<()> {
        let place = self.queue_place(continuous.len())?;
        let mut places = continuous[place].chunks_exact_mut(self.input_width().max(1));
        let depth = self.queue_depth();
        let place = places.nth(slot).ok_or_else(|| {
            Error::out_of_range("slot of the queue", slot as f64, 0.0, depth as f64 - 1.0)
        })?;
        self.input_features(labels, heads, place)
    }

    /// Features of an input, which are zeros of [`NONE`].
    ///
    /// # Shapes
    /// `labels [num_labels]`, `out [input_width]`.
    pub fn input_features(&self, labels: &[f32], heads: &Heads, out: &mut [f32]) -> Result<()> {
        if labels.first() == Some(&NONE) {
            out.fill(0.0);
            return Ok(());
        }
        with_numbers(self.game.input_numbers(), |numbers| {
            undiscretise(self.game.parts(), labels, heads, numbers)?;
            encode(self.game.parts(), numbers, out);
            Ok(())
        })
    }

    /// Where the inputs of an embedded row with so many continuous features stand, the newest first,
    /// [`Self::input_width`] numbers each; nowhere in a plain vector.
    pub fn queue_place(&self, continuous: usize) -> Result<Range<usize>> {
        fits("continuous features", self.continuous_width(), continuous)?;
        Ok(self.layout.queue.clone())
    }

    /// Writes the delay id of an embedded row, if it has a place for one.
    ///
    /// # Shapes
    /// `continuous [continuous_width]`.
    pub fn write_delay(&self, delay: usize, continuous: &mut [f32]) -> Result<()> {
        let place = self.delay_place(continuous.len())?;
        delay_features(delay, &mut continuous[place]);
        Ok(())
    }

    /// Where the delay id stands, as [`Self::queue_place`].
    pub fn delay_place(&self, continuous: usize) -> Result<Range<usize>> {
        fits("continuous features", self.continuous_width(), continuous)?;
        Ok(self.layout.delay.clone())
    }

    /// Makes a raw row one of which nobody knows the input that led to it.
    pub fn forget_previous(&self, raw: &mut [f32]) -> Result<()> {
        self.game.forget_previous(raw)
    }

    /// Swaps left and right of a raw row.
    ///
    /// # Errors
    /// `Mismatch` of a game that has neither, as plain vectors.
    pub fn mirror(&self, raw: &mut [f32]) -> Result<()> {
        self.game.mirror(raw)
    }
}

/// Whether heads choose what inputs are made of: part by part a head of its name, of an axis with any number of steps. Heads
/// that choose nothing may stand beside them.
pub fn chooses(parts: &[InputPart], heads: &Heads) -> bool {
    let fits = |(part, head): (&InputPart, &Head)| {
        let kind = head.kind;
        let class = || kind.bits() == 0 && kind.labels() == 1 && kind.classes() > 0;
        part.name == head.name
            && match part.kind {
                InputKind::Flags(_) | InputKind::Bits(_) => kind.bits() == part.kind.numbers(),
                InputKind::Axis { .. } => class(),
                InputKind::Choice(n) => class() && kind.classes() == n,
                InputKind::Continuous { size, min, max } => {
                    (kind.classes(), kind.labels()) == (0, size)
                        && (kind.least(), kind.largest()) == (min, max)
                }
            }
    };
    !parts.is_empty()
        && parts.len() == heads.choosing().count()
        && parts.iter().zip(heads.choosing()).all(fits)
}

/// Raw numbers of an input to compute with; few are on the stack.
pub fn with_numbers<R>(count: usize, work: impl FnOnce(&mut [f32]) -> R) -> R {
    let mut few = [0.0; 32];
    match few.get_mut(..count) {
        Some(few) => work(few),
        None => work(&mut vec![0.0; count]),
    }
}

/// Labels of an input's raw numbers: a bit for each button, a class for each axis and choice, numbers as they are.
///
/// # Shapes
/// `numbers` as many as the parts have, `out [num_labels]`, which are as many.
pub fn discretise(
    parts: &[InputPart],
    numbers: &[f32],
    heads: &Heads,
    out: &mut [f32],
) -> Result<()> {
    input_fits(parts, heads, numbers.len(), out.len())?;
    discretise_fitting(parts, numbers, heads, out);
    Ok(())
}

/// [`discretise`], of heads that are known to choose these parts, and lengths that are known to fit.
pub fn discretise_fitting(parts: &[InputPart], numbers: &[f32], heads: &Heads, out: &mut [f32]) {
    let mut rest = out.iter_mut().zip(numbers);
    for (part, head) in parts.iter().zip(heads.choosing()) {
        let classes = head.kind.classes();
        for (label, &value) in rest.by_ref().take(head.kind.labels()) {
            *label = part.kind.label(value, classes);
        }
    }
}

/// Raw numbers of labels, the way back of [`discretise`].
///
/// # Shapes
/// `labels [num_labels]`, `out` as many.
pub fn undiscretise(
    parts: &[InputPart],
    labels: &[f32],
    heads: &Heads,
    out: &mut [f32],
) -> Result<()> {
    input_fits(parts, heads, out.len(), labels.len())?;
    let mut rest = out.iter_mut().zip(labels);
    for (part, Head { kind, .. }) in parts.iter().zip(heads.choosing()) {
        for (i, (value, &label)) in rest.by_ref().take(kind.labels()).enumerate() {
            kind.check(label, || part.number_names().nth(i).unwrap_or_default())?;
            *value = part.kind.value(label, kind.classes());
        }
    }
    Ok(())
}

fn input_fits(parts: &[InputPart], heads: &Heads, numbers: usize, labels: usize) -> Result<()> {
    if !chooses(parts, heads) {
        let wanted: Vec<_> = parts.iter().map(|part| &*part.name).collect();
        let names: Vec<_> = heads.parts.iter().map(|h| h.name.as_str()).collect();
        let expected = format!("those of an input, {}", wanted.join(", "));
        return Err(Error::mismatch("heads", expected, names.join(", ")));
    }
    fits("input", parts.iter().map(|part| part.kind.numbers()).sum(), numbers)?;
    fits("labels", heads.num_labels(), labels)
}

/// The one-hot of a frame delay; the last class is that delay or a longer one.
pub fn delay_features(delay: usize, out: &mut [f32]) {
    out.fill(0.0);
    if let Some(last) = out.len().checked_sub(1) {
        out[delay.min(last)] = 1.0;
    }
}
