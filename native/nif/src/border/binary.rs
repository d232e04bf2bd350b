//! Numbers in binaries, little-endian.

use rustler::{Env, NewBinary, Term};
use sconce_nn::head::{of_word, to_word};
use sconce_tensor::{Error, Result};

/// Reads numbers of `N` bytes; the binary's length must be a multiple of `N`.
pub(crate) fn from_binary<T, const N: usize>(
    what: &str,
    bytes: &[u8],
    of: impl Fn([u8; N]) -> T,
) -> Result<Vec<T>> {
    match bytes.as_chunks() {
        (numbers, []) => Ok(numbers.iter().map(|number| of(*number)).collect()),
        _ => {
            let expected = format!("numbers of {N} bytes");
            Err(Error::mismatch(what, expected, format!("{} bytes", bytes.len())))
        }
    }
}

/// Reads labels of heads: 16-bit words, or f32 if a head chooses numbers.
pub(crate) fn labels_from(what: &str, bytes: &[u8], words: bool) -> Result<Vec<f32>> {
    match words {
        true => from_binary(what, bytes, |bytes| of_word(u16::from_le_bytes(bytes))),
        false => from_binary(what, bytes, f32::from_le_bytes),
    }
}

/// Writes labels: the inverse of [`labels_from`].
pub(crate) fn labels_to<'a>(env: Env<'a>, labels: &[f32], words: bool) -> Term<'a> {
    if !words {
        return to_binary(env, labels);
    }
    let mut binary = NewBinary::new(env, size_of::<u16>() * labels.len());
    let (places, _) = binary.as_mut_slice().as_chunks_mut();
    for (place, label) in places.iter_mut().zip(labels) {
        *place = to_word(*label).to_le_bytes();
    }
    binary.into()
}

pub(crate) fn to_binary<'a>(env: Env<'a>, numbers: &[f32]) -> Term<'a> {
    let mut binary = NewBinary::new(env, size_of_val(numbers));
    let (places, _) = binary.as_mut_slice().as_chunks_mut();
    for (place, number) in places.iter_mut().zip(numbers) {
        *place = number.to_le_bytes();
    }
    binary.into()
}
