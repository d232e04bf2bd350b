//! A parser of the Elixir literals in `options.exs`.

use std::iter::Peekable;
use std::str::Chars;

use serde_json::{Map, Number, Value};

/// The value of a literal. A keyword list becomes an object, a tuple an array, an atom or the name of a type a string,
/// and `nil` null.
pub(super) fn parse(text: &str) -> Result<Value, String> {
    let mut parser = Parser { rest: text.chars().peekable() };
    let value = parser.value()?;
    parser.space();
    match parser.rest.next() {
        None => Ok(value),
        Some(more) => Err(format!("{more:?} after the end")),
    }
}

struct Parser<'a> {
    rest: Peekable<Chars<'a>>,
}

impl Parser<'_> {
    fn value(&mut self) -> Result<Value, String> {
        self.space();
        match self.rest.peek() {
            Some('"') => self.text(),
            Some('[') => self.list(']'),
            Some('{') => self.list('}'),
            Some(':') => {
                self.rest.next();
                Ok(Value::String(self.word()))
            }
            Some(c) if c.is_ascii_digit() => self.number(),
            Some(c) if c.is_ascii_alphabetic() => Ok(match self.word().as_str() {
                "nil" => Value::Null,
                "true" => Value::Bool(true),
                "false" => Value::Bool(false),
                name => Value::String(name.into()),
            }),
            other => Err(format!("{other:?} begins no value")),
        }
    }

    /// Parses values, or a keyword list: words followed by a colon, and their values.
    fn list(&mut self, end: char) -> Result<Value, String> {
        self.rest.next();
        let (mut values, mut fields) = (vec![], Map::new());
        loop {
            self.space();
            if self.rest.next_if_eq(&end).is_some() {
                break;
            }
            let value = self.value()?;
            match (value, self.rest.next_if_eq(&':')) {
                (Value::String(name), Some(_)) => {
                    let value = self.value()?;
                    fields.insert(name, value);
                }
                (value, _) => values.push(value),
            }
            self.space();
            if self.rest.next_if_eq(&',').is_none() && self.rest.peek() != Some(&end) {
                return Err(format!("{:?} where a list continues", self.rest.peek()));
            }
        }
        Ok(if fields.is_empty() { Value::Array(values) } else { Value::Object(fields) })
    }

    fn text(&mut self) -> Result<Value, String> {
        self.rest.next();
        let mut text = String::new();
        loop {
            match self.rest.next() {
                Some('"') => return Ok(Value::String(text)),
                Some('\\') => text.extend(self.rest.next()),
                Some(c) => text.push(c),
                None => return Err("a text without an end".into()),
            }
        }
    }

    fn number(&mut self) -> Result<Value, String> {
        let mut digits = String::new();
        while let Some(c) = self.rest.next_if(|c| c.is_ascii_alphanumeric() || "_.-".contains(*c)) {
            digits.extend((c != '_').then_some(c));
        }
        let whole = digits.parse::<u64>().ok().map(Number::from);
        let number = whole.or_else(|| Number::from_f64(digits.parse().ok()?));
        number.map(Value::Number).ok_or_else(|| format!("{digits} is no number"))
    }

    fn word(&mut self) -> String {
        let mut word = String::new();
        while let Some(c) = self.rest.next_if(|c| c.is_ascii_alphanumeric() || *c == '_') {
            word.push(c);
        }
        word
    }

    fn space(&mut self) {
        while self.rest.next_if(|c| c.is_whitespace()).is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn literals_are_read_as_elixir_reads_them_and_others_are_refused() {
        let text =
            r#"[a: [value: usize, max: 65_536, eps: 1.0e-3], b: {:in, [:x, nil]}, c: "d \"e\""]"#;
        let want = json!({
            "a": {"value": "usize", "max": 65536, "eps": 0.001}, "b": ["in", ["x", null]], "c": "d \"e\"",
        });
        assert_eq!(parse(text).unwrap(), want);
        assert_eq!(parse("[]").unwrap(), json!([]));
        for wrong in ["", "[", "[a: ]", "[1 2]", "1 2", "\"a", "1.2.3", "%{}"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
