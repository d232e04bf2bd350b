//! What makes games of files: of replays, of tables.

use std::path::Path;

use crate::melee;
use crate::refusal::Refusal;

/// What makes games of files.
pub(crate) trait Reader: Sync {
    /// The files that a folder is searched for, in words.
    fn what(&self) -> &'static str;

    /// Whether it is such a file, by its name.
    fn reads(&self, path: &Path) -> bool;

    /// What is known of a file before it is read.
    fn open(&self, file: &Path) -> std::result::Result<Opened, Refusal>;

    fn read(
        &self,
        file: &Path,
        opened: &Opened,
        min_frames: usize,
    ) -> std::result::Result<melee::Game, Refusal>;
}

/// A file by its digest, and its bytes where they are read at once.
pub(crate) struct Opened {
    pub digest: String,
    pub bytes: Vec<u8>,
}
