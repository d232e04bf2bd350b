//! Streams text in lines of bounded length, and computes the SHA-256 of all bytes.

use std::io::{self, BufRead, BufReader, Read};

use sconce_tensor::digest::hex;
use sha2::{Digest, Sha256};

/// Maximum bytes of a line.
const MAX_LINE: usize = 1 << 20;
/// The byte order mark of UTF-8.
const MARK: &[u8] = b"\xEF\xBB\xBF";

/// Text with lines of bounded length. An error of kind `InvalidData` describes what is wrong with the text.
pub(super) struct Bounded<R> {
    source: BufReader<R>,
    hash: Sha256,
    /// Bytes since the last newline.
    line: usize,
    begun: bool,
}

fn invalid(reason: impl ToString) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason.to_string())
}

impl<R: Read> Bounded<R> {
    pub(super) fn new(source: R) -> Self {
        let source = BufReader::with_capacity(1 << 16, source);
        Bounded { source, hash: Sha256::new(), line: 0, begun: false }
    }

    /// SHA-256 of all bytes, including those not read yet.
    pub(super) fn digest(&mut self) -> String {
        // After a read error, the digest covers only the bytes read so far.
        while let Ok(rest) = self.source.fill_buf() {
            let bytes = rest.len();
            if bytes == 0 {
                break;
            }
            self.hash.update(rest);
            self.source.consume(bytes);
        }
        hex(&self.hash.finalize_reset())
    }

    /// The buffered bytes; empty at the end of the text.
    fn ahead(&mut self) -> io::Result<&[u8]> {
        let ahead = self.source.fill_buf()?;
        match (self.begun, ahead) {
            (false, [0xFF, 0xFE, ..] | [0xFE, 0xFF, ..]) => Err(invalid("UTF-16, not UTF-8")),
            _ => Ok(ahead),
        }
    }

    /// Consumes `bytes` bytes, checks the line length and updates the digest.
    fn took(&mut self, bytes: usize) -> io::Result<()> {
        let taken = self.source.buffer().get(..bytes).unwrap_or_default();
        let mut line = self.line;
        for part in taken.split_inclusive(|byte| *byte == b'\n') {
            line += part.len();
            if line > MAX_LINE {
                return Err(invalid(format!("more than {MAX_LINE} bytes in a line")));
            }
            if part.ends_with(b"\n") {
                line = 0;
            }
        }
        self.hash.update(taken);
        self.source.consume(bytes);
        (self.line, self.begun) = (line, true);
        Ok(())
    }

    /// Reads the next line without its newline. Returns false at the end of the text.
    pub(super) fn next(&mut self, out: &mut Vec<u8>) -> io::Result<bool> {
        out.clear();
        let first = !self.begun;
        loop {
            let ahead = self.ahead()?;
            if ahead.is_empty() {
                return Ok(!out.is_empty());
            }
            let end = ahead.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(ahead.len(), |end| end + 1);
            out.extend_from_slice(&ahead[..taken]);
            self.took(taken)?;
            if end.is_some() {
                break;
            }
        }
        if first && out.starts_with(MARK) {
            out.drain(..MARK.len());
        }
        out.truncate(out.trim_ascii_end().len());
        Ok(true)
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let ahead = self.ahead()?;
        let count = ahead.len().min(buffer.len());
        buffer[..count].copy_from_slice(&ahead[..count]);
        self.took(count)?;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use sconce_tensor::digest::sha256;

    use super::*;

    #[test]
    fn lines_come_without_newlines_and_byte_order_mark_but_all_bytes_are_hashed() {
        let text = b"\xEF\xBB\xBFone\r\n\ntwo";
        let mut lines = Bounded::new(&text[..]);
        let mut line = vec![];
        let mut all = vec![];
        while lines.next(&mut line).unwrap() {
            all.push(String::from_utf8(line.clone()).unwrap());
        }
        assert_eq!(all, ["one", "", "two"]);
        assert_eq!(lines.digest(), sha256([text]));
    }

    #[test]
    fn a_line_without_an_end_takes_bounded_memory() {
        let mut lines = Bounded::new(io::repeat(b'7'));
        let mut line = vec![];
        let error = lines.next(&mut line).unwrap_err();
        assert!(error.to_string().contains("1048576 bytes"), "{error}");
        assert!(line.len() < 2 * MAX_LINE);
    }
}
