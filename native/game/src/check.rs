//! What numbers, lengths and names may be.

use sconce_tensor::{Error, Result};

/// Letters of a name.
const MAX_NAME: usize = 64;

/// Names reach terminals, files and Elixir: they are short and plain, wherever they come from.
pub(crate) fn check_name(of: &str, name: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '.';
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(plain) {
        let expected = format!("[a-z0-9_.], at most {MAX_NAME}");
        let got: String = name.chars().take(MAX_NAME).collect();
        return Err(Error::mismatch(format!("name of {of}"), expected, got));
    }
    Ok(())
}

pub(crate) fn within(field: &str, n: usize, min: usize, max: usize) -> Result<()> {
    match (min..=max).contains(&n) {
        true => Ok(()),
        false => Err(Error::out_of_range(field, n as f64, min as f64, max as f64)),
    }
}

/// Refuses another length than is expected.
pub fn fits(what: &str, expected: usize, got: usize) -> Result<()> {
    match expected == got {
        true => Ok(()),
        false => Err(Error::mismatch(what, format!("{expected} numbers"), got)),
    }
}
