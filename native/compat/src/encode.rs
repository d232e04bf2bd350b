//! Writes terms in Erlang's external format, as far as exports need them.

use serde_json::Value;

use crate::names::KNOWN;
use crate::term::VERSION;

/// The bytes of a term, without the version.
pub(crate) type Term = Vec<u8>;

/// A whole term.
pub(crate) fn whole(term: Term) -> Vec<u8> {
    [vec![VERSION], term].concat()
}

pub(crate) fn atom(name: &str) -> Term {
    let length = name.len().min(255);
    [&[119, length as u8], &name.as_bytes()[..length]].concat()
}

pub(crate) fn binary(text: &str) -> Term {
    [&[109][..], &(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()
}

pub(crate) fn integer(n: i64) -> Term {
    match (u8::try_from(n), i32::try_from(n)) {
        (Ok(small), _) => vec![97, small],
        (_, Ok(n)) => [&[98][..], &n.to_be_bytes()].concat(),
        _ => [&[110, 8, u8::from(n < 0)][..], &n.unsigned_abs().to_le_bytes()].concat(),
    }
}

pub(crate) fn tuple(all: &[Term]) -> Term {
    [vec![104, all.len() as u8], all.concat()].concat()
}

pub(crate) fn list(all: &[Term]) -> Term {
    match all {
        [] => vec![106],
        all => [&[108][..], &(all.len() as u32).to_be_bytes(), &all.concat(), &[106]].concat(),
    }
}

pub(crate) fn map(pairs: &[(Term, Term)]) -> Term {
    let body: Vec<u8> = pairs.iter().flat_map(|(key, value)| [&key[..], value].concat()).collect();
    [&[116][..], &(pairs.len() as u32).to_be_bytes(), &body].concat()
}

/// A value of a config. The name of a backbone becomes an atom, and other text a binary.
pub(crate) fn value(value: &Value) -> Term {
    match value {
        Value::Null => atom("nil"),
        Value::Bool(own) => atom(if *own { "true" } else { "false" }),
        Value::Number(n) => match n.as_i64() {
            Some(n) => integer(n),
            None => [&[70][..], &n.as_f64().unwrap_or_default().to_be_bytes()].concat(),
        },
        Value::String(name) if KNOWN.contains(&&**name) => atom(name),
        Value::String(text) => binary(text),
        Value::Array(all) => list(&all.iter().map(self::value).collect::<Vec<_>>()),
        Value::Object(pairs) => {
            map(&pairs.iter().map(|(key, own)| (atom(key), self::value(own))).collect::<Vec<_>>())
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{config, term};

    #[test]
    fn what_is_written_reads_back() {
        let config =
            json!({"a": 1, "b": -300, "c": [1.5, true, null], "d": {"e": "gru"}, "f": 1i64 << 40});
        let bytes = whole(value(&config));
        let read = config::of_term(&term::decode(&bytes).unwrap()).unwrap();
        assert_eq!(json!(read), config);
        let text = whole(tuple(&[binary("text"), list(&[]), atom("t")]));
        assert_eq!(term::decode(&text).unwrap().to_string(), r#"{"text", [], :t}"#);
    }
}
