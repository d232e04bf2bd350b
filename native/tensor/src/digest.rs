//! SHA-256 digests of bytes and files.

use std::io::Read;
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::{Error, Result, fs};

/// Bytes per read of a file.
const CHUNK: usize = 1 << 16;

/// SHA-256 of the concatenated `parts`, in hexadecimal digits.
pub fn sha256<T: AsRef<[u8]>>(parts: impl IntoIterator<Item = T>) -> String {
    let mut hash = Sha256::new();
    parts.into_iter().for_each(|part| hash.update(part));
    hex(&hash.finalize())
}

/// The bytes in hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// SHA-256 of a file, up to the length that it had when it was opened, in hexadecimal digits.
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
