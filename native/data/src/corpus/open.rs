//! A corpus that is open for reading.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use sconce_tensor::{Error, Result};

use super::manifest::{MANIFEST, Manifest};
use crate::exphil;
use crate::game::{GameInfo, OtherIds};
use crate::schema::Schema;
use crate::shard::{CACHE_BYTES, Cache, Shard};
use crate::view::View;

/// The games of a corpus, open for reading. Each shard is mapped on first use.
#[derive(Debug)]
pub struct Corpus {
    dir: PathBuf,
    pub(super) schema: Schema,
    pub(super) games: Vec<GameInfo>,
    pub(super) other_ids: OtherIds,
    shards: Vec<OnceLock<Arc<Shard>>>,
    /// Restored segments of compressed games.
    cache: Arc<Cache>,
}

impl Corpus {
    /// Whether a folder holds a corpus, whole or not.
    pub fn is_at(dir: &Path) -> bool {
        dir.join(MANIFEST).exists() || exphil::is_there(dir)
    }

    /// The schema of the corpus in a folder, or `None` if it has no readable manifest.
    pub(crate) fn schema_at(dir: &Path) -> Result<Option<Schema>> {
        match Manifest::read(dir) {
            Ok(manifest) => Ok(Some(manifest.schema)),
            Err(Error::NotFound { .. } | Error::Corrupt { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens a corpus of Sconce, or one of ExPhil (read-only). Every shard must exist and have the
    /// recorded size. The header of a shard is checked on first use, and its bytes by [`crate::verify`].
    pub fn open(dir: &Path) -> Result<Self> {
        let corpus = Corpus::open_unchecked(dir)?;
        (0..corpus.games.len()).try_for_each(|game| corpus.check_size(game))?;
        Ok(corpus)
    }

    pub(crate) fn open_unchecked(dir: &Path) -> Result<Self> {
        if !dir.join(MANIFEST).exists() && exphil::is_there(dir) {
            return Corpus::open_exphil(dir);
        }
        let read = Manifest::read(dir).map_err(|error| of_replays(dir).unwrap_or(error));
        let Manifest { schema, games, other_ids, .. } = read?;
        let shards = games.iter().map(|_| OnceLock::new()).collect();
        let (dir, cache) = (dir.to_path_buf(), Cache::new(CACHE_BYTES));
        Ok(Corpus { dir, schema, games, other_ids, shards, cache })
    }

    fn open_exphil(dir: &Path) -> Result<Self> {
        let (schema, shards) = exphil::open(dir)?;
        let games = shards.iter().map(|shard| shard.game.clone()).collect();
        let shards = shards.into_iter().map(|shard| OnceLock::from(Arc::new(shard))).collect();
        let other_ids = OtherIds::default();
        let (dir, cache) = (dir.to_path_buf(), Cache::new(CACHE_BYTES));
        Ok(Corpus { dir, schema, games, other_ids, shards, cache })
    }

    /// Checks that the shard of a game exists and has the recorded size.
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

    /// Whether this is a corpus of Sconce, with one shard per game.
    fn is_ours(&self) -> bool {
        self.dir.join(MANIFEST).exists()
    }

    /// The schema of the games.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// The folder of the corpus.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The games in index order; every game index refers to this order.
    pub fn games(&self) -> &[GameInfo] {
        &self.games
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
        // If another thread stored a map of the same file first, the cell keeps that map.
        Ok(cell.get_or_init(|| shard).clone())
    }

    /// The shard of a game. A new map is not stored, and lives only as long as the caller holds the shard.
    pub(crate) fn passing_shard(&self, game: usize) -> Result<Arc<Shard>> {
        match (self.games.get(game), self.shards.get(game).and_then(OnceLock::get)) {
            (Some(info), None) => self.open_shard(info),
            _ => self.shard(game),
        }
    }

    fn open_shard(&self, info: &GameInfo) -> Result<Arc<Shard>> {
        let path = self.dir.join(&info.file);
        let shard = Shard::open(&path, &self.schema, Some(&self.cache))?;
        // The shard's own metadata lacks the size, which was unknown when the metadata was written.
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
}

/// The error of a folder of replays, which are imported into a corpus first; `None` for any other folder.
fn of_replays(dir: &Path) -> Option<Error> {
    let replay = |entry: fs::DirEntry| {
        entry.path().extension().is_some_and(|extension| extension.eq_ignore_ascii_case("slp"))
    };
    let here = !dir.join(MANIFEST).exists() && fs::read_dir(dir).ok()?.flatten().any(replay);
    let what = "a folder of replays, which mix sconce.import makes a corpus of";
    here.then(|| Error::mismatch(dir.display().to_string(), "a corpus", what))
}
