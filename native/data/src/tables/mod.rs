//! Reads games of a declared game from text, one file per game: CSV or JSON lines.
//!
//! A file is streamed: only one line of text and the game's values are in memory. Every error names the
//! line and column.

mod csv;
mod json;
mod lines;

use std::io;
use std::path::Path;

use sconce_game::{Declaration, FieldKind};
use sconce_tensor::{Error, Result, digest, fs};

use crate::corpus::row_columns;
use crate::game::GameInfo;
use crate::melee::Game;
use crate::reader::{Opened, Reader};
use crate::refusal::{Reason, Refusal};
use crate::schema::{Beside, Schema};

/// Maximum values of one game: 1 GiB as f32.
const MAX_NUMBERS: usize = 1 << 28;

/// Reads the tables of a schema.
pub(crate) struct Tables {
    schema: Schema,
    wanted: Vec<Wanted>,
}

/// A value of a row, and the default for files that lack its column.
pub(crate) struct Wanted {
    name: String,
    kind: FieldKind,
    default: Option<f32>,
}

/// Format of a file.
#[derive(Clone, Copy, PartialEq)]
enum Format {
    Csv,
    JsonLines,
}

fn format(path: &Path) -> Option<Format> {
    let is = |extension: &str| path.extension().is_some_and(|e| e.eq_ignore_ascii_case(extension));
    match (is("csv"), is("jsonl") || is("ndjson")) {
        (true, _) => Some(Format::Csv),
        (_, true) => Some(Format::JsonLines),
        _ => None,
    }
}

impl Tables {
    pub(crate) fn new(schema: Schema) -> Self {
        let fields = schema
            .game()
            .placed()
            .flat_map(|(_, field)| std::iter::repeat_n(field.default, field.kind.width()));
        let defaults: Vec<_> = fields.collect();
        let wanted = |(i, (name, kind)): (usize, (String, FieldKind))| {
            let default = defaults.get(i).copied().flatten();
            Wanted { name, kind, default }
        };
        let wanted = schema.numbers().into_iter().enumerate().map(wanted).collect();
        Tables { schema, wanted }
    }

    fn rows(&self, file: &Path, expected: &str) -> std::result::Result<Vec<f32>, Refusal> {
        let opened = fs::open(file).map_err(unreadable)?;
        let mut text = lines::Bounded::new(opened.file());
        let mut rows = Rows { numbers: vec![], width: self.wanted.len() };
        match format(file) {
            Some(Format::JsonLines) => json::read(&mut text, &self.wanted, &mut rows)?,
            _ => csv::read(&mut text, &self.wanted, &mut rows)?,
        }
        match text.digest() == expected {
            true => Ok(rows.numbers),
            false => Err(Refusal::new(Reason::Unreadable, "it changed while it was read")),
        }
    }
}

/// The rows read so far, concatenated.
pub(crate) struct Rows {
    numbers: Vec<f32>,
    width: usize,
}

impl Rows {
    fn add(&mut self, row: &[f32], line: u64) -> std::result::Result<(), Refusal> {
        debug_assert_eq!(row.len(), self.width);
        if self.numbers.len() + row.len() > MAX_NUMBERS
            || self.numbers.try_reserve(row.len()).is_err()
        {
            let said =
                format!("line {line}: more than the {MAX_NUMBERS} numbers that a game may have");
            return Err(corrupt(said));
        }
        self.numbers.extend_from_slice(row);
        Ok(())
    }
}

fn corrupt(detail: impl std::fmt::Display) -> Refusal {
    Refusal::new(Reason::Corrupt, detail)
}

fn unreadable(error: Error) -> Refusal {
    match error {
        Error::Mismatch { got, .. } => {
            Refusal::new(Reason::Unreadable, format!("{got}, not a regular file"))
        }
        Error::Io { source, .. } => Refusal::new(Reason::Unreadable, source),
        other => Refusal::new(Reason::Unreadable, other),
    }
}

/// The refusal for an error while a file is streamed.
fn broken(line: u64, error: &io::Error) -> Refusal {
    match error.kind() {
        io::ErrorKind::InvalidData => corrupt(format!("line {line}: {error}")),
        _ => Refusal::new(Reason::Unreadable, error),
    }
}

impl Wanted {
    /// Checks a value read from a file.
    fn checked(&self, value: f32, line: u64) -> std::result::Result<f32, Refusal> {
        let named = || format!("line {line}, column {}", self.name);
        self.kind.check(value, named).map(|()| value).map_err(corrupt)
    }

    /// Parses and checks a value.
    fn of_text(&self, text: &str, line: u64) -> std::result::Result<f32, Refusal> {
        let text = text.trim();
        let value = match (text, self.default) {
            ("", Some(default)) => return Ok(default),
            ("", None) => return Err(corrupt(format!("line {line}, column {}: empty", self.name))),
            ("true" | "True" | "TRUE", _) => 1.0,
            ("false" | "False" | "FALSE", _) => 0.0,
            (text, _) => match text.parse::<f32>() {
                Ok(value) => value,
                Err(_) => {
                    let shown: String = text.chars().take(40).collect();
                    let name = &self.name;
                    let said = format!("line {line}, column {name}: {shown:?} is not a number");
                    return Err(corrupt(said));
                }
            },
        };
        self.checked(value, line)
    }
}

impl Reader for Tables {
    fn what(&self) -> &'static str {
        "games (.csv, .jsonl)"
    }

    fn reads(&self, path: &Path) -> bool {
        format(path).is_some()
    }

    fn open(&self, file: &Path) -> std::result::Result<Opened, Refusal> {
        let digest = digest::of_file(file).map_err(unreadable)?;
        Ok(Opened { digest, bytes: vec![] })
    }

    fn read(
        &self,
        file: &Path,
        opened: &Opened,
        min_frames: usize,
    ) -> std::result::Result<Game, Refusal> {
        let rows = self.rows(file, &opened.digest)?;
        let frames = rows.len() / self.wanted.len().max(1);
        if frames < min_frames.max(1) {
            let detail = format!("{frames} frames of at least {}", min_frames.max(1));
            return Err(Refusal::new(Reason::TooShort, detail));
        }
        let source = file.file_name().map(|n| n.to_string_lossy().into_owned());
        let source = source.unwrap_or_default();
        let (frames, columns) = row_columns(&self.schema, &source, &rows).map_err(corrupt)?;
        Ok(Game { info: GameInfo { frames, ..GameInfo::default() }, columns })
    }
}

/// The schema of the games in these files. The first file determines the columns beside frames and inputs.
pub(crate) fn schema_of(declaration: &Declaration, first: Option<&Path>) -> Result<Schema> {
    let plain = Schema::declared(declaration.clone(), &[]);
    plain.validate()?;
    let Some(first) = first else { return Ok(plain) };
    let opened = fs::open(first)?;
    let mut text = lines::Bounded::new(opened.file());
    // Errors in the file are reported when it is read as a game.
    let names = match format(first) {
        Some(Format::JsonLines) => json::names(&mut text),
        _ => csv::names(&mut text),
    };
    let beside: Vec<Beside> = Beside::ALL
        .into_iter()
        .filter(|beside| names.iter().any(|name| name == beside.name()))
        .collect();
    Ok(Schema::declared(declaration.clone(), &beside))
}
