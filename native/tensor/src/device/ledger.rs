//! Memory on cards by owner, counted per tensor.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use candle_core::Tensor;

use super::memory::{Kept, Owner};

/// The location of a tensor's storage: the ordinal of the card and the address.
type Location = (usize, u64);

struct Entry {
    owner: Owner,
    bytes: u64,
    /// The number of [`Held`] that contain this storage. Tensors may share storage; the first owner is charged.
    holders: usize,
}

#[derive(Default)]
struct Ledger(Option<HashMap<Location, Entry>>);

static LEDGER: Mutex<Ledger> = Mutex::new(Ledger(None));

fn ledger() -> MutexGuard<'static, Ledger> {
    LEDGER.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ledger {
    fn add(&mut self, place: Location, owner: Owner, bytes: u64) {
        let new = Entry { owner, bytes, holders: 0 };
        self.0.get_or_insert_default().entry(place).or_insert(new).holders += 1;
    }

    fn share(&mut self, place: Location) {
        if let Some(entry) = self.0.get_or_insert_default().get_mut(&place) {
            entry.holders += 1;
        }
    }

    fn take(&mut self, place: Location) {
        let all = self.0.get_or_insert_default();
        if let Some(entry) = all.get_mut(&place) {
            entry.holders -= 1;
            if entry.holders == 0 {
                all.remove(&place);
            }
        }
    }

    fn kept(&self, ordinal: usize) -> Kept {
        let mut kept = Kept::default();
        for ((card, _), entry) in self.0.iter().flatten() {
            if *card == ordinal {
                *kept.of(entry.owner) += entry.bytes;
            }
        }
        kept
    }
}

/// Bytes on a card by owner.
pub(super) fn kept(ordinal: usize) -> Kept {
    ledger().kept(ordinal)
}

/// Tensors entered in the ledgers of their cards until this value is dropped. Tensors on a CPU are not entered.
///
/// Drop it before the tensors: once they are freed, another owner may take their addresses.
#[derive(Debug, Default)]
pub struct Held(Vec<Location>);

impl Held {
    /// Enters `tensors` in the ledgers of their cards under `owner`.
    pub fn of<'a>(owner: Owner, tensors: impl IntoIterator<Item = &'a Tensor>) -> Self {
        let found: Vec<_> = tensors.into_iter().filter_map(super::place).collect();
        let held = Held::at(owner, &found);
        // Weights are long-lived, so they adjust the cache. Session states change with every decision and do not.
        if let (Owner::Weights, Some(((card, _), _))) = (owner, found.first()) {
            super::grown(*card);
        }
        held
    }

    fn at(owner: Owner, found: &[(Location, u64)]) -> Self {
        if found.is_empty() {
            return Held::default();
        }
        let mut ledger = ledger();
        found.iter().for_each(|&(place, bytes)| ledger.add(place, owner, bytes));
        Held(found.iter().map(|(place, _)| *place).collect())
    }
}

impl Clone for Held {
    fn clone(&self) -> Self {
        if !self.0.is_empty() {
            let mut ledger = ledger();
            self.0.iter().for_each(|place| ledger.share(*place));
        }
        Held(self.0.clone())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.0.is_empty() {
            let mut ledger = ledger();
            self.0.iter().for_each(|place| ledger.take(*place));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_counts_each_storage_once_for_its_owner_while_it_is_held() {
        // An ordinal that no other test uses.
        let card = 1 << 20;
        let weights = Held::at(Owner::Weights, &[((card, 256), 100), ((card, 512), 20)]);
        let copy = Held::at(Owner::Sessions, &[((card, 512), 20), ((card, 1024), 7)]);
        let again = copy.clone();
        let want = |weights, sessions| Kept { weights, sessions, ..Kept::default() };
        assert_eq!(kept(card), want(120, 7));
        assert_eq!(kept(card + 1), Kept::default());
        drop(copy);
        assert_eq!(kept(card), want(120, 7));
        drop(weights);
        assert_eq!(kept(card), want(20, 7));
        drop(again);
        assert_eq!(kept(card), Kept::default());
        let cpu = Tensor::zeros(4, candle_core::DType::F32, &candle_core::Device::Cpu).unwrap();
        assert_eq!(Held::of(Owner::Weights, [&cpu]).0, []);
    }
}
