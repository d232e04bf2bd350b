//! Reads CSV files. The first line names the columns.

use std::io::Read;

use ::csv::{ByteRecord, ErrorKind, Reader, ReaderBuilder};

use super::lines::Bounded;
use super::{Refusal, Rows, Wanted, broken, corrupt};

type Outcome<T> = std::result::Result<T, Refusal>;

/// Reads all rows. Unknown columns are ignored.
pub(super) fn read<R: Read>(
    text: &mut Bounded<R>,
    wanted: &[Wanted],
    rows: &mut Rows,
) -> Outcome<()> {
    let mut reader = reader(text);
    let header = reader.byte_headers().map_err(refuse)?.clone();
    let places = places(&header, wanted)?;
    let (mut record, mut row) = (ByteRecord::new(), vec![0.0; wanted.len()]);
    while reader.read_byte_record(&mut record).map_err(refuse)? {
        let line = record.position().map_or(0, |at| at.line());
        for ((value, wanted), place) in row.iter_mut().zip(wanted).zip(&places) {
            *value = match place.and_then(|place| record.get(place)) {
                Some(cell) => wanted.of_text(text_of(cell, wanted, line)?, line)?,
                None => wanted.of_text("", line)?,
            };
        }
        rows.add(&row, line)?;
    }
    Ok(())
}

/// The column names; empty if the header cannot be read.
pub(super) fn names<R: Read>(text: &mut Bounded<R>) -> Vec<String> {
    let mut reader = reader(text);
    let name = |cell: &[u8]| String::from_utf8_lossy(cell).trim().to_owned();
    reader.byte_headers().map_or(vec![], |header| header.iter().map(name).collect())
}

fn reader<R: Read>(text: &mut Bounded<R>) -> Reader<&mut Bounded<R>> {
    ReaderBuilder::new().from_reader(text)
}

fn text_of<'a>(cell: &'a [u8], wanted: &Wanted, line: u64) -> Outcome<&'a str> {
    let not = |_| corrupt(format!("line {line}, column {}: not UTF-8", wanted.name));
    std::str::from_utf8(cell).map_err(not)
}

/// Index of each wanted value in a row; `None` for a missing column with a default.
fn places(header: &ByteRecord, wanted: &[Wanted]) -> Outcome<Vec<Option<usize>>> {
    let mut names = vec![];
    for cell in header {
        let name = std::str::from_utf8(cell).map_err(|_| corrupt("line 1: not UTF-8"))?.trim();
        if names.contains(&name) {
            return Err(corrupt(format!("line 1: column {name} occurs twice")));
        }
        names.push(name);
    }
    let place = |wanted: &Wanted| {
        let place = names.iter().position(|name| *name == wanted.name);
        match place.is_some() || wanted.default.is_some() {
            true => Ok(place),
            false => {
                let shown: Vec<&str> = names.iter().copied().take(20).collect();
                let (name, has) = (&wanted.name, shown.join(", "));
                Err(corrupt(format!("line 1: no column {name}; it has {has}")))
            }
        }
    };
    wanted.iter().map(place).collect()
}

fn refuse(error: ::csv::Error) -> Refusal {
    let line = error.position().map_or(0, |at| at.line());
    match error.kind() {
        ErrorKind::Io(io) => broken(line.max(1), io),
        ErrorKind::UnequalLengths { pos, expected_len, len } => {
            let line = pos.as_ref().map_or(0, |at| at.line());
            corrupt(format!("line {line}: {len} cells of {expected_len}"))
        }
        _ => corrupt(format!("line {line}: {error}")),
    }
}
