//! The blocks in RAM and in compressed RAM.
//!
//! Prefetched blocks stay until they are asked for, or given up: they are not in the queue of RAM, and take at most half of
//! its bytes. A stream that loops asks for a block last that it has just asked for, so these blocks leave first, the
//! latest before the others: then the others are there when the loop comes round. Any queue in the order of the requests
//! keeps nothing of a loop that is longer than itself.

use crate::queue::Id;
use crate::state::{Bytes, State};

/// Bytes of blocks that wait to be compressed. Others are read from disk again when they are needed.
const MOST_DEMOTED: u64 = 4 << 20;

impl State {
    /// Bytes of the blocks in RAM.
    pub(crate) fn ram_bytes(&self) -> u64 {
        self.ram.bytes() + self.held
    }

    /// Puts a block into RAM. Those that leave for it are queued for compressed RAM, if that gains anything.
    pub(crate) fn keep(&mut self, id: Id, raw: Bytes) {
        let Some(block) = self.blocks.get_mut(&id) else { return };
        let bytes = raw.len() as u64;
        let was_there = block.raw.replace(raw).is_some();
        block.sound = true;
        match block.ahead {
            Some(_) if was_there => {}
            Some(_) => self.held += bytes,
            None => self.ram.insert(id, bytes),
        }
        while self.ram_bytes() > self.ram.budget() {
            let out = self.next_passed().or_else(|| self.ram.evict(self.held));
            let Some(out) = out else { return };
            self.leave_ram(out);
        }
    }

    /// A reader that loops has got a block.
    pub(crate) fn pass(&mut self, id: Id) {
        let turn = self.counts.requests;
        let Some(block) = self.blocks.get_mut(&id) else { return };
        block.passed = Some(turn);
        self.passed.push((id, turn));
        if self.passed.len() > 64 + 2 * self.blocks.len() {
            let mut passed = std::mem::take(&mut self.passed);
            passed.retain(|(id, turn)| self.has_passed(*id, *turn));
            self.passed = passed;
        }
    }

    fn has_passed(&self, id: Id, turn: u64) -> bool {
        let block = self.blocks.get(&id);
        block.is_some_and(|block| block.passed == Some(turn) && block.raw.is_some())
    }

    /// The block that a loop asked for last.
    fn next_passed(&mut self) -> Option<Id> {
        while let Some((id, turn)) = self.passed.pop() {
            if self.has_passed(id, turn) && self.ram.contains(id) {
                self.ram.remove(id);
                return Some(id);
            }
        }
        None
    }

    fn leave_ram(&mut self, id: Id) {
        let Some(block) = self.blocks.get_mut(&id) else { return };
        let raw = block.raw.take();
        let gains = block.at.codec.is_packed() && block.packed.is_none();
        let bytes = u64::from(block.at.raw);
        if let Some(raw) = raw
            && gains
            && self.compressed.budget() > 0
            && self.demoted_bytes + bytes <= MOST_DEMOTED
        {
            self.demoted_bytes += bytes;
            self.demoted.push_back((id, raw));
        }
    }

    pub(crate) fn next_demoted(&mut self) -> Option<(Id, Bytes)> {
        let (id, raw) = self.demoted.pop_front()?;
        self.demoted_bytes = self.demoted_bytes.saturating_sub(raw.len() as u64);
        Some((id, raw))
    }

    /// Puts the stored form of a block into compressed RAM.
    pub(crate) fn keep_compressed(&mut self, id: Id, packed: Bytes) {
        let Some(block) = self.blocks.get_mut(&id) else { return };
        if self.compressed.budget() == 0 || !block.at.codec.is_packed() {
            return;
        }
        let bytes = packed.len() as u64;
        block.packed = Some(packed);
        self.compressed.insert(id, bytes);
        while let Some(out) = self.compressed.evict(0) {
            if let Some(block) = self.blocks.get_mut(&out) {
                block.packed = None;
            }
        }
    }
}
