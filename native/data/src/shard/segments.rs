//! The columns of a compressed game.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use sconce_store::queue::Id;
use sconce_tensor::mapped::Mapped;
use sconce_tensor::{Error, Result};

use super::cache::{Cache, Segment};
use super::packed::Packed;
use super::pins;

/// The compressed segments of a game, and how they are read.
#[derive(Debug)]
pub(super) struct Segments {
    file: Arc<Mapped>,
    table: Packed,
    /// Binary logarithm of the frames in a segment.
    shift: u32,
    /// Where each segment begins in the file.
    begins: Vec<usize>,
    frames: usize,
    /// Bytes of a frame, over all columns.
    row: usize,
    cache: Option<Arc<Cache>>,
    /// The number of the first segment in the cache.
    first: Id,
    /// Different for all games that are open.
    game: u64,
    /// The first segment that could not be restored, and why.
    fault: OnceLock<String>,
}

impl Segments {
    /// The segments that begin at byte `begin` of the file. The table must have been checked.
    pub(super) fn new(
        file: &Arc<Mapped>,
        table: Packed,
        begin: usize,
        frames: usize,
        row: usize,
        cache: Option<&Arc<Cache>>,
    ) -> Self {
        static GAMES: AtomicU64 = AtomicU64::new(0);
        let begins = table.segments.iter().scan(begin, |at, own| {
            let begin = *at;
            *at += own.bytes;
            Some(begin)
        });
        let begins = begins.collect();
        let first = cache.map_or(0, |cache| cache.ids(table.segments.len() as Id));
        let game = GAMES.fetch_add(1, Ordering::Relaxed);
        let (file, cache, shift) = (file.clone(), cache.cloned(), table.frames.ilog2());
        let fault = OnceLock::new();
        Segments { file, table, shift, begins, frames, row, cache, first, game, fault }
    }

    /// Frames of a segment.
    #[inline]
    fn frames_of(&self, segment: usize) -> usize {
        self.frames.saturating_sub(segment << self.shift).min(1 << self.shift)
    }

    /// The frames of the segment with a frame, and this frame's place among them.
    #[inline]
    pub(super) fn place(&self, frame: usize) -> (usize, usize, usize) {
        let segment = frame >> self.shift;
        (segment, frame - (segment << self.shift), self.frames_of(segment))
    }

    /// Reads the bytes of a segment, zeros if it is damaged. Must be called inside a read of the shard.
    #[inline]
    pub(super) fn with<T>(&self, segment: usize, read: impl FnOnce(&[u8]) -> T) -> T {
        pins::with(self.game, segment, || self.fetch(segment), read)
    }

    #[cold]
    fn fetch(&self, segment: usize) -> Segment {
        let id = self.first + segment as Id;
        if let Some(found) = self.cache.as_ref().and_then(|cache| cache.get(id)) {
            return found;
        }
        match self.restore(segment) {
            Ok(bytes) => {
                let bytes = Arc::new(bytes);
                if let Some(cache) = &self.cache {
                    cache.keep(id, bytes.clone());
                }
                bytes
            }
            Err(reason) => {
                let _ = self.fault.set(format!("segment {segment}: {reason}"));
                Arc::new(vec![0; self.frames_of(segment) * self.row])
            }
        }
    }

    fn restore(&self, segment: usize) -> std::result::Result<Vec<u8>, String> {
        let own = self.table.segments.get(segment).zip(self.begins.get(segment));
        let (stored, begin) = own.ok_or("no such segment")?;
        let bytes = self.file.bytes().get(*begin..begin + stored.bytes).ok_or("cut off")?;
        stored.unpack(bytes, self.frames_of(segment) * self.row)
    }

    /// The bytes of whole columns, of which each has `widths` bytes in a frame. Nothing of them is kept.
    pub(super) fn columns(&self, widths: &[usize]) -> std::result::Result<Vec<Vec<u8>>, String> {
        let mut columns = vec![vec![]; widths.len()];
        for segment in 0..self.table.segments.len() {
            let named = |reason| format!("segment {segment}: {reason}");
            let bytes = self.restore(segment).map_err(named)?;
            let mut rest = bytes.as_slice();
            for (column, width) in columns.iter_mut().zip(widths) {
                let (own, after) = rest.split_at(self.frames_of(segment) * width);
                column.extend_from_slice(own);
                rest = after;
            }
        }
        Ok(columns)
    }

    /// The error of a segment that could not be restored since the game was opened.
    pub(super) fn sound(&self, path: &Path) -> Result<()> {
        match self.fault.get() {
            Some(reason) => Err(Error::corrupt(path.display().to_string(), reason)),
            None => Ok(()),
        }
    }
}

impl Drop for Segments {
    fn drop(&mut self) {
        if let Some(cache) = &self.cache {
            cache.forget(self.first..self.first + self.table.segments.len() as Id);
        }
    }
}
