//! One game on disk: a safetensors file of columns, with the game's metadata in its header. The columns of a compressed
//! game are one tensor, see [`packed`].

mod cache;
mod packed;
mod pins;
mod segments;
mod write;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use half::{bf16, f16};
use safetensors::tensor::Metadata;
use sconce_tensor::digest::sha256;
use sconce_tensor::mapped::{self, Mapped};
use sconce_tensor::{Error, Result, header};
use serde::{Deserialize, Serialize};

use crate::column::{ColumnSpec, Dtype};
use crate::game::{GameInfo, MAX_FRAMES};
use crate::schema::{Schema, VERSION};

pub(crate) use cache::{CACHE_BYTES, Cache};
use packed::Packed;
use segments::Segments;
pub(crate) use write::write;

/// Folder of the shards inside a corpus.
pub(crate) const FOLDER: &str = "games";
/// Hexadecimal digits of the digest in the name of a shard.
const NAME_DIGITS: usize = 16;
/// Key of the metadata entry in the safetensors header.
const KEY: &str = "sconce";
/// Name of the tensor of a compressed game.
const SEGMENTS: &str = "segments";

/// The metadata entry in the header. These entries suffice to rebuild the manifest from the shards.
#[derive(Serialize, Deserialize)]
struct Entry {
    version: u32,
    schema: Schema,
    game: GameInfo,
    /// The segments of a compressed game.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    packed: Option<Packed>,
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

/// Path of a shard, relative to the corpus. A compressed game has another name, so that neither form replaces the other
/// before the manifest names it.
pub(crate) fn name(digest: &str, compressed: bool) -> String {
    let form = if compressed { ".lz4" } else { "" };
    format!("{FOLDER}/{}{form}.safetensors", digest.get(..NAME_DIGITS).unwrap_or(digest))
}

/// Whether this is the path of a shard with this digest, compressed or not.
pub(crate) fn is_name(path: &str, digest: &str) -> bool {
    [false, true].iter().any(|compressed| path == name(digest, *compressed))
}

fn shape(spec: &ColumnSpec, frames: usize) -> Vec<usize> {
    if spec.width == 0 { vec![frames] } else { vec![frames, spec.width] }
}

/// Bytes of each column in a frame.
fn widths(specs: &[ColumnSpec]) -> Vec<usize> {
    specs.iter().map(|spec| spec.width.max(1) * spec.dtype.size()).collect()
}

/// A game's columns, memory-mapped.
#[derive(Debug)]
pub struct Shard {
    /// The files that hold the columns, without duplicates.
    files: Vec<Arc<Mapped>>,
    path: PathBuf,
    /// Metadata of the game.
    pub game: GameInfo,
    columns: Columns,
    /// Whether the digest of the columns was recorded when the shard was written.
    recorded: bool,
}

/// How the columns are stored.
#[derive(Debug)]
enum Columns {
    /// As they are.
    Plain(Vec<Extent>),
    /// Compressed.
    Packed { segments: Segments, places: Vec<Place> },
}

/// A column within the segments of a compressed game.
#[derive(Debug, Clone, Copy)]
struct Place {
    stored: Stored,
    /// Bytes of a frame in the columns before.
    before: usize,
    /// Values of a frame.
    width: usize,
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

    /// The value at byte `at`.
    #[inline]
    fn value(self, bytes: &[u8], at: usize) -> f32 {
        match self {
            Stored::F32 => f32::from_le_bytes(word(bytes, at)),
            Stored::F16 => f16::from_le_bytes(word(bytes, at)).into(),
            Stored::Bf16 => bf16::from_le_bytes(word(bytes, at)).into(),
            Stored::I32 => i32::from_le_bytes(word(bytes, at)) as f32,
            Stored::U16 => u16::from_le_bytes(word(bytes, at)).into(),
            Stored::U8 => word::<1>(bytes, at)[0].into(),
        }
    }

    /// The values from byte `at` on.
    fn values(self, bytes: &[u8], at: usize, out: &mut [f32]) {
        if self != Stored::F32 {
            let each = out.iter_mut().enumerate();
            return each.for_each(|(i, out)| *out = self.value(bytes, at + i * self.size()));
        }
        let bytes = bytes.get(at..at + size_of_val(out)).unwrap_or_default();
        for (out, number) in out.iter_mut().zip(bytes.as_chunks().0) {
            *out = f32::from_le_bytes(*number);
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
    pub(crate) fn open(path: &Path, schema: &Schema, cache: Option<&Arc<Cache>>) -> Result<Self> {
        let file = Arc::new(Mapped::open(path)?);
        let read = || Shard::read(&file, schema, cache);
        let shard = mapped::guarded(std::slice::from_ref(&file), read);
        // If the file was truncated meanwhile, `verify` returns the error, because the shard is read from zeros.
        file.verify()?;
        shard
    }

    fn read(file: &Arc<Mapped>, schema: &Schema, cache: Option<&Arc<Cache>>) -> Result<Self> {
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
        let frames = entry.game.frames;
        let columns = match entry.packed {
            Some(table) => packed_columns(file, schema, &header, data, table, cache, frames),
            None => plain_columns(file, schema, &header, data, frames),
        };
        let columns = columns.map_err(|reason| Error::corrupt(what(), reason))?;
        let (tensors, wanted) = (header.tensors().len(), columns.tensors());
        if tensors != wanted {
            let reason = format!("{tensors} columns of {wanted}");
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
        Shard { files, path, game, columns: Columns::Plain(columns), recorded: false }
    }

    /// The path of the game, relative to its corpus.
    pub(crate) fn name(&self) -> String {
        name(&self.game.digest, matches!(self.columns, Columns::Packed { .. }))
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
        let found = mapped::guarded(&self.files, || match &self.columns {
            Columns::Plain(columns) => Ok(sha256(columns.iter().map(Extent::bytes))),
            Columns::Packed { segments, places } => {
                let widths: Vec<usize> = places.iter().map(Place::bytes).collect();
                segments.columns(&widths).map(sha256)
            }
        });
        self.files.iter().try_for_each(|file| file.verify())?;
        found.map_err(|reason| Error::corrupt(self.path.display().to_string(), reason))
    }

    /// Runs `work`, which may read the columns. A read that consists of several is faster inside one call.
    pub(crate) fn reading<T>(&self, work: impl FnOnce() -> T) -> T {
        match self.columns {
            Columns::Plain(_) => mapped::guarded(&self.files, work),
            Columns::Packed { .. } => mapped::guarded(&self.files, || pins::within(work)),
        }
    }

    /// Checks that all that was read could be restored. The files are checked apart, because games may share them.
    pub(crate) fn sound(&self) -> Result<()> {
        match &self.columns {
            Columns::Plain(_) => Ok(()),
            Columns::Packed { segments, .. } => segments.sound(&self.path),
        }
    }

    /// Path of the first file that holds the columns.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a column holds labels packed into bytes, with the bits of a head in one byte.
    pub(crate) fn is_packed(&self, column: usize) -> bool {
        match &self.columns {
            Columns::Plain(all) => all.get(column).is_some_and(|own| own.stored == Stored::U8),
            Columns::Packed { places, .. } => {
                places.get(column).is_some_and(|own| own.stored == Stored::U8)
            }
        }
    }

    /// The files that hold the columns.
    pub(crate) fn files(&self) -> &[Arc<Mapped>] {
        &self.files
    }

    /// Value `i` of a column; 0 if out of range. Must be called inside [`Self::reading`], as must [`Self::copy`].
    #[inline]
    pub(crate) fn get(&self, column: usize, i: usize) -> f32 {
        match &self.columns {
            Columns::Plain(columns) => {
                let Some(own) = columns.get(column).filter(|own| i < own.len) else { return 0.0 };
                own.stored.value(own.file.bytes(), own.begin + i * own.stored.size())
            }
            Columns::Packed { segments, places } => {
                let Some(own) = places.get(column) else { return 0.0 };
                // Most columns have one value, and a division takes longer than the rest.
                let (frame, value) =
                    if own.width == 1 { (i, 0) } else { (i / own.width, i % own.width) };
                if frame >= self.game.frames {
                    return 0.0;
                }
                let (segment, at, of) = segments.place(frame);
                let begin = own.begin(of) + (at * own.width + value) * own.stored.size();
                segments.with(segment, |bytes| own.stored.value(bytes, begin))
            }
        }
    }

    /// Copies values `from..from + out.len()` of a column to `out`.
    pub(crate) fn copy(&self, column: usize, from: usize, out: &mut [f32]) {
        let to = from + out.len();
        match &self.columns {
            Columns::Plain(columns) => match columns.get(column).filter(|own| to <= own.len) {
                Some(own) => {
                    own.stored.values(own.file.bytes(), own.begin + from * own.stored.size(), out);
                }
                None => self.copy_each(column, from, out),
            },
            Columns::Packed { segments, places } => {
                let own = places.get(column).filter(|own| to <= self.game.frames * own.width);
                let Some(own) = own else { return self.copy_each(column, from, out) };
                let (mut rest, mut next) = (out, from);
                while !rest.is_empty() {
                    let (segment, at, of) = segments.place(next / own.width);
                    let first = at * own.width + next % own.width;
                    let count = rest.len().min(of * own.width - first);
                    let (out, after) = rest.split_at_mut(count);
                    let begin = own.begin(of) + first * own.stored.size();
                    segments.with(segment, |bytes| own.stored.values(bytes, begin, out));
                    (rest, next) = (after, next + count);
                }
            }
        }
    }

    /// Copies values of which some are out of range.
    fn copy_each(&self, column: usize, from: usize, out: &mut [f32]) {
        out.iter_mut().enumerate().for_each(|(i, out)| *out = self.get(column, from + i));
    }
}

impl Columns {
    /// Count of the tensors in a file.
    fn tensors(&self) -> usize {
        match self {
            Columns::Plain(columns) => columns.len(),
            Columns::Packed { .. } => 1,
        }
    }
}

impl Place {
    /// Bytes of a frame.
    fn bytes(&self) -> usize {
        self.width * self.stored.size()
    }

    /// Where the column begins in a segment of `frames` frames.
    #[inline]
    fn begin(&self, frames: usize) -> usize {
        self.before * frames
    }
}

fn plain_columns(
    file: &Arc<Mapped>,
    schema: &Schema,
    header: &Metadata,
    data: usize,
    frames: usize,
) -> std::result::Result<Columns, String> {
    let place = |spec: &ColumnSpec| -> std::result::Result<Extent, String> {
        let (begin, len) = locate(header, spec, frames)?;
        let (file, stored) = (file.clone(), Stored::of(spec.dtype));
        Ok(Extent { file, stored, begin: data + begin, len })
    };
    schema.columns().iter().map(place).collect::<std::result::Result<_, _>>().map(Columns::Plain)
}

fn packed_columns(
    file: &Arc<Mapped>,
    schema: &Schema,
    header: &Metadata,
    data: usize,
    table: Packed,
    cache: Option<&Arc<Cache>>,
    frames: usize,
) -> std::result::Result<Columns, String> {
    let info = header.info(SEGMENTS).ok_or("no segments")?;
    let (begin, end) = info.data_offsets;
    if info.dtype != Dtype::U8.tensor() {
        return Err(format!("segments of {:?}", info.dtype));
    }
    let mut row = 0;
    let place = |spec: &ColumnSpec| {
        let own = Place { stored: Stored::of(spec.dtype), before: row, width: spec.width.max(1) };
        row += own.bytes();
        own
    };
    let places: Vec<Place> = schema.columns().iter().map(place).collect();
    table.check(frames, row, end - begin)?;
    let segments = Segments::new(file, table, data + begin, frames, row, cache);
    Ok(Columns::Packed { segments, places })
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
