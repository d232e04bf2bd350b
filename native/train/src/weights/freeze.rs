//! Frozen weights.

use sconce_tensor::{Error, Result};

use super::{Setup, WeightTransform};
use crate::options::TrainOptions;

/// Frozen parts: all weights whose names begin with these.
struct Freeze(Vec<String>);

/// Name of all tables that an embedding learns, which share no prefix.
const EMBEDDING: &str = "embedding";

/// The transform of a run, if its options ask for it.
///
/// # Errors
/// `Mismatch` for a part that the policy does not have, and if no weight would be left to learn.
pub(super) fn of(setup: &Setup<'_>) -> Result<Option<Box<dyn WeightTransform>>> {
    let parts = &setup.options.optimiser.freeze;
    let names = || setup.weights.keys().map(String::as_str);
    for part in parts {
        if !names().any(|name| is_under(name, part)) {
            return Err(Error::mismatch("freeze", known(names()), part));
        }
    }
    let frozen = Freeze(parts.clone());
    if names().all(|name| frozen.covers(name)) {
        return Err(Error::mismatch("freeze", "something left to learn", parts.join(", ")));
    }
    Ok((!parts.is_empty()).then(|| Box::new(frozen) as _))
}

/// Whether the options freeze the weight of this name.
pub(crate) fn is_frozen(options: &TrainOptions, name: &str) -> bool {
    options.optimiser.freeze.iter().any(|part| is_under(name, part))
}

impl WeightTransform for Freeze {
    fn covers(&self, name: &str) -> bool {
        self.0.iter().any(|part| is_under(name, part))
    }

    fn learns(&self) -> bool {
        false
    }
}

fn is_under(name: &str, part: &str) -> bool {
    let table = name.split_once('.').is_some_and(|(first, _)| first.ends_with("_embedding"));
    (table && part == EMBEDDING)
        || name.strip_prefix(part).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Lists the parts of a policy as text, for errors.
fn known<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let first = |name: &'a str| name.split_once('.').map_or(name, |(first, _)| first);
    let mut parts: Vec<&str> = names.map(first).collect();
    parts.dedup();
    format!("{} or a name under one of them", parts.join(", "))
}
