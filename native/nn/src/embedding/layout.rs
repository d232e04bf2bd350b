//! The embedded vector of a game: the offsets of its features, and the tables of its ids.

use std::ops::Range;

use sconce_game::{Block, Class, Feature, FieldKind, Game, Ids, Live, Scale};

use super::{Described, IdSlot};
use crate::Result;

/// The layout of a game's embedded vector: offsets of all its parts.
pub(super) struct Layout {
    blocks: Vec<Block>,
    /// Steps that compute each block, in the form that is fastest per frame.
    steps: Vec<Steps>,
    pub(super) width: usize,
    /// Range of the inputs, newest first.
    pub(super) queue: Range<usize>,
    /// Zeros in the place of the previous input.
    pub(super) hidden: Range<usize>,
    pub(super) delay: Range<usize>,
    pub(super) slots: Vec<IdSlot>,
    /// Column and table of each id slot.
    lookups: Vec<(usize, Ids)>,
    /// Columns whose ids a live frame must have in the given number of classes.
    known: Vec<(usize, usize)>,
}

/// Steps that compute a block from a row.
struct Steps {
    live: Live,
    width: usize,
    steps: Vec<Step>,
}

enum Step {
    /// A single scaled column; most features have this form.
    Scale(usize, Scale),
    /// Any other feature, with its width.
    Made(Feature, usize),
}

impl Step {
    fn of(feature: &Feature, game: &Game) -> Self {
        let field = match feature {
            Feature::Field { field, column } => game.field(*field).map(|field| (field, *column)),
            _ => None,
        };
        match field {
            Some((field, column))
                if !matches!(field.kind, FieldKind::Vector(_) | FieldKind::OneHot(_)) =>
            {
                Step::Scale(column, field.scale)
            }
            _ => Step::Made(feature.clone(), feature.width(game)),
        }
    }
}

impl Layout {
    /// `width_of` returns a table's number of columns if it differs from the game's default.
    pub(super) fn new(
        game: &Game,
        blocks: Vec<Block>,
        packed: bool,
        width_of: impl Fn(&str) -> Option<usize>,
    ) -> Self {
        let mut layout = Layout {
            blocks: vec![],
            steps: vec![],
            width: 0,
            queue: 0..0,
            hidden: 0..0,
            delay: 0..0,
            slots: vec![],
            lookups: vec![],
            known: vec![],
        };
        for block in blocks {
            let before = layout.width;
            for feature in &block.features {
                let start = layout.width;
                layout.width = start.saturating_add(feature.width(game));
                match feature {
                    Feature::Previous => layout.queue = start..layout.width,
                    Feature::Zeros { name, .. } if name == "previous" => {
                        layout.hidden = start..layout.width;
                    }
                    // The previous input, which is the newest, directly precedes the queue; the range covers both.
                    Feature::Queue { inputs } if *inputs > 0 => layout.queue.end = layout.width,
                    Feature::Delay { .. } => layout.delay = start..layout.width,
                    Feature::OneHot { width, class: Class::Known(column), .. } if *width > 0 => {
                        layout.known.push((*column, *width));
                    }
                    _ => {}
                }
            }
            layout.steps.push(Steps {
                live: block.live,
                width: layout.width - before,
                steps: block.features.iter().map(|feature| Step::of(feature, game)).collect(),
            });
            layout.blocks.push(block);
        }
        if !packed {
            layout.look_up(game, width_of);
        }
        layout
    }

    fn look_up(&mut self, game: &Game, width_of: impl Fn(&str) -> Option<usize>) {
        for table in &game.declaration().tables {
            let of_table = |field: &&_| -> bool {
                let (_, field): &(usize, &sconce_game::Field) = field;
                field.table.as_deref() == Some(&*table.name)
            };
            let fields: Vec<_> = game.placed().collect();
            for (column, field) in fields.iter().filter(of_table) {
                self.slots.push(IdSlot {
                    name: field.name.to_string(),
                    table: table.name.to_string(),
                    rows: table.ids.len().saturating_add(1),
                    width: width_of(&table.name).unwrap_or(table.width),
                });
                self.lookups.push((*column, table.ids.clone()));
            }
        }
    }

    /// Writes the continuous features of a row; `out` has [`width`](Self::width) elements.
    pub(super) fn write(&self, game: &Game, row: &[f32], out: &mut [f32]) {
        let mut rest = out;
        for Steps { live, width, steps } in &self.steps {
            let (here, tail) = rest.split_at_mut(*width);
            rest = tail;
            if !live.holds(row) {
                here.fill(0.0);
                continue;
            }
            let mut at = 0;
            for step in steps {
                match step {
                    Step::Scale(column, scale) => {
                        here[at] = scale.apply(row[*column]);
                        at += 1;
                    }
                    Step::Made(feature, width) => {
                        feature.write(game, row, &mut here[at..at + width]);
                        at += width;
                    }
                }
            }
        }
    }

    /// Writes the ids; `out` has one element for each slot.
    pub(super) fn write_ids(&self, row: &[f32], out: &mut [u32]) {
        for (id, (column, ids)) in out.iter_mut().zip(&self.lookups) {
            *id = ids.row(row.get(*column).copied().unwrap_or(-1.0)) as u32;
        }
    }

    /// Checks a live frame: every value is valid for its field, and every id has a class in its one-hot.
    pub(super) fn check(&self, game: &Game, row: &[f32]) -> Result<()> {
        game.check(row)?;
        self.known.iter().try_for_each(|&(column, classes)| {
            let value = row.get(column).copied().unwrap_or(0.0);
            FieldKind::Id(classes).check(value, || game.column_name(column))
        })
    }

    /// Name, offset, width and formula of each part of the vector: features, then looked-up rows.
    pub(super) fn describe(&self, game: &Game) -> Vec<Described> {
        let mut all: Vec<Described> = vec![];
        let mut add = |name: String, width: usize, formula: String| {
            let offset = all.last().map_or(0, |last| last.offset + last.width);
            all.push(Described { name, offset, width, formula });
        };
        for Block { prefix, live, features } in &self.blocks {
            let condition = Live::condition(live, game);
            let described = features.iter().flat_map(|feature| feature.describe(game));
            for (name, width, formula) in described.filter(|(_, width, _)| *width > 0) {
                add(format!("{prefix}{name}"), width, format!("{formula}{condition}"));
            }
        }
        for slot in &self.slots {
            let other = slot.rows - 1;
            let formula = format!("row of {}_embedding, {other} other", slot.table);
            add(slot.name.clone(), slot.width, formula);
        }
        all
    }
}
