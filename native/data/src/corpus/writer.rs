//! The one writer of a corpus.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use sconce_tensor::fs::{clear_partials, lock};
use sconce_tensor::{Error, Result};

use super::manifest::{MANIFEST, Manifest};
use super::open::Corpus;
use crate::column::Column;
use crate::exphil;
use crate::game::GameInfo;
use crate::journal::JOURNAL;
use crate::schema::Schema;
use crate::shard::{self, Shard};

const LOCK: &str = "lock";

/// The one writer of a corpus. Dropping it releases the lock.
pub(crate) struct Writer {
    dir: PathBuf,
    schema: Schema,
    /// Whether the writer created the folder.
    made: bool,
    /// Whether new games are compressed.
    pub(crate) compress: bool,
    /// The lock file, kept open to hold the lock.
    _lock: File,
}

/// The games found in a corpus when its writer opened it.
pub(crate) struct Found {
    pub games: Vec<GameInfo>,
    /// Games with a shard but no entry in the manifest, because their import was killed.
    pub adopted: usize,
    /// Digests of games whose manifest entry and shard header differ.
    pub doubtful: HashSet<String>,
}

/// Checks that a folder belongs to a corpus or holds nothing else, so that the manifest of another program
/// is not overwritten.
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
    /// Creates the folder if it is missing, and takes its lock.
    pub(crate) fn open(dir: &Path, schema: &Schema) -> Result<Self> {
        if exphil::is_there(dir) {
            let what = dir.display().to_string();
            return Err(Error::mismatch(what, "a folder for a corpus", "a corpus of ExPhil's"));
        }
        let games = dir.join(shard::FOLDER);
        only_of_a_corpus(dir)?;
        let made = !dir.exists();
        fs::create_dir_all(&games).map_err(|source| Error::Io { path: games.clone(), source })?;
        let lock = lock(dir, LOCK)?;
        let (dir, schema) = (dir.to_path_buf(), schema.clone());
        let writer = Writer { dir, schema, made, compress: false, _lock: lock };
        writer.check_schema()?;
        Ok(writer)
    }

    /// Refuses a corpus of another schema. A damaged manifest is accepted, because the shards can rebuild it.
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

    /// Removes partial files of a killed writer, and lists every complete game, including games missing from
    /// the manifest. Of a game whose other form a killed writer left behind, that form is removed.
    pub(crate) fn take_stock(&self) -> Result<Found> {
        let listed: HashMap<String, GameInfo> = match Manifest::read(&self.dir) {
            Ok(manifest) => manifest.games.into_iter().map(|g| (g.file.clone(), g)).collect(),
            Err(Error::NotFound { .. } | Error::Corrupt { .. }) => HashMap::new(),
            Err(error) => return Err(error),
        };
        let mut found = Found { games: Vec::new(), adopted: 0, doubtful: HashSet::new() };
        clear_partials(&self.dir)?;
        clear_partials(&self.dir.join(shard::FOLDER))?;
        let (first, second): (Vec<_>, Vec<_>) =
            self.whole_games()?.into_iter().partition(|game| listed.contains_key(&game.file));
        let mut known: HashSet<String> = HashSet::new();
        for game in first.into_iter().chain(second) {
            if !known.insert(game.digest.clone()) {
                let path = self.dir.join(&game.file);
                fs::remove_file(&path).map_err(Error::io(&path))?;
                continue;
            }
            match listed.get(&game.file) {
                None => found.adopted += 1,
                Some(known) if *known != game => drop(found.doubtful.insert(game.digest.clone())),
                Some(_) => {}
            }
            found.games.push(game);
        }
        Ok(found)
    }

    /// The games of all shards that can be read. An unreadable one is left out, so that its replay is imported again.
    fn whole_games(&self) -> Result<Vec<GameInfo>> {
        let folder = self.dir.join(shard::FOLDER);
        let mut games = vec![];
        for entry in fs::read_dir(&folder).map_err(Error::io(&folder))? {
            let path = entry.map_err(Error::io(&folder))?.path();
            if path.extension().is_some_and(|e| e == "safetensors") {
                games.extend(self.game_at(&path));
            }
        }
        Ok(games)
    }

    fn game_at(&self, path: &Path) -> Option<GameInfo> {
        let shard = Shard::open(path, &self.schema, None).ok()?;
        let file = shard.name();
        if path.file_name() != Path::new(&file).file_name() {
            return None;
        }
        let bytes = fs::metadata(path).map_or(0, |m| m.len());
        Some(GameInfo { file, bytes, ..shard.game.clone() })
    }

    /// Lists every complete game, as [`take_stock`](Self::take_stock) does.
    ///
    /// # Errors
    /// `NotFound` or `Corrupt` if a game of the manifest is missing or unreadable.
    pub(crate) fn take_whole_stock(&self) -> Result<Vec<GameInfo>> {
        let listed = match Corpus::open(&self.dir) {
            Ok(corpus) => corpus.games().to_vec(),
            // Without a readable manifest the shards are all there is.
            Err(_) if Manifest::read(&self.dir).is_err() => vec![],
            Err(error) => return Err(error),
        };
        let found = self.take_stock()?.games;
        let is_lost = |game: &&GameInfo| !found.iter().any(|own| own.file == game.file);
        match listed.iter().find(is_lost) {
            Some(game) => {
                let path = self.dir.join(&game.file).display().to_string();
                Err(Error::corrupt(path, "its header is damaged"))
            }
            None => Ok(found),
        }
    }

    /// Whether the bytes of a listed game's shard match the recorded digest, if there is one.
    pub(crate) fn is_whole(&self, digest: &str) -> bool {
        let intact = |shard: Shard| {
            !shard.is_recorded() || shard.contents().is_ok_and(|found| found == shard.game.contents)
        };
        let open = |compressed: &bool| {
            Shard::open(&self.dir.join(shard::name(digest, *compressed)), &self.schema, None)
        };
        // Only one of the forms is there.
        [false, true].iter().any(|compressed| open(compressed).is_ok_and(intact))
    }

    /// Writes a game's shard.
    pub(crate) fn add(&self, game: GameInfo, columns: &[Column]) -> Result<GameInfo> {
        shard::write(&self.dir, &self.schema, game, columns, self.compress)
    }

    pub(crate) fn write_manifest(&self, games: &[GameInfo]) -> Result<()> {
        Manifest::new(&self.schema, games.to_vec()).write(&self.dir)
    }

    /// Removes an empty corpus without a manifest. Returns false if there is a manifest.
    pub(crate) fn abandon(&self) -> bool {
        if self.dir.join(MANIFEST).exists() {
            return false;
        }
        if fs::remove_dir(self.dir.join(shard::FOLDER)).is_err() {
            return true;
        }
        // A failure to remove the file is ignored.
        let _ = fs::remove_file(self.dir.join(LOCK));
        if self.made {
            let _ = fs::remove_dir(&self.dir);
        }
        true
    }

    /// Makes these the games of the corpus, then removes the shards of all others.
    pub(crate) fn replace(&self, games: Vec<GameInfo>) -> Result<()> {
        let before = self.whole_games()?;
        self.write_manifest(&games)?;
        let kept: HashSet<&str> = games.iter().map(|g| g.file.as_str()).collect();
        for game in before.iter().filter(|g| !kept.contains(g.file.as_str())) {
            let path = self.dir.join(&game.file);
            fs::remove_file(&path).map_err(Error::io(&path))?;
        }
        Ok(())
    }
}
