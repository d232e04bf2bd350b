//! The trait of readers that turn files into games: replays and tables.

use std::path::Path;

use crate::melee;
use crate::refusal::Refusal;

/// Turns files into games.
pub(crate) trait Reader: Sync {
    /// A description of the files that this reader accepts in a folder, for error messages.
    fn what(&self) -> &'static str;

    /// Whether the file name matches.
    fn reads(&self, path: &Path) -> bool;

    /// Opens a file and computes its digest.
    fn open(&self, file: &Path) -> std::result::Result<Opened, Refusal>;

    fn read(
        &self,
        file: &Path,
        opened: &Opened,
        min_frames: usize,
    ) -> std::result::Result<melee::Game, Refusal>;
}

/// The digest of a file, and the bytes if the file was read whole.
pub(crate) struct Opened {
    pub digest: String,
    pub bytes: Vec<u8>,
}
