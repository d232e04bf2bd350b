//! Builds a policy from the parameters of a file.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use sconce_ops::weights::{Weight, Weights};
use sconce_tensor::simd::non_finite;
use sconce_tensor::tensor::tensor;
use sconce_tensor::{fs, memory};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::arrays::{reversed, transposed};
use crate::config::{self, Config, Described, describe};
use crate::file::{self, File, Kind};
use crate::layers::{Layers, Leaf};
use crate::names::{Order, Pair, pairs};
use crate::state::drawn;
use crate::term::Term;
use crate::{Error, Policy, Result, Spec};

/// Options of an import.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Asked {
    /// The writer of the file; `None` accepts all.
    pub from: Option<From>,
    /// Values that replace or complete those of the file's config.
    pub config: Config,
    /// A policy export whose config replaces that of the file.
    pub config_of: Option<PathBuf>,
    /// Starts LSTM and GRU from zeros instead of the states that Axon draws.
    pub zero_state: bool,
    /// Skips funs and processes in the file's terms instead of refusing them.
    pub trust: bool,
}

/// The writer of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum From {
    /// ExPhil: exports, training checkpoints and moving averages.
    Exphil,
    /// Axon or Nx: parameters alone.
    Axon,
    /// Edifice's safetensors.
    Safetensors,
}

impl From {
    fn of(kind: Kind) -> Self {
        match kind {
            Kind::Manifest | Kind::Legacy | Kind::Checkpoint | Kind::Average => From::Exphil,
            Kind::Parameters => From::Axon,
            Kind::Safetensors => From::Safetensors,
        }
    }
}

/// An imported policy.
pub struct Imported {
    /// The policy. Its notes hold the window and the source.
    pub policy: Policy,
    /// Assumptions about what the file does not say.
    pub notes: Vec<String>,
}

/// Reads the policy of a file.
///
/// # Errors
/// `Corrupt` for a file that cannot be read, `NotFound` for a parameter or a size that is missing, `Mismatch` for a
/// policy that cannot be read exactly, `NonFinite` for a number.
pub fn import(path: &Path, asked: &Asked) -> Result<Imported> {
    let name = path.display().to_string();
    let bytes = fs::read(path, file::MAX_BYTES)?;
    memory::caught(|| of_bytes(&name, &bytes, asked))
}

/// [`import`] of a file's bytes; `what` names the file in errors.
fn of_bytes(what: &str, bytes: &[u8], asked: &Asked) -> Result<Imported> {
    let File { kind, layers, config } = file::read(what, bytes, asked.trust)?;
    if let Some(from) = asked.from.filter(|from| *from != From::of(kind)) {
        return Err(Error::mismatch(what, format!("a file of {from:?}"), kind.name()));
    }
    let mut config = own_config(what, config.as_ref())?;
    if let Some(path) = &asked.config_of {
        let (name, bytes) = (path.display().to_string(), fs::read(path, file::MAX_BYTES)?);
        let other = file::read(&name, &bytes, asked.trust)?;
        config.extend(own_config(&name, other.config.as_ref())?);
    }
    config.extend(asked.config.clone());
    if config.is_empty() {
        return Err(Error::not_found(format!("{what}: the config of a {}", kind.name())));
    }
    let Described { spec, variant, window_size, mut notes } =
        describe(&config, &layers, asked.zero_state)?;
    let pairs = pairs(&spec, variant)?;
    let (weights, keys) = weights(&spec, &pairs, &layers)?;
    if kind == Kind::Checkpoint {
        notes.push("the state of the optimiser is not read".into());
    }
    let source = json!({
        "from": kind.name(), "config": config, "keys": keys, "fused": variant.fused, "notes": notes,
    });
    let noted = json!({ "window_size": window_size, "imported": source });
    Ok(Imported { policy: Policy::from_weights(&spec, weights)?.noting(noted), notes })
}

fn own_config(what: &str, term: Option<&Term>) -> Result<Config> {
    let config = term.map(config::of_term).transpose();
    Ok(config.map_err(|reason| Error::corrupt(what, reason))?.unwrap_or_default())
}

/// The keys of drawn states, by the name of the parameter.
type Keys = BTreeMap<String, [u32; 2]>;

/// The weights of a Spec, filled from the parameters.
fn weights(spec: &Spec, pairs: &[Pair], layers: &Layers) -> Result<(Weights, Keys)> {
    let outline = Policy::outline(spec, Value::Null)?;
    let mut numbers: BTreeMap<&str, Vec<f32>> = BTreeMap::new();
    let mut keys = Keys::new();
    for Pair { theirs, ours, order } in pairs {
        let leaf = layers.get(theirs).ok_or_else(|| Error::not_found(theirs.as_str()))?;
        let missing = || Error::not_found(ours.as_str());
        let shape = outline.weights().get(ours).ok_or_else(missing)?.dims();
        let filled = order.filled(theirs, leaf, shape, &mut keys)?;
        if let Some(value) = non_finite(&filled) {
            return Err(Error::NonFinite { what: theirs.clone(), value: value.into() });
        }
        match order.rows(shape) {
            None => drop(numbers.insert(ours, filled)),
            Some(rows) => {
                let all =
                    numbers.entry(ours).or_insert_with(|| memory::zeros(shape.iter().product()));
                let place = all.get_mut(rows).ok_or_else(missing)?;
                place.copy_from_slice(&filled);
            }
        }
    }
    check_unread(pairs, layers)?;
    let weight = |(name, own): (&String, &Weight)| {
        let all = numbers.remove(name.as_str());
        let all = all.unwrap_or_else(|| memory::zeros(own.elem_count()));
        Ok((name.clone(), tensor(all, own.dims())?.into()))
    };
    let weights = outline.weights().iter().map(weight).collect::<Result<_>>()?;
    Ok((weights, keys))
}

/// Refuses parameters that no weight has. A layer whose only parameter is a key of random numbers belongs to dropout.
fn check_unread(pairs: &[Pair], layers: &Layers) -> Result<()> {
    let read: BTreeSet<&str> = pairs.iter().map(|pair| pair.theirs.as_str()).collect();
    let layer = |name: &'_ str| name.split('.').next().unwrap_or_default().to_string();
    let mut sizes: BTreeMap<String, usize> = BTreeMap::new();
    for (name, _) in layers.iter() {
        *sizes.entry(layer(name)).or_default() += 1;
    }
    let has_state = pairs.iter().any(|pair| matches!(pair.order, Order::Drawn { .. }));
    for (name, _) in layers.iter().filter(|(name, _)| !read.contains(name.as_str())) {
        let own = layer(name);
        let is_key = name.strip_prefix(&own) == Some(".key") && sizes.get(&own) == Some(&1);
        if !is_key || (has_state && own.ends_with("_hidden_state")) {
            let expected = "a layer of the policy that the config describes";
            return Err(Error::mismatch(own, expected, name));
        }
    }
    Ok(())
}

impl Order {
    /// The numbers of a weight, or of some of its rows, that a parameter has.
    fn filled(&self, name: &str, leaf: &Leaf, ours: &[usize], keys: &mut Keys) -> Result<Vec<f32>> {
        let expected = self.theirs(ours);
        if let Order::Drawn { .. } = self {
            let exact = || {
                Error::mismatch(name, "two words of 32 bits", "numbers that are no longer exact")
            };
            let key = leaf.key().ok_or_else(exact)?;
            keys.insert(name.to_string(), key);
            return Ok(drawn(key, 1, ours.last().copied().unwrap_or_default()));
        }
        if leaf.shape != expected {
            return Err(Error::mismatch(
                name,
                format!("{expected:?}"),
                format!("{:?}", leaf.shape),
            ));
        }
        let floats = leaf.floats().ok_or_else(|| Error::mismatch(name, "floats", "integers"))?;
        Ok(match (self, &expected[..]) {
            (Order::Reversed, &[a, b, c]) => reversed(floats, [a, b, c]),
            (Order::Transposed | Order::Gate { .. }, &[rows, columns]) => {
                transposed(floats, rows, columns)
            }
            _ => memory::copied(floats),
        })
    }

    /// The shape of the parameter of a weight of this shape.
    pub(crate) fn theirs(&self, ours: &[usize]) -> Vec<usize> {
        let mut shape = ours.to_vec();
        match self {
            Order::Same => {}
            Order::Transposed | Order::Reversed => shape.reverse(),
            Order::Gate { gates, .. } => {
                if let Some(rows) = shape.first_mut() {
                    *rows /= gates;
                }
                shape.reverse();
            }
            Order::Drawn { .. } => shape = vec![2],
        }
        shape
    }

    /// The range of a weight's numbers that the parameter has; all of them if `None`.
    pub(crate) fn rows(&self, ours: &[usize]) -> Option<Range<usize>> {
        let count: usize = ours.iter().product();
        let (at, of) = match self {
            Order::Gate { gate, gates, .. } => (*gate, *gates),
            Order::Drawn { layer } => (*layer, ours.first().copied().unwrap_or(1)),
            Order::Same | Order::Transposed | Order::Reversed => return None,
        };
        let each = count / of.max(1);
        Some(at * each..(at + 1) * each)
    }
}
