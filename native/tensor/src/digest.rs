//! By what bytes are known again.

use std::io::Read;
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::{Error, Result, fs};

/// Bytes of a file that are in memory at once.
const CHUNK: usize = 1 << 16;

/// SHA-256 of these parts, one after the other, in hexadecimal digits.
pub fn sha256<T: AsRef<[u8]>>(parts: impl IntoIterator<Item = T>) -> String {
    let mut hash = Sha256::new();
    parts.into_iter().for_each(|part| hash.update(part));
    hex(&hash.finalize())
}

/// In hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// SHA-256 of the bytes that a file had when it was opened.
pub fn of_file(path: &Path) -> Result<String> {
    let file = fs::open(path)?;
    let (mut hash, mut chunk) = (Sha256::new(), vec![0; CHUNK]);
    let mut bytes = file.file().take(file.length());
    loop {
        match bytes.read(&mut chunk).map_err(Error::io(path))? {
            0 => return Ok(hex(&hash.finalize())),
            n => hash.update(chunk.get(..n).unwrap_or_default()),
        }
    }
}
