//! Reads JSON lines, one object per frame.

use std::io::Read;

use serde_json::{Map, Value};

use super::lines::Bounded;
use super::{Refusal, Rows, Wanted, broken, corrupt};

type Outcome<T> = std::result::Result<T, Refusal>;

/// Reads all rows. `buttons.jump` is looked up as a key, as key `jump` of the object `buttons`, or as a
/// string in the list `buttons`. `rays[2]` is looked up as a key, or as the third element of the list
/// `rays`.
pub(super) fn read<R: Read>(
    text: &mut Bounded<R>,
    wanted: &[Wanted],
    rows: &mut Rows,
) -> Outcome<()> {
    let (mut bytes, mut row, mut line) = (vec![], vec![0.0; wanted.len()], 0);
    loop {
        line += 1;
        if !text.next(&mut bytes).map_err(|error| broken(line, &error))? {
            return Ok(());
        }
        if bytes.is_empty() {
            continue;
        }
        let object: Map<String, Value> = serde_json::from_slice(&bytes)
            .map_err(|error| corrupt(format!("line {line}: {error}")))?;
        for (value, wanted) in row.iter_mut().zip(wanted) {
            *value = number(&object, wanted, line)?;
        }
        rows.add(&row, line)?;
    }
}

/// The keys of the first object; empty if the object cannot be parsed.
pub(super) fn names<R: Read>(text: &mut Bounded<R>) -> Vec<String> {
    let mut bytes = vec![];
    let first = text.next(&mut bytes).ok().and_then(|_| serde_json::from_slice(&bytes).ok());
    let keys = |object: Map<String, Value>| object.keys().cloned().collect();
    first.map_or(vec![], keys)
}

fn number(object: &Map<String, Value>, wanted: &Wanted, line: u64) -> Outcome<f32> {
    let refuse = |said: &str| corrupt(format!("line {line}, column {}: {said}", wanted.name));
    match find(object, &wanted.name) {
        Some(Found::Value(Value::Bool(held))) => wanted.checked(f32::from(u8::from(*held)), line),
        Some(Found::Value(Value::Number(number))) => {
            // A number out of the range of f32 becomes an infinity, which no field accepts.
            let value = number.as_f64().map_or(f32::NAN, |value| value as f32);
            wanted.checked(value, line)
        }
        Some(Found::Held(held)) => wanted.checked(f32::from(u8::from(held)), line),
        Some(Found::Value(Value::Null)) | None => match wanted.default {
            Some(default) => Ok(default),
            None => Err(refuse("missing")),
        },
        Some(Found::Value(Value::String(text))) => wanted.of_text(text, line),
        Some(Found::Value(_)) => Err(refuse("not a number")),
    }
}

enum Found<'a> {
    Value(&'a Value),
    /// Whether a list of names contains the name.
    Held(bool),
}

fn find<'a>(object: &'a Map<String, Value>, name: &str) -> Option<Found<'a>> {
    if let Some(value) = object.get(name) {
        return Some(Found::Value(value));
    }
    if let Some((list, place)) = name.strip_suffix(']').and_then(|name| name.rsplit_once('[')) {
        let place: usize = place.parse().ok()?;
        return object.get(list)?.as_array()?.get(place).map(Found::Value);
    }
    let (outer, inner) = name.rsplit_once('.')?;
    match find(object, outer)? {
        Found::Value(Value::Object(part)) => {
            // A button that is missing from the object counts as not held.
            Some(part.get(inner).map_or(Found::Held(false), Found::Value))
        }
        Found::Value(Value::Array(held)) => {
            Some(Found::Held(held.iter().any(|name| name.as_str() == Some(inner))))
        }
        _ => None,
    }
}
