//! Corpora of vectors and labels, built from what the caller has.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use sconce_tensor::digest::hex;
use sconce_tensor::{Error, Result};
use sha2::{Digest, Sha256};

use super::open::Corpus;
use super::writer::Writer;
use crate::column::Column;
use crate::game::GameInfo;
use crate::schema::Schema;

/// A game of vectors and labels, row by row.
#[derive(Debug, Clone, PartialEq)]
pub struct VectorGame {
    /// `[n, size]`.
    pub x: Vec<f32>,
    /// `[n, num_labels]`.
    pub labels: Vec<u16>,
}

impl Corpus {
    /// Makes the corpus of exactly these games. One of the same schema that lay there is replaced.
    pub fn build(schema: &Schema, games: &[VectorGame], dir: &Path) -> Result<Self> {
        Corpus::build_cancellable(schema, games, dir, &AtomicBool::new(false))
    }

    /// [`Corpus::build`] that ends between two games once `cancel` is set. The corpus that lay there
    /// is then the one that lies there still.
    pub fn build_cancellable(
        schema: &Schema,
        games: &[VectorGame],
        dir: &Path,
        cancel: &AtomicBool,
    ) -> Result<Self> {
        let Schema::Vector { size, heads } = schema else {
            return Err(Error::mismatch("schema", "vector", schema.name()));
        };
        schema.validate()?;
        let classes: Vec<usize> = heads
            .iter()
            .flat_map(|(_, kind)| std::iter::repeat_n(kind.classes(), kind.labels()))
            .collect();
        let go_on = || match cancel.load(Ordering::Relaxed) {
            true => Err(Error::Cancelled),
            false => Ok(()),
        };
        for (i, game) in games.iter().enumerate() {
            go_on()?;
            check_game(i, game, *size, &classes)?;
        }
        let writer = Writer::open(dir, schema)?;
        let mut entries = Vec::with_capacity(games.len());
        for (i, game) in games.iter().enumerate() {
            go_on()?;
            entries.push(write_game(&writer, i, game, *size)?);
        }
        writer.replace(entries)?;
        Corpus::open(dir)
    }
}

fn check_game(i: usize, game: &VectorGame, size: usize, classes: &[usize]) -> Result<()> {
    let rows = game.labels.len() / classes.len().max(1);
    if rows == 0 || game.labels.len() != rows * classes.len() || game.x.len() != rows * size {
        let expected = format!("n x {size} numbers and n x {} labels", classes.len());
        let got = format!("{} and {}", game.x.len(), game.labels.len());
        return Err(Error::mismatch(format!("game {i}"), expected, got));
    }
    if let Some((at, &value)) = game.x.iter().enumerate().find(|(_, v)| !v.is_finite()) {
        let what = format!("game {i}, frame {}, x[{}]", at / size, at % size);
        return Err(Error::NonFinite { what, value: value.into() });
    }
    let labels = game.labels.iter().zip(classes.iter().cycle());
    match labels.enumerate().find(|(_, (label, classes))| usize::from(**label) >= **classes) {
        Some((at, (&label, &n))) => {
            let (frame, label_at) = (at / classes.len(), at % classes.len());
            let field = format!("game {i}, frame {frame}, label {label_at}");
            Err(Error::out_of_range(field, label.into(), 0.0, n as f64 - 1.0))
        }
        None => Ok(()),
    }
}

fn write_game(writer: &Writer, i: usize, game: &VectorGame, size: usize) -> Result<GameInfo> {
    let columns = [Column::F32(game.x.clone()), Column::U16(game.labels.clone())];
    let mut hash = Sha256::new();
    // Two equal games are two games.
    hash.update((i as u64).to_le_bytes());
    columns.iter().for_each(|c| hash.update(c.bytes()));
    let info = GameInfo {
        digest: hex(&hash.finalize()),
        source: format!("game {i}"),
        frames: game.x.len() / size,
        ..GameInfo::default()
    };
    writer.add(info, &columns)
}
