//! One game on disk: a safetensors file of columns, with the game's metadata in its header.

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use half::{bf16, f16};
use safetensors::tensor::{Metadata, TensorView};
use sconce_tensor::digest::sha256;
use sconce_tensor::fs::write_atomic;
use sconce_tensor::mapped::{self, Mapped};
use sconce_tensor::{Error, Result, header};
use serde::{Deserialize, Serialize};

use crate::column::{Column, ColumnSpec, Dtype};
use crate::game::{GameInfo, MAX_FRAMES};
use crate::schema::{Schema, VERSION};

/// Folder of the shards inside a corpus.
pub(crate) const FOLDER: &str = "games";
/// Hexadecimal digits of the digest in the name of a shard.
const NAME_DIGITS: usize = 16;
/// Key of the metadata entry in the safetensors header.
const KEY: &str = "sconce";

/// The metadata entry in the header. These entries suffice to rebuild the manifest from the shards.
#[derive(Serialize, Deserialize)]
struct Entry {
    version: u32,
    schema: Schema,
    game: GameInfo,
}

/// Hexadecimal digits of a SHA-256.
const DIGEST_DIGITS: usize = 64;

/// Checks a digest. A digest becomes part of a file name, so the name must not lead out of the corpus.
pub(crate) fn check_digest(what: String, digest: &str) -> Result<()> {
    let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    match digest.len() == DIGEST_DIGITS && digest.bytes().all(hex) {
        true => Ok(()),
        false => Err(Error::corrupt(what, format!("digest {digest:?}"))),
    }
}

/// Checks a count of frames. A larger count could overflow later computations.
pub(crate) fn check_frames(what: String, game: &GameInfo) -> Result<()> {
    match game.frames <= MAX_FRAMES {
        true => Ok(()),
        false => {
            let reason = format!("{} frames of a game, more than {MAX_FRAMES}", game.frames);
            Err(Error::corrupt(what, reason))
        }
    }
}

/// Path of a shard, relative to the corpus.
pub(crate) fn name(digest: &str) -> String {
    format!("{FOLDER}/{}.safetensors", digest.get(..NAME_DIGITS).unwrap_or(digest))
}

/// Writes a game's shard. Returns the metadata with the file name, size and digest filled in.
pub(crate) fn write(
    corpus: &Path,
    schema: &Schema,
    mut game: GameInfo,
    columns: &[Column],
) -> Result<GameInfo> {
    game.file = name(&game.digest);
    let path = corpus.join(&game.file);
    let data: Vec<Vec<u8>> = columns.iter().map(Column::bytes).collect();
    game.contents = sha256(&data);
    let specs = schema.columns();
    let tensors = specs
        .iter()
        .zip(&data)
        .map(|(spec, bytes)| {
            TensorView::new(spec.dtype.tensor(), shape(spec, game.frames), bytes)
                .map(|view| (spec.name.as_str(), view))
        })
        .collect::<std::result::Result<Vec<_>, _>>()
        .map_err(|e| Error::corrupt(path.display().to_string(), e))?;
    let entry = Entry { version: VERSION, schema: schema.clone(), game: game.clone() };
    let header =
        serde_json::to_string(&entry).map_err(|e| Error::corrupt(path.display().to_string(), e))?;
    let bytes = safetensors::serialize(tensors, Some(HashMap::from([(KEY.to_owned(), header)])))
        .map_err(|e| Error::corrupt(path.display().to_string(), e))?;
    write_atomic(&path, |file| file.write_all(&bytes))?;
    Ok(GameInfo { bytes: bytes.len() as u64, ..game })
}

fn shape(spec: &ColumnSpec, frames: usize) -> Vec<usize> {
    if spec.width == 0 { vec![frames] } else { vec![frames, spec.width] }
}

/// A game's columns, memory-mapped.
#[derive(Debug)]
pub struct Shard {
    /// The files that hold the columns, without duplicates.
    files: Vec<Arc<Mapped>>,
    path: PathBuf,
    /// Metadata of the game.
    pub game: GameInfo,
    columns: Vec<Extent>,
    /// Whether the digest of the columns was recorded when the shard was written.
    recorded: bool,
}

/// Location of a column's values.
#[derive(Debug, Clone)]
pub(crate) struct Extent {
    pub file: Arc<Mapped>,
    pub stored: Stored,
    pub begin: usize,
    /// Count of values.
    pub len: usize,
}

impl Extent {
    /// The bytes of the column. Must be called inside [`mapped::guarded`].
    pub(crate) fn bytes(&self) -> &[u8] {
        let end = self.begin + self.len * self.stored.size();
        self.file.bytes().get(self.begin..end).unwrap_or_default()
    }
}

/// Storage format of a value, little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stored {
    F32,
    F16,
    Bf16,
    I32,
    U16,
    U8,
}

impl Stored {
    /// Bytes of one value.
    pub(crate) fn size(self) -> usize {
        match self {
            Stored::F32 | Stored::I32 => 4,
            Stored::F16 | Stored::Bf16 | Stored::U16 => 2,
            Stored::U8 => 1,
        }
    }

    fn of(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => Stored::F32,
            Dtype::I32 => Stored::I32,
            Dtype::U16 => Stored::U16,
            Dtype::U8 | Dtype::Json => Stored::U8,
        }
    }
}

impl Shard {
    /// Maps the file and checks that it holds the columns of the schema, so that every later read stays
    /// inside the file.
    pub(crate) fn open(path: &Path, schema: &Schema) -> Result<Self> {
        let file = Arc::new(Mapped::open(path)?);
        let shard = mapped::guarded(std::slice::from_ref(&file), || Shard::read(&file, schema));
        // If the file was truncated meanwhile, `verify` returns the error, because the shard is read from zeros.
        file.verify()?;
        shard
    }

    fn read(file: &Arc<Mapped>, schema: &Schema) -> Result<Self> {
        let (path, map) = (file.path(), file.bytes());
        let what = || path.display().to_string();
        let (length, header) = header::of_bytes(map).map_err(|e| Error::corrupt(what(), e))?;
        let entry = entry(header.metadata(), path)?;
        check_digest(what(), &entry.game.digest)?;
        check_frames(what(), &entry.game)?;
        if entry.schema != *schema {
            return Err(Error::mismatch(what(), describe(schema), describe(&entry.schema)));
        }
        let data = header::PREFIX + length;
        let place = |spec: &ColumnSpec| -> std::result::Result<Extent, String> {
            let (begin, len) = locate(&header, spec, entry.game.frames)?;
            let (file, stored) = (file.clone(), Stored::of(spec.dtype));
            Ok(Extent { file, stored, begin: data + begin, len })
        };
        let columns = schema
            .columns()
            .iter()
            .map(place)
            .collect::<std::result::Result<Vec<_>, String>>()
            .map_err(|reason| Error::corrupt(what(), reason))?;
        let tensors = header.tensors().len();
        if tensors != columns.len() {
            let reason = format!("{tensors} columns of {}", columns.len());
            return Err(Error::corrupt(what(), reason));
        }
        let recorded = !entry.game.contents.is_empty();
        let (files, path) = (vec![file.clone()], path.to_path_buf());
        Ok(Shard { files, path, game: entry.game, columns, recorded })
    }

    /// Creates a shard whose columns lie at these locations, in at most [`mapped::MOST`] files.
    pub(crate) fn of_columns(game: GameInfo, columns: Vec<Extent>) -> Self {
        let mut files: Vec<Arc<Mapped>> = vec![];
        for place in &columns {
            if !files.iter().any(|file| Arc::ptr_eq(file, &place.file)) {
                files.push(place.file.clone());
            }
        }
        let path = files.first().map(|file| file.path().to_path_buf()).unwrap_or_default();
        Shard { files, path, game, columns, recorded: false }
    }

    /// Count of frames.
    pub fn frames(&self) -> usize {
        self.game.frames
    }

    /// Whether [`Self::contents`] can be compared with the digest in the metadata.
    pub(crate) fn is_recorded(&self) -> bool {
        self.recorded
    }

    /// SHA-256 of the concatenated columns.
    pub(crate) fn contents(&self) -> Result<String> {
        let columns = || self.columns.iter().map(Extent::bytes);
        let found = mapped::guarded(&self.files, || sha256(columns()));
        self.files.iter().try_for_each(|file| file.verify())?;
        Ok(found)
    }

    /// Path of the first file that holds the columns.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a column holds labels packed into bytes, with the bits of a head in one byte.
    pub(crate) fn is_packed(&self, column: usize) -> bool {
        self.columns.get(column).is_some_and(|place| place.stored == Stored::U8)
    }

    /// The files that hold the columns.
    pub(crate) fn files(&self) -> &[Arc<Mapped>] {
        &self.files
    }

    /// Value `i` of a column; 0 if out of range. Must be called inside [`mapped::guarded`], as must
    /// [`Self::copy`].
    #[inline]
    pub(crate) fn get(&self, column: usize, i: usize) -> f32 {
        let Some(place) = self.columns.get(column).filter(|p| i < p.len) else { return 0.0 };
        let at = place.begin + i * place.stored.size();
        let map = place.file.bytes();
        match place.stored {
            Stored::F32 => f32::from_le_bytes(word(map, at)),
            Stored::F16 => f16::from_le_bytes(word(map, at)).into(),
            Stored::Bf16 => bf16::from_le_bytes(word(map, at)).into(),
            Stored::I32 => i32::from_le_bytes(word(map, at)) as f32,
            Stored::U16 => u16::from_le_bytes(word(map, at)).into(),
            Stored::U8 => word::<1>(map, at)[0].into(),
        }
    }

    /// Copies values `from..from + out.len()` of a column to `out`.
    pub(crate) fn copy(&self, column: usize, from: usize, out: &mut [f32]) {
        let whole = |place: &&Extent| from + out.len() <= place.len && place.stored == Stored::F32;
        let Some(place) = self.columns.get(column).filter(whole) else {
            out.iter_mut().enumerate().for_each(|(i, out)| *out = self.get(column, from + i));
            return;
        };
        let begin = place.begin + from * size_of::<f32>();
        let bytes = place.file.bytes().get(begin..begin + size_of_val(out)).unwrap_or_default();
        for (out, number) in out.iter_mut().zip(bytes.as_chunks().0) {
            *out = f32::from_le_bytes(*number);
        }
    }
}

#[inline]
fn word<const N: usize>(map: &[u8], at: usize) -> [u8; N] {
    let bytes = map.get(at..at + N).and_then(|b| b.try_into().ok());
    bytes.unwrap_or([0; N])
}

fn entry(metadata: &Option<HashMap<String, String>>, path: &Path) -> Result<Entry> {
    let what = || path.display().to_string();
    let text = metadata.as_ref().and_then(|m| m.get(KEY));
    let text = text.ok_or_else(|| Error::corrupt(what(), "not a game of a corpus"))?;
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    let version: Version = serde_json::from_str(text).map_err(|e| Error::corrupt(what(), e))?;
    check_version(what(), version.version)?;
    serde_json::from_str(text).map_err(|e| Error::corrupt(what(), e))
}

pub(crate) fn check_version(what: String, version: u32) -> Result<()> {
    if version == VERSION {
        return Ok(());
    }
    let expected = format!("version {VERSION} of the corpus schema");
    Err(Error::mismatch(what, expected, format!("version {version}")))
}

pub(crate) fn describe(schema: &Schema) -> String {
    serde_json::to_string(schema).unwrap_or_else(|_| schema.name().to_owned())
}

/// Offset of a column in the data, in bytes, and the column's count of values.
fn locate(
    header: &Metadata,
    spec: &ColumnSpec,
    frames: usize,
) -> std::result::Result<(usize, usize), String> {
    let name = &spec.name;
    let info = header.info(name).ok_or_else(|| format!("no column {name}"))?;
    if info.dtype != spec.dtype.tensor() {
        return Err(format!("column {name} is {:?}, not {}", info.dtype, spec.dtype.name()));
    }
    if info.shape != shape(spec, frames) {
        return Err(format!("column {name} is {:?} for {frames} frames", info.shape));
    }
    let (begin, end) = info.data_offsets;
    Ok((begin, (end - begin) / spec.dtype.size()))
}
