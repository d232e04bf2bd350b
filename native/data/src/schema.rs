//! What a corpus holds: typed columns, and what is known of each game.

use std::fmt;
use std::marker::PhantomData;

use safetensors::Dtype as TensorType;
use sconce_core::spec::{Embedding, Head, HeadKind, Heads, HeadsKind, Melee};
use sconce_core::{Error, Result};
use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::melee;

/// Raised whenever a column changes its meaning; readers refuse another number.
pub const VERSION: u32 = 1;

/// Numbers of a vector, and logits of a head.
const MAX_SIZE: usize = 1 << 16;
const MAX_HEADS: usize = 64;
/// Columns of a corpus.
pub(crate) const MAX_COLUMNS: usize = 1 << 10;
/// Players of a game, in its entry.
const MAX_PLAYERS: usize = 8;
/// Frames of a game: more than a year.
pub(crate) const MAX_FRAMES: usize = 1 << 31;

/// Reads a list of at most `N` entries, and takes no memory for one that is longer.
pub(crate) fn at_most<'de, D, T, const N: usize>(
    deserializer: D,
) -> std::result::Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct Bounded<T, const N: usize>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>, const N: usize> Visitor<'de> for Bounded<T, N> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
            write!(f, "a list of at most {N} entries")
        }

        fn visit_seq<A: SeqAccess<'de>>(
            self,
            mut entries: A,
        ) -> std::result::Result<Vec<T>, A::Error> {
            let mut list = Vec::new();
            while let Some(entry) = entries.next_element()? {
                if list.len() == N {
                    return Err(A::Error::custom(format!("a list of more than {N} entries")));
                }
                list.push(entry);
            }
            Ok(list)
        }
    }

    deserializer.deserialize_seq(Bounded::<T, N>(PhantomData))
}

/// The type of a column's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dtype {
    F32,
    I32,
    U16,
    U8,
    /// Not a column: a value of the game's entry.
    Json,
}

impl Dtype {
    pub fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "f32",
            Dtype::I32 => "i32",
            Dtype::U16 => "u16",
            Dtype::U8 => "u8",
            Dtype::Json => "json",
        }
    }

    /// Bytes of one number.
    pub fn size(self) -> usize {
        match self {
            Dtype::F32 | Dtype::I32 => 4,
            Dtype::U16 => 2,
            Dtype::U8 => 1,
            Dtype::Json => 0,
        }
    }

    pub(crate) fn tensor(self) -> TensorType {
        match self {
            Dtype::F32 => TensorType::F32,
            Dtype::I32 => TensorType::I32,
            Dtype::U16 => TensorType::U16,
            Dtype::U8 | Dtype::Json => TensorType::U8,
        }
    }
}

/// The numbers of a column, before they are on disk.
#[derive(Debug, Clone, PartialEq)]
pub enum Column {
    F32(Vec<f32>),
    I32(Vec<i32>),
    U16(Vec<u16>),
    U8(Vec<u8>),
}

impl Column {
    /// Numbers beyond the range of a small type become its nearest.
    pub fn collect(dtype: Dtype, values: impl Iterator<Item = f32>) -> Self {
        match dtype {
            Dtype::F32 => Column::F32(values.collect()),
            Dtype::I32 => Column::I32(values.map(|v| v as i32).collect()),
            Dtype::U16 => Column::U16(values.map(|v| v as u16).collect()),
            Dtype::U8 | Dtype::Json => Column::U8(values.map(|v| v as u8).collect()),
        }
    }

    pub fn zeros(dtype: Dtype, len: usize) -> Self {
        Column::collect(dtype, std::iter::repeat_n(0.0, len))
    }

    pub fn get(&self, i: usize) -> Option<f32> {
        match self {
            Column::F32(v) => v.get(i).copied(),
            Column::I32(v) => v.get(i).map(|&x| x as f32),
            Column::U16(v) => v.get(i).map(|&x| x.into()),
            Column::U8(v) => v.get(i).map(|&x| x.into()),
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Column::F32(v) => v.len(),
            Column::I32(v) => v.len(),
            Column::U16(v) => v.len(),
            Column::U8(v) => v.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn iter(&self) -> impl Iterator<Item = f32> + '_ {
        (0..self.len()).filter_map(|i| self.get(i))
    }

    /// Little-endian, as safetensors wants it.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        match self {
            Column::F32(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Column::I32(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Column::U16(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Column::U8(v) => v.clone(),
        }
    }
}

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

/// A column as the schema wants it; `width` 0 is a plain list, otherwise rows of that many.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnSpec {
    pub name: String,
    pub dtype: Dtype,
    pub width: usize,
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

/// What is known of a game. It stands in the manifest and in the header of the game's shard.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GameInfo {
    /// The shard, relative to the corpus.
    pub file: String,
    /// SHA-256 of the source's bytes.
    pub digest: String,
    /// Name of the source file.
    pub source: String,
    /// Version of the replay format.
    pub version: String,
    pub stage: u16,
    #[serde(deserialize_with = "at_most::<_, _, MAX_PLAYERS>")]
    pub ports: Vec<u8>,
    /// Internal ids after the first frame.
    #[serde(deserialize_with = "at_most::<_, _, MAX_PLAYERS>")]
    pub characters: Vec<u8>,
    #[serde(deserialize_with = "at_most::<_, _, MAX_PLAYERS>")]
    pub start_characters: Vec<u8>,
    #[serde(deserialize_with = "at_most::<_, _, MAX_PLAYERS>")]
    pub tags: Vec<String>,
    #[serde(deserialize_with = "at_most::<_, _, MAX_PLAYERS>")]
    pub kinds: Vec<String>,
    pub frames: usize,
    /// Size of the shard.
    pub bytes: u64,
    /// SHA-256 of the columns, one after the other; empty where nobody recorded it. Of a game of ExPhil's,
    /// which has no digest of its own, of its labels and of three of its rows.
    pub contents: String,
    pub other_ids: OtherIds,
}

/// Ids that no table has a row for, counted over frames of players (stages over games).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OtherIds {
    pub actions: u64,
    pub characters: u64,
    pub stages: u64,
}

impl OtherIds {
    pub fn add(&mut self, other: &OtherIds) {
        self.actions = self.actions.saturating_add(other.actions);
        self.characters = self.characters.saturating_add(other.characters);
        self.stages = self.stages.saturating_add(other.stages);
    }
}
