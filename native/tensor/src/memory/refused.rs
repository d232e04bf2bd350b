//! The payload that a refused buffer unwinds with.

pub(crate) struct Refused {
    pub bytes: u64,
}
