//! Structs of options made from the rows of a table.
//!
//! [`option_group!`](crate::option_group) defines the struct of a group; the rows are those of a
//! [`Table`](super::Table), included with `include!`.

use std::path::PathBuf;

/// Defines the struct of a group, with checks and defaults.
#[macro_export]
macro_rules! option_group {
    (
        $table:ident,
        $text:literal,
        $group:ident,
        $($name:ident: [
            $kind:ident: $type:ident, default: $own:tt $($word:ident)?, doc: $doc:literal $($more:tt)*
        ]),*
    ) => {
        #[doc = $text]
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $group {
            $(#[doc = $doc] pub $name: $crate::option_field!($kind $type)),*
        }

        impl $group {
            /// Refuses numbers outside their bounds.
            pub(crate) fn check(&self) -> sconce_tensor::Result<()> {
                $($table.check(stringify!($name), $crate::options::Number::of(&self.$name))?;)*
                Ok(())
            }
        }

        impl Default for $group {
            fn default() -> Self {
                $group { $($name: $crate::option_default!($kind $type $own)),* }
            }
        }
    };
}

/// The type of a field.
#[doc(hidden)]
#[macro_export]
macro_rules! option_field {
    (value $type:ident) => { $type };
    (optional $type:ident) => { Option<$type> };
    (list $type:ident) => { Vec<$type> };
}

/// The default value of a field. An enum has its own default; a test compares it with the row.
#[doc(hidden)]
#[macro_export]
macro_rules! option_default {
    (value String $own:literal) => {
        $own.to_string()
    };
    (value $type:ident $own:literal) => {
        $own
    };
    (value $type:ident :) => {
        <$type>::default()
    };
    (optional $type:ident nil) => {
        None
    };
    (optional $type:ident $own:literal) => {
        Some($own)
    };
    (list $type:ident nil) => {
        vec![]
    };
}

/// A value that may have bounds.
pub trait Number {
    /// The value as an f64, if it is a number.
    fn of(&self) -> Option<f64> {
        None
    }
}

macro_rules! numbers {
    ($($type:ty),*) => {
        $(impl Number for $type {
            fn of(&self) -> Option<f64> {
                Some(*self as f64)
            }
        })*
    };
}

macro_rules! others {
    ($($type:ty),*) => { $(impl $crate::options::Number for $type {})* };
}
pub(super) use others;

numbers!(u32, usize, u64, f32, f64);
others!(bool, String, PathBuf);

impl<T: Number> Number for Option<T> {
    fn of(&self) -> Option<f64> {
        self.as_ref().and_then(T::of)
    }
}

impl<T> Number for Vec<T> {}
