//! Builds corpora from memory: vectors with labels, or rows of a declared game.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::ops::Range;
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
        Corpus::build_cancellable(schema, games, dir, false, &AtomicBool::new(false))
    }

    /// Builds a corpus as [`Corpus::build`] does, but stops between two games once `cancel` is set. A
    /// cancelled build keeps an earlier corpus in `dir`. The games are compressed if `compress` is set.
    pub fn build_cancellable(
        schema: &Schema,
        games: &[VectorGame],
        dir: &Path,
        compress: bool,
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
        let mut builder = Builder::new(schema, dir)?.compress(compress);
        for (i, game) in games.iter().enumerate() {
            go_on(cancel)?;
            let labels = Column::collect(dtype, game.labels.iter().copied());
            let columns = [Column::F32(game.x.clone()), labels];
            let (source, frames) = (format!("game {i}"), game.x.len() / size);
            builder.add(source, frames, &columns, GameInfo::default())?;
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

/// Builds a corpus of exactly the games added to it, in order, or adds games to a corpus. [`finish`](Self::finish)
/// replaces or extends a corpus of the same schema in the folder; a builder dropped without `finish` leaves the folder
/// unchanged.
pub struct Builder {
    writer: Writer,
    schema: Schema,
    dir: PathBuf,
    /// Shard files of the earlier corpus in the folder.
    before: HashSet<String>,
    games: Vec<GameInfo>,
    /// The games of the earlier corpus if they stay.
    kept: Option<Vec<GameInfo>>,
    /// The frame delay of each kept and added game, by its digest.
    known: HashMap<String, Option<u16>>,
    /// Frame delay of the play of the added games.
    frame_delay: Option<u16>,
    finished: bool,
}

impl Builder {
    /// Opens `dir` for writing, and takes its lock.
    pub fn new(schema: &Schema, dir: &Path) -> Result<Self> {
        schema.validate()?;
        let writer = Writer::open(dir, schema)?;
        let before = writer.take_stock()?.games.into_iter().map(|game| game.file).collect();
        let (schema, dir) = (schema.clone(), dir.to_path_buf());
        let (games, kept, known, frame_delay) = (vec![], None, HashMap::new(), None);
        Ok(Builder {
            writer,
            schema,
            dir,
            before,
            games,
            kept,
            known,
            frame_delay,
            finished: false,
        })
    }

    /// Opens the corpus in `dir`, or a new one, to add games to it, which were played with this delay. Games that an
    /// interrupted call has written are taken over.
    ///
    /// # Errors
    /// `Corrupt` or `NotFound` if a game of the corpus cannot be read, because the new manifest would lose it.
    pub fn append(schema: &Schema, dir: &Path, frame_delay: Option<u16>) -> Result<Self> {
        schema.validate()?;
        let writer = Writer::open(dir, schema)?;
        let kept = writer.take_whole_stock()?;
        let before = kept.iter().map(|game| game.file.clone()).collect();
        let known = kept.iter().map(|game| (game.digest.clone(), game.frame_delay)).collect();
        let (schema, dir, games) = (schema.clone(), dir.to_path_buf(), vec![]);
        let kept = Some(kept);
        Ok(Builder {
            writer,
            schema,
            dir,
            before,
            games,
            kept,
            known,
            frame_delay,
            finished: false,
        })
    }

    /// Compresses the games that are added from now on, or not.
    pub fn compress(mut self, compress: bool) -> Self {
        self.writer.compress = compress;
        self
    }

    /// Adds one played game of a declared game. A row holds the frame, the input and the extra columns, in the
    /// order of the declaration. Returns false for a game that an extended corpus has already.
    ///
    /// # Errors
    /// `Mismatch` for a known game with another frame delay, because the corpus would keep the old one.
    ///
    /// # Shapes
    /// `rows [n, fields + values of an input + extra columns]`; of relabelled frames
    /// `[n, columns of a raw row + values of an input + 1]`.
    pub fn add_rows(&mut self, rows: &[f32]) -> Result<bool> {
        let number = self.games.len() + self.kept.as_ref().map_or(0, Vec::len);
        let source = format!("game {number}");
        let (frames, columns) = row_columns(&self.schema, &source, rows)?;
        self.add(source, frames, &columns, described(&self.schema, rows))
    }

    fn add(
        &mut self,
        source: String,
        frames: usize,
        columns: &[Column],
        described: GameInfo,
    ) -> Result<bool> {
        let mut hash = Sha256::new();
        // The index gives two equal games of a new corpus different digests.
        if self.kept.is_none() {
            hash.update((self.games.len() as u64).to_le_bytes());
        }
        columns.iter().for_each(|c| hash.update(c.bytes()));
        let digest = hex(&hash.finalize());
        if let Some(delay) = self.known.get(&digest) {
            let shown = |delay: Option<u16>| delay.map_or("none".into(), |delay| delay.to_string());
            return match *delay == self.frame_delay {
                true => Ok(false),
                false => Err(Error::mismatch(
                    format!("{source}, frame_delay of a known game"),
                    shown(*delay),
                    shown(self.frame_delay),
                )),
            };
        }
        self.known.insert(digest.clone(), self.frame_delay);
        let game = GameInfo { digest, source, frames, frame_delay: self.frame_delay, ..described };
        self.games.push(self.writer.add(game, columns)?);
        Ok(true)
    }

    /// Writes the manifest, so that the corpus consists of the added games, and of the earlier ones if they stay.
    pub fn finish(mut self) -> Result<Corpus> {
        match &self.kept {
            Some(kept) => self.writer.write_manifest(&[&kept[..], &self.games].concat())?,
            None => self.writer.replace(self.games.clone())?,
        }
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
        let unknown = schema.unknown(row);
        check_row(&numbers, row, unknown, |name| format!("{source}, frame {frame}, {name}"))?;
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

/// Checks the values of a row, those of an unknown input only for being finite. The error names the first invalid value.
fn check_row(
    numbers: &[(String, FieldKind)],
    row: &[f32],
    unknown: Range<usize>,
    name: impl Fn(&str) -> String,
) -> Result<()> {
    numbers.iter().zip(row).enumerate().try_for_each(|(i, ((of, kind), &value))| {
        let kind = if unknown.contains(&i) { &FieldKind::Number } else { kind };
        kind.check(value, || name(of))
    })
}

/// The stage and the characters of a game of Melee, from its first frame. The own player comes first.
fn described(schema: &Schema, rows: &[f32]) -> GameInfo {
    let game = schema.game();
    let is_melee = schema.is_relabelled() && game.name() == "melee";
    let number = |name: &str| game.column(name).and_then(|at| rows.get(at));
    let ids = [number("own.character"), number("opponent.character"), number("stage")];
    match ids {
        [Some(own), Some(opponent), Some(stage)] if is_melee => {
            let characters = vec![*own as u8, *opponent as u8];
            let start_characters = characters.clone();
            GameInfo { stage: *stage as u16, characters, start_characters, ..GameInfo::default() }
        }
        _ => GameInfo::default(),
    }
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
