//! One game on disk: a safetensors file of columns, with the game's entry in its header.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use sconce_core::fs::write_atomic;
use sconce_core::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::schema::{Column, ColumnSpec, Dtype, GameInfo, Schema, VERSION};

/// Folder of the shards inside a corpus.
pub(crate) const FOLDER: &str = "games";
/// Hexadecimal digits of the digest in a shard's name.
const NAME_DIGITS: usize = 16;
/// Key of our entry in the safetensors header.
const KEY: &str = "sconce";

/// What the header says of the game, enough to rebuild the manifest from the shards.
#[derive(Serialize, Deserialize)]
struct Entry {
    version: u32,
    schema: Schema,
    game: GameInfo,
}

/// Hexadecimal digits of a SHA-256.
const DIGEST_DIGITS: usize = 64;

/// A digest names a file: text that somebody made up must not lead out of the corpus.
pub(crate) fn check_digest(what: String, digest: &str) -> Result<()> {
    let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    match digest.len() == DIGEST_DIGITS && digest.bytes().all(hex) {
        true => Ok(()),
        false => Err(Error::corrupt(what, format!("digest {digest:?}"))),
    }
}

/// Path of a shard relative to the corpus.
pub(crate) fn name(digest: &str) -> String {
    format!("{FOLDER}/{}.safetensors", digest.get(..NAME_DIGITS).unwrap_or(digest))
}

/// Writes a game's shard and returns its size.
pub(crate) fn write(
    corpus: &Path,
    schema: &Schema,
    game: &GameInfo,
    columns: &[Column],
) -> Result<u64> {
    let path = corpus.join(&game.file);
    let data: Vec<Vec<u8>> = columns.iter().map(Column::bytes).collect();
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
    Ok(bytes.len() as u64)
}

fn shape(spec: &ColumnSpec, frames: usize) -> Vec<usize> {
    if spec.width == 0 { vec![frames] } else { vec![frames, spec.width] }
}

/// A game's columns, mapped into memory.
#[derive(Debug)]
pub struct Shard {
    map: Mmap,
    path: PathBuf,
    pub game: GameInfo,
    columns: Vec<Place>,
}

/// Where a column's bytes lie in the file.
#[derive(Debug, Clone, Copy)]
struct Place {
    dtype: Dtype,
    begin: usize,
    /// Numbers in it.
    len: usize,
}

impl Shard {
    /// Maps the file and checks that it holds what the schema asks for, so that every later read
    /// stays inside it.
    pub(crate) fn open(path: &Path, schema: &Schema) -> Result<Self> {
        let file = File::open(path).map_err(Error::io(path))?;
        // SAFETY: shards are only ever replaced by rename, never changed or shortened in place, so
        // the pages of this map keep their bytes for as long as it lives.
        let map = unsafe { Mmap::map(&file) }.map_err(Error::io(path))?;
        let what = || path.display().to_string();
        let (begin, header) =
            SafeTensors::read_metadata(&map).map_err(|e| Error::corrupt(what(), e))?;
        let entry = entry(header.metadata(), path)?;
        check_digest(what(), &entry.game.digest)?;
        if entry.schema != *schema {
            return Err(Error::mismatch(what(), describe(schema), describe(&entry.schema)));
        }
        let tensors = SafeTensors::deserialize(&map).map_err(|e| Error::corrupt(what(), e))?;
        // The header's length and the eight bytes that hold it precede the data.
        let data = begin + 8;
        let columns = schema
            .columns()
            .iter()
            .map(|spec| locate(&tensors, &header, spec, entry.game.frames, data))
            .collect::<std::result::Result<Vec<_>, String>>()
            .map_err(|reason| Error::corrupt(what(), reason))?;
        if tensors.len() != columns.len() {
            let reason = format!("{} columns of {}", tensors.len(), columns.len());
            return Err(Error::corrupt(what(), reason));
        }
        Ok(Shard { path: path.to_path_buf(), game: entry.game, columns, map })
    }

    pub fn frames(&self) -> usize {
        self.game.frames
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A number of a column; the column's own place and row are the caller's to keep in range, and
    /// 0 stands for what lies outside.
    #[inline]
    pub(crate) fn get(&self, column: usize, i: usize) -> f32 {
        let Some(place) = self.columns.get(column).filter(|p| i < p.len) else { return 0.0 };
        let at = place.begin + i * place.dtype.size();
        match place.dtype {
            Dtype::F32 => f32::from_le_bytes(self.word(at)),
            Dtype::I32 => i32::from_le_bytes(self.word(at)) as f32,
            Dtype::U16 => u16::from_le_bytes(self.word(at)).into(),
            Dtype::U8 | Dtype::Json => self.word::<1>(at)[0].into(),
        }
    }

    #[inline]
    fn word<const N: usize>(&self, at: usize) -> [u8; N] {
        let bytes = self.map.get(at..at + N).and_then(|b| b.try_into().ok());
        bytes.unwrap_or([0; N])
    }
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

fn locate(
    tensors: &SafeTensors,
    header: &safetensors::tensor::Metadata,
    spec: &ColumnSpec,
    frames: usize,
    data: usize,
) -> std::result::Result<Place, String> {
    let name = &spec.name;
    let tensor = tensors.tensor(name).map_err(|_| format!("no column {name}"))?;
    if tensor.dtype() != spec.dtype.tensor() {
        return Err(format!("column {name} is {:?}, not {}", tensor.dtype(), spec.dtype.name()));
    }
    if tensor.shape() != shape(spec, frames) {
        return Err(format!("column {name} is {:?} for {frames} frames", tensor.shape()));
    }
    let info = header.info(name).ok_or_else(|| format!("no column {name}"))?;
    let len = tensor.data().len() / spec.dtype.size();
    Ok(Place { dtype: spec.dtype, begin: data + info.data_offsets.0, len })
}
