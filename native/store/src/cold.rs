//! Storing blocks that have gone cold in eight bits an element, where packs are rewritten.
//!
//! A block is cold if it lies on disk only. Its stored form may change if every tensor that uses it was put with
//! permission to lose something. The digest then is that of the bytes that are read from now on, so a later put of the
//! original bytes gets a block of its own, and every check compares what is read.

use sconce_tensor::{Result, memory};

use crate::codec::{Codec, int8};
use crate::disk::{Digest, HEADER, Stored};
use crate::packs::Writer;
use crate::queue::Id;
use crate::shared::{Loading, Shared};
use crate::state::{Block, State};
use crate::tensor::{Int8Form, Tensor};

/// A block that gets less shorter stays exact.
const WORTH: f64 = 0.9;

impl Block {
    /// Counts the uses by a tensor that may lose something, or no longer uses the block.
    pub(crate) fn count_lossy(&mut self, form: Int8Form, is_new: bool) {
        match (is_new, self.form) {
            (true, None) => (self.form, self.lossy_uses) = (Some(form), 1),
            (true, Some(own)) if own == form => self.lossy_uses += 1,
            (false, Some(own)) if own == form => {
                self.lossy_uses = self.lossy_uses.saturating_sub(1);
                self.form = self.form.filter(|_| self.lossy_uses > 0);
            }
            // A tensor of another form counts as one that may lose nothing.
            _ => {}
        }
    }

    /// How the block may be stored now, and the bytes of that.
    fn cold(&self) -> Option<(Int8Form, u32)> {
        let form =
            self.form.filter(|_| self.lossy_uses == self.uses && !self.at.codec.is_lossy())?;
        let in_ram = self.raw.is_some() || self.packed.is_some() || self.loading;
        let bytes = int8::stored_bytes(form.real, form.group, self.at.raw);
        let gains = f64::from(bytes) <= WORTH * f64::from(self.at.stored);
        (gains && !in_ram && form.real.width() == self.at.width).then_some((form, bytes))
    }
}

impl State {
    /// Counts the uses of a tensor that may lose something, and has got its name or lost it.
    pub(crate) fn count_lossy(&mut self, tensor: &Tensor, is_new: bool) {
        let Some(form) = tensor.cold() else { return };
        for id in &tensor.blocks {
            if let Some(block) = self.blocks.get_mut(id) {
                block.count_lossy(form, is_new);
            }
        }
    }

    /// Gives a block the place of its lossy form. False if it may no longer lose something.
    fn quantised(&mut self, id: Id, at: Stored) -> bool {
        let Some(block) = self.blocks.get_mut(&id) else { return false };
        if block.lossy_uses != block.uses {
            return false;
        }
        let old = block.at.digest;
        self.moved(id, at);
        self.rename(id, old, at.digest);
        self.counts.quantised += 1;
        true
    }
}

/// The lossy form of a block.
struct Quantised {
    at: Stored,
    stored: Vec<u8>,
}

impl Shared {
    /// The bytes that a block would get shorter by.
    pub(crate) fn cold_gain(&self, block: &Block) -> u64 {
        let cold = self.options.cold.and_then(|_| block.cold());
        cold.map_or(0, |(_, bytes)| u64::from(block.at.stored.saturating_sub(bytes)))
    }

    /// Appends the lossy form of a block, if the block is cold. False if it stays as it is: it is not cold, or a
    /// put has used it meanwhile.
    pub(crate) fn cooled(&self, writer: &mut Writer, id: Id, stored: &[u8]) -> Result<bool> {
        let mut state = self.state();
        let Some(block) = state.blocks.get_mut(&id) else { return Ok(false) };
        let cold = self.options.cold.and_then(|_| block.cold());
        let Some((form, _)) = cold else { return Ok(false) };
        let at = block.at;
        // Readers wait for the new form meanwhile.
        block.loading = true;
        drop(state);
        let _loading = Loading(self, id);
        let Some(new) = memory::caught(|| Ok(quantised(&at, form, stored)))? else {
            // So that its pack is not rewritten for it again.
            let mut state = self.state();
            if let Some(block) = state.blocks.get_mut(&id) {
                (block.form, block.lossy_uses) = (None, 0);
            }
            return Ok(false);
        };
        let new_at = writer.append(&*self.disk, None, new.at, &new.stored)?;
        let mut state = self.state();
        state.pack_bytes += u64::from(new.at.stored) + HEADER as u64;
        Ok(state.quantised(id, new_at))
    }
}

/// The lossy form of the stored bytes of a block. `None` for one that must stay exact, or is damaged.
fn quantised(at: &Stored, form: Int8Form, stored: &[u8]) -> Option<Quantised> {
    // A new digest must not hide that the bytes are not those of the former one.
    let raw = at.restore(stored).ok().filter(|raw| Digest::of(raw) == at.digest)?;
    let stored = int8::encode(form.real, form.group, &raw)?;
    let (codec, crc) = (Codec::Int8(form.real), crc32fast::hash(&stored));
    let new = Stored { codec, crc, stored: stored.len() as u32, ..*at };
    let digest = Digest::of(&new.restore(&stored).ok()?);
    Some(Quantised { at: Stored { digest, ..new }, stored })
}
