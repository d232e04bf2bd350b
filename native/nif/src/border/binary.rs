//! Numbers in binaries, little-endian.

use rustler::{Env, NewBinary, Term};
use sconce_tensor::{Error, Result};

/// The numbers of a binary, which must be a whole number of them.
pub(crate) fn from_binary<T, const N: usize>(
    what: &str,
    bytes: &[u8],
    of: fn([u8; N]) -> T,
) -> Result<Vec<T>> {
    match bytes.as_chunks() {
        (numbers, []) => Ok(numbers.iter().map(|number| of(*number)).collect()),
        _ => {
            let expected = format!("numbers of {N} bytes");
            Err(Error::mismatch(what, expected, format!("{} bytes", bytes.len())))
        }
    }
}

pub(crate) fn to_binary<'a>(env: Env<'a>, numbers: &[f32]) -> Term<'a> {
    let mut binary = NewBinary::new(env, size_of_val(numbers));
    let (places, _) = binary.as_mut_slice().as_chunks_mut();
    for (place, number) in places.iter_mut().zip(numbers) {
        *place = number.to_le_bytes();
    }
    binary.into()
}
