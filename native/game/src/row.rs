//! The raw row: one frame from the viewpoint of the acting player, in the game's own units.

use std::fmt;
use std::ops::Range;

use sconce_tensor::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::check::fits;
use crate::declaration::Declaration;
use crate::field::{Field, FieldKind, Mirror};
use crate::input::{InputMirror, InputPart, mirror_input};

/// A game: its declaration and the columns of its raw row.
///
/// A raw row holds the values of the fields, in order. Between two fields, or at the end, it holds the previous input:
/// a flag that is 1 if the input is known, then the raw values of the input. Ids are whole numbers, which f32
/// represents exactly.
#[derive(Clone, Serialize, Deserialize)]
#[serde(from = "Declaration", into = "Declaration")]
pub struct Game {
    declaration: Declaration,
    /// First column of each field.
    columns: Vec<usize>,
    /// Column of the flag that is 1 if a previous input is known. The values of the input follow the flag. Equals the
    /// width of the row if no input is declared.
    previous: usize,
    width: usize,
    numbers: usize,
    input_width: usize,
    /// Kind of each field, with its first column. Stored apart from the declaration for speed, because every frame
    /// needs the kinds.
    kinds: Vec<(usize, FieldKind)>,
    /// Mirror of each field whose own values change, with the field's first column and kind.
    mirrors: Vec<(usize, FieldKind, Mirror)>,
    /// Pairs of columns that swap their values, each pair once.
    swaps: Vec<(usize, usize)>,
    has_mirror: bool,
}

/// A column of the raw row.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    /// Name, for example `own.percent`, `prev_main_x` or `vector[3]`.
    pub name: String,
    /// Values that the column can have.
    pub kind: FieldKind,
}

impl PartialEq for Game {
    fn eq(&self, other: &Self) -> bool {
        self.declaration == other.declaration
    }
}

impl fmt::Debug for Game {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Declaration { name, version, fields, input, .. } = &self.declaration;
        let (fields, parts) = (fields.len(), input.len());
        write!(f, "{name} {version} ({fields} fields, {parts} parts of an input)")
    }
}

impl fmt::Display for Game {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.name(), self.width) {
            ("melee", _) => f.write_str("Melee"),
            ("vector", width) => write!(f, "vectors of {width}"),
            (name, width) => write!(f, "{name} ({width} numbers a frame)"),
        }
    }
}

impl From<Game> for Declaration {
    fn from(game: Game) -> Self {
        game.declaration
    }
}

/// Accepts even a contradictory declaration, which [`Game::validate`] reports.
impl From<Declaration> for Game {
    fn from(declaration: Declaration) -> Self {
        let Declaration { fields, input, previous_after, .. } = &declaration;
        let sum = |sizes: &mut dyn Iterator<Item = usize>| sizes.fold(0, usize::saturating_add);
        let numbers = sum(&mut input.iter().map(|part| part.kind.numbers()));
        let input_width = sum(&mut input.iter().map(|part| part.kind.features()));
        let known = if input.is_empty() { 0 } else { numbers.saturating_add(1) };
        let before = previous_after.unwrap_or(fields.len()).min(fields.len());
        let (mut columns, mut width, mut previous) = (vec![], 0_usize, 0);
        for (i, field) in fields.iter().enumerate() {
            if i == before {
                previous = width;
                width = width.saturating_add(known);
            }
            columns.push(width);
            width = width.saturating_add(field.kind.width());
        }
        if before == fields.len() {
            previous = width;
            width = width.saturating_add(known);
        }
        let place = |name: &str| fields.iter().position(|field| field.name == name);
        let pairs = fields.iter().enumerate().filter_map(|(i, field)| match &field.mirror {
            Mirror::Swap(other) => place(other).filter(|other| i < *other).map(|other| (i, other)),
            _ => None,
        });
        let wide = |(a, b): (usize, usize)| {
            let width = fields[a].kind.width().min(fields[b].kind.width());
            let (a, b) = (columns[a], columns[b]);
            // An invalid width must not allocate an unbounded list of columns.
            (0..width.min(crate::declaration::MAX_SIZE)).map(move |k| (a + k, b + k))
        };
        let swaps = pairs.flat_map(wide).collect();
        let placed = || columns.iter().copied().zip(fields);
        let kinds = placed().map(|(column, field)| (column, field.kind)).collect();
        let moves = |mirror: &Mirror| !matches!(mirror, Mirror::Keep | Mirror::Swap(_));
        let mirrors = placed().filter(|(_, field)| moves(&field.mirror));
        let mirrors = mirrors.map(|(at, field)| (at, field.kind, field.mirror.clone())).collect();
        let has_mirror = fields.iter().any(|field| field.mirror != Mirror::Keep)
            || input.iter().any(|part| part.mirror != InputMirror::Keep);
        Game {
            columns,
            previous,
            width,
            numbers,
            input_width,
            kinds,
            mirrors,
            swaps,
            has_mirror,
            declaration,
        }
    }
}

impl Game {
    /// A game of plain vectors of width `size`, without an input.
    pub fn vector(size: usize) -> Self {
        let field = Field {
            name: "vector".into(),
            meaning: "as given".into(),
            kind: FieldKind::Vector(size),
            scale: Default::default(),
            mirror: Mirror::Keep,
            table: None,
            default: None,
        };
        Declaration { name: "vector".into(), version: 1, fields: vec![field], ..Default::default() }
            .into()
    }

    /// Checks the declaration. The error names the first fault.
    pub fn validate(&self) -> Result<()> {
        self.declaration.validate()
    }

    /// The declaration that this game was built from.
    pub fn declaration(&self) -> &Declaration {
        &self.declaration
    }

    /// Name of the game.
    pub fn name(&self) -> &str {
        &self.declaration.name
    }

    /// Version of the declaration.
    pub fn version(&self) -> u32 {
        self.declaration.version
    }

    /// Number of columns of a raw row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Fields of a frame, in order.
    pub fn fields(&self) -> &[Field] {
        &self.declaration.fields
    }

    /// The field with index `i`.
    pub fn field(&self, i: usize) -> Option<&Field> {
        self.declaration.fields.get(i)
    }

    /// Each field with its first column.
    pub fn placed(&self) -> impl Iterator<Item = (usize, &Field)> {
        self.columns.iter().copied().zip(&self.declaration.fields)
    }

    /// The parts of an input; empty if the game declares none.
    pub fn parts(&self) -> &[InputPart] {
        &self.declaration.input
    }

    /// Number of raw values of an input.
    pub fn input_numbers(&self) -> usize {
        self.numbers
    }

    /// Number of features of an input.
    pub fn input_width(&self) -> usize {
        self.input_width
    }

    /// True if swapping left and right changes any field or input.
    pub fn has_mirror(&self) -> bool {
        self.has_mirror
    }

    /// Column of the flag that is 1 if a previous input is known.
    pub fn previous_column(&self) -> usize {
        self.previous
    }

    /// Number of fields before the previous input.
    pub fn fields_before_previous(&self) -> usize {
        let all = self.fields().len();
        self.declaration.previous_after.unwrap_or(all).min(all)
    }

    /// Columns of the raw values of the previous input.
    pub fn previous_place(&self) -> Range<usize> {
        match self.parts().is_empty() {
            true => self.previous..self.previous,
            false => self.previous + 1..self.previous + 1 + self.numbers,
        }
    }

    /// All columns of the row, in order.
    pub fn raw_columns(&self) -> Vec<Column> {
        let mut all: Vec<Column> = vec![];
        for (column, field) in self.placed() {
            if column > all.len() {
                self.previous_columns(&mut all);
            }
            let name = &field.name;
            match field.kind {
                FieldKind::Vector(size) => all.extend(
                    (0..size)
                        .map(|k| Column { name: format!("{name}[{k}]"), kind: FieldKind::Number }),
                ),
                kind => all.push(Column { name: name.to_string(), kind }),
            }
        }
        if self.width > all.len() {
            self.previous_columns(&mut all);
        }
        all
    }

    fn previous_columns(&self, all: &mut Vec<Column>) {
        all.push(Column { name: "prev_exists".into(), kind: FieldKind::Flag });
        for part in self.parts() {
            let names = part.number_names().map(|name| format!("prev_{name}"));
            all.extend(names.map(|name| Column { name, kind: part.kind.values() }));
        }
    }

    /// The index of a column, by name.
    pub fn column(&self, name: &str) -> Option<usize> {
        self.raw_columns().iter().position(|column| column.name == name)
    }

    /// The name of a column; empty beyond the last column.
    pub fn column_name(&self, column: usize) -> String {
        self.raw_columns().into_iter().nth(column).map(|c| c.name).unwrap_or_default()
    }

    /// Checks that every value is valid for its field. The error names the first invalid column.
    pub fn check(&self, row: &[f32]) -> Result<()> {
        fits("frame", self.width, row.len())?;
        for &(column, kind) in &self.kinds {
            let values = row.iter().skip(column).take(kind.width());
            for (k, &value) in values.enumerate() {
                kind.check(value, || self.column_name(column + k))?;
            }
        }
        let Some(&known) = row.get(self.previous).filter(|_| !self.parts().is_empty()) else {
            return Ok(());
        };
        FieldKind::Flag.check(known, || self.column_name(self.previous))?;
        let mut column = self.previous + 1;
        for part in self.parts() {
            let (values, width) = (part.kind.values(), part.kind.numbers());
            for &value in row.iter().skip(column).take(width) {
                // An unknown input has zeros, which need not be valid values.
                if known != 0.0 || value != 0.0 {
                    values.check(value, || self.column_name(column))?;
                }
                column += 1;
            }
        }
        Ok(())
    }

    /// Raw values of the input that led to the frame, if that input is known.
    pub fn previous<'a>(&self, row: &'a [f32]) -> Option<&'a [f32]> {
        let known = !self.parts().is_empty() && row.get(self.previous).is_some_and(|v| *v != 0.0);
        row.get(self.previous_place()).filter(|_| known)
    }

    /// Sets the raw values of the previous input of a row.
    pub fn set_previous(&self, row: &mut [f32], numbers: &[f32]) -> Result<()> {
        fits("frame", self.width, row.len())?;
        fits("input", self.numbers, numbers.len())?;
        if !self.parts().is_empty() {
            row[self.previous] = 1.0;
            row[self.previous_place()].copy_from_slice(numbers);
        }
        Ok(())
    }

    /// Marks the previous input of a row as unknown.
    pub fn forget_previous(&self, row: &mut [f32]) -> Result<()> {
        fits("frame", self.width, row.len())?;
        row[self.previous..self.previous_place().end].fill(0.0);
        Ok(())
    }

    /// Swaps left and right in a row, as if the game were played in a mirror.
    pub fn mirror(&self, row: &mut [f32]) -> Result<()> {
        if !self.has_mirror() {
            let got = format!("{}, which has none", self.name());
            return Err(Error::mismatch("mirror", "a game with a mirror", got));
        }
        fits("frame", self.width, row.len())?;
        for (column, kind, mirror) in &self.mirrors {
            for value in row.iter_mut().skip(*column).take(kind.width()) {
                *value = mirror.apply(*kind, *value);
            }
        }
        self.swaps.iter().for_each(|&(a, b)| row.swap(a, b));
        // An unknown previous input has zeros, which must not be mirrored.
        match self.previous(row).is_some() {
            true => mirror_input(self.parts(), &mut row[self.previous_place()]),
            false => Ok(()),
        }
    }

    /// Returns an error if `got` is another game or another declaration of this game.
    pub fn expect(&self, what: &str, got: &Game) -> Result<()> {
        if self == got {
            return Ok(());
        }
        let same_name = self.name() == got.name();
        let (expected, got) = match (same_name, self.version() == got.version()) {
            (false, _) => (self.to_string(), got.to_string()),
            (true, false) => {
                let version =
                    |game: &Game| format!("version {} of {}", game.version(), game.name());
                (version(self), version(got))
            }
            (true, true) if self.width == got.width => {
                (self.to_string(), format!("{got}, with another declaration"))
            }
            (true, true) => (self.to_string(), got.to_string()),
        };
        Err(Error::mismatch(what, expected, got))
    }
}
