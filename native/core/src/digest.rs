//! By what bytes are known again.

use std::fmt::Write;

use sha2::{Digest, Sha256};

/// SHA-256 of these parts, one after the other, in hexadecimal digits.
pub fn sha256<T: AsRef<[u8]>>(parts: impl IntoIterator<Item = T>) -> String {
    let mut hash = Sha256::new();
    parts.into_iter().for_each(|part| hash.update(part));
    hash.finalize().iter().fold(String::new(), |mut digits, byte| {
        // A string takes whatever it is given.
        let _ = write!(digits, "{byte:02x}");
        digits
    })
}
