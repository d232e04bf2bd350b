//! Reads corpora of ExPhil in place: frames that are already embedded, and their labels.
//!
//! | file | contents |
//! |---|---|
//! | `embeddings.bin` | `EMBD`, u32 version 1, u64 frames, u64 width, u32 dtype (1 f32, 2 f16, 3 bf16), u32; rows |
//! | `labels.bin` | `LBLS`, u32 version 1, u64 frames, u32 width 6, u32; 6 bytes a frame: a mask of the buttons, the classes of main x and y, C x and y, shoulder |
//! | `manifest.jsonl` | a line for each player of a game: `path`, `start`, `frames`, `port` |
//!
//! Values are little-endian. Every count is checked against the file sizes before it is used. A file whose
//! size differs from the size in its header is refused.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use sconce_nn::spec::{Heads, HeadsKind};
use sconce_tensor::digest::sha256;
use sconce_tensor::mapped::{self, Mapped};
use sconce_tensor::{Error, Result, fs};
use serde::Deserialize;

use crate::game::{GameInfo, MAX_GAMES};
use crate::rows::LABEL_BYTES;
use crate::schema::Schema;
use crate::shard::{Extent, Shard, Stored};

const EMBEDDINGS: &str = "embeddings.bin";
const LABELS: &str = "labels.bin";
const MANIFEST: &str = "manifest.jsonl";
const VERSION: u32 = 1;
/// Maximum bytes of the manifest.
const MAX_MANIFEST: u64 = 1 << 28;
/// Bytes of the headers.
const EMBEDDINGS_HEADER: usize = 32;
const LABELS_HEADER: usize = 24;

/// Whether the folder holds a corpus of ExPhil.
pub(crate) fn is_there(dir: &Path) -> bool {
    dir.join(EMBEDDINGS).exists()
}

/// A line of the manifest.
#[derive(Deserialize)]
struct Line {
    path: String,
    start: usize,
    frames: usize,
    port: Option<u8>,
}

/// The schema of the games, and their shards.
pub(crate) fn open(dir: &Path) -> Result<(Schema, Vec<Shard>)> {
    let rows = FrameFiles::open(dir)?;
    let schema = Schema::vector(rows.width, &Heads::controller(HeadsKind::Independent));
    schema.validate()?;
    let lines = lines(&dir.join(MANIFEST), rows.frames)?;
    let files = [rows.embeddings.clone(), rows.labels.clone()];
    let shards = mapped::guarded(&files, || lines.iter().map(|line| rows.shard(line)).collect());
    files.iter().try_for_each(|file| file.verify())?;
    Ok((schema, shards))
}

/// The files with the frames and labels of all games.
struct FrameFiles {
    embeddings: Arc<Mapped>,
    labels: Arc<Mapped>,
    frames: usize,
    width: usize,
    stored: Stored,
}

impl FrameFiles {
    fn open(dir: &Path) -> Result<Self> {
        let open = |name| Mapped::open(&dir.join(name)).map(Arc::new);
        let files = [open(EMBEDDINGS)?, open(LABELS)?];
        let rows = mapped::guarded(&files, || FrameFiles::read(&files));
        // If a file was truncated meanwhile, `verify` returns an error that says so.
        files.iter().try_for_each(|file| file.verify())?;
        rows
    }

    fn read([embeddings, labels]: &[Arc<Mapped>; 2]) -> Result<Self> {
        let header = Header::read(embeddings, b"EMBD", EMBEDDINGS_HEADER)?;
        let (frames, width) = (header.long(8)?, header.long(16)?);
        let stored = match header.word(24)? {
            1 => Stored::F32,
            2 => Stored::F16,
            3 => Stored::Bf16,
            other => return Err(header.corrupt(format!("dtype {other}, not 1, 2 or 3"))),
        };
        header.holds(frames, width.checked_mul(stored.size()))?;

        let header = Header::read(labels, b"LBLS", LABELS_HEADER)?;
        let width_of_labels = header.word(16)?;
        if width_of_labels as usize != LABEL_BYTES {
            let reason = format!("{width_of_labels} bytes a frame, not {LABEL_BYTES}");
            return Err(header.corrupt(reason));
        }
        let count = header.long(8)?;
        if count != frames {
            let reason = format!("{count} frames beside {frames} in {EMBEDDINGS}");
            return Err(header.corrupt(reason));
        }
        header.holds(count, Some(LABEL_BYTES))?;
        let (embeddings, labels) = (embeddings.clone(), labels.clone());
        Ok(FrameFiles { embeddings, labels, frames, width, stored })
    }

    /// The shard of one game: a range of rows, which is already checked to lie inside both files.
    fn shard(&self, line: &Line) -> Shard {
        let row = self.width * self.stored.size();
        let x = Extent {
            file: self.embeddings.clone(),
            stored: self.stored,
            begin: EMBEDDINGS_HEADER + line.start * row,
            len: line.frames * self.width,
        };
        let labels = Extent {
            file: self.labels.clone(),
            stored: Stored::U8,
            begin: LABELS_HEADER + line.start * LABEL_BYTES,
            len: line.frames * LABEL_BYTES,
        };
        let info = GameInfo {
            file: EMBEDDINGS.into(),
            // Only the path is hashed. Both players of a game then fall on the same side of a split, and the
            // side does not change when games are added.
            digest: sha256([&line.path]),
            source: line.path.clone(),
            ports: line.port.into_iter().collect(),
            frames: line.frames,
            bytes: (line.frames * (row + LABEL_BYTES)) as u64,
            contents: contents(&x, &labels, row),
            ..GameInfo::default()
        };
        Shard::of_columns(info, vec![x, labels])
    }
}

/// The digest of a game's labels and of its first, middle and last row. This digest takes a hundredth of the
/// time of hashing all bytes, and detects most changes of the contents.
fn contents(x: &Extent, labels: &Extent, row: usize) -> String {
    let rows: Vec<&[u8]> = x.bytes().chunks_exact(row.max(1)).collect();
    let some = [0, rows.len() / 2, rows.len().saturating_sub(1)];
    let some = some.into_iter().filter_map(|i| rows.get(i).copied());
    sha256([labels.bytes()].into_iter().chain(some))
}

/// The header of a file.
struct Header<'a> {
    file: &'a Mapped,
    size: usize,
}

impl<'a> Header<'a> {
    fn read(file: &'a Mapped, magic: &[u8; 4], size: usize) -> Result<Self> {
        let header = Header { file, size };
        if file.bytes().len() < size {
            let reason = format!("{} bytes, less than its header of {size}", file.bytes().len());
            return Err(header.corrupt(reason));
        }
        if file.bytes().get(..4) != Some(magic) {
            let name = String::from_utf8_lossy(magic).into_owned();
            return Err(header.corrupt(format!("does not begin with {name}")));
        }
        match header.word(4)? {
            VERSION => Ok(header),
            other => {
                let what = file.path().display().to_string();
                Err(Error::mismatch(what, format!("version {VERSION}"), other))
            }
        }
    }

    fn corrupt(&self, reason: String) -> Error {
        Error::corrupt(self.file.path().display().to_string(), reason)
    }

    fn word(&self, at: usize) -> Result<u32> {
        self.bytes(at).map(u32::from_le_bytes)
    }

    /// Reads a count, which must fit in `usize`.
    fn long(&self, at: usize) -> Result<usize> {
        let count = u64::from_le_bytes(self.bytes(at)?);
        usize::try_from(count).map_err(|_| self.corrupt(format!("a count of {count}")))
    }

    fn bytes<const N: usize>(&self, at: usize) -> Result<[u8; N]> {
        let bytes = self.file.bytes().get(at..at + N).and_then(|bytes| bytes.try_into().ok());
        bytes.ok_or_else(|| self.corrupt(format!("no {N} bytes at {at}")))
    }

    /// Checks that exactly `rows` rows follow the header.
    fn holds(&self, rows: usize, row: Option<usize>) -> Result<()> {
        let bytes = self.file.bytes().len();
        let expected = row.and_then(|row| row.checked_mul(rows)?.checked_add(self.size));
        match expected == Some(bytes) {
            true => Ok(()),
            false => {
                let row = row.map_or("more than any".into(), |row| row.to_string());
                let reason = format!("{bytes} bytes for {rows} frames of {row} bytes each");
                Err(self.corrupt(reason))
            }
        }
    }
}

/// The lines of the manifest. Each range lies inside the rows, and no two overlap.
fn lines(path: &Path, frames: usize) -> Result<Vec<Line>> {
    let text = fs::read(path, MAX_MANIFEST)?;
    let corrupt = |reason: String| Error::corrupt(path.display().to_string(), reason);
    let text = String::from_utf8(text).map_err(|e| corrupt(e.to_string()))?;
    let (mut lines, mut ranges) = (vec![], vec![]);
    for (i, text) in text.lines().enumerate().filter(|(_, text)| !text.trim().is_empty()) {
        let line: Line =
            serde_json::from_str(text).map_err(|e| corrupt(format!("line {}: {e}", i + 1)))?;
        match line.start.checked_add(line.frames).filter(|end| *end <= frames) {
            Some(end) => ranges.push((line.start..end, i + 1)),
            None => {
                let Line { start, frames: count, .. } = line;
                let reason = format!("line {}: {count} frames from {start} on of {frames}", i + 1);
                return Err(corrupt(reason));
            }
        }
        lines.push(line);
        if lines.len() > MAX_GAMES {
            return Err(corrupt(format!("more than {MAX_GAMES} games")));
        }
    }
    match overlap(ranges) {
        Some((a, b)) => Err(corrupt(format!("lines {a} and {b} share frames"))),
        None => Ok(lines),
    }
}

/// Returns the first two lines whose ranges overlap.
fn overlap(mut ranges: Vec<(Range<usize>, usize)>) -> Option<(usize, usize)> {
    ranges.retain(|(range, _)| !range.is_empty());
    ranges.sort_by_key(|(range, _)| range.start);
    let pair = ranges.windows(2).find(|pair| pair[1].0.start < pair[0].0.end)?;
    Some((pair[0].1, pair[1].1))
}
