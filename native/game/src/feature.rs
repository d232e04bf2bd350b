//! What is made of a raw row: blocks of features, as data.

use std::borrow::Cow;

use crate::field::{Field, FieldKind};
use crate::input::{InputKind, InputPart, encode};
use crate::row::Game;
use crate::table::Ids;

/// A stretch of the vector that stands or falls with one condition.
#[derive(Debug, Clone, PartialEq)]
pub struct Block {
    /// Stands before the names of its features.
    pub prefix: Cow<'static, str>,
    pub live: Live,
    pub features: Vec<Feature>,
}

/// Which frames give a block its values; the others give it zeros.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Live {
    Always,
    /// Where this column is not 0.
    Where(usize),
    /// Where this column is so much or more.
    From(usize, f32),
}

/// A feature, or several of one name.
#[derive(Debug, Clone, PartialEq)]
pub enum Feature {
    /// A field of the game by its scale, from this column on.
    Field {
        field: usize,
        column: usize,
    },
    /// A number of one or several columns.
    Value {
        name: Cow<'static, str>,
        text: Cow<'static, str>,
        formula: Formula,
    },
    /// As many features as classes, one of which is 1.
    OneHot {
        name: Cow<'static, str>,
        text: Cow<'static, str>,
        width: usize,
        class: Class,
    },
    Zeros {
        name: Cow<'static, str>,
        width: usize,
    },
    /// The input that led to the frame.
    Previous,
    /// The inputs before it, which a raw row does not tell: zeros until somebody writes them.
    Queue {
        inputs: usize,
    },
    /// The one-hot of the frame delay, zeros until somebody writes it.
    Delay {
        width: usize,
    },
}

/// A number of columns.
#[derive(Debug, Clone, PartialEq)]
pub enum Formula {
    One,
    /// `(constant + sum of terms) / by`, held within `min` and `max`.
    Sum {
        constant: f32,
        terms: Vec<Term>,
        by: f32,
        min: f32,
        max: f32,
    },
    /// 1 where the column is below the number.
    Below(usize, f32),
    /// 1 where the band of the column is one of these.
    InBands(usize, Bands, &'static [usize]),
    /// 1 where two columns are in the same band.
    SameBand(usize, usize, Bands),
    /// The distance that the column has, else of two points, `/ by`, held within `min` and `max`.
    Distance {
        given: usize,
        from: [usize; 2],
        to: [usize; 2],
        by: f32,
        min: f32,
        max: f32,
    },
    /// The row of an id in a table.
    Row(usize, Ids),
}

/// A column times a factor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Term {
    pub column: usize,
    pub factor: f32,
    /// Of its absolute value.
    pub abs: bool,
}

/// The last value of each band but the last, which holds the rest.
pub(crate) type Bands = &'static [u16];

/// Which of the features is 1.
#[derive(Debug, Clone, PartialEq)]
pub enum Class {
    Band(usize, Bands),
    Row(usize, Ids),
    /// The id itself; 0 for what is none of them.
    Known(usize),
}

fn band(bands: Bands, value: f32) -> usize {
    bands.partition_point(|&end| f32::from(end) < value)
}

fn flag(value: bool) -> f32 {
    f32::from(u8::from(value))
}

/// A number of a row whose length is known to fit.
fn at(row: &[f32], column: usize) -> f32 {
    row.get(column).copied().unwrap_or(0.0)
}

impl Formula {
    fn apply(&self, row: &[f32]) -> f32 {
        match self {
            Formula::One => 1.0,
            Formula::Sum { constant, terms, by, min, max } => {
                let value = |term: &Term| {
                    let value = at(row, term.column);
                    term.factor * if term.abs { value.abs() } else { value }
                };
                let sum = terms.iter().map(value).fold(*constant, |sum, value| sum + value);
                (sum / by).clamp(*min, *max)
            }
            Formula::Below(column, bound) => flag(at(row, *column) < *bound),
            Formula::InBands(column, bands, these) => {
                flag(these.contains(&band(bands, at(row, *column))))
            }
            Formula::SameBand(a, b, bands) => {
                flag(band(bands, at(row, *a)) == band(bands, at(row, *b)))
            }
            Formula::Distance { given, from, to, by, min, max } => {
                let [dx, dy] = [0, 1].map(|i| at(row, to[i]) - at(row, from[i]));
                let given = at(row, *given);
                let distance = if given > 0.0 { given } else { (dx * dx + dy * dy).sqrt() };
                (distance / by).clamp(*min, *max)
            }
            Formula::Row(column, ids) => ids.row(at(row, *column)) as f32,
        }
    }
}

impl Class {
    fn of(&self, row: &[f32], width: usize) -> usize {
        match self {
            Class::Band(column, bands) => band(bands, at(row, *column)),
            Class::Row(column, ids) => ids.row(at(row, *column)),
            Class::Known(column) => match Ids::Below(width).row(at(row, *column)) {
                known if known < width => known,
                _ => 0,
            },
        }
    }
}

impl Live {
    pub fn holds(&self, row: &[f32]) -> bool {
        match *self {
            Live::Always => true,
            Live::Where(column) => at(row, column) != 0.0,
            Live::From(column, least) => at(row, column) >= least,
        }
    }

    /// What a formula adds to say so.
    pub fn condition(&self, game: &Game) -> String {
        match *self {
            Live::Always => String::new(),
            Live::Where(column) => format!("; 0 without {}", game.column_name(column)),
            Live::From(column, least) => {
                let name = game.column_name(column);
                format!("; 0 with fewer than {least} {}", name.replace("_count", "s"))
            }
        }
    }
}

impl Feature {
    pub fn width(&self, game: &Game) -> usize {
        match self {
            Feature::Field { field, .. } => game.field(*field).map_or(0, |f| f.kind.features()),
            Feature::Value { .. } => 1,
            Feature::OneHot { width, .. } | Feature::Zeros { width, .. } => *width,
            Feature::Previous => game.input_width(),
            Feature::Queue { inputs } => inputs.saturating_mul(game.input_width()),
            Feature::Delay { width } => *width,
        }
    }

    /// Writes it; `out` is as wide as [`width`](Self::width) says.
    pub fn write(&self, game: &Game, row: &[f32], out: &mut [f32]) {
        match self {
            Feature::Field { field, column } => {
                let Some(field) = game.field(*field) else { return };
                match field.kind {
                    FieldKind::Vector(size) => {
                        let own = row.iter().skip(*column).take(size);
                        out.iter_mut().zip(own).for_each(|(out, v)| *out = field.scale.apply(*v));
                    }
                    FieldKind::OneHot(classes) => {
                        one_hot(Ids::Below(classes).row(at(row, *column)), out);
                    }
                    _ => out.fill(field.scale.apply(at(row, *column))),
                }
            }
            Feature::Value { formula, .. } => out.fill(formula.apply(row)),
            Feature::OneHot { class, .. } => one_hot(class.of(row, out.len()), out),
            Feature::Previous => {
                if let Some(numbers) = game.previous(row) {
                    encode(game.parts(), numbers, out);
                } else {
                    out.fill(0.0);
                }
            }
            Feature::Zeros { .. } | Feature::Queue { .. } | Feature::Delay { .. } => out.fill(0.0),
        }
    }

    /// Name and formula of each stretch of it, with its width.
    pub fn describe(&self, game: &Game) -> Vec<(String, usize, String)> {
        let base = |name: &str| name.rsplit_once('.').map_or(name, |(_, base)| base).to_owned();
        let one =
            |name: &str, text: &str| vec![(name.to_owned(), self.width(game), text.to_owned())];
        match self {
            Feature::Field { field, .. } => {
                let Some(field) = game.field(*field) else { return vec![] };
                let name = base(&field.name);
                let text = match field.kind {
                    FieldKind::Vector(_) if field.scale == Default::default() => "as given".into(),
                    FieldKind::OneHot(n) => {
                        format!("one-hot of {name}, 0..{}", n.saturating_sub(1))
                    }
                    _ => field.scale.formula(&name),
                };
                one(&name, &text)
            }
            Feature::Value { name, text, .. } | Feature::OneHot { name, text, .. } => {
                one(name, text)
            }
            Feature::Zeros { name, .. } => one(name, "0"),
            Feature::Previous => game.parts().iter().flat_map(previous).collect(),
            Feature::Queue { .. } => one(
                "queue",
                "inputs before the newest, newest first, each as prev_*; 0 where there is none",
            ),
            Feature::Delay { .. } => one(
                "delay_id",
                "one-hot of the frame delay, the last class that delay or a longer one",
            ),
        }
    }
}

fn previous(part: &InputPart) -> Vec<(String, usize, String)> {
    let names = part.number_names().map(|name| format!("prev_{name}"));
    let describe = |name: String| match part.kind {
        InputKind::Choice(n) => {
            let text = format!("one-hot of {name}, 0..{}", n.saturating_sub(1));
            (name, n, text)
        }
        _ => {
            let text = part.scale.formula(&name);
            (name, 1, text)
        }
    };
    names.map(describe).collect()
}

fn one_hot(class: usize, out: &mut [f32]) {
    out.fill(0.0);
    if let Some(one) = out.get_mut(class) {
        *one = 1.0;
    }
}

/// Features of the fields as they are, where a game has none of its own making: those of each field but ids with a
/// table, then the previous input and what a row does not tell.
pub fn features(game: &Game, packed: bool, queue_depth: usize, num_delays: usize) -> Vec<Block> {
    let looked_up = |field: &Field| field.table.is_some() && !packed;
    let fields = game.placed().enumerate().filter(|(_, (_, field))| !looked_up(field));
    let fields: Vec<Feature> =
        fields.map(|(field, (column, _))| Feature::Field { field, column }).collect();
    let block = |live, features| Block { prefix: "".into(), live, features };
    let mut blocks = vec![block(Live::Always, fields)];
    if !game.parts().is_empty() {
        blocks.push(block(Live::Where(game.previous_column()), vec![Feature::Previous]));
        let inputs = queue_depth.saturating_sub(1);
        blocks.push(block(Live::Always, vec![Feature::Queue { inputs }]));
    }
    blocks.push(block(Live::Always, vec![Feature::Delay { width: num_delays }]));
    if packed {
        let widths = blocks.iter().flat_map(|block| &block.features).map(|f| f.width(game));
        let width = widths.fold(0, usize::saturating_add);
        let pad = width.checked_next_multiple_of(8).map_or(0, |wide| wide - width);
        blocks.push(block(Live::Always, vec![Feature::Zeros { name: "pad".into(), width: pad }]));
    }
    blocks
}
