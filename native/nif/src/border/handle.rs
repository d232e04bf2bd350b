//! Handles as arguments.

use rustler::{Decoder, NifResult, Resource, ResourceArc, Term};
use sconce_tensor::{Error, Result};

/// A resource whose handle Elixir keeps in a struct.
pub(crate) trait Handled: Resource {
    /// The name in errors.
    const NOUN: &'static str;
}

/// An argument of a NIF that should be a handle. Any term decodes, so that a handle of another VM, which arrives as a
/// plain reference, is a typed error of [`Handle::get`] instead of a `badarg`.
pub(crate) struct Handle<T: Handled>(Option<ResourceArc<T>>);

impl<T: Handled> Handle<T> {
    pub(crate) fn of(term: Term) -> Self {
        Handle(term.decode().ok())
    }

    /// The resource, or [`Error::NotFound`].
    pub(crate) fn get(self) -> Result<ResourceArc<T>> {
        self.0
            .ok_or_else(|| Error::not_found(format!("{} (the handle is not of this VM)", T::NOUN)))
    }
}

impl<'a, T: Handled> Decoder<'a> for Handle<T> {
    fn decode(term: Term<'a>) -> NifResult<Self> {
        Ok(Handle::of(term))
    }
}
