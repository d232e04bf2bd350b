//! The memory of a card by owner, and this process's budget on it.

use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// An owner of long-lived tensors on a card. Memory in use without an owner belongs to work in flight: activations kept
/// for a backward pass, gradients, workspaces of libraries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// Weights of policies.
    Weights,
    /// Optimiser state of a run: moments and averaged weights.
    Optimiser,
    /// Recurrent states of sessions.
    Sessions,
    /// Batches that wait for their training step.
    Loader,
}

/// Bytes on a card by owner.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Kept {
    /// Bytes of [`Owner::Weights`].
    pub weights: u64,
    /// Bytes of [`Owner::Optimiser`].
    pub optimiser: u64,
    /// Bytes of [`Owner::Sessions`].
    pub sessions: u64,
    /// Bytes of [`Owner::Loader`].
    pub loader: u64,
}

impl Kept {
    /// The bytes of one owner.
    pub fn of(&mut self, owner: Owner) -> &mut u64 {
        match owner {
            Owner::Weights => &mut self.weights,
            Owner::Optimiser => &mut self.optimiser,
            Owner::Sessions => &mut self.sessions,
            Owner::Loader => &mut self.loader,
        }
    }

    /// The bytes of all owners.
    pub fn total(&self) -> u64 {
        self.weights + self.optimiser + self.sessions + self.loader
    }
}

/// The memory of a card, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Physical memory of the card.
    pub total: u64,
    /// Bytes that no process has taken. `None` for a card that this process has not opened.
    pub free: Option<u64>,
    /// The limit on all tensors of this process, if there is one.
    pub budget: Option<u64>,
    /// Bytes of long-lived tensors by owner.
    #[serde(flatten)]
    pub kept: Kept,
    /// Bytes in use by work in flight.
    pub activations: u64,
    /// Bytes taken from the driver and not in use.
    pub cached: u64,
    /// Bytes of other processes, of other libraries in this process, and of CUDA itself.
    pub others: u64,
    /// Whether a training run is in progress on the card.
    #[serde(skip)]
    pub runs: bool,
}

impl Memory {
    /// Computes a card's memory. Its pool has taken `reserved` bytes from the driver; `used` of these are in use.
    pub fn of_pool(
        (total, free): (u64, Option<u64>),
        budget: Option<u64>,
        kept: Kept,
        [used, reserved]: [u64; 2],
    ) -> Self {
        let activations = used.saturating_sub(kept.total());
        let cached = reserved.saturating_sub(used);
        let others = free.map_or(0, |free| total.saturating_sub(free + reserved));
        Memory { total, free, budget, kept, activations, cached, others, runs: false }
    }

    /// Bytes that this process has taken for tensors, in use or cached.
    pub fn taken(&self) -> u64 {
        self.kept.total() + self.activations + self.cached
    }

    /// Remedies for a full card, most promising first.
    pub fn remedies(&self) -> Vec<&'static str> {
        let among = |part: u64, of: u64| part > of / 10;
        // Training runs release cached memory by themselves.
        let runs = self.runs;
        let bound =
            self.budget.is_some_and(|budget| self.free.is_some_and(|free| free > budget / 10));
        let found: Vec<_> = [
            ("a smaller batch_size or window_size", runs),
            ("a larger memory_fraction or memory_budget", bound),
            ("end others on the card (Sconce.GPU.processes/1)", among(self.others, self.total)),
            ("close sessions", among(self.kept.sessions, self.taken())),
            ("Sconce.GPU.release/1", !runs && among(self.cached, self.taken())),
        ]
        .into_iter()
        .filter_map(|(remedy, helps)| helps.then_some(remedy))
        .collect();
        if found.is_empty() { vec!["a smaller policy, or fewer games at a time"] } else { found }
    }
}

/// The limit on all tensors of this process on a card: the smaller of two bounds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Budget {
    /// Share of the card's memory, 0..1. 1 or more means no limit.
    pub fraction: Option<f64>,
    /// Bytes.
    pub bytes: Option<u64>,
}

impl Budget {
    /// The limit in bytes on a card of `total` bytes; `None` for no limit.
    pub fn of(&self, total: u64) -> Option<u64> {
        let share =
            self.fraction.filter(|share| *share < 1.0).map(|share| (share * total as f64) as u64);
        self.bytes.into_iter().chain(share).min()
    }
}

static BUDGET: Mutex<Budget> = Mutex::new(Budget { fraction: None, bytes: None });

/// Sets the budget of cards opened from now on. An open card adopts the budget once none of its memory is in use.
pub fn allow(budget: Budget) {
    *BUDGET.lock().unwrap_or_else(PoisonError::into_inner) = budget;
}

/// The budget that [`allow`] set last.
pub fn budget() -> Budget {
    *BUDGET.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: u64 = 1 << 30;

    fn memory(free: u64, budget: Option<u64>, kept: Kept, used: u64, reserved: u64) -> Memory {
        Memory::of_pool((80 * GB, Some(free)), budget, kept, [used, reserved])
    }

    #[test]
    fn memory_in_use_without_an_owner_is_activations_and_memory_not_in_use_is_cached() {
        let kept = Kept { weights: 3 * GB, optimiser: 6 * GB, ..Kept::default() };
        let memory = memory(30 * GB, None, kept, 20 * GB, 32 * GB);
        assert_eq!((memory.activations, memory.cached), (11 * GB, 12 * GB));
        assert_eq!((memory.taken(), memory.others), (32 * GB, 18 * GB));
    }

    #[test]
    fn a_budget_is_the_smaller_of_fraction_and_bytes() {
        let budget = |fraction, bytes| Budget { fraction, bytes }.of(1000);
        assert_eq!(budget(None, None), None);
        assert_eq!(budget(Some(1.0), None), None);
        assert_eq!(budget(Some(0.5), None), Some(500));
        assert_eq!(budget(Some(0.5), Some(400)), Some(400));
        assert_eq!(budget(Some(0.3), Some(400)), Some(300));
    }

    #[test]
    fn remedies_follow_what_takes_the_memory() {
        let none = Kept::default();
        let names = |memory: Memory| memory.remedies().join("; ");
        let full = memory(0, None, none, 80 * GB, 80 * GB);
        assert_eq!(names(full.clone()), "a smaller policy, or fewer games at a time");
        let in_a_run = |memory: Memory| names(Memory { runs: true, ..memory });
        let batch = "a smaller batch_size or window_size";
        assert_eq!(in_a_run(full), batch);
        let bound = memory(40 * GB, Some(40 * GB), none, 40 * GB, 40 * GB);
        assert_eq!(names(bound.clone()), "a larger memory_fraction or memory_budget");
        assert!(in_a_run(bound).starts_with(batch));
        let others = names(memory(0, None, none, 20 * GB, 20 * GB));
        assert_eq!(others, "end others on the card (Sconce.GPU.processes/1)");
        let full = memory(0, None, Kept { sessions: 30 * GB, ..none }, 60 * GB, 80 * GB);
        assert_eq!(names(full.clone()), "close sessions; Sconce.GPU.release/1");
        assert_eq!(in_a_run(full), format!("{batch}; close sessions"));
    }
}
