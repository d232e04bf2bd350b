//! Types that work may answer with.

use rustler::{Encoder, Env, NewBinary, Term};
use sconce_tensor::Result;
use serde::Serialize;

use super::value::encode;

/// A result of work: any type that rustler encodes (numbers, strings, handles, terms), [`Data`] or [`Bytes`].
pub(crate) trait Answer {
    fn into_term(self, env: Env<'_>) -> Result<Term<'_>>;
}

impl<T: Encoder> Answer for T {
    fn into_term(self, env: Env<'_>) -> Result<Term<'_>> {
        Ok(self.encode(env))
    }
}

/// Any serialisable value, encoded by [`encode`].
pub(crate) struct Data<T>(pub T);

impl<T: Serialize> Answer for Data<T> {
    fn into_term(self, env: Env<'_>) -> Result<Term<'_>> {
        encode(env, &self.0)
    }
}

/// Bytes encoded as one binary; a `Vec<u8>` would become a list. The bytes are copied: above about 100 KB let a
/// resource own them and use `ResourceArc::make_binary`.
pub(crate) struct Bytes<T>(pub T);

impl<T: AsRef<[u8]>> Answer for Bytes<T> {
    fn into_term(self, env: Env<'_>) -> Result<Term<'_>> {
        Ok(NewBinary::from_slice(env, self.0.as_ref()).into())
    }
}
