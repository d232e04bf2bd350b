//! Embeds a frame: converts its raw values to continuous features and to ids of trained tables.
//!
//! [`Embedding::embed`] converts both live frames and frames of a corpus; it rejects invalid values only in live
//! frames. The [`Game`] defines frames and inputs; this module does not depend on a particular game.

mod form;
mod layout;
mod net;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use form::Form;
pub use form::{Declared, Layout, Melee, Normalised};
pub use sconce_game::melee;
use sconce_game::{Game, InputKind, InputPart, encode, fits};
use sconce_net::NetSpec;
use serde::{Deserialize, Serialize};

use crate::action::{Head, Heads};
use crate::head::NONE;
use crate::{Error, Result};

/// Conversion of the frames of a game to vectors.
#[derive(Clone, Serialize, Deserialize)]
#[serde(from = "Form", into = "Form")]
pub struct Embedding {
    form: Form,
    game: Arc<Game>,
    layout: Arc<layout::Layout>,
    /// Numbers of the output of the network, if the embedding is one.
    net_width: Option<usize>,
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
        let net_width = match &form {
            Form::Net(spec) => Some(net::width(spec)),
            _ => None,
        };
        Embedding { layout: Arc::new(form.layout(&game)), game, net_width, form }
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
    /// Name, for example `own.action`.
    pub name: String,
    /// Name of the table.
    pub table: String,
    /// Number of rows of the table. All ids without a row of their own share the last row.
    pub rows: usize,
    /// Number of columns of the table.
    pub width: usize,
}

/// A trained table. Its weight is `{name}_embedding.weight`, `[rows, width]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Table {
    /// Name of the table.
    pub name: String,
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub width: usize,
}

/// A named range of the embedded vector.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Described {
    /// Name of the feature.
    pub name: String,
    /// Index of the feature's first value in the vector.
    pub offset: usize,
    /// Number of values of the feature.
    pub width: usize,
    /// Formula that computes the feature from the raw row.
    pub formula: String,
}

impl Embedding {
    /// The embedding of a game of plain vectors: the `size` values are the features, unchanged.
    pub fn vector(size: usize) -> Self {
        Form::Vector(size).into()
    }

    /// The embedding of a game of plain vectors whose numbers are normalised.
    pub fn normalised(normalised: Normalised) -> Self {
        Form::Normalised(normalised).into()
    }

    /// The embedding of vectors by a network.
    pub fn of_net(spec: NetSpec) -> Self {
        Form::Net(spec).into()
    }

    /// The network, if the embedding is one.
    pub fn net(&self) -> Option<&NetSpec> {
        match &self.form {
            Form::Net(spec) => Some(spec),
            _ => None,
        }
    }

    /// The embedding of the same frames without normalisation.
    #[must_use]
    pub fn plain(&self) -> Self {
        match &self.form {
            Form::Normalised(own) => Self::vector(own.mean.len()),
            _ => self.clone(),
        }
    }

    /// Whether the numbers of a frame are normalised.
    pub fn normalises(&self) -> bool {
        matches!(self.form, Form::Normalised(_))
    }

    /// Whether a raw row is the vector itself.
    pub fn is_vector(&self) -> bool {
        matches!(self.form, Form::Vector(_))
    }

    /// Statistics by which the numbers of a frame are normalised.
    pub fn normalisation(&self) -> Option<&Normalised> {
        match &self.form {
            Form::Normalised(own) => Some(own),
            _ => None,
        }
    }

    /// Normalises features that [`plain`](Self::plain) has made, in place. No-op without normalisation.
    ///
    /// # Shapes
    /// `continuous [n, continuous_width]`
    pub fn normalise(&self, continuous: &mut [f32]) {
        if let Form::Normalised(own) = &self.form {
            let width = own.mean.len().max(1);
            continuous.chunks_exact_mut(width).for_each(|row| own.apply(row));
        }
    }

    /// Whether both embeddings are equal, apart from statistics by which numbers are normalised.
    pub fn is_alike(&self, other: &Embedding) -> bool {
        match (&self.form, &other.form) {
            (Form::Vector(_) | Form::Normalised(_), Form::Vector(_) | Form::Normalised(_)) => {
                self.raw_width() == other.raw_width()
            }
            (own, other) => own == other,
        }
    }

    /// The embedding of Melee.
    pub fn melee(options: Melee) -> Self {
        Form::Melee(options).into()
    }

    /// The embedding of a declared game.
    pub fn declared(declared: Declared) -> Self {
        Form::Game(declared).into()
    }

    /// Checks that every number is in range, before any memory is allocated.
    pub fn validate(&self) -> Result<()> {
        self.form.validate()
    }

    /// The game whose frames are embedded.
    pub fn game(&self) -> &Arc<Game> {
        &self.game
    }

    /// Number of columns of a raw row.
    pub fn raw_width(&self) -> usize {
        self.game.width()
    }

    /// Number of continuous features, which are computed from the raw row.
    pub fn continuous_width(&self) -> usize {
        self.layout.width
    }

    /// Number of ids of one frame, one for each of [`Self::id_slots`].
    pub fn num_ids(&self) -> usize {
        self.layout.slots.len()
    }

    /// Slots of the ids of one frame, in the order in which [`Self::embed`] writes the ids. In the embedded vector the
    /// looked-up rows follow the continuous features in this order.
    pub fn id_slots(&self) -> &[IdSlot] {
        &self.layout.slots
    }

    /// Width of the embedded vector: continuous features and looked-up rows, or the output of a network.
    pub fn width(&self) -> usize {
        if let Some(width) = self.net_width {
            return width;
        }
        let widths = self.id_slots().iter().map(|slot| slot.width);
        widths.fold(self.continuous_width(), usize::saturating_add)
    }

    /// The trained tables, each listed once.
    pub fn tables(&self) -> Vec<Table> {
        let mut tables: Vec<Table> = Vec::new();
        for IdSlot { table: name, rows, width, .. } in self.id_slots() {
            if tables.iter().all(|t| t.name != *name) {
                tables.push(Table { name: name.clone(), rows: *rows, width: *width });
            }
        }
        tables
    }

    /// Number of inputs in the vector, the previous input included. A plain vector has no inputs; the previous input of
    /// its frame is stored as labels.
    pub fn queue_depth(&self) -> usize {
        self.form.queue_depth()
    }

    /// Number of classes of the delay id; 0 if the vector has none.
    pub fn num_delays(&self) -> usize {
        self.form.num_delays()
    }

    /// Number of player names in a trained layout; a corpus cannot provide names. 0 for the packed layout, whose width
    /// always includes names, as in the application.
    pub fn named(&self) -> usize {
        self.form.names()
    }

    /// Number of features of one input.
    pub fn input_width(&self) -> usize {
        self.game.input_width()
    }

    /// Converts one raw row to continuous features and ids. A raw row contains neither the inputs before the previous
    /// one nor a delay. The features of both become zeros; [`Self::write_queue`] and [`Self::write_delay`] write them
    /// later.
    ///
    /// In a live frame, a non-finite or invalid value is an error that names its field. In a corpus it is no error,
    /// because the import counts such values; an id without a row of its own gets the last row of its table.
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
        if let Form::Normalised(normalised) = &self.form {
            normalised.apply(continuous);
        }
        self.layout.write_ids(raw, ids);
        Ok(())
    }

    /// Name, offset and formula of each part of the embedded vector, without gaps.
    pub fn schema(&self) -> Vec<Described> {
        if let (Form::Net(spec), Some(width)) = (&self.form, self.net_width) {
            let layers = spec.layers.len();
            let formula = format!("output of a network of {layers} layers");
            return vec![Described { name: "net".into(), offset: 0, width, formula }];
        }
        self.layout.describe(&self.game)
    }

    /// True if these heads choose the parts of the game's input. Only then can the previous input be converted to
    /// labels, and chosen labels to an input.
    pub fn reads_inputs(&self, heads: &Heads) -> bool {
        chooses(self.game.parts(), heads)
    }

    /// The parts of an input that these heads choose, if the parts are known. For plain vectors they are known if the
    /// heads are those of a Melee controller.
    pub fn parts(&self, heads: &Heads) -> Option<&[InputPart]> {
        [self.game.parts(), melee::game().parts()].into_iter().find(|parts| chooses(parts, heads))
    }

    /// Writes the labels of the previous input. Returns false and leaves `out` unchanged if the row has no previous
    /// input.
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

    /// Sets the previous input of a raw row from labels.
    ///
    /// # Shapes
    /// `labels [num_labels]`, `raw [raw_width]`.
    pub fn set_previous(&self, labels: &[f32], heads: &Heads, raw: &mut [f32]) -> Result<()> {
        with_numbers(self.game.input_numbers(), |numbers| {
            undiscretise(self.game.parts(), labels, heads, numbers)?;
            self.game.set_previous(raw, numbers)
        })
    }

    /// Overwrites the newest inputs of an embedded row. An input of [`NONE`] becomes zeros. No-op for a plain vector.
    ///
    /// # Shapes
    /// `queue [k, num_labels]`, newest first, `k` at most [`Self::queue_depth`]; `continuous [continuous_width]`.
    pub fn write_queue(&self, queue: &[f32], heads: &Heads, continuous: &mut [f32]) -> Result<()> {
        let place = self.queue_place(continuous.len())?;
        let places = continuous[place].chunks_exact_mut(self.input_width().max(1));
        let inputs = queue.chunks_exact(heads.num_labels().max(1));
        places.zip(inputs).try_for_each(|(place, labels)| self.input_features(labels, heads, place))
    }

    /// Zeros fill the place of the previous input in features that were embedded elsewhere, if the vector hides it.
    ///
    /// # Shapes
    /// `continuous [continuous_width]`
    pub fn hide_previous(&self, continuous: &mut [f32]) {
        if let Some(place) = continuous.get_mut(self.layout.hidden.clone()) {
            place.fill(0.0);
        }
    }

    /// Whether the vector has features of the previous input.
    pub fn shows_previous(&self) -> bool {
        !self.layout.queue.is_empty()
    }

    /// Writes one input of an embedded row. `slot` 0 is the newest input. No-op for a vector without inputs.
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
        if place.is_empty() {
            return Ok(());
        }
        let mut places = continuous[place].chunks_exact_mut(self.input_width().max(1));
        let depth = self.queue_depth();
        let place = places.nth(slot).ok_or_else(|| {
            Error::out_of_range("slot of the queue", slot as f64, 0.0, depth as f64 - 1.0)
        })?;
        self.input_features(labels, heads, place)
    }

    /// Features of an input; zeros for [`NONE`].
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

    /// Range of the inputs in an embedded row of `continuous` features: newest first, [`Self::input_width`] features
    /// each. Empty for a plain vector.
    pub fn queue_place(&self, continuous: usize) -> Result<Range<usize>> {
        fits("continuous features", self.continuous_width(), continuous)?;
        Ok(self.layout.queue.clone())
    }

    /// Writes the delay id of an embedded row, if the vector has one.
    ///
    /// # Shapes
    /// `continuous [continuous_width]`.
    pub fn write_delay(&self, delay: usize, continuous: &mut [f32]) -> Result<()> {
        let place = self.delay_place(continuous.len())?;
        delay_features(delay, &mut continuous[place]);
        Ok(())
    }

    /// Range of the delay id in an embedded row of `continuous` features.
    pub fn delay_place(&self, continuous: usize) -> Result<Range<usize>> {
        fits("continuous features", self.continuous_width(), continuous)?;
        Ok(self.layout.delay.clone())
    }

    /// Marks the previous input of a raw row as unknown.
    pub fn forget_previous(&self, raw: &mut [f32]) -> Result<()> {
        self.game.forget_previous(raw)
    }

    /// Swaps left and right in a raw row.
    ///
    /// # Errors
    /// `Mismatch` for a game without a mirror, such as plain vectors.
    pub fn mirror(&self, raw: &mut [f32]) -> Result<()> {
        self.game.mirror(raw)
    }
}

/// True if each part of an input has a head of the same name and kind, in the same order. The head of an axis may have
/// any number of steps. Value heads are ignored.
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

/// Calls `work` with `count` zeros. Small counts use the stack.
pub fn with_numbers<R>(count: usize, work: impl FnOnce(&mut [f32]) -> R) -> R {
    let mut few = [0.0; 32];
    match few.get_mut(..count) {
        Some(few) => work(few),
        None => work(&mut vec![0.0; count]),
    }
}

/// Converts the raw values of an input to labels: a bit for each button, a class for each axis and choice; continuous
/// values are unchanged.
///
/// # Shapes
/// `numbers` and `out` both have `[num_labels]`.
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

/// [`discretise`] without checks. The caller has checked the lengths and that the heads choose these parts.
pub fn discretise_fitting(parts: &[InputPart], numbers: &[f32], heads: &Heads, out: &mut [f32]) {
    let mut rest = out.iter_mut().zip(numbers);
    for (part, head) in parts.iter().zip(heads.choosing()) {
        let classes = head.kind.classes();
        for (label, &value) in rest.by_ref().take(head.kind.labels()) {
            *label = part.kind.label(value, classes);
        }
    }
}

/// Converts labels to raw values, the inverse of [`discretise`].
///
/// # Shapes
/// `labels` and `out` both have `[num_labels]`.
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
        let expected = format!("the heads of an input, {}", wanted.join(", "));
        return Err(Error::mismatch("heads", expected, names.join(", ")));
    }
    fits("input", parts.iter().map(|part| part.kind.numbers()).sum(), numbers)?;
    fits("labels", heads.num_labels(), labels)
}

/// Writes the one-hot of a frame delay. The last class stands for its delay and all longer delays.
pub fn delay_features(delay: usize, out: &mut [f32]) {
    out.fill(0.0);
    if let Some(last) = out.len().checked_sub(1) {
        out[delay.min(last)] = 1.0;
    }
}
