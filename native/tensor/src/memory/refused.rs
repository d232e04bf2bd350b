//! The panic payload of a refused buffer.

pub(crate) struct Refused {
    pub bytes: u64,
}
