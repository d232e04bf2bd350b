//! How a frame becomes a vector: raw numbers to continuous features, and ids for trained tables.
//!
//! A corpus and a live frame take the same path, [`Embedding::embed`]; only a live one is strict.

pub mod melee;

mod layout;

use std::ops::Range;

pub use melee::CONTROLLER_WIDTH as INPUT_WIDTH;
use serde::Serialize;

use crate::spec::{Embedding, Heads, NONE};
use crate::{Error, Result};

/// An id that is looked up in a trained table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct IdSlot {
    /// As in `own.action`.
    pub name: &'static str,
    pub table: &'static str,
    /// Rows of the table, the last one for whatever has no row of its own.
    pub rows: usize,
    /// Numbers in a row of the table.
    pub width: usize,
}

/// A trained table; its weight is `{name}_embedding.weight`, `[rows, width]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Table {
    pub name: &'static str,
    pub rows: usize,
    pub width: usize,
}

/// A stretch of the embedded vector.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Feature {
    pub name: String,
    pub offset: usize,
    pub width: usize,
    /// How it comes about from the raw row.
    pub formula: String,
}

impl Embedding {
    /// Numbers in a raw row.
    pub fn raw_width(&self) -> usize {
        match self {
            Embedding::Vector(n) => *n,
            Embedding::Melee(_) => melee::RAW_WIDTH,
        }
    }

    /// Numbers of the embedded vector that come straight from the raw row.
    pub fn continuous_width(&self) -> usize {
        match self {
            Embedding::Vector(n) => *n,
            Embedding::Melee(options) => layout::width(options),
        }
    }

    /// Ids of one frame, as many as [`Self::id_slots`].
    pub fn num_ids(&self) -> usize {
        match self {
            Embedding::Vector(_) => 0,
            Embedding::Melee(options) => layout::slots(options).len(),
        }
    }

    /// Ids of one frame, in the order in which [`Self::embed`] writes them and in which their rows
    /// follow the continuous features.
    pub fn id_slots(&self) -> Vec<IdSlot> {
        match self {
            Embedding::Vector(_) => Vec::new(),
            Embedding::Melee(options) => layout::id_slots(options),
        }
    }

    /// Width of the embedded vector, continuous features and looked-up rows.
    pub fn width(&self) -> usize {
        self.continuous_width() + self.id_slots().iter().map(|slot| slot.width).sum::<usize>()
    }

    /// The trained tables, each once.
    pub fn tables(&self) -> Vec<Table> {
        let mut tables: Vec<Table> = Vec::new();
        for IdSlot { table: name, rows, width, .. } in self.id_slots() {
            if tables.iter().all(|t| t.name != name) {
                tables.push(Table { name, rows, width });
            }
        }
        tables
    }

    /// Controllers in the vector; a plain vector knows none but through the labels beside it.
    pub fn queue_depth(&self) -> usize {
        match self {
            Embedding::Vector(_) => 1,
            Embedding::Melee(options) => options.queue_depth,
        }
    }

    /// Classes of the delay id; none where the vector does not have it.
    pub fn num_delays(&self) -> usize {
        match self {
            Embedding::Vector(_) => 0,
            Embedding::Melee(options) => options.num_delays,
        }
    }

    /// Turns one raw row into continuous features and ids. A row says nothing of controllers before the
    /// previous action nor of a delay: these are zeros, for [`Self::write_queue`] and
    /// [`Self::write_delay`].
    ///
    /// Strict, for live frames: a value that is not finite, or is none of its field's, is an error
    /// that names it. Not strict, for corpora, whose import has counted them: an id without a row
    /// takes the table's last.
    ///
    /// # Shapes
    /// `raw [raw_width]`, `continuous [continuous_width]`, `ids [num_ids]`.
    pub fn embed(
        &self,
        raw: &[f32],
        strict: bool,
        continuous: &mut [f32],
        ids: &mut [u32],
    ) -> Result<()> {
        melee::fits("raw row", self.raw_width(), raw.len())?;
        melee::fits("continuous features", self.continuous_width(), continuous.len())?;
        melee::fits("ids", self.num_ids(), ids.len())?;
        match self {
            Embedding::Vector(_) if strict => {
                check_finite(raw)?;
                continuous.copy_from_slice(raw);
            }
            Embedding::Vector(_) => continuous.copy_from_slice(raw),
            Embedding::Melee(options) => {
                let row = melee::row(raw)?;
                if strict {
                    layout::check(options, row)?;
                }
                layout::write(options, row, continuous);
                layout::write_ids(options, row, ids);
            }
        }
        Ok(())
    }

    /// What stands at which offset of the embedded vector, without a gap.
    pub fn schema(&self) -> Vec<Feature> {
        match self {
            Embedding::Vector(n) => vec![Feature {
                name: "vector".into(),
                offset: 0,
                width: *n,
                formula: "as given".into(),
            }],
            Embedding::Melee(options) => layout::schema(options),
        }
    }

    /// Labels of the previous action; false, and `out` left alone, if the row has none.
    ///
    /// # Shapes
    /// `raw [raw_width]`, `out [num_labels]`.
    pub fn previous_labels(&self, raw: &[f32], heads: &Heads, out: &mut [u16]) -> Result<bool> {
        if let Embedding::Vector(_) = self {
            return Ok(false);
        }
        match melee::previous(melee::row(raw)?) {
            Some(controller) => melee::discretise(controller, heads, out).map(|()| true),
            None => Ok(false),
        }
    }

    /// Writes these controllers over the newest ones of an embedded row; one of [`NONE`] is zeros. A plain
    /// vector has no place for any.
    ///
    /// # Shapes
    /// `queue [k, num_labels]`, the newest first, `k` at most [`Self::queue_depth`], heads of a
    /// controller; `continuous [continuous_width]`.
    pub fn write_queue(&self, queue: &[u16], heads: &Heads, continuous: &mut [f32]) -> Result<()> {
        let place = self.queue_place(continuous.len())?;
        let places = continuous[place].chunks_exact_mut(INPUT_WIDTH);
        let inputs = queue.chunks_exact(heads.num_labels().max(1));
        places.zip(inputs).try_for_each(|(place, labels)| input_features(labels, heads, place))
    }

    /// Writes one controller of an embedded row, the one so many places behind the newest.
    ///
    /// # Shapes
    /// `labels [num_labels]`, `continuous [continuous_width]`.
    pub fn write_input(
        &self,
        slot: usize,
        labels: &[u16],
        heads: &Heads,
        continuous: &mut [f32],
    ) -> Result<()> {
        let place = self.queue_place(continuous.len())?;
        let mut places = continuous[place].chunks_exact_mut(INPUT_WIDTH);
        let depth = self.queue_depth();
        let place = places.nth(slot).ok_or_else(|| {
            Error::out_of_range("slot of the queue", slot as f64, 0.0, depth as f64 - 1.0)
        })?;
        input_features(labels, heads, place)
    }

    /// Where the controllers of an embedded row with so many continuous features stand, the newest first,
    /// [`INPUT_WIDTH`] numbers each; nowhere in a plain vector.
    pub fn queue_place(&self, continuous: usize) -> Result<Range<usize>> {
        melee::fits("continuous features", self.continuous_width(), continuous)?;
        Ok(match self {
            Embedding::Vector(_) => 0..0,
            Embedding::Melee(options) => layout::queue(options),
        })
    }

    /// Writes the delay id of an embedded row, if it has a place for one.
    ///
    /// # Shapes
    /// `continuous [continuous_width]`.
    pub fn write_delay(&self, delay: usize, continuous: &mut [f32]) -> Result<()> {
        let place = self.delay_place(continuous.len())?;
        delay_features(delay, &mut continuous[place]);
        Ok(())
    }

    /// Where the delay id stands, as [`Self::queue_place`].
    pub fn delay_place(&self, continuous: usize) -> Result<Range<usize>> {
        melee::fits("continuous features", self.continuous_width(), continuous)?;
        Ok(match self {
            Embedding::Vector(_) => 0..0,
            Embedding::Melee(options) => layout::delay(options),
        })
    }

    /// Makes a raw row one of which nobody knows the action that led to it. A plain vector has none.
    pub fn forget_previous(&self, raw: &mut [f32]) -> Result<()> {
        match self {
            Embedding::Vector(_) => Ok(()),
            Embedding::Melee(_) => melee::forget_previous(raw),
        }
    }

    /// Swaps left and right of a raw row. A plain vector has neither.
    pub fn mirror(&self, raw: &mut [f32]) -> Result<()> {
        match self {
            Embedding::Vector(_) => Err(Error::mismatch("mirror", "the Melee embedding", "vector")),
            Embedding::Melee(_) => melee::mirror(raw),
        }
    }
}

/// Features of a controller, which are zeros of [`NONE`].
///
/// # Shapes
/// `labels [num_labels]`, `out` of [`INPUT_WIDTH`].
pub fn input_features(labels: &[u16], heads: &Heads, out: &mut [f32]) -> Result<()> {
    if labels.first() == Some(&NONE) {
        out.fill(0.0);
        return Ok(());
    }
    let mut controller = [0.0; INPUT_WIDTH];
    melee::controller(labels, heads, &mut controller)?;
    layout::write_controller(&controller, out);
    Ok(())
}

/// The one-hot of a frame delay; the last class is that delay or a longer one.
pub fn delay_features(delay: usize, out: &mut [f32]) {
    out.fill(0.0);
    if let Some(last) = out.len().checked_sub(1) {
        out[delay.min(last)] = 1.0;
    }
}

fn check_finite(raw: &[f32]) -> Result<()> {
    match raw.iter().enumerate().find(|(_, value)| !value.is_finite()) {
        Some((i, &value)) => {
            Err(Error::NonFinite { what: format!("vector[{i}]"), value: value.into() })
        }
        None => Ok(()),
    }
}
