//! Converts terms to and from serde's data model through `serde_json::Value`. Both directions are total: a term or
//! value without a counterpart is a typed error, never a panic.
//!
//! | term | value |
//! |---|---|
//! | `nil`, `true`, `false` | null, booleans |
//! | any other atom, a UTF-8 binary | string |
//! | integer of 64 bits, float | number |
//! | list | array |
//! | map or struct with atom or string keys | object, without `__struct__` |
//! | `{:tag, value}` | `{"tag": value}`, serde's form of an enum's variant |
//! | any other tuple | array |
//!
//! From value to term, objects become maps with *atom* keys and strings become binaries. Atoms are never collected, so
//! keys must be names in Sconce's source (fields, variants); a user's names go into values, as in a list of
//! `{name, count}` objects. A float that is not finite becomes `nil`.

use rustler::{Atom, Binary, Encoder, Env, MapIterator, Term, TermType};
use sconce_tensor::{Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Number, Value};

/// Deepest nesting of a term: a scheduler's stack is small.
const MAX_DEPTH: usize = 64;
/// Maximum number of characters of a term that an error shows.
const SHOWN_CHARS: usize = 80;
/// Name of a nameless term in errors.
const TERM: &str = "term";

/// Decodes a term to a `T`.
pub(crate) fn decode<T: DeserializeOwned>(term: Term) -> Result<T> {
    let value = from_term(term, 0)?;
    serde_json::from_value(value).map_err(|error| {
        let path = std::any::type_name::<T>();
        let name = path.rsplit("::").next().unwrap_or(path);
        Error::mismatch(name, format!("a valid {name}"), error)
    })
}

/// Encodes a `T` as a term.
pub(crate) fn encode<'a>(env: Env<'a>, value: &impl Serialize) -> Result<Term<'a>> {
    let value = serde_json::to_value(value).map_err(|error| Error::corrupt("answer", error))?;
    Ok(to_term(env, &value))
}

fn from_term(term: Term, depth: usize) -> Result<Value> {
    if depth > MAX_DEPTH {
        return Err(Error::mismatch(TERM, format!("at most {MAX_DEPTH} levels"), "more"));
    }
    match term.get_type() {
        TermType::Atom => from_atom(term),
        TermType::Binary => text(term).map(Value::String),
        TermType::Integer => from_integer(term),
        TermType::Float => from_float(term),
        TermType::List => from_list(term, depth),
        TermType::Map => from_map(term, depth),
        TermType::Tuple => from_tuple(term, depth),
        _ => Err(unfit(term, "data")),
    }
}

fn from_atom(term: Term) -> Result<Value> {
    let name = term.atom_to_string().map_err(|_| unfit(term, "a Latin-1 atom"))?;
    Ok(match name.as_str() {
        "nil" => Value::Null,
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        _ => Value::String(name),
    })
}

fn text(term: Term) -> Result<String> {
    let bytes = Binary::from_term(term).map_err(|_| unfit(term, "a binary"))?;
    match std::str::from_utf8(bytes.as_slice()) {
        Ok(text) => Ok(text.to_owned()),
        Err(_) => Err(unfit(term, "text in UTF-8")),
    }
}

fn from_integer(term: Term) -> Result<Value> {
    let signed = term.decode::<i64>().map(Number::from);
    let number = signed.or_else(|_| term.decode::<u64>().map(Number::from));
    number.map(Value::Number).map_err(|_| unfit(term, "an integer of 64 bits"))
}

fn from_float(term: Term) -> Result<Value> {
    let number = term.decode::<f64>().ok().and_then(Number::from_f64);
    number.map(Value::Number).ok_or_else(|| unfit(term, "a finite float"))
}

fn from_list(list: Term, depth: usize) -> Result<Value> {
    let mut items = Vec::new();
    let mut rest = list;
    while let Ok((head, tail)) = rest.list_get_cell() {
        items.push(from_term(head, depth + 1)?);
        rest = tail;
    }
    if rest.is_empty_list() { Ok(Value::Array(items)) } else { Err(unfit(list, "a proper list")) }
}

fn from_map(map: Term, depth: usize) -> Result<Value> {
    let mut object = Map::new();
    for (key, value) in MapIterator::new(map).ok_or_else(|| unfit(map, "a map"))? {
        let name = if key.is_atom() { key.atom_to_string().ok() } else { text(key).ok() };
        let name = name.ok_or_else(|| unfit(key, "an atom or a string as key"))?;
        if name == "__struct__" {
            continue;
        }
        let value = from_term(value, depth + 1).map_err(|error| under(&name, error))?;
        if object.insert(name, value).is_some() {
            return Err(unfit(key, "each key once"));
        }
    }
    Ok(Value::Object(object))
}

fn from_tuple(tuple: Term, depth: usize) -> Result<Value> {
    let items = rustler::types::tuple::get_tuple(tuple).map_err(|_| unfit(tuple, "a tuple"))?;
    let mut values = Vec::with_capacity(items.len());
    for &item in &items {
        values.push(from_term(item, depth + 1)?);
    }
    match (items.as_slice(), values.as_mut_slice()) {
        ([tag, _], [Value::String(name), value]) if tag.is_atom() => {
            Ok(Value::Object(Map::from_iter([(name.clone(), value.take())])))
        }
        _ => Ok(Value::Array(values)),
    }
}

fn unfit(term: Term, expected: &str) -> Error {
    let shown: String = format!("{term:?}").chars().take(SHOWN_CHARS).collect();
    Error::mismatch(TERM, expected, shown)
}

/// Names the key in an error of its value.
fn under(name: &str, error: Error) -> Error {
    match error {
        Error::Mismatch { what, expected, got } if what == TERM => {
            Error::Mismatch { what: name.to_owned(), expected, got }
        }
        other => other,
    }
}

/// A value as a term. The depth is not checked: values come from `Serialize` types of Sconce.
pub(super) fn to_term<'a>(env: Env<'a>, value: &Value) -> Term<'a> {
    match value {
        Value::Null => rustler::types::atom::nil().to_term(env),
        Value::Bool(value) => value.encode(env),
        Value::Number(number) => number_to_term(env, number),
        Value::String(text) => text.encode(env),
        Value::Array(items) => {
            items.iter().map(|item| to_term(env, item)).collect::<Vec<_>>().encode(env)
        }
        Value::Object(fields) => {
            map(env, fields.iter().map(|(name, value)| (atom(env, name), to_term(env, value))))
        }
    }
}

fn number_to_term<'a>(env: Env<'a>, number: &Number) -> Term<'a> {
    if let Some(integer) = number.as_i64() {
        integer.encode(env)
    } else if let Some(integer) = number.as_u64() {
        integer.encode(env)
    } else {
        number.as_f64().encode(env)
    }
}

/// An atom for a name in Sconce's source. A text that cannot be an atom (beyond Latin-1 or 255 bytes) becomes a binary;
/// no name in the source is such a text.
pub(super) fn atom<'a>(env: Env<'a>, name: &str) -> Term<'a> {
    Atom::from_str(env, name).map_or_else(|_| name.encode(env), |atom| atom.to_term(env))
}

/// A map of distinct keys.
pub(super) fn map<'a>(env: Env<'a>, pairs: impl Iterator<Item = (Term<'a>, Term<'a>)>) -> Term<'a> {
    let (keys, values): (Vec<_>, Vec<_>) = pairs.unzip();
    // The call fails only if a key is given twice.
    Term::map_from_term_arrays(env, &keys, &values).unwrap_or_else(|_| Term::map_new(env))
}
