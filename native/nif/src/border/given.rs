//! Terms that native threads read.

use rustler::env::SavedTerm;
use rustler::{Binary, Encoder, Env, OwnedEnv, Term};
use sconce_tensor::{Error, Result};

/// A term that a native thread may read. Binaries in it of more than 64 bytes are kept by reference.
pub(crate) struct Given {
    own: OwnedEnv,
    term: SavedTerm,
}

impl Given {
    pub(crate) fn new<'a>(env: Env<'a>, term: impl Encoder) -> Self {
        let own = OwnedEnv::new();
        let term = own.save(term.encode(env));
        Given { own, term }
    }

    pub(crate) fn read<T>(&self, read: impl FnOnce(Term) -> Result<T>) -> Result<T> {
        self.own.run(|env| read(self.term.load(env)))
    }

    /// [`read`](Self::read) for a binary.
    pub(crate) fn bytes<T>(&self, read: impl FnOnce(&[u8]) -> Result<T>) -> Result<T> {
        self.read(|term| read(&Binary::from_term(term).map_err(|_| Error::not_found("a binary"))?))
    }
}
