//! Tables of options, `options.exs`, which Elixir reads too.
//!
//! A row is the only description of an option. The table is a literal of both languages: Elixir makes documentation,
//! checks and switches from it; in Rust a macro makes a field from each row, and its other keys are looked up by its
//! name.
//!
//! | key | meaning |
//! |---|---|
//! | `value`, `optional`, `list` | the Rust type of a value, of an optional value, or of the elements of a list |
//! | `default`, `doc` | default value and text, in this order |
//! | `type` | the Elixir type, if it does not follow from the Rust type |
//! | `min`, `max`, `above`, `below` | bounds of a number; `above` and `below` are exclusive |
//! | `needs` | values of another option without which this one has no effect: a list, `:given` or `:above_zero` |
//! | `resume` | `:free` if the option may change in a resumed run |

use std::sync::OnceLock;

use sconce_tensor::{Error, Result};
use serde_json::{Map, Value};

use super::literal;

/// The table of training options.
pub(crate) static TABLE: Table = Table::new(include_str!("../../options.exs"));

/// The group whose options are given only with its name: the loss has too many to list them among the others.
pub(crate) const NAMED: &str = "loss";

/// A row of the table.
#[derive(Debug, Clone)]
pub struct Row {
    /// The group of the option.
    pub group: String,
    /// The name of the option.
    pub name: String,
    says: Map<String, Value>,
}

/// A condition on another option.
pub(super) struct Need<'a> {
    pub other: &'a str,
    values: &'a Value,
}

impl Row {
    /// Whether the option may change in a resumed run.
    pub fn is_free(&self) -> bool {
        self.says.get("resume").is_some_and(|resume| resume == "free")
    }

    /// Whether the option may be given by its name alone, without its group.
    pub(crate) fn is_flat(&self) -> bool {
        self.group != NAMED
    }

    /// The default value of the option.
    pub fn default(&self) -> Value {
        match (self.says.get("default"), self.says.contains_key("list")) {
            (None | Some(Value::Null), true) => Value::Array(vec![]),
            (value, _) => value.cloned().unwrap_or_default(),
        }
    }

    pub(super) fn needs(&self) -> impl Iterator<Item = Need<'_>> {
        let needs = self.says.get("needs").and_then(Value::as_object);
        needs.into_iter().flatten().map(|(other, values)| Need { other, values })
    }

    fn number(&self, key: &str) -> Option<f64> {
        self.says.get(key).and_then(Value::as_f64)
    }

    /// Minimum and maximum of a number option, both inclusive.
    pub(super) fn bounds(&self) -> Option<(f64, f64)> {
        let least = self.number("min").or_else(|| Some(self.number("above")?.next_up()));
        let most = self.number("max").or_else(|| Some(self.number("below")?.next_down()));
        (least.is_some() || most.is_some())
            .then(|| (least.unwrap_or(f64::MIN), most.unwrap_or(f64::MAX)))
    }
}

impl Need<'_> {
    pub(super) fn is_met(&self, value: &Value) -> bool {
        match self.values.as_str() {
            Some("given") => !value.is_null(),
            Some("above_zero") => value.as_f64().is_some_and(|number| number > 0.0),
            Some(_unknown) => false,
            None => self.values.as_array().is_some_and(|values| values.contains(value)),
        }
    }

    /// The condition as text for an error.
    pub(super) fn said(&self) -> String {
        let other = self.other;
        match self.values.as_str() {
            Some("given") => format!("a {other}"),
            Some(_) => format!("{other} above 0"),
            None => {
                let values = self.values.as_array().into_iter().flatten();
                let values: Vec<_> = values.filter_map(Value::as_str).collect();
                format!("{other} {}", values.join(" or "))
            }
        }
    }
}

/// A table of options, read from its text when it is first used.
pub struct Table {
    text: &'static str,
    rows: OnceLock<std::result::Result<Vec<Row>, String>>,
}

impl Table {
    /// The table with this text: `options!(group: [name: [..], ..], ..);`.
    pub const fn new(text: &'static str) -> Self {
        Table { text, rows: OnceLock::new() }
    }

    /// All rows.
    ///
    /// # Errors
    /// `Corrupt` if the table cannot be parsed; a test excludes this error.
    pub fn rows(&self) -> Result<&[Row]> {
        match self.rows.get_or_init(|| parsed(self.text)) {
            Ok(rows) => Ok(rows),
            Err(reason) => Err(Error::corrupt("options.exs", reason)),
        }
    }

    /// Sorts options into their groups; given options may be with or without groups.
    ///
    /// # Errors
    /// The name of an option that the table does not have.
    pub fn nested(
        &self,
        given: Map<String, Value>,
    ) -> std::result::Result<Map<String, Value>, String> {
        let rows = self.rows().map_err(|e| e.to_string())?;
        let mut groups = Map::new();
        let mut put = |group: &str, name: String, value: Value| {
            let group = groups.entry(group).or_insert_with(|| Map::new().into());
            if let Value::Object(options) = group {
                options.insert(name, value);
            }
        };
        for (name, value) in given {
            match value {
                Value::Object(options) if rows.iter().any(|row| row.group == name) => {
                    options.into_iter().for_each(|(option, value)| put(&name, option, value));
                }
                value => match rows.iter().find(|row| row.name == name && row.is_flat()) {
                    Some(row) => put(&row.group, name, value),
                    None => return Err(format!("unknown option {name}")),
                },
            }
        }
        Ok(groups)
    }

    /// Refuses a given option that has no effect given the other options, and names it. `values` has the groups.
    ///
    /// # Errors
    /// `Mismatch`.
    pub fn check_meant(&self, values: &Value) -> Result<()> {
        let rows = self.rows()?;
        let value = |row: &Row| values.get(&row.group).and_then(|group| group.get(&row.name));
        let of = |name: &str| rows.iter().find(|row| row.name == name).and_then(value);
        for row in rows {
            let given = value(row).is_some_and(|value| !same(value, &row.default()));
            for need in row.needs().filter(|_| given) {
                if !need.is_met(of(need.other).unwrap_or(&Value::Null)) {
                    return Err(Error::mismatch(&row.name, need.said(), "none"));
                }
            }
        }
        Ok(())
    }

    fn row(&self, option: &str) -> Result<Option<&Row>> {
        Ok(self.rows()?.iter().find(|row| row.name == option))
    }

    /// Refuses a number outside the bounds of its option, if it has bounds.
    pub fn check(&self, option: &str, value: Option<f64>) -> Result<()> {
        match self.row(option)?.and_then(Row::bounds).zip(value) {
            Some(((min, max), value)) => at_least(option, value, min, max),
            None => Ok(()),
        }
    }
}

/// Whether two values are equal. Numbers are compared as f32, because some were converted from f32.
fn same(a: &Value, b: &Value) -> bool {
    let number = |value: &Value| value.as_f64().map(|number| number as f32);
    a == b || (a.is_number() && number(a) == number(b))
}

fn parsed(text: &str) -> std::result::Result<Vec<Row>, String> {
    let list = text.trim().strip_prefix("options!(").and_then(|text| text.strip_suffix(");"));
    let list = list.ok_or("no options!(..)")?;
    let Value::Object(groups) = literal::parse(&format!("[{list}]"))? else {
        return Err("no groups of options".into());
    };
    let mut rows = vec![];
    for (group, options) in groups {
        let Value::Object(options) = options else {
            return Err(format!("{group} has no options"));
        };
        for (name, says) in options {
            let Value::Object(says) = says else { return Err(format!("{name} says nothing")) };
            rows.push(Row { group: group.clone(), name, says });
        }
    }
    Ok(rows)
}

/// All training options.
pub(crate) fn rows() -> Result<&'static [Row]> {
    TABLE.rows()
}

/// Refuses a number outside the bounds of its option.
pub(super) fn bounded(option: &str, value: f64) -> Result<()> {
    match TABLE.row(option)?.and_then(Row::bounds) {
        Some((min, max)) => at_least(option, value, min, max),
        None => Err(Error::not_found(format!("bounds of {option}"))),
    }
}

/// Refuses a number outside the given bounds, and names its field.
pub(crate) fn at_least(field: &str, value: f64, min: f64, max: f64) -> Result<()> {
    match value {
        v if v >= min && v <= max => Ok(()),
        v => Err(Error::out_of_range(field, v, min, max)),
    }
}
