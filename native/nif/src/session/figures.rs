//! Figures of each open session, for people who watch.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rustler::LocalPid;

/// Figures of one session. Decisions update them without a lock.
pub(crate) struct Figures {
    number: u64,
    policy: &'static str,
    owner: Mutex<LocalPid>,
    decisions: AtomicU64,
    late: AtomicU64,
    /// Decisions whose time is known, and the sum of these times.
    timed: AtomicU64,
    nanos: AtomicU64,
    /// Decisions at the last [`busiest`].
    told: AtomicU64,
}

/// The sessions that are open, by their numbers.
static OPEN: Mutex<BTreeMap<u64, Weak<Figures>>> = Mutex::new(BTreeMap::new());
static NUMBER: AtomicU64 = AtomicU64::new(1);

fn open() -> MutexGuard<'static, BTreeMap<u64, Weak<Figures>>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Figures {
    /// Figures of a new session, which are listed until it is closed. `policy` is the name of its backbone.
    pub(super) fn of(policy: &'static str, owner: LocalPid) -> Arc<Self> {
        let zero = || AtomicU64::new(0);
        let figures = Arc::new(Figures {
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            policy,
            owner: Mutex::new(owner),
            decisions: zero(),
            late: zero(),
            timed: zero(),
            nanos: zero(),
            told: zero(),
        });
        open().insert(figures.number, Arc::downgrade(&figures));
        figures
    }

    fn owner(&self) -> MutexGuard<'_, LocalPid> {
        self.owner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The row of this session, and its decisions since the last one.
    fn row(&self) -> (Reverse<u64>, Row) {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let decisions = read(&self.decisions);
        let since = decisions - self.told.swap(decisions, Ordering::Relaxed);
        let (late, timed, nanos) = (read(&self.late), read(&self.timed), read(&self.nanos));
        let owner = *self.owner();
        (Reverse(since), (self.number, self.policy, owner, decisions, late, timed, nanos))
    }

    /// The session belongs to another process.
    pub(super) fn belong_to(&self, owner: LocalPid) {
        *self.owner() = owner;
    }

    /// Leaves the list.
    pub(super) fn close(&self) {
        open().remove(&self.number);
    }

    /// Counts a decision.
    pub(crate) fn decided(&self) {
        self.decisions.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds the time of a decision.
    pub(crate) fn took(&self, time: Duration) {
        self.timed.fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Counts a decision whose deadline passed.
    pub(crate) fn late(&self) {
        self.late.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Figures {
    fn drop(&mut self) {
        self.close();
    }
}

/// A row of [`busiest`]: number, policy and owner of a session, and sums since it was opened: decisions, late ones, those
/// whose time is known, and nanoseconds of these.
pub(crate) type Row = (u64, &'static str, LocalPid, u64, u64, u64, u64);

/// The `most` sessions that decided most since the last call, and the older ones of several.
pub(crate) fn busiest(most: usize) -> Vec<Row> {
    // The drop of a last reference locks the list. The list is not locked any more when that happens.
    let sessions: Vec<Arc<Figures>> = open().values().filter_map(Weak::upgrade).collect();
    let mut rows: Vec<(Reverse<u64>, Row)> = sessions.iter().map(|of| of.row()).collect();
    rows.sort_by_key(|(since, row)| (*since, row.0));
    rows.into_iter().take(most).map(|(_, row)| row).collect()
}
