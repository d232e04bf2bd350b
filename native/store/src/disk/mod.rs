//! Blocks on disk: packs of many blocks, an index that is swapped whole, and a log of the commits since.
//!
//! | file | content |
//! |---|---|
//! | `packs/NNNNNNNN.pack` | blocks, each behind a header; only appended to, and never changed below the end that the index names |
//! | `index`, `index.copy` | tensors and blocks, see [`index`]; two, so that a damaged one loses nothing |
//! | `log`, `log.copy` | what later commits have changed, see [`log`]; until it is as long as the index, which is then written whole |
//! | `lock` | held by the process that writes |

mod folder;
pub mod index;
pub mod log;

use std::collections::HashSet;
use std::path::Path;

use sconce_tensor::Result;

pub use folder::Folder;

use crate::codec::{self, Codec};
use crate::tensor::MAX_BLOCK;

/// Where a store keeps its bytes. A test has one that loses unsynced writes.
pub trait Disk: Send + Sync + std::fmt::Debug {
    /// Writes into a pack, which is created if it is missing.
    ///
    /// # Errors
    /// Those of the system. Former bytes there may be partly overwritten.
    fn write(&self, pack: u32, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Reads from a pack until `to` is full.
    ///
    /// # Errors
    /// `Corrupt` if the pack ends before.
    fn read(&self, pack: u32, offset: u64, to: &mut [u8]) -> Result<()>;

    /// Reads from a pack as [`Disk::read`] does, if that never waits. False if it would, or after an error.
    fn read_now(&self, _pack: u32, _offset: u64, _to: &mut [u8]) -> bool {
        false
    }

    /// Returns when all written bytes of a pack would survive a power cut.
    ///
    /// # Errors
    /// Those of the system.
    fn sync(&self, pack: u32) -> Result<()>;

    /// The packs that exist.
    ///
    /// # Errors
    /// Those of the system.
    fn packs(&self) -> Result<Vec<u32>>;

    /// Cuts off what lies behind the end of a pack.
    ///
    /// # Errors
    /// Those of the system.
    fn shorten(&self, pack: u32, end: u64) -> Result<()>;

    /// Removes a pack, if it exists.
    ///
    /// # Errors
    /// Those of the system.
    fn remove(&self, pack: u32) -> Result<()>;

    /// Replaces an index, which is then durable. After any failure the old one or the whole new one is there.
    ///
    /// # Errors
    /// Those of the system.
    fn write_index(&self, file: IndexFile, bytes: &[u8]) -> Result<()>;

    /// Reads an index. `None` if there is none.
    ///
    /// # Errors
    /// Those of the system.
    fn read_index(&self, file: IndexFile) -> Result<Option<Vec<u8>>>;

    /// Writes into the log beside an index, which is then durable up to there. After a failure any part may be there.
    ///
    /// # Errors
    /// Those of the system.
    fn write_log(&self, file: IndexFile, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Cuts off the log beside an index, if there is one. A power cut may undo that.
    ///
    /// # Errors
    /// Those of the system.
    fn clear_log(&self, file: IndexFile) -> Result<()>;

    /// Reads the log beside an index. `None` if there is none.
    ///
    /// # Errors
    /// Those of the system.
    fn read_log(&self, file: IndexFile) -> Result<Option<Vec<u8>>>;

    /// Lets another process write.
    fn release(&self) {}

    /// Gives up what is held of other packs, which another process may have removed.
    fn retain(&self, _packs: &HashSet<u32>) {}

    /// The folder, for errors.
    fn path(&self) -> &Path;
}

/// One of the two indices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IndexFile {
    /// The first one that is read.
    Index,
    /// The copy, which is written first.
    Copy,
}

impl IndexFile {
    /// Both, in the order in which they are written.
    pub const ALL: [IndexFile; 2] = [IndexFile::Copy, IndexFile::Index];

    /// The name of the file.
    pub fn name(self) -> &'static str {
        match self {
            IndexFile::Index => "index",
            IndexFile::Copy => "index.copy",
        }
    }

    /// The name of the log beside it.
    pub fn log_name(self) -> &'static str {
        match self {
            IndexFile::Index => "log",
            IndexFile::Copy => "log.copy",
        }
    }
}

/// The name of a pack's file within the store.
pub fn pack_name(pack: u32) -> String {
    format!("packs/{pack:08}.pack")
}

/// Sixteen bytes of the SHA-256 of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub [u8; 16]);

impl Digest {
    /// The digest of the bytes of a block.
    pub fn of(bytes: &[u8]) -> Digest {
        use sha2::{Digest as _, Sha256};
        let full = Sha256::digest(bytes);
        let mut digest = [0; 16];
        digest.iter_mut().zip(full).for_each(|(to, from)| *to = from);
        Digest(digest)
    }
}

/// Where and how a block is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stored {
    /// The content.
    pub digest: Digest,
    /// The number of the pack.
    pub pack: u32,
    /// Where the block begins, behind its header.
    pub offset: u64,
    /// Bytes of the block.
    pub raw: u32,
    /// Bytes as stored.
    pub stored: u32,
    /// How the bytes are stored.
    pub codec: Codec,
    /// Bytes of an element.
    pub width: u8,
    /// CRC-32 of the stored bytes.
    pub crc: u32,
}

/// Bytes of the header before each block.
pub const HEADER: usize = 40;
const MAGIC: &[u8; 4] = b"SCBK";

impl Stored {
    /// The header of the block: what the index says too, except for the place.
    pub fn header(&self) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        let parts: [&[u8]; 6] = [
            MAGIC,
            &[self.codec.code(), self.width, 0, 0],
            &self.raw.to_le_bytes(),
            &self.stored.to_le_bytes(),
            &self.crc.to_le_bytes(),
            &self.digest.0,
        ];
        let body: Vec<u8> = parts.concat();
        let sum = crc32fast::hash(&body).to_le_bytes();
        header.iter_mut().zip(body.into_iter().chain(sum)).for_each(|(to, from)| *to = from);
        header
    }

    /// The end of the block in its pack.
    pub fn end(&self) -> u64 {
        self.offset + u64::from(self.stored)
    }

    /// The fault of numbers that no block has.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        match self {
            _ if u64::from(self.raw) > MAX_BLOCK || self.raw == 0 => {
                Some("a block of no such size")
            }
            _ if self.stored > self.raw => Some("a block that is longer than its bytes"),
            _ if self.codec == Codec::Raw && self.stored != self.raw => {
                Some("a raw block of another length")
            }
            _ if !self.codec.fits(self.width) => Some("elements of an unknown width"),
            _ if self.offset < HEADER as u64 => Some("a block without a header"),
            _ if self.offset.checked_add(u64::from(self.stored)).is_none() => {
                Some("a block beyond 2^64")
            }
            _ => None,
        }
    }

    /// Checks the stored bytes and restores the block.
    pub(crate) fn restore(&self, stored: &[u8]) -> std::result::Result<Vec<u8>, String> {
        self.check(stored)?;
        self.decode(stored)
    }

    /// Restores the block from bytes that were checked.
    pub(crate) fn decode(&self, stored: &[u8]) -> std::result::Result<Vec<u8>, String> {
        Ok(codec::decode(self.codec, self.width, stored, self.raw as usize)?)
    }

    /// Checks the stored bytes, not the block that they become.
    pub(crate) fn check(&self, stored: &[u8]) -> std::result::Result<(), String> {
        let sum = crc32fast::hash(stored);
        match sum == self.crc {
            true => Ok(()),
            false => Err(format!("checksum {sum:08x}, expected {:08x}", self.crc)),
        }
    }
}
