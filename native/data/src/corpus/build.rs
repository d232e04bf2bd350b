//! Builds corpora from memory: vectors with labels, or rows of a declared game.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use sconce_game::FieldKind;
use sconce_nn::spec::HeadKind;
use sconce_tensor::digest::hex;
use sconce_tensor::{Error, Result};
use sha2::{Digest, Sha256};

use super::open::Corpus;
use super::writer::Writer;
use crate::column::Column;
use crate::game::GameInfo;
use crate::schema::{Beside, Schema};

/// A game of vectors and labels, row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct VectorGame {
    /// Frames, `[n, size]`.
    pub x: Vec<f32>,
    /// Labels, `[n, num_labels]`.
    pub labels: Vec<f32>,
}

impl Corpus {
    /// Builds a corpus of exactly these games. Replaces an earlier corpus of the same schema in `dir`.
    pub fn build(schema: &Schema, games: &[VectorGame], dir: &Path) -> Result<Self> {
        Corpus::build_cancellable(schema, games, dir, &AtomicBool::new(false))
    }

    /// Builds a corpus as [`Corpus::build`] does, but stops between two games once `cancel` is set. A
    /// cancelled build keeps an earlier corpus in `dir`.
    pub fn build_cancellable(
        schema: &Schema,
        games: &[VectorGame],
        dir: &Path,
        cancel: &AtomicBool,
    ) -> Result<Self> {
        let Some(size) = schema.vector_size() else {
            return Err(Error::mismatch("schema", "vector", schema.name()));
        };
        schema.validate()?;
        let heads = schema.heads();
        let kinds = heads.parts.iter().map(|head| head.kind);
        let labels: Vec<HeadKind> =
            kinds.flat_map(|kind| std::iter::repeat_n(kind, kind.labels())).collect();
        let dtype = schema.label_dtype();
        for (i, game) in games.iter().enumerate() {
            go_on(cancel)?;
            check_vectors(i, game, size, &labels)?;
        }
        let mut builder = Builder::new(schema, dir)?;
        for (i, game) in games.iter().enumerate() {
            go_on(cancel)?;
            let labels = Column::collect(dtype, game.labels.iter().copied());
            let columns = [Column::F32(game.x.clone()), labels];
            builder.add(format!("game {i}"), game.x.len() / size, &columns)?;
        }
        builder.finish()
    }
}

fn go_on(cancel: &AtomicBool) -> Result<()> {
    match cancel.load(Ordering::Relaxed) {
        true => Err(Error::Cancelled),
        false => Ok(()),
    }
}

/// Builds a corpus of exactly the games added to it, in order. [`finish`](Self::finish) replaces a corpus
/// of the same schema in the folder; a builder dropped without `finish` leaves the folder unchanged.
pub struct Builder {
    writer: Writer,
    schema: Schema,
    dir: PathBuf,
    /// Shard files of the earlier corpus in the folder.
    before: HashSet<String>,
    games: Vec<GameInfo>,
    finished: bool,
}

impl Builder {
    /// Opens `dir` for writing, and takes its lock.
    pub fn new(schema: &Schema, dir: &Path) -> Result<Self> {
        schema.validate()?;
        let writer = Writer::open(dir, schema)?;
        let before = writer.take_stock()?.games.into_iter().map(|game| game.file).collect();
        let (schema, dir) = (schema.clone(), dir.to_path_buf());
        Ok(Builder { writer, schema, dir, before, games: vec![], finished: false })
    }

    /// Adds one played game of a declared game. A row holds the frame, the input and the extra columns, in the
    /// order of the declaration.
    ///
    /// # Shapes
    /// `rows [n, fields + values of an input + extra columns]`.
    pub fn add_rows(&mut self, rows: &[f32]) -> Result<()> {
        let source = format!("game {}", self.games.len());
        let (frames, columns) = row_columns(&self.schema, &source, rows)?;
        self.add(source, frames, &columns)
    }

    fn add(&mut self, source: String, frames: usize, columns: &[Column]) -> Result<()> {
        let mut hash = Sha256::new();
        // The index gives two equal games different digests.
        hash.update((self.games.len() as u64).to_le_bytes());
        columns.iter().for_each(|c| hash.update(c.bytes()));
        let digest = hex(&hash.finalize());
        let game = GameInfo { digest, source, frames, ..GameInfo::default() };
        self.games.push(self.writer.add(game, columns)?);
        Ok(())
    }

    /// Writes the manifest, so that the corpus consists of the added games.
    pub fn finish(mut self) -> Result<Corpus> {
        self.writer.replace(self.games.clone())?;
        self.finished = true;
        Corpus::open(&self.dir)
    }
}

impl Drop for Builder {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        // A file that cannot be removed is not an error.
        let new = self.games.iter().filter(|game| !self.before.contains(&game.file));
        new.for_each(|game| drop(fs::remove_file(self.dir.join(&game.file))));
        self.writer.abandon();
    }
}

fn check_vectors(i: usize, game: &VectorGame, size: usize, kinds: &[HeadKind]) -> Result<()> {
    let rows = game.labels.len() / kinds.len().max(1);
    if rows == 0 || game.labels.len() != rows * kinds.len() || game.x.len() != rows * size {
        let expected = format!("n x {size} numbers and n x {} labels", kinds.len());
        let got = format!("{} and {}", game.x.len(), game.labels.len());
        return Err(Error::mismatch(format!("game {i}"), expected, got));
    }
    if let Some((at, &value)) = game.x.iter().enumerate().find(|(_, v)| !v.is_finite()) {
        let what = format!("game {i}, frame {}, x[{}]", at / size, at % size);
        return Err(Error::NonFinite { what, value: value.into() });
    }
    for (at, (&label, kind)) in game.labels.iter().zip(kinds.iter().cycle()).enumerate() {
        let (frame, number) = (at / kinds.len(), at % kinds.len());
        kind.check(label, || format!("game {i}, frame {frame}, label {number}"))?;
    }
    Ok(())
}

/// Splits a game's rows into columns. Every value must be valid for its field.
pub(crate) fn row_columns(
    schema: &Schema,
    source: &str,
    rows: &[f32],
) -> Result<(usize, Vec<Column>)> {
    let numbers = schema.numbers();
    let width = numbers.len().max(1);
    let frames = rows.len() / width;
    if frames == 0 || rows.len() != frames * width {
        let expected = format!("n x {width} numbers, at least one frame");
        return Err(Error::mismatch(source, expected, rows.len()));
    }
    for (frame, row) in rows.chunks_exact(width).enumerate() {
        check_row(&numbers, row, |name| format!("{source}, frame {frame}, {name}"))?;
    }
    check_end(schema, source, rows, width)?;
    let mut at = 0;
    let of = |spec: &crate::column::ColumnSpec| {
        let own = at..at + spec.width.max(1);
        at = own.end;
        let values = rows.chunks_exact(width).flat_map(|row| row[own.clone()].iter().copied());
        Column::collect(spec.dtype, values)
    };
    Ok((frames, schema.columns().iter().map(of).collect()))
}

/// Checks the values of a row. The error names the first invalid value.
fn check_row(
    numbers: &[(String, FieldKind)],
    row: &[f32],
    name: impl Fn(&str) -> String,
) -> Result<()> {
    let each = numbers.iter().zip(row);
    each.clone().try_for_each(|((of, kind), &value)| kind.check(value, || name(of)))
}

/// Checks that no row before the last marks the end of the game.
fn check_end(schema: &Schema, source: &str, rows: &[f32], width: usize) -> Result<()> {
    let beside = schema.beside();
    let Some(end) = beside.iter().position(|beside| *beside == Beside::End) else { return Ok(()) };
    let at = width - beside.len() + end;
    let frames = rows.len() / width;
    let early = rows.chunks_exact(width).take(frames - 1).position(|row| row[at] != 0.0);
    match early {
        Some(frame) => {
            let (expected, got) =
                ("an end in the last frame alone", format!("one in frame {frame}"));
            Err(Error::mismatch(format!("{source} of {frames} frames"), expected, got))
        }
        None => Ok(()),
    }
}
