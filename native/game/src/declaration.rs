//! A game as plain data, and its validation.

use std::borrow::Cow;
use std::collections::HashSet;

use sconce_tensor::bounded::at_most;
use sconce_tensor::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::check::{check_name, within};
use crate::field::{Field, FieldKind, Mirror, is_range};
use crate::input::{InputPart, MAX_NUMBERS, check_pairs};
use crate::table::{Ids, Table};

const MAX_FIELDS: usize = 1 << 10;
const MAX_TABLES: usize = 64;
/// Maximum number of parts of an input, and therefore of heads of an action.
pub(crate) const MAX_PARTS: usize = 64;
/// Maximum number of ids of a table, of values of a vector, and of columns of a row.
pub(crate) const MAX_SIZE: usize = 1 << 16;

/// Names of columns that are stored beside frames and inputs. No field and no part of an input may have one of these
/// names.
const BESIDE: [&str; 4] = ["reward", "end", "weight", "log_likelihood"];

/// A game as plain data: its fields, tables and input.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Declaration {
    /// Name of the game, in `[a-z0-9_.]`.
    pub name: Cow<'static, str>,
    /// Increased by the author of the declaration when a field changes its meaning.
    #[serde(default)]
    pub version: u32,
    /// Fields of a frame, in the order of the raw row.
    #[serde(deserialize_with = "at_most::<_, _, MAX_FIELDS>")]
    pub fields: Vec<Field>,
    /// Trained tables that fields look their ids up in.
    #[serde(default, deserialize_with = "at_most::<_, _, MAX_TABLES>")]
    pub tables: Vec<Table>,
    /// Parts of an input; empty if the game declares none.
    #[serde(default, deserialize_with = "at_most::<_, _, MAX_PARTS>")]
    pub input: Vec<InputPart>,
    /// Number of fields before the previous input in a raw row. If absent, the previous input follows all fields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_after: Option<usize>,
}

fn distinct<'a>(of: &str, names: impl Iterator<Item = &'a str>) -> Result<()> {
    let mut seen = HashSet::new();
    for name in names {
        check_name(of, name)?;
        if !seen.insert(name) {
            return Err(Error::mismatch(
                format!("name of {of}"),
                "distinct names",
                format!("{name} twice"),
            ));
        }
    }
    Ok(())
}

impl Declaration {
    /// Checks that every number is in its bounds and that fields, tables and input are consistent. The error names the
    /// first fault.
    pub fn validate(&self) -> Result<()> {
        check_name("a game", &self.name)?;
        within("fields of a game", self.fields.len(), 1, MAX_FIELDS)?;
        within("tables of a game", self.tables.len(), 0, MAX_TABLES)?;
        within("parts of an input", self.input.len(), 0, MAX_PARTS)?;
        distinct("a field", self.fields.iter().map(|field| &*field.name))?;
        distinct("a table", self.tables.iter().map(|table| &*table.name))?;
        distinct("an input part", self.input.iter().map(|part| &*part.name))?;
        self.input.iter().try_for_each(InputPart::check)?;
        let numbers = self.input.iter().map(|part| part.kind.numbers()).sum();
        within("numbers of an input", numbers, 0, MAX_NUMBERS)?;
        let beside = BESIDE.iter().copied();
        let numbers: Vec<String> = self.input.iter().flat_map(InputPart::column_names).collect();
        let fields = self.fields.iter().map(|field| &*field.name);
        distinct("a column", fields.chain(numbers.iter().map(String::as_str)).chain(beside))?;
        self.tables.iter().try_for_each(check_table)?;
        self.fields.iter().try_for_each(|field| self.check_field(field))?;
        let columns =
            self.fields.iter().fold(0, |sum: usize, f| sum.saturating_add(f.kind.width()));
        within("columns of a frame", columns, 1, MAX_SIZE)?;
        within("previous_after", self.previous_after.unwrap_or(0), 0, self.fields.len())
    }

    fn check_field(&self, field: &Field) -> Result<()> {
        let what = format!("field {}", field.name);
        let not = |expected: &str, got: String| Err(Error::mismatch(&what, expected, got));
        match field.kind {
            FieldKind::Number | FieldKind::Flag => {}
            FieldKind::Range { min, max } if is_range(min, max) => {}
            FieldKind::Range { min, max } => {
                return not("a range from a number to a greater one", format!("{min}..{max}"));
            }
            FieldKind::Id(n) | FieldKind::OneHot(n) => {
                within(&format!("{what} (ids)"), n, 1, MAX_SIZE)?;
            }
            FieldKind::Vector(n) => within(&format!("{what} (size)"), n, 1, MAX_SIZE)?,
        }
        field.scale.check(&what)?;
        if let Some(value) = field.default {
            field.kind.check(value, || format!("{what} (default)"))?;
        }
        if let Some(table) = &field.table {
            let known = self.tables.iter().any(|known| known.name == *table);
            match field.kind {
                FieldKind::Id(_) if known => {}
                FieldKind::Id(_) => return not("a table of the game", table.to_string()),
                _ => return not("an id (it names a table)", format!("{:?}", field.kind)),
            }
        }
        self.check_mirror(field, &what)
    }

    fn check_mirror(&self, field: &Field, what: &str) -> Result<()> {
        let not = |expected: &str, got: String| Err(Error::mismatch(what, expected, got));
        let number = matches!(field.kind, FieldKind::Number | FieldKind::Vector(_));
        match (&field.mirror, field.kind) {
            (Mirror::Keep, _) | (Mirror::Flip, FieldKind::Range { .. }) => Ok(()),
            (Mirror::Negate, FieldKind::Range { min, max }) if min == -max => Ok(()),
            (Mirror::Negate, _) if number => Ok(()),
            (Mirror::Negate, kind) => not("a number to negate", format!("{kind:?}")),
            (Mirror::Flip, kind) => not("a range to flip", format!("{kind:?}")),
            (Mirror::Permute(to), FieldKind::Id(n) | FieldKind::OneHot(n)) => {
                check_pairs(what, to, n)
            }
            (Mirror::Permute(_), kind) => not("ids or classes to swap", format!("{kind:?}")),
            (Mirror::Swap(other), _) => {
                let found = self.fields.iter().find(|f| f.name == *other);
                let back = Mirror::Swap(field.name.clone());
                match found {
                    Some(other)
                        if other.kind == field.kind
                            && other.mirror == back
                            && other.name != field.name =>
                    {
                        Ok(())
                    }
                    Some(other) => {
                        not("a field of its kind that swaps with it", other.name.to_string())
                    }
                    None => not("a field of the game to swap with", other.to_string()),
                }
            }
        }
    }
}

fn check_table(table: &Table) -> Result<()> {
    let what = format!("table {}", table.name);
    within(&format!("{what} (ids)"), table.ids.len(), 1, MAX_SIZE)?;
    within(&format!("{what} (width)"), table.width, 1, MAX_SIZE)?;
    match &table.ids {
        Ids::Listed(ids) if ids.iter().collect::<HashSet<_>>().len() < ids.len() => {
            Err(Error::mismatch(what, "each id once", format!("{ids:?}")))
        }
        _ => Ok(()),
    }
}
