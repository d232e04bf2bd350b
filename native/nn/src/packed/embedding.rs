//! Builds the input vector of the backbone from an embedded frame.

use std::ops::Range;

use sconce_ops::weights::Weight;
use sconce_realtime::Packer;
use sconce_tensor::{Error, Result};

use crate::spec::Spec;

/// One frame; `crate::policy::Frames` holds many.
#[derive(Debug, Clone, Copy)]
pub struct Frame<'a> {
    /// Continuous features `[continuous_width]`.
    pub continuous: &'a [f32],
    /// Ids `[id slots]`.
    pub ids: &'a [u32],
    /// Previous labels `[num_labels]`; [`NONE`](crate::heads::NONE) if there is no previous action.
    pub previous: &'a [f32],
}

/// Builds vectors of continuous features, then the looked-up rows of each table.
pub(crate) struct Embedding {
    continuous: usize,
    width: usize,
    slots: usize,
    /// Lookups in the order of the tables.
    lookups: Vec<Lookup>,
}

struct Lookup {
    /// Index of the looked-up id among the ids of a frame.
    slot: usize,
    name: String,
    rows: usize,
    width: usize,
    table: Range<usize>,
}

impl Embedding {
    /// Packs the tables of a policy, in their order.
    pub(crate) fn new(
        spec: &Spec,
        tables: &[(String, Weight)],
        packer: &mut Packer,
    ) -> Result<Self> {
        let embedding = &spec.embedding;
        let slots = embedding.id_slots();
        let mut lookups = Vec::with_capacity(slots.len());
        for (of, (_, weight)) in embedding.tables().iter().zip(tables) {
            let table = packer.keep(weight)?;
            let own = slots.iter().enumerate().filter(|(_, slot)| slot.table == of.name);
            lookups.extend(own.map(|(slot, _)| Lookup {
                slot,
                name: of.name.clone(),
                rows: of.rows,
                width: of.width,
                table: table.clone(),
            }));
        }
        let (continuous, width) = (embedding.continuous_width(), embedding.width());
        packer.holds(width);
        Ok(Embedding { continuous, width, slots: slots.len(), lookups })
    }

    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// Writes the vector `x [width]` of a frame.
    pub(crate) fn write(&self, arena: &[f32], frame: &Frame<'_>, x: &mut [f32]) -> Result<()> {
        for (what, expected, got) in [
            ("continuous features", self.continuous, frame.continuous.len()),
            ("ids", self.slots, frame.ids.len()),
        ] {
            if expected != got {
                return Err(Error::mismatch(what, expected, got));
            }
        }
        let (continuous, mut rest) = x.split_at_mut(self.continuous);
        continuous.copy_from_slice(frame.continuous);
        for lookup in &self.lookups {
            let (place, after) = rest.split_at_mut(lookup.width);
            place.copy_from_slice(lookup.row(arena, frame.ids[lookup.slot])?);
            rest = after;
        }
        Ok(())
    }
}

impl Lookup {
    fn row<'a>(&self, arena: &'a [f32], id: u32) -> Result<&'a [f32]> {
        let row = arena[self.table.clone()].chunks_exact(self.width).nth(id as usize);
        let max = self.rows as f64 - 1.0;
        row.ok_or_else(|| Error::out_of_range(&self.name, id.into(), 0.0, max))
    }
}
