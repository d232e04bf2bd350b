//! What the games of a corpus are: its columns, views and heads.

use sconce_nn::spec::{Embedding, Head, HeadKind, Heads, HeadsKind, Melee};
use sconce_tensor::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::bounded::at_most;
use crate::column::{ColumnSpec, Dtype};
use crate::melee;

/// Raised whenever a column changes its meaning; readers refuse another number.
pub(crate) const VERSION: u32 = 1;

/// Numbers of a vector, and logits of a head.
const MAX_SIZE: usize = 1 << 16;
const MAX_HEADS: usize = 64;
/// Columns of a corpus.
pub(crate) const MAX_COLUMNS: usize = 1 << 10;

/// What the games of a corpus are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case", try_from = "Flat")]
pub enum Schema {
    /// Replays: two players' raw fields and inputs, see [`melee::fields`].
    Melee,
    /// Vectors of `size` numbers, each with a label of these heads.
    Vector { size: usize, heads: Vec<(String, HeadKind)> },
}

/// A schema as it is read: a tagged enum would keep a whole object of any size before it looks at it.
#[derive(Deserialize)]
struct Flat {
    name: String,
    #[serde(default)]
    size: usize,
    #[serde(default, deserialize_with = "at_most::<_, _, MAX_HEADS>")]
    heads: Vec<(String, HeadKind)>,
}

impl TryFrom<Flat> for Schema {
    type Error = String;

    fn try_from(Flat { name, size, heads }: Flat) -> std::result::Result<Self, String> {
        match name.as_str() {
            "melee" => Ok(Schema::Melee),
            "vector" => Ok(Schema::Vector { size, heads }),
            _ => Err(format!("the schema {name:?} is neither \"melee\" nor \"vector\"")),
        }
    }
}

impl Schema {
    pub fn vector(size: usize, heads: &Heads) -> Self {
        let heads = heads.parts.iter().map(|h| (h.name.clone(), h.kind)).collect();
        Schema::Vector { size, heads }
    }

    pub fn name(&self) -> &'static str {
        match self {
            Schema::Melee => "melee",
            Schema::Vector { .. } => "vector",
        }
    }

    pub fn columns(&self) -> Vec<ColumnSpec> {
        let column = |(name, dtype): (String, Dtype), width| ColumnSpec { name, dtype, width };
        match self {
            Schema::Melee => melee::columns().into_iter().map(|c| column(c, 0)).collect(),
            Schema::Vector { size, heads } => {
                let labels = heads.iter().map(|h| h.1.labels()).sum();
                vec![
                    column(("x".into(), Dtype::F32), *size),
                    column(("labels".into(), Dtype::U16), labels),
                ]
            }
        }
    }

    /// How frames are embedded where nobody says otherwise.
    pub fn embedding(&self) -> Embedding {
        match self {
            Schema::Melee => Embedding::Melee(Melee::default()),
            Schema::Vector { size, .. } => Embedding::Vector(*size),
        }
    }

    /// Views of one game.
    pub fn views(&self) -> usize {
        match self {
            Schema::Melee => 2,
            Schema::Vector { .. } => 1,
        }
    }

    /// The heads that labels are for: the controller's six, or the schema's own.
    pub fn heads(&self) -> Heads {
        match self {
            Schema::Melee => Heads::controller(HeadsKind::Independent),
            Schema::Vector { heads, .. } => {
                let part = |(name, kind): &(String, HeadKind)| Head {
                    name: name.clone(),
                    kind: *kind,
                    hidden_size: 64,
                };
                let parts = heads.iter().map(part).collect();
                Heads { parts, ..Heads::controller(HeadsKind::Independent) }
            }
        }
    }

    pub fn validate(&self) -> Result<()> {
        let Schema::Vector { size, heads } = self else { return Ok(()) };
        within("vector.size", *size, 1, MAX_SIZE)?;
        within("heads (number)", heads.len(), 1, MAX_HEADS)?;
        self.heads().validate(&self.embedding())?;
        for (name, kind) in heads {
            // The largest u16 means "none" in a batch, so it cannot be a class.
            within(&format!("heads.{name}.size"), kind.logits(), 1, MAX_SIZE - 1)?;
        }
        Ok(())
    }
}

fn within(field: &str, n: usize, min: usize, max: usize) -> Result<()> {
    if (min..=max).contains(&n) {
        return Ok(());
    }
    Err(Error::out_of_range(field, n as f64, min as f64, max as f64))
}
