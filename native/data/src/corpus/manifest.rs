//! The manifest of a corpus.

use std::io::Write;
use std::path::Path;

use sconce_tensor::fs::{read, write_atomic};
use sconce_tensor::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::column::ColumnSpec;
use crate::game::{GameInfo, MAX_GAMES, OtherIds};
use crate::schema::{MAX_COLUMNS, Schema, VERSION};
use crate::shard;
use sconce_tensor::bounded::at_most;

pub(super) const MANIFEST: &str = "manifest.json";

const FORMAT: &str = "sconce corpus";

/// Maximum bytes of a manifest: about 1000 for each of [`MAX_GAMES`].
const MAX_MANIFEST: u64 = 1 << 29;

/// The manifest as it is stored.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Manifest {
    format: String,
    version: u32,
    pub schema: Schema,
    #[serde(deserialize_with = "at_most::<_, _, MAX_COLUMNS>")]
    columns: Vec<ColumnSpec>,
    #[serde(deserialize_with = "at_most::<_, _, MAX_GAMES>")]
    pub games: Vec<GameInfo>,
    pub other_ids: OtherIds,
}

impl Manifest {
    pub(super) fn new(schema: &Schema, mut games: Vec<GameInfo>) -> Self {
        // Sorts by digest, so that the manifest does not depend on the order of import.
        games.sort_by(|a, b| a.digest.cmp(&b.digest));
        let mut other_ids = OtherIds::default();
        games.iter().for_each(|g| other_ids.add(&g.other_ids));
        let (schema, columns) = (schema.clone(), schema.columns());
        Manifest { format: FORMAT.into(), version: VERSION, schema, columns, games, other_ids }
    }

    pub(super) fn read(dir: &Path) -> Result<Self> {
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
            if !shard::is_name(&game.file, &game.digest) {
                return Err(Error::corrupt(what(), format!("shard {:?}", game.file)));
            }
            shard::check_frames(what(), game)?;
        }
        Ok(manifest)
    }

    /// Writes the manifest, unless it is too large to be read again.
    pub(super) fn write(&self, dir: &Path) -> Result<()> {
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_manifest_with_too_many_games_does_not_replace_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let manifest = |games| Manifest::new(&Schema::melee(), games);
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
        // No partial file is left.
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
