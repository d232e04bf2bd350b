//! Builds the input vector of the backbone from an embedded frame.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use sconce_net::{Net, NetSpec, Packed, Program, Storage};
use sconce_ops::weights::Weight;
use sconce_realtime::Packer;
use sconce_tensor::{Error, Result, memory};

use crate::policy::Eyes;
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
    eyes: Option<Laid>,
}

/// The network of an embedding, whose weights lie in the arena in PyTorch's order.
struct Laid {
    spec: NetSpec,
    weights: Vec<(String, Vec<usize>, Range<usize>)>,
    program: Option<Arc<Program>>,
    /// Memories of passes that do not run now. Each pass takes one, so that steps of several threads run side by side.
    idle: Mutex<Vec<Packed>>,
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
        (tables, eyes): (&[(String, Weight)], Option<&Eyes>),
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
        let eyes = eyes.map(|eyes| Laid::new(eyes, packer)).transpose()?;
        Ok(Embedding { continuous, width, slots: slots.len(), lookups, eyes })
    }

    /// Packs the network. Called once, when the arena is there.
    pub(crate) fn pack_net(&mut self, arena: &[f32]) -> Result<()> {
        self.eyes.as_mut().map_or(Ok(()), |eyes| eyes.pack(arena))
    }

    /// Bytes of the packed network, which lie outside of the arena.
    pub(crate) fn net_bytes(&self) -> usize {
        let program = self.eyes.as_ref().and_then(|eyes| eyes.program.as_ref());
        program.map_or(0, |program| program.weight_bytes())
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
        if let Some(eyes) = &self.eyes {
            return eyes.run(frame.continuous, x);
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

impl Laid {
    fn new(eyes: &Eyes, packer: &mut Packer) -> Result<Self> {
        let (spec, weights) = eyes.parts();
        let weights = weights
            .iter()
            .map(|(name, weight)| Ok((name.clone(), weight.dims().to_vec(), packer.keep(weight)?)));
        let weights = weights.collect::<Result<_>>()?;
        Ok(Laid { spec: spec.clone(), weights, program: None, idle: Mutex::default() })
    }

    fn pack(&mut self, arena: &[f32]) -> Result<()> {
        let weights = self.weights.iter().map(|(name, shape, range)| {
            (name.clone(), memory::copied(&arena[range.clone()]), shape.clone())
        });
        let net = Net::from_weights(&self.spec, weights)?;
        self.program = Some(Program::new(&net, Storage::F32)?);
        Ok(())
    }

    fn run(&self, frame: &[f32], x: &mut [f32]) -> Result<()> {
        let idle = || self.idle.lock().unwrap_or_else(|e| e.into_inner());
        let own = idle().pop();
        let mut own = match (own, &self.program) {
            (Some(own), _) => own,
            (None, Some(program)) => Packed::of(program)?,
            (None, None) => return Err(Error::not_found("the packed network of an embedding")),
        };
        let done = match &self.spec.inputs[..] {
            [_one] => own.run(&[frame], x),
            _several => own.run(&self.split(frame), x),
        };
        idle().push(own);
        done
    }

    /// The inputs of the network.
    fn split<'a>(&self, frame: &'a [f32]) -> Vec<&'a [f32]> {
        let mut rest = frame;
        let mut inputs = Vec::with_capacity(self.spec.inputs.len());
        for input in &self.spec.inputs {
            let (numbers, after) = rest.split_at(input.shape.iter().product());
            inputs.push(numbers);
            rest = after;
        }
        inputs
    }
}
