//! Games on disk: a manifest and one shard a game.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use sconce_core::digest::hex;
use sconce_core::fs::{clear_partials, lock, read, write_atomic};
use sconce_core::rng::philox;
use sconce_core::{Error, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::exphil;
use crate::journal::JOURNAL;
use crate::schema::{
    Column, ColumnSpec, GameInfo, MAX_COLUMNS, OtherIds, Schema, VERSION, at_most,
};
use crate::shard::{self, Shard};
use crate::view::View;

const MANIFEST: &str = "manifest.json";
const LOCK: &str = "lock";
const FORMAT: &str = "sconce corpus";
/// Bytes of a manifest: a thousand for each of [`MAX_GAMES`].
const MAX_MANIFEST: u64 = 1 << 29;
/// Games in a corpus.
pub(crate) const MAX_GAMES: usize = 1 << 19;

/// The manifest as it is on disk.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Manifest {
    format: String,
    version: u32,
    schema: Schema,
    #[serde(deserialize_with = "at_most::<_, _, MAX_COLUMNS>")]
    columns: Vec<ColumnSpec>,
    #[serde(deserialize_with = "at_most::<_, _, MAX_GAMES>")]
    games: Vec<GameInfo>,
    other_ids: OtherIds,
}

impl Manifest {
    fn new(schema: &Schema, mut games: Vec<GameInfo>) -> Self {
        // An order of its own, so that the order of import changes nothing.
        games.sort_by(|a, b| a.digest.cmp(&b.digest));
        let mut other_ids = OtherIds::default();
        games.iter().for_each(|g| other_ids.add(&g.other_ids));
        let (schema, columns) = (schema.clone(), schema.columns());
        Manifest { format: FORMAT.into(), version: VERSION, schema, columns, games, other_ids }
    }

    fn read(dir: &Path) -> Result<Self> {
        let path = dir.join(MANIFEST);
        let what = || path.display().to_string();
        let bytes = read(&path, MAX_MANIFEST)?;
        #[derive(Deserialize)]
        struct Head {
            format: String,
            version: u32,
        }
        let damaged = |e| {
            let again = "import into this folder, which writes it anew from the games that are there, \
                         or build the corpus again";
            Error::corrupt(what(), format!("cut short or damaged ({e}): {again}"))
        };
        let head: Head = serde_json::from_slice(&bytes).map_err(damaged)?;
        if head.format != FORMAT {
            return Err(Error::mismatch(what(), FORMAT, head.format));
        }
        shard::check_version(what(), head.version)?;
        let manifest: Manifest = serde_json::from_slice(&bytes).map_err(damaged)?;
        manifest.schema.validate()?;
        if manifest.columns != manifest.schema.columns() {
            return Err(Error::mismatch(what(), "the columns of this version", "others"));
        }
        for game in &manifest.games {
            shard::check_digest(what(), &game.digest)?;
            if game.file != shard::name(&game.digest) {
                return Err(Error::corrupt(what(), format!("shard {:?}", game.file)));
            }
            shard::check_frames(what(), game)?;
        }
        Ok(manifest)
    }

    /// What could not be read again does not take the place of what can.
    fn write(&self, dir: &Path) -> Result<()> {
        let path = dir.join(MANIFEST);
        let within = |what: &str, n: usize, most: f64| match n as f64 <= most {
            true => Ok(()),
            false => Err(Error::out_of_range(what, n as f64, 0.0, most)),
        };
        within("games of a corpus", self.games.len(), MAX_GAMES as f64)?;
        let bytes =
            serde_json::to_vec(self).map_err(|e| Error::corrupt(path.display().to_string(), e))?;
        within("bytes of a manifest", bytes.len(), MAX_MANIFEST as f64)?;
        write_atomic(&path, |file| file.write_all(&bytes))
    }
}

/// The games of a corpus, open for reading. Shards are mapped when they are first asked for.
#[derive(Debug)]
pub struct Corpus {
    dir: PathBuf,
    schema: Schema,
    games: Vec<GameInfo>,
    other_ids: OtherIds,
    shards: Vec<OnceLock<Arc<Shard>>>,
}

/// A corpus in a few numbers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Info {
    pub schema: Schema,
    pub games: usize,
    pub frames: u64,
    /// A player's view of a game each.
    pub views: usize,
    /// Frames times views a game.
    pub view_frames: u64,
    pub bytes: u64,
    /// Players by internal character id, stages and versions over games; the most frequent first.
    pub characters: Vec<Count>,
    pub stages: Vec<Count>,
    pub versions: Vec<Count>,
    pub other_ids: OtherIds,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Count {
    pub value: String,
    pub count: usize,
}

/// Which games are kept for validation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Holdout {
    /// About this share of the games; at least one, and not all, where there are two or more. One that
    /// is alone is trained on, unless the share is 1. Games of one digest, as the players of a replay
    /// of ExPhil's are, count as one.
    Fraction(f64),
    /// These, by their place in [`Corpus::games`].
    Games(Vec<usize>),
}

/// A game of vectors and labels, row by row.
#[derive(Debug, Clone, PartialEq)]
pub struct VectorGame {
    /// `[n, size]`.
    pub x: Vec<f32>,
    /// `[n, num_labels]`.
    pub labels: Vec<u16>,
}

impl Corpus {
    /// Whether a folder holds a corpus, whole or not.
    pub fn is_at(dir: &Path) -> bool {
        dir.join(MANIFEST).exists() || exphil::is_there(dir)
    }

    /// One of ours, or of ExPhil's, which can only be read. Every shard has to be there, as long as it
    /// was written; its header is checked when it is first used, its bytes by [`crate::verify`].
    pub fn open(dir: &Path) -> Result<Self> {
        let corpus = Corpus::open_unchecked(dir)?;
        (0..corpus.games.len()).try_for_each(|game| corpus.check_size(game))?;
        Ok(corpus)
    }

    pub(crate) fn open_unchecked(dir: &Path) -> Result<Self> {
        if !dir.join(MANIFEST).exists() && exphil::is_there(dir) {
            return Corpus::open_exphil(dir);
        }
        let Manifest { schema, games, other_ids, .. } = Manifest::read(dir)?;
        let shards = games.iter().map(|_| OnceLock::new()).collect();
        Ok(Corpus { dir: dir.to_path_buf(), schema, games, other_ids, shards })
    }

    fn open_exphil(dir: &Path) -> Result<Self> {
        let (schema, shards) = exphil::open(dir)?;
        let games = shards.iter().map(|shard| shard.game.clone()).collect();
        let shards = shards.into_iter().map(|shard| OnceLock::from(Arc::new(shard))).collect();
        let other_ids = OtherIds::default();
        Ok(Corpus { dir: dir.to_path_buf(), schema, games, other_ids, shards })
    }

    /// Whether the shard of a game is there and has all of its bytes.
    pub(crate) fn check_size(&self, game: usize) -> Result<()> {
        let Some(info) = self.games.get(game).filter(|_| self.is_ours()) else { return Ok(()) };
        let path = self.dir.join(&info.file);
        let shown = path.display();
        let again = format!("import or build {} again", info.source);
        match fs::metadata(&path) {
            Ok(found) if found.len() == info.bytes => Ok(()),
            Ok(found) => {
                let (bytes, found) = (info.bytes, found.len());
                let reason = format!("has {found} bytes, and was written with {bytes}: {again}");
                Err(Error::corrupt(shown.to_string(), reason))
            }
            Err(e) if e.kind() == ErrorKind::NotFound => {
                Err(Error::not_found(format!("{shown} ({again})")))
            }
            Err(e) => Err(Error::io(&path)(e)),
        }
    }

    /// Whether there is a shard for each game.
    fn is_ours(&self) -> bool {
        self.dir.join(MANIFEST).exists()
    }

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

    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What is known of the games, in the order that every index here means.
    pub fn games(&self) -> &[GameInfo] {
        &self.games
    }

    pub fn info(&self) -> Info {
        let frames = self.games.iter().map(|g| g.frames as u64).sum();
        Info {
            schema: self.schema.clone(),
            games: self.games.len(),
            frames,
            views: self.games.len() * self.schema.views(),
            view_frames: frames * self.schema.views() as u64,
            bytes: self.games.iter().fold(0, |sum, g| g.bytes.saturating_add(sum)),
            characters: histogram(self.games.iter().flat_map(|g| g.characters.iter().copied())),
            stages: histogram(self.games.iter().filter(|g| g.stage > 0).map(|g| g.stage)),
            versions: histogram(self.games.iter().map(|g| &g.version).filter(|v| !v.is_empty())),
            other_ids: self.other_ids,
        }
    }

    /// The shard of a game, mapped and checked on first use.
    pub fn shard(&self, game: usize) -> Result<Arc<Shard>> {
        let (Some(info), Some(cell)) = (self.games.get(game), self.shards.get(game)) else {
            let last = self.games.len().saturating_sub(1) as f64;
            return Err(Error::out_of_range("game", game as f64, 0.0, last));
        };
        if let Some(shard) = cell.get() {
            return Ok(shard.clone());
        }
        let shard = self.open_shard(info)?;
        // Another thread may have been first; both map the same file.
        Ok(cell.get_or_init(|| shard).clone())
    }

    /// One that stays mapped only as long as the caller has it, unless it was mapped before.
    pub(crate) fn passing_shard(&self, game: usize) -> Result<Arc<Shard>> {
        match (self.games.get(game), self.shards.get(game).and_then(OnceLock::get)) {
            (Some(info), None) => self.open_shard(info),
            _ => self.shard(game),
        }
    }

    fn open_shard(&self, info: &GameInfo) -> Result<Arc<Shard>> {
        let path = self.dir.join(&info.file);
        let shard = Shard::open(&path, &self.schema)?;
        // Its own entry was written before its size was known.
        if (GameInfo { bytes: info.bytes, ..shard.game.clone() }) != *info {
            let reason = format!(
                "its header is not what the manifest says of the game: import or build {} again",
                info.source
            );
            return Err(Error::corrupt(path.display().to_string(), reason));
        }
        Ok(Arc::new(shard))
    }

    /// Every view of these games, in order.
    pub fn views(&self, games: &[usize]) -> Result<Vec<View>> {
        let mut views = Vec::with_capacity(games.len() * self.schema.views());
        for &game in games {
            views.extend(self.views_of(&self.shard(game)?, game)?);
        }
        Ok(views)
    }

    pub(crate) fn views_of(&self, shard: &Arc<Shard>, game: usize) -> Result<Vec<View>> {
        let view = |player| View::new(shard.clone(), &self.schema, game, player);
        (0..self.schema.views()).map(view).collect()
    }

    /// Games to train on and games to measure on. Which side a game falls on depends on its digest
    /// and the seed alone, so that adding games moves no other: with one exception. Where the draw
    /// leaves a side empty it is given the game that came nearest; that one may go back to the other
    /// side when more games come.
    pub fn split(&self, holdout: &Holdout, seed: u64) -> Result<(Vec<usize>, Vec<usize>)> {
        let held: HashSet<usize> = match holdout {
            Holdout::Games(games) => {
                let last = self.games.len().saturating_sub(1) as f64;
                match games.iter().find(|&&g| g >= self.games.len()) {
                    Some(&g) => return Err(Error::out_of_range("game", g as f64, 0.0, last)),
                    None => games.iter().copied().collect(),
                }
            }
            Holdout::Fraction(f) if !(0.0..=1.0).contains(f) => {
                return Err(Error::out_of_range("validation fraction", *f, 0.0, 1.0));
            }
            Holdout::Fraction(fraction) => self.hold_out(*fraction, seed),
        };
        Ok((0..self.games.len()).partition(|game| !held.contains(game)))
    }

    fn hold_out(&self, fraction: f64, seed: u64) -> HashSet<usize> {
        let lots: Vec<u64> = self.games.iter().map(|game| lot(&game.digest, seed)).collect();
        // Games of one digest have one lot and stay together: sides are counted in lots.
        let order = BTreeSet::from_iter(lots.iter().copied());
        let below = |&&lot: &&u64| (lot as f64) < fraction * u64::MAX as f64;
        let mut count = order.iter().filter(below).count();
        if fraction > 0.0 && fraction < 1.0 {
            let most = order.len().saturating_sub(1);
            count = count.clamp(most.min(1), most);
        }
        let held: HashSet<u64> = order.into_iter().take(count).collect();
        (0..lots.len()).filter(|&game| lots.get(game).is_some_and(|l| held.contains(l))).collect()
    }
}

/// A game's draw in the split: uniform over 64 bits.
fn lot(digest: &str, seed: u64) -> u64 {
    let hash = Sha256::digest(digest.as_bytes());
    let word = |i: usize| {
        let at = |k: usize| u32::from(hash.get(4 * i + k).copied().unwrap_or(0));
        at(0) | at(1) << 8 | at(2) << 16 | at(3) << 24
    };
    let words = philox([word(0), word(1), word(2), word(3)], [seed as u32, (seed >> 32) as u32]);
    u64::from(words[0]) << 32 | u64::from(words[1])
}

fn histogram<T: ToString>(values: impl Iterator<Item = T>) -> Vec<Count> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    values.for_each(|v| *counts.entry(v.to_string()).or_default() += 1);
    let mut counts: Vec<_> =
        counts.into_iter().map(|(value, count)| Count { value, count }).collect();
    counts.sort_by_key(|c| std::cmp::Reverse(c.count));
    counts
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

/// The one writer of a corpus. Dropping it frees the corpus for the next.
pub(crate) struct Writer {
    dir: PathBuf,
    schema: Schema,
    /// Whether the folder was not there.
    made: bool,
    /// Held for its lock alone.
    _lock: File,
}

/// What lay in the corpus when its writer came.
pub(crate) struct Found {
    pub games: Vec<GameInfo>,
    /// Games whose shard no manifest named: their importer was killed.
    pub adopted: usize,
    /// Digests of those of which manifest and shard say different things.
    pub doubtful: HashSet<String>,
}

/// Whether a folder is one of a corpus, or holds nothing else: another program's manifest is not written
/// over.
fn only_of_a_corpus(dir: &Path) -> Result<()> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(Error::io(dir)(e)),
    };
    let known = dir.join(LOCK).exists() || Manifest::read(dir).is_ok();
    if dir.join(shard::FOLDER).is_dir() && known {
        return Ok(());
    }
    for entry in entries {
        let name = entry.map_err(Error::io(dir))?.file_name();
        if name != LOCK && name != JOURNAL && name != shard::FOLDER {
            let what = format!("folder {}", dir.display());
            let got = format!("one with {}", name.display());
            return Err(Error::mismatch(what, "an empty folder, or one of a corpus", got));
        }
    }
    Ok(())
}

impl Writer {
    /// Makes the folder where it is missing, and takes its lock.
    pub fn open(dir: &Path, schema: &Schema) -> Result<Self> {
        if exphil::is_there(dir) {
            let what = dir.display().to_string();
            return Err(Error::mismatch(what, "a folder for a corpus", "a corpus of ExPhil's"));
        }
        let games = dir.join(shard::FOLDER);
        only_of_a_corpus(dir)?;
        let made = !dir.exists();
        fs::create_dir_all(&games).map_err(|source| Error::Io { path: games.clone(), source })?;
        let lock = lock(dir, LOCK)?;
        let writer = Writer { dir: dir.to_path_buf(), schema: schema.clone(), made, _lock: lock };
        writer.check_schema()?;
        Ok(writer)
    }

    /// A corpus of something else is not overwritten. A broken manifest is: the shards know all.
    fn check_schema(&self) -> Result<()> {
        match Manifest::read(&self.dir) {
            Ok(manifest) if manifest.schema != self.schema => Err(Error::mismatch(
                self.dir.display().to_string(),
                shard::describe(&self.schema),
                shard::describe(&manifest.schema),
            )),
            Ok(_) | Err(Error::NotFound { .. } | Error::Corrupt { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Clears what a killed writer left half-done, and lists every whole game: those of the
    /// manifest and those that never came to stand in it.
    pub fn take_stock(&self) -> Result<Found> {
        let listed: HashMap<String, GameInfo> = match Manifest::read(&self.dir) {
            Ok(manifest) => manifest.games.into_iter().map(|g| (g.file.clone(), g)).collect(),
            Err(Error::NotFound { .. } | Error::Corrupt { .. }) => HashMap::new(),
            Err(error) => return Err(error),
        };
        let mut found = Found { games: Vec::new(), adopted: 0, doubtful: HashSet::new() };
        let folder = self.dir.join(shard::FOLDER);
        clear_partials(&self.dir)?;
        clear_partials(&folder)?;
        for entry in fs::read_dir(&folder).map_err(Error::io(&folder))? {
            let path = entry.map_err(Error::io(&folder))?.path();
            if path.extension().is_some_and(|e| e == "safetensors") {
                self.count_in(&path, &listed, &mut found);
            }
        }
        Ok(found)
    }

    /// A shard that cannot be read is left out, so that its replay is imported anew.
    fn count_in(&self, path: &Path, listed: &HashMap<String, GameInfo>, found: &mut Found) {
        let Ok(shard) = Shard::open(path, &self.schema) else { return };
        let mut game = shard.game.clone();
        if path.file_name() != Path::new(&shard::name(&game.digest)).file_name() {
            return;
        }
        game.file = shard::name(&game.digest);
        game.bytes = fs::metadata(path).map_or(0, |m| m.len());
        match listed.get(&game.file) {
            None => found.adopted += 1,
            Some(known) if *known != game => drop(found.doubtful.insert(game.digest.clone())),
            Some(_) => {}
        }
        found.games.push(game);
    }

    /// Whether the shard of a game that was taken stock of has the bytes that it was written with, as far
    /// as they are recorded.
    pub fn is_whole(&self, digest: &str) -> bool {
        let shard = Shard::open(&self.dir.join(shard::name(digest)), &self.schema);
        let intact = |shard: Shard| {
            !shard.is_recorded() || shard.contents().is_ok_and(|found| found == shard.game.contents)
        };
        shard.is_ok_and(intact)
    }

    /// Writes a game's shard.
    pub fn add(&self, game: GameInfo, columns: &[Column]) -> Result<GameInfo> {
        shard::write(&self.dir, &self.schema, game, columns)
    }

    pub fn write_manifest(&self, games: &[GameInfo]) -> Result<()> {
        Manifest::new(&self.schema, games.to_vec()).write(&self.dir)
    }

    /// Leaves nothing of a corpus that has neither games nor a manifest; false where it has one.
    pub fn abandon(&self) -> bool {
        if self.dir.join(MANIFEST).exists() {
            return false;
        }
        if fs::remove_dir(self.dir.join(shard::FOLDER)).is_err() {
            return true;
        }
        // What cannot be removed is no reason for another error.
        let _ = fs::remove_file(self.dir.join(LOCK));
        if self.made {
            let _ = fs::remove_dir(&self.dir);
        }
        true
    }

    /// Makes these the games of the corpus, then removes the shards of others.
    fn replace(&self, games: Vec<GameInfo>) -> Result<()> {
        let before = self.take_stock()?;
        self.write_manifest(&games)?;
        let kept: HashSet<&str> = games.iter().map(|g| g.file.as_str()).collect();
        for game in before.games.iter().filter(|g| !kept.contains(g.file.as_str())) {
            let path = self.dir.join(&game.file);
            fs::remove_file(&path).map_err(Error::io(&path))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_of_more_games_than_may_be_read_does_not_replace_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let manifest = |games| Manifest::new(&Schema::Melee, games);
        manifest(vec![]).write(dir.path()).unwrap();
        let path = dir.path().join(MANIFEST);
        let before = read(&path, MAX_MANIFEST).unwrap();
        let most = 1 << 19;
        let error = manifest(vec![GameInfo::default(); most + 1]).write(dir.path()).unwrap_err();
        match error {
            Error::OutOfRange { field, value, max, .. } => {
                assert_eq!(field, "games of a corpus");
                assert_eq!((value, max), (most as f64 + 1.0, most as f64));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(read(&path, MAX_MANIFEST).unwrap(), before);
        // Neither is a part of a file left.
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
