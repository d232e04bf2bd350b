//! Checks of numbers, lengths and names.

use sconce_tensor::{Error, Result};

/// Maximum length of a name, in characters.
const MAX_NAME: usize = 64;

/// Returns an error unless the name is short and plain, because names reach terminals, files and Elixir.
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

/// Returns an error unless `got` equals `expected`.
pub fn fits(what: &str, expected: usize, got: usize) -> Result<()> {
    match expected == got {
        true => Ok(()),
        false => Err(Error::mismatch(what, format!("{expected} numbers"), got)),
    }
}
