//! The schema of a corpus: the game, its columns, and how views read them.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use sconce_game::{
    Declaration, Field, FieldKind, Game, InputKind, InputPart, MAX_CLASSES, melee as melee_game,
};
use sconce_nn::embedding::chooses;
use sconce_nn::spec::{Declared, Embedding, HeadKind, Heads, HeadsKind, Melee};
use sconce_tensor::bounded::at_most;
use sconce_tensor::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::column::{ColumnSpec, Dtype};
use crate::melee;

/// Version of the schema, raised whenever the meaning of a column changes. Readers refuse other versions.
pub(crate) const VERSION: u32 = 1;

/// Maximum values in a vector.
const MAX_SIZE: usize = 1 << 16;
const MAX_HEADS: usize = 64;
/// Maximum columns of a corpus: fields, parts of an input, and extra columns.
pub(crate) const MAX_COLUMNS: usize = 1 << 11;

/// The schema of the games in a corpus.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "Flat", into = "Flat")]
pub struct Schema {
    form: Form,
    game: Arc<Game>,
    /// Parts of the input of a vector schema, whose game declares no input.
    parts: Option<Arc<[InputPart]>>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Form {
    /// Replays: two players' raw fields and inputs, see [`melee::fields`].
    Melee,
    /// Vectors of `size` values, with labels for these heads.
    Vector { size: usize, heads: Vec<(String, HeadKind)> },
    /// Frames and inputs of a declared game, and extra columns.
    Game { declaration: Declaration, beside: Vec<Beside> },
    /// Frames met in play with the inputs that led to them, an expert's answers, and their weights. The game is Melee
    /// without a declaration, because the bounds of its fields have no form in JSON.
    Relabelled { declaration: Option<Declaration> },
}

/// A column of a declared game beside frames and inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Beside {
    /// Reward of the input in a row.
    Reward,
    /// 1 if the game ended in this row, 0 if not. A game without an end was truncated.
    End,
    /// Weight of the row in the loss, at least 0.
    Weight,
    /// Natural log of the probability (for continuous inputs, the density) with which the input was chosen.
    LogLikelihood,
}

impl Beside {
    /// All extra columns, in the order of a shard.
    pub const ALL: [Beside; 4] =
        [Beside::Reward, Beside::End, Beside::Weight, Beside::LogLikelihood];

    /// Name of the column in a shard and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Beside::Reward => "reward",
            Beside::End => "end",
            Beside::Weight => "weight",
            Beside::LogLikelihood => "log_likelihood",
        }
    }

    fn values(self) -> FieldKind {
        match self {
            Beside::Reward | Beside::LogLikelihood => FieldKind::Number,
            Beside::End => FieldKind::Flag,
            Beside::Weight => FieldKind::Range { min: 0.0, max: f32::MAX },
        }
    }

    pub(crate) fn dtype(self) -> Dtype {
        match self {
            Beside::Reward | Beside::Weight | Beside::LogLikelihood => Dtype::F32,
            Beside::End => Dtype::U8,
        }
    }
}

/// The serialized form of a schema. A struct, because a tagged enum would buffer an object of any size before
/// checking it.
#[derive(Default, Serialize, Deserialize)]
struct Flat {
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    size: Option<usize>,
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "at_most::<_, _, MAX_HEADS>"
    )]
    heads: Vec<(String, HeadKind)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    game: Option<Declaration>,
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "at_most::<_, _, 4>"
    )]
    beside: Vec<Beside>,
}

impl TryFrom<Flat> for Schema {
    type Error = String;

    fn try_from(flat: Flat) -> std::result::Result<Self, String> {
        let Flat { name, size, heads, game, beside } = flat;
        match (name.as_str(), game) {
            ("melee", None) => Ok(Schema::melee()),
            ("vector", None) => Ok(Form::Vector { size: size.unwrap_or(0), heads }.into()),
            ("game", Some(declaration)) => Ok(Schema::declared(declaration, &beside)),
            ("relabelled", declaration) => Ok(Schema::relabelled(declaration)),
            _ => Err(format!(
                "the schema {name:?} is neither \"melee\", nor \"vector\", nor \"relabelled\", nor \"game\" with a game"
            )),
        }
    }
}

impl From<Schema> for Flat {
    fn from(schema: Schema) -> Self {
        let name = schema.name().to_owned();
        match schema.form {
            Form::Melee => Flat { name, ..Flat::default() },
            Form::Vector { size, heads } => {
                Flat { name, size: Some(size), heads, ..Flat::default() }
            }
            Form::Game { declaration, beside } => {
                Flat { name, game: Some(declaration), beside, ..Flat::default() }
            }
            Form::Relabelled { declaration } => Flat { name, game: declaration, ..Flat::default() },
        }
    }
}

impl PartialEq for Schema {
    fn eq(&self, other: &Self) -> bool {
        self.form == other.form
    }
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.form.fmt(f)
    }
}

impl From<Form> for Schema {
    fn from(form: Form) -> Self {
        let (game, parts) = match &form {
            Form::Melee => (melee_game::game().clone(), None),
            Form::Vector { size, heads } => {
                (Arc::new(Game::vector(*size)), Some(heads.iter().map(part_of).collect()))
            }
            Form::Relabelled { declaration: None } => (melee_game::game().clone(), None),
            Form::Game { declaration, .. }
            | Form::Relabelled { declaration: Some(declaration) } => {
                (Arc::new(Game::from(declaration.clone())), None)
            }
        };
        Schema { form, game, parts }
    }
}

/// Returns the part of an input that a label head of a vector schema chooses.
fn part_of((name, kind): &(String, HeadKind)) -> InputPart {
    InputPart {
        name: name.clone().into(),
        meaning: "".into(),
        kind: match (kind.bits(), kind.classes()) {
            (0, 0) => {
                let (min, max) = (kind.least(), kind.largest());
                InputKind::Continuous { size: kind.labels(), min, max }
            }
            (0, classes) => InputKind::Choice(classes),
            (bits, _) => InputKind::Bits(bits),
        },
        mirror: Default::default(),
        scale: Default::default(),
        rest: None,
    }
}

fn field_column(field: &Field) -> ColumnSpec {
    let (dtype, width) = match field.kind {
        FieldKind::Number | FieldKind::Range { .. } => (Dtype::F32, 0),
        FieldKind::Vector(size) => (Dtype::F32, size),
        FieldKind::Flag => (Dtype::U8, 0),
        FieldKind::Id(_) | FieldKind::OneHot(_) => (Dtype::U16, 0),
    };
    ColumnSpec { name: format!("frame.{}", field.name), dtype, width }
}

fn part_column(part: &InputPart, under: &str) -> ColumnSpec {
    let (dtype, width) = match &part.kind {
        InputKind::Flags(_) | InputKind::Bits(_) => (Dtype::U8, part.kind.numbers()),
        InputKind::Axis { .. } => (Dtype::F32, 0),
        InputKind::Choice(_) => (Dtype::U16, 0),
        InputKind::Continuous { size: 1, .. } => (Dtype::F32, 0),
        InputKind::Continuous { size, .. } => (Dtype::F32, *size),
    };
    ColumnSpec { name: format!("{under}.{}", part.name), dtype, width }
}

impl Schema {
    /// The schema of Melee replays.
    pub fn melee() -> Self {
        Form::Melee.into()
    }

    /// The schema of vectors of `size` values, with labels for `heads`.
    pub fn vector(size: usize, heads: &Heads) -> Self {
        Schema::vectors(size, heads.parts.iter().map(|h| (h.name.clone(), h.kind)).collect())
    }

    /// Like [`vector`](Self::vector), with heads in their serialized form.
    pub fn vectors(size: usize, heads: Vec<(String, HeadKind)>) -> Self {
        Form::Vector { size, heads }.into()
    }

    /// The schema of a declared game, with these columns beside frames and inputs.
    pub fn declared(declaration: Declaration, beside: &[Beside]) -> Self {
        let mut beside = beside.to_vec();
        beside.sort();
        beside.dedup();
        Form::Game { declaration, beside }.into()
    }

    /// The schema of frames met in play, labelled by an expert. `None` is Melee.
    pub fn relabelled(declaration: Option<Declaration>) -> Self {
        Form::Relabelled { declaration }.into()
    }

    /// Name of the schema's form: `melee`, `vector`, `game` or `relabelled`.
    pub fn name(&self) -> &'static str {
        match self.form {
            Form::Melee => "melee",
            Form::Vector { .. } => "vector",
            Form::Game { .. } => "game",
            Form::Relabelled { .. } => "relabelled",
        }
    }

    /// Values in a vector; `None` unless this is a vector schema.
    pub fn vector_size(&self) -> Option<usize> {
        match self.form {
            Form::Vector { size, .. } => Some(size),
            Form::Melee | Form::Game { .. } | Form::Relabelled { .. } => None,
        }
    }

    /// Whether the files store labels directly, so that a damaged file may hold invalid ones.
    pub(crate) fn stores_labels(&self) -> bool {
        !matches!(self.form, Form::Melee)
    }

    /// The game that the frames belong to.
    pub fn game(&self) -> &Arc<Game> {
        &self.game
    }

    /// The columns beside frames and inputs.
    pub fn beside(&self) -> &[Beside] {
        match &self.form {
            Form::Game { beside, .. } => beside,
            Form::Relabelled { .. } => &[Beside::Weight],
            Form::Melee | Form::Vector { .. } => &[],
        }
    }

    pub(crate) fn form(&self) -> &Form {
        &self.form
    }

    /// The parts of an input.
    pub(crate) fn parts(&self) -> &[InputPart] {
        self.parts.as_deref().unwrap_or(self.game.parts())
    }

    /// The columns of a shard, in order.
    pub fn columns(&self) -> Vec<ColumnSpec> {
        let column = |name: &str, dtype, width| ColumnSpec { name: name.into(), dtype, width };
        match &self.form {
            Form::Melee => {
                melee::columns().iter().map(|(name, dtype)| column(name, *dtype, 0)).collect()
            }
            Form::Vector { size, heads } => {
                let labels = heads.iter().map(|head| head.1.labels());
                let labels = labels.fold(0, usize::saturating_add);
                vec![column("x", Dtype::F32, *size), column("labels", self.label_dtype(), labels)]
            }
            Form::Game { beside, .. } => {
                let fields = self.game.fields().iter().map(field_column);
                let beside = beside.iter().map(|beside| column(beside.name(), beside.dtype(), 0));
                let parts = self.game.parts().iter().map(|part| part_column(part, "input"));
                fields.chain(parts).chain(beside).collect()
            }
            // The order of a raw row, then the answer and its weight.
            Form::Relabelled { .. } => {
                let parts = |under| self.game.parts().iter().map(move |p| part_column(p, under));
                let mut columns: Vec<_> = self.game.fields().iter().map(field_column).collect();
                let known = std::iter::once(column("played.known", Dtype::U8, 0));
                let at = self.game.fields_before_previous();
                columns.splice(at..at, known.chain(parts("played")));
                columns.extend(parts("input"));
                columns.push(column(Beside::Weight.name(), Beside::Weight.dtype(), 0));
                columns
            }
        }
    }

    /// The type of a vector's labels: 16-bit integers for bits and classes, 32-bit floats for continuous
    /// labels.
    pub(crate) fn label_dtype(&self) -> Dtype {
        let whole = |part: &InputPart| !matches!(part.kind, InputKind::Continuous { .. });
        if self.parts().iter().all(whole) { Dtype::U16 } else { Dtype::F32 }
    }

    /// Name and kind of each value in a row of a declared game: fields, input and extra columns. A row of relabelled
    /// frames holds the raw row, which contains the input that was played, before the expert's input.
    pub(crate) fn numbers(&self) -> Vec<(String, FieldKind)> {
        let previous = self.game.previous_column();
        let known = self.game.previous_place().end - previous;
        let mut numbers: Vec<_> =
            self.game.raw_columns().into_iter().map(|column| (column.name, column.kind)).collect();
        let input: Vec<_> = match self.form {
            Form::Relabelled { .. } => numbers[previous..previous + known][1..].to_vec(),
            _ => numbers.drain(previous..previous + known).skip(1).collect(),
        };
        let named = |(name, kind): (String, FieldKind)| (name.replacen("prev_", "", 1), kind);
        numbers.extend(input.into_iter().map(named));
        numbers
            .extend(self.beside().iter().map(|beside| (beside.name().to_owned(), beside.values())));
        numbers
    }

    /// The values of a row that have no meaning: those of an unknown previous input.
    pub(crate) fn unknown(&self, row: &[f32]) -> Range<usize> {
        let place = self.game.previous_place();
        match self.form {
            Form::Relabelled { .. } if row.get(self.game.previous_column()) == Some(&0.0) => place,
            _ => 0..0,
        }
    }

    /// Whether the labels are an expert's answers to frames that were met in play.
    pub fn is_relabelled(&self) -> bool {
        matches!(self.form, Form::Relabelled { .. })
    }

    /// The default embedding of frames.
    pub fn embedding(&self) -> Embedding {
        match &self.form {
            Form::Melee | Form::Relabelled { declaration: None } => {
                Embedding::melee(Melee::default())
            }
            Form::Vector { size, .. } => Embedding::vector(*size),
            Form::Game { declaration, .. }
            | Form::Relabelled { declaration: Some(declaration) } => {
                Embedding::declared(Declared::new(declaration.clone()))
            }
        }
    }

    /// Whether the vectors are frames that `embedding` has embedded already: they have the width of a Melee embedding
    /// without trained tables, and their labels are those of a controller. Corpora of ExPhil are such vectors.
    pub fn is_embedded_by(&self, embedding: &Embedding) -> bool {
        let game = embedding.game();
        self.vector_size() == Some(embedding.continuous_width())
            && embedding.num_ids() == 0
            && Arc::ptr_eq(game, melee_game::game())
            && self.chosen_by(&Heads::of_parts(game.parts(), HeadsKind::Independent))
    }

    /// Count of views per game.
    pub fn views(&self) -> usize {
        match self.form {
            Form::Melee => 2,
            Form::Vector { .. } | Form::Game { .. } | Form::Relabelled { .. } => 1,
        }
    }

    /// The heads that match the labels: one for each part of the input, or the heads of a vector schema.
    pub fn heads(&self) -> Heads {
        match &self.form {
            Form::Vector { heads, .. } => Heads::of_kinds(heads),
            Form::Melee | Form::Game { .. } | Form::Relabelled { .. } => {
                Heads::of_parts(self.parts(), HeadsKind::Independent)
            }
        }
    }

    /// Whether these heads choose all parts of the input.
    pub fn chosen_by(&self, heads: &Heads) -> bool {
        chooses(self.parts(), heads)
    }

    /// Checks the schema's bounds and its heads.
    pub fn validate(&self) -> Result<()> {
        match &self.form {
            Form::Melee | Form::Relabelled { declaration: None } => Ok(()),
            Form::Vector { size, heads } => {
                within("vector.size", *size, 1, MAX_SIZE)?;
                within("heads (number)", heads.len(), 1, MAX_HEADS)?;
                self.heads().validate(&self.embedding())?;
                for (name, kind) in heads {
                    within(&format!("heads.{name}.size"), kind.logits(), 1, MAX_CLASSES)?;
                    within(&format!("heads.{name} (labels)"), kind.labels(), 1, MAX_CLASSES)?;
                }
                Ok(())
            }
            Form::Game { declaration, .. }
            | Form::Relabelled { declaration: Some(declaration) } => {
                declaration.validate()?;
                match declaration.input.is_empty() {
                    true => Err(Error::mismatch("game of a corpus", "an input", "none declared")),
                    false => self.heads().validate(&self.embedding()),
                }
            }
        }
    }
}

fn within(field: &str, n: usize, min: usize, max: usize) -> Result<()> {
    if (min..=max).contains(&n) {
        return Ok(());
    }
    Err(Error::out_of_range(field, n as f64, min as f64, max as f64))
}
