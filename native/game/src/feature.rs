//! Blocks of features, computed from a raw row and declared as data.

use std::borrow::Cow;

use crate::field::{Field, FieldKind};
use crate::input::{InputKind, InputPart, encode};
use crate::row::Game;
use crate::table::Ids;

/// A range of the embedded vector whose features share one condition.
#[derive(Debug, Clone, PartialEq)]
pub struct Block {
    /// Prefix of the names of the block's features.
    pub prefix: Cow<'static, str>,
    /// Frames in which the features are computed; in all other frames they are zeros.
    pub live: Live,
    /// Features in the order of the vector.
    pub features: Vec<Feature>,
}

/// Frames for which a block has values. In all other frames its features are zeros.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Live {
    /// Every frame.
    Always,
    /// Frames in which this column is not 0.
    Where(usize),
    /// Frames in which this column is at least this value.
    From(usize, f32),
}

/// A feature, or several features with one name.
#[derive(Debug, Clone, PartialEq)]
pub enum Feature {
    /// A field of the game with its scale applied.
    Field {
        /// Index of the field in the declaration.
        field: usize,
        /// First column of the field in the raw row.
        column: usize,
    },
    /// A value computed from one or several columns.
    Value {
        /// Name of the feature, without the prefix of its block.
        name: Cow<'static, str>,
        /// Formula as text, for descriptions.
        text: Cow<'static, str>,
        /// Formula that computes the value.
        formula: Formula,
    },
    /// One feature per class: 1 for the class of the row and 0 for the others.
    OneHot {
        /// Name of the feature, without the prefix of its block.
        name: Cow<'static, str>,
        /// Formula as text, for descriptions.
        text: Cow<'static, str>,
        /// Number of classes.
        width: usize,
        /// Selects the class that is 1.
        class: Class,
    },
    /// Padding that is always zero.
    Zeros {
        /// Name of the feature, without the prefix of its block.
        name: Cow<'static, str>,
        /// Number of zeros.
        width: usize,
    },
    /// The input that led to the frame.
    Previous,
    /// Earlier inputs, which a raw row does not contain. Zeros until the caller writes them.
    Queue {
        /// Number of inputs.
        inputs: usize,
    },
    /// The one-hot of the frame delay. Zeros until the caller writes it.
    Delay {
        /// Number of classes.
        width: usize,
    },
}

/// A formula that computes a value from columns.
#[derive(Debug, Clone, PartialEq)]
pub enum Formula {
    /// The constant 1.
    One,
    /// `(constant + sum of terms) / by`, clamped to `min..=max`.
    Sum {
        /// Constant added to the sum.
        constant: f32,
        /// Summands.
        terms: Vec<Term>,
        /// Divisor.
        by: f32,
        /// Lower bound of the result.
        min: f32,
        /// Upper bound of the result.
        max: f32,
    },
    /// 1 if the column is below the value, else 0.
    Below(usize, f32),
    /// 1 if the band of the column is one of the listed bands, else 0.
    InBands(usize, Bands, &'static [usize]),
    /// 1 if two columns are in the same band, else 0.
    SameBand(usize, usize, Bands),
    /// The distance in column `given` if it is positive, else the Euclidean distance between two points. The result
    /// is divided by `by` and clamped to `min..=max`.
    Distance {
        /// Column that holds the distance if it is known, else 0.
        given: usize,
        /// Columns x and y of the first point.
        from: [usize; 2],
        /// Columns x and y of the second point.
        to: [usize; 2],
        /// Divisor.
        by: f32,
        /// Lower bound of the result.
        min: f32,
        /// Upper bound of the result.
        max: f32,
    },
    /// The index of the table row for the id in a column, as a number.
    Row(usize, Ids),
}

/// A column times a factor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Term {
    /// Column of the raw row.
    pub column: usize,
    /// Factor of the column.
    pub factor: f32,
    /// Uses the absolute value of the column.
    pub abs: bool,
}

/// Bands of values, given by the largest value of each band. The last band is not listed; it holds all greater values.
pub(crate) type Bands = &'static [u16];

/// Selects the class of a one-hot that is 1.
#[derive(Debug, Clone, PartialEq)]
pub enum Class {
    /// The band of a column.
    Band(usize, Bands),
    /// The index of the table row for the id in a column.
    Row(usize, Ids),
    /// The id in a column; 0 for an id outside the one-hot.
    Known(usize),
}

fn band(bands: Bands, value: f32) -> usize {
    bands.partition_point(|&end| f32::from(end) < value)
}

fn flag(value: bool) -> f32 {
    f32::from(u8::from(value))
}

/// The value in a column. The caller has checked the length of the row.
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
    /// True if the block has values for this row.
    pub fn holds(&self, row: &[f32]) -> bool {
        match *self {
            Live::Always => true,
            Live::Where(column) => at(row, column) != 0.0,
            Live::From(column, least) => at(row, column) >= least,
        }
    }

    /// Text of the condition, appended to a feature's formula.
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
    /// Number of features.
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

    /// Writes the features to `out`, which has [`width`](Self::width) elements.
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

    /// Name, width and formula of each part of the feature.
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

/// The default features of a game: the features of each field except ids with a table, then the previous input, the
/// queue of earlier inputs and the frame delay.
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
