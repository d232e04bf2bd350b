//! Verifies that the bytes of a corpus are those that were written.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use sconce_tensor::{Error, Result};
use serde::Serialize;

use crate::corpus::Corpus;
use crate::shard::Shard;
use crate::view::View;

/// Progress of a verification.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Checked {
    /// Games checked.
    pub done: usize,
    /// Games to check.
    pub total: usize,
    /// Bytes of the games checked.
    pub bytes: u64,
    /// Damaged games found.
    pub damaged: usize,
}

/// Result of a verification.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Verification {
    /// Games checked.
    pub games: usize,
    /// Bytes of the games checked.
    pub bytes: u64,
    /// Games without a recorded digest, checked only for finite values and valid labels.
    pub unrecorded: usize,
    /// Damaged games.
    pub damaged: Vec<Damage>,
    /// Seconds that the verification took.
    pub seconds: f64,
}

/// A game whose bytes differ from those that were written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// Path of the shard, relative to the corpus.
    pub file: String,
    /// Name of the source file.
    pub source: String,
    /// The error.
    pub reason: String,
}

/// Reads every byte of the games in a folder, and compares their digests with those recorded when they were
/// written. For games without a digest, checks that every value is finite and every label is valid for its
/// head.
pub fn verify(dir: &Path, progress: &dyn Fn(Checked), cancel: &AtomicBool) -> Result<Verification> {
    let start = Instant::now();
    let corpus = Corpus::open_unchecked(dir)?;
    let mut found = Verification { games: corpus.games().len(), ..Verification::default() };
    for (i, game) in corpus.games().iter().enumerate() {
        if cancel.load(Ordering::Relaxed) {
            return Err(Error::Cancelled);
        }
        match check(&corpus, i) {
            Ok(recorded) => found.unrecorded += usize::from(!recorded),
            Err(error) => {
                let (file, source) = (game.file.clone(), game.source.clone());
                found.damaged.push(Damage { file, source, reason: error.to_string() });
            }
        }
        found.bytes += game.bytes;
        let (total, bytes, damaged) = (found.games, found.bytes, found.damaged.len());
        progress(Checked { done: i + 1, total, bytes, damaged });
    }
    found.seconds = start.elapsed().as_secs_f64();
    Ok(found)
}

/// Checks a game. Returns whether the game has a recorded digest.
fn check(corpus: &Corpus, game: usize) -> Result<bool> {
    corpus.check_size(game)?;
    let shard = corpus.passing_shard(game)?;
    let recorded = match corpus.games().get(game) {
        Some(info) if shard.is_recorded() => &info.contents,
        _ => return readable(corpus, &shard, game).map(|()| false),
    };
    let found = shard.contents()?;
    match found == *recorded {
        true => Ok(true),
        false => Err(damaged(&shard, "its bytes are not those that were written")),
    }
}

fn damaged(shard: &Shard, reason: &str) -> Error {
    Error::corrupt(shard.path().display().to_string(), reason)
}

fn readable(corpus: &Corpus, shard: &Arc<Shard>, game: usize) -> Result<()> {
    let heads = corpus.schema().heads();
    for view in corpus.views_of(shard, game)? {
        let (mut raw, mut labels) = (vec![0.0; view.raw_width()], vec![0.0; heads.num_labels()]);
        // States at the end of a game may have no label.
        for t in 0..view.frames() {
            view.raw(t, &mut raw)?;
            if t < view.len(0) {
                view.labels(t, 0, false, &heads, &mut labels)?;
            }
            finite(&view, t, &raw)?;
        }
        view.verify()?;
    }
    Ok(())
}

fn finite(view: &View, t: usize, raw: &[f32]) -> Result<()> {
    match raw.iter().position(|value| !value.is_finite()) {
        None => Ok(()),
        Some(at) => {
            let what = format!("{}, frame {}, number {at}", view.info().source, t);
            Err(Error::NonFinite { what, value: raw.get(at).copied().unwrap_or_default().into() })
        }
    }
}
