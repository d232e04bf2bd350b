//! What the games of a corpus are: the game, its columns, and how views read them.

use std::fmt;
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

/// Raised whenever a column changes its meaning; readers refuse another number.
pub(crate) const VERSION: u32 = 1;

/// Numbers of a vector, and logits of a head.
const MAX_SIZE: usize = 1 << 16;
const MAX_HEADS: usize = 64;
/// Columns of a corpus: fields, parts of an input, and what is learned of a frame beside them.
pub(crate) const MAX_COLUMNS: usize = 1 << 11;

/// What the games of a corpus are.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "Flat", into = "Flat")]
pub struct Schema {
    form: Form,
    game: Arc<Game>,
    /// Of a vector, which has no input of its own.
    parts: Option<Arc<[InputPart]>>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Form {
    /// Replays: two players' raw fields and inputs, see [`melee::fields`].
    Melee,
    /// Vectors of `size` numbers, each with a label of these heads.
    Vector { size: usize, heads: Vec<(String, HeadKind)> },
    /// Frames and inputs of a declared game, and more columns beside them.
    Game { declaration: Declaration, beside: Vec<Beside> },
}

/// A column beside frames and inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Beside {
    /// What the input of a row was rewarded with.
    Reward,
    /// 1 where the game ended with the row, 0 where it was cut off.
    End,
    /// How much the row counts in a loss, at least 0.
    Weight,
    /// Natural logarithm of the probability, of numbers the density, by which the input of a row was chosen.
    LogLikelihood,
}

impl Beside {
    pub const ALL: [Beside; 4] =
        [Beside::Reward, Beside::End, Beside::Weight, Beside::LogLikelihood];

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

/// A schema as it is written: a tagged enum would keep a whole object of any size before it looks at it.
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
            _ => Err(format!(
                "the schema {name:?} is neither \"melee\", nor \"vector\", nor \"game\" with a game"
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
            Form::Game { declaration, .. } => (Arc::new(Game::from(declaration.clone())), None),
        };
        Schema { form, game, parts }
    }
}

/// What the head of a vector's label chooses.
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

fn part_column(part: &InputPart) -> ColumnSpec {
    let (dtype, width) = match &part.kind {
        InputKind::Flags(_) | InputKind::Bits(_) => (Dtype::U8, part.kind.numbers()),
        InputKind::Axis { .. } => (Dtype::F32, 0),
        InputKind::Choice(_) => (Dtype::U16, 0),
        InputKind::Continuous { size: 1, .. } => (Dtype::F32, 0),
        InputKind::Continuous { size, .. } => (Dtype::F32, *size),
    };
    ColumnSpec { name: format!("input.{}", part.name), dtype, width }
}

impl Schema {
    pub fn melee() -> Self {
        Form::Melee.into()
    }

    /// Vectors of so many numbers, each with a label of these heads.
    pub fn vector(size: usize, heads: &Heads) -> Self {
        Schema::vectors(size, heads.parts.iter().map(|h| (h.name.clone(), h.kind)).collect())
    }

    /// [`vector`](Self::vector), with heads as they are written.
    pub fn vectors(size: usize, heads: Vec<(String, HeadKind)>) -> Self {
        Form::Vector { size, heads }.into()
    }

    /// Frames and inputs of a declared game, with these columns beside them.
    pub fn declared(declaration: Declaration, beside: &[Beside]) -> Self {
        let mut beside = beside.to_vec();
        beside.sort();
        beside.dedup();
        Form::Game { declaration, beside }.into()
    }

    pub fn name(&self) -> &'static str {
        match self.form {
            Form::Melee => "melee",
            Form::Vector { .. } => "vector",
            Form::Game { .. } => "game",
        }
    }

    /// Numbers of a vector, where these are vectors.
    pub fn vector_size(&self) -> Option<usize> {
        match self.form {
            Form::Vector { size, .. } => Some(size),
            Form::Melee | Form::Game { .. } => None,
        }
    }

    /// Whether labels stand in its files as they are, so that a damaged one may have any.
    pub(crate) fn stores_labels(&self) -> bool {
        !matches!(self.form, Form::Melee)
    }

    /// The game whose frames these are.
    pub fn game(&self) -> &Arc<Game> {
        &self.game
    }

    /// What stands beside frames and inputs.
    pub fn beside(&self) -> &[Beside] {
        match &self.form {
            Form::Game { beside, .. } => beside,
            Form::Melee | Form::Vector { .. } => &[],
        }
    }

    pub(crate) fn form(&self) -> &Form {
        &self.form
    }

    /// What inputs are made of.
    pub(crate) fn parts(&self) -> &[InputPart] {
        self.parts.as_deref().unwrap_or(self.game.parts())
    }

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
                fields.chain(self.game.parts().iter().map(part_column)).chain(beside).collect()
            }
        }
    }

    /// The type of a vector's labels: bits and classes are small, numbers are not.
    pub(crate) fn label_dtype(&self) -> Dtype {
        let whole = |part: &InputPart| !matches!(part.kind, InputKind::Continuous { .. });
        if self.parts().iter().all(whole) { Dtype::U16 } else { Dtype::F32 }
    }

    /// Name and values of each number of a row, of a declared game: fields, input, and what stands beside them.
    pub(crate) fn numbers(&self) -> Vec<(String, FieldKind)> {
        let previous = self.game.previous_column();
        let known = self.game.previous_place().end - previous;
        let mut numbers: Vec<_> =
            self.game.raw_columns().into_iter().map(|column| (column.name, column.kind)).collect();
        let input: Vec<_> = numbers.drain(previous..previous + known).skip(1).collect();
        let named = |(name, kind): (String, FieldKind)| (name.replacen("prev_", "", 1), kind);
        numbers.extend(input.into_iter().map(named));
        numbers
            .extend(self.beside().iter().map(|beside| (beside.name().to_owned(), beside.values())));
        numbers
    }

    /// How frames are embedded where nobody says otherwise.
    pub fn embedding(&self) -> Embedding {
        match &self.form {
            Form::Melee => Embedding::melee(Melee::default()),
            Form::Vector { size, .. } => Embedding::vector(*size),
            Form::Game { declaration, .. } => {
                Embedding::declared(Declared::new(declaration.clone()))
            }
        }
    }

    /// Views of one game.
    pub fn views(&self) -> usize {
        match self.form {
            Form::Melee => 2,
            Form::Vector { .. } | Form::Game { .. } => 1,
        }
    }

    /// The heads that labels are for: those of an input's parts, or the schema's own.
    pub fn heads(&self) -> Heads {
        match &self.form {
            Form::Vector { heads, .. } => Heads::of_kinds(heads),
            Form::Melee | Form::Game { .. } => {
                Heads::of_parts(self.parts(), HeadsKind::Independent)
            }
        }
    }

    /// Whether these heads choose what its inputs are made of.
    pub fn chosen_by(&self, heads: &Heads) -> bool {
        chooses(self.parts(), heads)
    }

    pub fn validate(&self) -> Result<()> {
        match &self.form {
            Form::Melee => Ok(()),
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
            Form::Game { declaration, .. } => {
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
