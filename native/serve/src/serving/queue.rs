//! A queue of requests for workers: bounded, and fair between callers.
//!
//! 1. A push never waits: it returns [`Error::Busy`] if the queue is full and [`Error::Unavailable`] if the queue takes
//!    no more work.
//! 2. A worker that asks gets all entries, up to the batch size, without waiting for more. While one worker computes,
//!    the next batch grows; another worker takes it once it has a quarter of the batch size or an entry has a deadline. The weights
//!    are read once per batch, so small batches take longer.
//! 3. Callers take turns, one entry per turn; the entries of one caller leave in order.
//! 4. An entry whose deadline has passed is returned apart from the batch and does not count towards its size.
//! 5. A push wakes a worker only if one sleeps and none is already being woken.
//! 6. A worker that asks again has finished its previous batch.

use std::collections::VecDeque;
use std::collections::hash_map::{Entry as Line, HashMap};
use std::hash::Hash;
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use sconce_tensor::{Error, Result};

use crate::worker::Deadline;

/// A queued item.
#[derive(Debug)]
pub struct Entry<T> {
    /// When the item was queued.
    pub since: Instant,
    /// The caller's deadline, if any.
    pub deadline: Option<Deadline>,
    /// The item itself.
    pub item: T,
}

/// The result of one [`Queue::take`]. A worker reuses its batch for the next call.
#[derive(Debug)]
pub struct Batch<T> {
    /// Entries to compute.
    pub ready: Vec<Entry<T>>,
    /// Entries whose deadline has passed.
    pub late: Vec<Entry<T>>,
    /// When the batch was taken.
    pub at: Instant,
    at_work: bool,
}

impl<T> Default for Batch<T> {
    fn default() -> Self {
        Batch { ready: vec![], late: vec![], at: Instant::now(), at_work: false }
    }
}

/// A bounded queue of items `T`, fair between callers `K`.
pub struct Queue<K, T> {
    state: Mutex<State<K, T>>,
    filled: Condvar,
    capacity: usize,
    /// Largest number of entries of a batch.
    max: AtomicUsize,
}

/// Number of queued entries at which another worker begins while one computes.
fn worth(max: usize) -> usize {
    max.div_ceil(4)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    Draining,
    Closed,
}

impl Phase {
    fn check_open(self) -> Result<()> {
        let reason = match self {
            Phase::Open => return Ok(()),
            Phase::Draining => "takes no more work",
            Phase::Closed => "has ended",
        };
        Err(Error::Unavailable { what: "serving".into(), reason: reason.into() })
    }
}

type Drained = Box<dyn FnOnce() + Send>;

struct State<K, T> {
    phase: Phase,
    /// The queued entries of each caller.
    lines: HashMap<K, VecDeque<Entry<T>>>,
    /// The callers in `lines`, next one first.
    turns: VecDeque<K>,
    /// Empty lines, kept for later callers.
    spare: Vec<VecDeque<Entry<T>>>,
    /// Number of queued entries.
    len: usize,
    /// Number of queued entries with a deadline.
    hurried: usize,
    /// Number of workers that wait for an entry.
    asleep: usize,
    /// Number of sleeping workers that were notified.
    told: usize,
    /// Number of batches in flight.
    at_work: usize,
    /// Number of callers that compute on their own thread.
    inside: usize,
    drained: Vec<Drained>,
}

impl<K: Copy + Eq + Hash, T> Queue<K, T> {
    /// A queue of at most `capacity` entries, for batches of at most `max`. While one worker computes, another begins at
    /// a quarter of `max`.
    pub fn new(capacity: usize, max: usize) -> Self {
        let state = State {
            phase: Phase::Open,
            lines: HashMap::new(),
            turns: VecDeque::new(),
            spare: vec![],
            len: 0,
            hurried: 0,
            asleep: 0,
            told: 0,
            at_work: 0,
            inside: 0,
            drained: vec![],
        };
        Queue { state: Mutex::new(state), filled: Condvar::new(), capacity, max: max.into() }
    }

    /// The largest number of entries of a batch.
    pub fn max(&self) -> usize {
        self.max.load(Ordering::Relaxed)
    }

    /// Changes the largest number of entries of a batch, from the next batch on. Wakes the workers, for some of which a
    /// smaller batch may be worth it now.
    pub fn set_max(&self, max: usize) {
        let mut state = self.state();
        self.max.store(max, Ordering::Relaxed);
        state.told = state.asleep;
        drop(state);
        self.filled.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State<K, T>> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Queues an item; a refused item is handed back with the error.
    pub fn push(
        &self,
        caller: K,
        deadline: Option<Deadline>,
        item: T,
    ) -> std::result::Result<(), (T, Error)> {
        let entry = Entry { since: Instant::now(), deadline, item };
        let mut state = self.state();
        if let Err(refusal) = state.admit(self.capacity) {
            return Err((entry.item, refusal));
        }
        state.push(caller, entry);
        self.wake_one(state);
        Ok(())
    }

    /// Wakes a worker that sleeps if the queued entries are worth it.
    fn wake_one(&self, mut state: MutexGuard<'_, State<K, T>>) {
        let wake = state.asleep > state.told && state.is_worth(worth(self.max()));
        state.told += usize::from(wake);
        drop(state);
        if wake {
            self.filled.notify_one();
        }
    }

    /// Takes the entries of a batch; waits for the first one. False if the queue is closed.
    pub fn take(&self, batch: &mut Batch<T>) -> bool {
        let mut state = self.state();
        if mem::take(&mut batch.at_work) {
            state.at_work -= 1;
        }
        loop {
            let drained = state.drained();
            if !drained.is_empty() {
                drop(state);
                drained.into_iter().for_each(|tell| tell());
                state = self.state();
                continue;
            }
            if state.phase == Phase::Closed {
                return false;
            }
            if state.is_worth(worth(self.max())) {
                batch.at = Instant::now();
                batch.at_work = true;
                state.at_work += 1;
                state.fill(self.max(), batch);
                // Those that are left may be worth another worker.
                self.wake_one(state);
                return true;
            }
            state.asleep += 1;
            state = self.filled.wait(state).unwrap_or_else(|e| e.into_inner());
            state.asleep -= 1;
            state.told = state.told.saturating_sub(1);
        }
    }

    /// Admits a caller that computes on its own thread instead of a worker's. The queue is not drained before the
    /// returned guard is dropped.
    ///
    /// # Errors
    /// `Unavailable` if the queue takes no work.
    pub fn enter(&self) -> Result<Inside<'_, K, T>> {
        let mut state = self.state();
        state.phase.check_open()?;
        state.inside += 1;
        drop(state);
        Ok(Inside(self))
    }

    fn leave(&self) {
        let mut state = self.state();
        state.inside -= 1;
        let drained = state.drained();
        drop(state);
        drained.into_iter().for_each(|tell| tell());
    }

    /// Removes one queued entry of this caller and returns its item.
    pub fn remove(&self, caller: K, is: impl Fn(&T) -> bool) -> Option<T> {
        self.state().remove(caller, is)
    }

    /// Stops taking entries. `tell` is called once queued entries, batches in flight and callers inside are done, or
    /// the queue is closed.
    pub fn drain(&self, tell: impl FnOnce() + Send + 'static) {
        let mut state = self.state();
        if state.phase == Phase::Open {
            state.phase = Phase::Draining;
        }
        state.drained.push(Box::new(tell));
        let drained = state.drained();
        drop(state);
        drained.into_iter().for_each(|tell| tell());
    }

    /// Closes the queue: workers get no more batches. Returns the queued items.
    pub fn close(&self) -> Vec<T> {
        let mut state = self.state();
        state.phase = Phase::Closed;
        (state.len, state.hurried) = (0, 0);
        state.turns.clear();
        let left = mem::take(&mut state.lines);
        let drained = state.drained();
        drop(state);
        self.filled.notify_all();
        drained.into_iter().for_each(|tell| tell());
        left.into_values().flatten().map(|entry| entry.item).collect()
    }

    /// Number of queued entries.
    pub fn len(&self) -> usize {
        self.state().len
    }

    /// Whether no entry is queued.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns `Busy` or `Unavailable` if a push would fail now.
    pub fn check_room(&self) -> Result<()> {
        self.state().admit(self.capacity)
    }

    /// Returns `Unavailable` if the queue takes no work.
    pub fn check_open(&self) -> Result<()> {
        self.state().phase.check_open()
    }
}

/// Guard of a caller that computes on its own thread.
pub struct Inside<'a, K: Copy + Eq + Hash, T>(&'a Queue<K, T>);

impl<K: Copy + Eq + Hash, T> Drop for Inside<'_, K, T> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl<K: Copy + Eq + Hash, T> State<K, T> {
    fn admit(&self, capacity: usize) -> Result<()> {
        self.phase.check_open()?;
        match self.len < capacity {
            true => Ok(()),
            false => Err(Error::Busy { what: format!("queue of {capacity} requests") }),
        }
    }

    /// Whether another worker should begin.
    fn is_worth(&self, worth: usize) -> bool {
        self.len > 0 && (self.at_work == 0 || self.len >= worth || self.hurried > 0)
    }

    fn push(&mut self, caller: K, entry: Entry<T>) {
        let State { lines, turns, spare, .. } = self;
        self.hurried += usize::from(entry.deadline.is_some());
        let line = lines.entry(caller).or_insert_with(|| {
            turns.push_back(caller);
            spare.pop().unwrap_or_default()
        });
        line.push_back(entry);
        self.len += 1;
    }

    fn fill(&mut self, max: usize, batch: &mut Batch<T>) {
        while batch.ready.len() < max
            && let Some(entry) = self.next()
        {
            match &entry.deadline {
                Some(deadline) if deadline.is_past(batch.at) => batch.late.push(entry),
                _ => batch.ready.push(entry),
            }
        }
    }

    fn next(&mut self) -> Option<Entry<T>> {
        let caller = self.turns.pop_front()?;
        let Line::Occupied(mut line) = self.lines.entry(caller) else { return None };
        let entry = line.get_mut().pop_front()?;
        match line.get().is_empty() {
            true => keep(&mut self.spare, line.remove()),
            false => self.turns.push_back(caller),
        }
        self.len -= 1;
        self.hurried -= usize::from(entry.deadline.is_some());
        Some(entry)
    }

    fn remove(&mut self, caller: K, is: impl Fn(&T) -> bool) -> Option<T> {
        let line = self.lines.get_mut(&caller)?;
        let at = line.iter().position(|entry| is(&entry.item))?;
        let entry = line.remove(at)?;
        if line.is_empty() {
            // A caller without entries leaves no state behind.
            self.lines.remove(&caller).into_iter().for_each(|line| keep(&mut self.spare, line));
            self.turns.retain(|other| *other != caller);
        }
        self.len -= 1;
        self.hurried -= usize::from(entry.deadline.is_some());
        Some(entry.item)
    }

    /// The callbacks of drains that have ended.
    fn drained(&mut self) -> Vec<Drained> {
        let done = self.len == 0 && self.at_work == 0 && self.inside == 0;
        match self.phase {
            Phase::Draining if done => mem::take(&mut self.drained),
            Phase::Closed => mem::take(&mut self.drained),
            _ => vec![],
        }
    }
}

/// Maximum number of empty lines kept for later callers.
const SPARE: usize = 256;

fn keep<T>(spare: &mut Vec<VecDeque<Entry<T>>>, line: VecDeque<Entry<T>>) {
    if spare.len() < SPARE {
        spare.push(line);
    }
}

impl<T> Entry<T> {
    /// Time from the push until `until`.
    pub fn waited(&self, until: Instant) -> Duration {
        until.saturating_duration_since(self.since)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, mpsc};
    use std::thread;

    use sconce_tensor::Kind;

    use super::*;

    fn filled(entries: &[(u64, u32)]) -> Queue<u64, u32> {
        let queue = Queue::new(1024, 16);
        entries.iter().for_each(|(caller, item)| queue.push(*caller, None, *item).unwrap());
        queue
    }

    fn take(queue: &Queue<u64, u32>, max: usize) -> Vec<u32> {
        let mut batch = Batch::default();
        queue.set_max(max);
        assert!(queue.take(&mut batch));
        // Acts as a worker that has finished its batch.
        queue.state().at_work -= 1;
        batch.ready.into_iter().map(|entry| entry.item).collect()
    }

    #[test]
    fn a_full_queue_is_busy_until_an_entry_leaves() {
        let queue = filled(&[]);
        let queue = Queue { capacity: 2, ..queue };
        queue.push(1, None, 10).unwrap();
        queue.push(2, None, 20).unwrap();
        let (item, refusal) = queue.push(3, None, 30).unwrap_err();
        assert_eq!((item, refusal.kind()), (30, Kind::Busy));
        assert_eq!(take(&queue, 1), [10]);
        queue.push(3, None, 30).unwrap();
        assert_eq!(queue.remove(2, |item| *item == 20), Some(20));
        queue.push(4, None, 40).unwrap();
        assert_eq!(take(&queue, 9), [30, 40]);
    }

    #[test]
    fn callers_take_turns_and_entries_of_one_caller_stay_in_order() {
        let queue = filled(&[(1, 10), (1, 11), (1, 12), (2, 20), (3, 30), (3, 31)]);
        assert_eq!(take(&queue, 2), [10, 20]);
        // A later caller does not wait behind all entries of the first.
        queue.push(4, None, 40).unwrap();
        assert_eq!(take(&queue, 9), [30, 11, 40, 31, 12]);
        assert!(queue.is_empty());
        assert!(queue.state().lines.is_empty() && queue.state().turns.is_empty());
    }

    #[test]
    fn a_removed_entry_frees_its_place_and_leaves_no_state() {
        let queue = filled(&[(1, 10), (2, 20), (2, 21)]);
        assert_eq!(queue.remove(2, |item| *item == 21), Some(21));
        assert_eq!(queue.remove(1, |item| *item == 10), Some(10));
        assert_eq!(queue.remove(1, |item| *item == 10), None);
        queue.push(1, None, 12).unwrap();
        assert_eq!(take(&queue, 9), [20, 12]);
        assert!(queue.state().lines.is_empty() && queue.state().turns.is_empty());
    }

    #[test]
    fn a_late_entry_is_returned_apart_from_the_batch() {
        let queue = filled(&[(1, 10)]);
        queue.push(2, Some(Deadline::after_ms(0)), 20).unwrap();
        queue.push(3, Some(Deadline::after_ms(60_000)), 30).unwrap();
        let mut batch = Batch::default();
        queue.set_max(2);
        assert!(queue.take(&mut batch));
        let items = |entries: &[Entry<u32>]| entries.iter().map(|e| e.item).collect::<Vec<_>>();
        assert_eq!((items(&batch.ready), items(&batch.late)), (vec![10, 30], vec![20]));
    }

    #[test]
    fn a_worker_sleeps_at_an_empty_queue_until_a_push() {
        let queue = Arc::new(filled(&[]));
        let (sender, receiver) = mpsc::sync_channel(1);
        let worker = thread::spawn({
            let queue = queue.clone();
            move || {
                let mut batch = Batch::default();
                while queue.take(&mut batch) {
                    batch.ready.drain(..).for_each(|entry| sender.send(entry.item).unwrap());
                }
            }
        });
        for item in 0..100 {
            queue.push(item.into(), None, item).unwrap();
            assert_eq!(receiver.recv().unwrap(), item);
        }
        assert!(queue.close().is_empty());
        worker.join().unwrap();
    }

    #[test]
    fn a_second_worker_begins_for_enough_entries_or_a_deadline() {
        let queue = filled(&[(1, 10)]);
        let mut first = Batch::default();
        assert!(queue.take(&mut first));
        let (sender, receiver) = mpsc::sync_channel(1);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut batch = Batch::default();
                while queue.take(&mut batch) {
                    let late = batch.late.drain(..).map(|entry| entry.item);
                    let items: Vec<_> = batch.ready.drain(..).map(|e| e.item).chain(late).collect();
                    sender.send(items).unwrap();
                }
            });
            (2..5).for_each(|caller| queue.push(caller, None, caller as u32).unwrap());
            let waits = receiver.recv_timeout(Duration::from_millis(20));
            assert!(waits.is_err(), "three entries are too few for a second worker");
            queue.push(5, None, 5).unwrap();
            assert_eq!(receiver.recv().unwrap(), [2, 3, 4, 5]);
            queue.push(6, Some(Deadline::after_ms(60_000)), 6).unwrap();
            assert_eq!(receiver.recv().unwrap(), [6]);
            while queue.state().asleep == 0 {
                thread::yield_now();
            }
            // One entry is too few for a second worker, so the worker that has finished takes it.
            queue.push(7, None, 7).unwrap();
            first.ready.clear();
            assert!(queue.take(&mut first));
            assert_eq!(first.ready.drain(..).map(|entry| entry.item).collect::<Vec<_>>(), [7]);
            queue.close();
        });
    }

    #[test]
    fn a_smaller_batch_holds_from_the_next_one_on_and_calls_more_workers() {
        let queue = filled(&[]);
        (0..9).for_each(|caller| queue.push(caller, None, caller as u32).unwrap());
        let mut first = Batch::default();
        queue.set_max(3);
        assert!(queue.take(&mut first));
        assert_eq!((first.ready.len(), queue.len()), (3, 6));
        // While this batch is computed, six entries are worth another worker, and then the last two.
        let mut second = Batch::default();
        queue.set_max(4);
        assert!(queue.take(&mut second));
        assert!(queue.take(&mut Batch::default()));
        assert_eq!((second.ready.len(), queue.len()), (4, 0));
    }

    #[test]
    fn a_smaller_batch_wakes_workers_that_sleep() {
        let queue = Queue::new(100, 64);
        queue.push(0, None, 0).unwrap();
        let mut first = Batch::default();
        assert!(queue.take(&mut first));
        std::thread::scope(|scope| {
            let taken = |_| {
                scope.spawn(|| {
                    let mut batch = Batch::default();
                    queue.take(&mut batch).then_some(batch.ready.len())
                })
            };
            let workers: Vec<_> = (0..2).map(taken).collect();
            while queue.state().asleep < 2 {
                std::thread::yield_now();
            }
            // While a batch is computed, another worker begins at sixteen entries.
            (0..10).for_each(|caller| queue.push(caller, None, caller as u32).unwrap());
            let state = queue.state();
            assert_eq!((state.asleep, state.told), (2, 0));
            drop(state);
            queue.set_max(4);
            let sizes: Vec<_> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
            assert_eq!(sizes, [Some(4), Some(4)]);
        });
        assert_eq!(queue.len(), 2);
    }

    #[test]
    fn a_drain_waits_for_callers_inside_and_admits_no_more() {
        let queue = filled(&[]);
        let inside = [queue.enter().unwrap(), queue.enter().unwrap()];
        let (sender, receiver) = mpsc::sync_channel(1);
        queue.drain(move || sender.send(()).unwrap());
        assert_eq!(queue.enter().err().map(|e| e.kind()), Some(Kind::Unavailable));
        for one in inside {
            assert!(receiver.try_recv().is_err());
            drop(one);
        }
        assert!(receiver.try_recv().is_ok());
    }

    #[test]
    fn a_draining_queue_refuses_entries_and_calls_back_when_the_old_ones_are_done() {
        let queue = filled(&[(1, 10)]);
        let told = Arc::new(AtomicUsize::new(0));
        let tell = || {
            let told = told.clone();
            queue.drain(move || {
                told.fetch_add(1, Ordering::SeqCst);
            });
        };
        tell();
        let (_, refusal) = queue.push(1, None, 11).unwrap_err();
        assert_eq!(refusal.kind(), Kind::Unavailable);
        let mut batch = Batch::default();
        assert!(queue.take(&mut batch));
        assert_eq!(told.load(Ordering::SeqCst), 0, "the batch is in flight");
        thread::scope(|scope| {
            let worker = scope.spawn(|| queue.take(&mut batch));
            while told.load(Ordering::SeqCst) == 0 {
                thread::yield_now();
            }
            tell();
            assert_eq!(told.load(Ordering::SeqCst), 2, "nothing is left to wait for");
            assert!(queue.close().is_empty());
            assert!(!worker.join().unwrap());
        });
    }

    #[test]
    fn a_closed_queue_returns_its_entries_and_refuses_more() {
        let queue = filled(&[(1, 10), (1, 11)]);
        let told = Arc::new(AtomicUsize::new(0));
        let mut left = queue.close();
        left.sort_unstable();
        assert_eq!(left, [10, 11]);
        assert!(!queue.take(&mut Batch::default()));
        let (_, refusal) = queue.push(1, None, 12).unwrap_err();
        assert_eq!(refusal.kind(), Kind::Unavailable);
        queue.drain({
            let told = told.clone();
            move || {
                told.fetch_add(1, Ordering::SeqCst);
            }
        });
        assert_eq!(told.load(Ordering::SeqCst), 1);
    }

    /// Each item is taken, handed back or removed exactly once; the items of one caller stay in order.
    #[test]
    fn many_threads_lose_double_and_reorder_no_item() {
        const CALLERS: u64 = 8;
        const ITEMS: u32 = 4000;
        let queue = Queue::<u64, (u64, u32)>::new(16, 5);
        let served: Mutex<Vec<Vec<u32>>> = Mutex::new(vec![vec![]; CALLERS as usize]);
        let (removed, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            // Only one worker, because two would record items out of order.
            scope.spawn(|| {
                let mut batch = Batch::default();
                while queue.take(&mut batch) {
                    assert!(!batch.ready.is_empty() && batch.ready.len() <= 5);
                    let mut served = served.lock().unwrap();
                    for Entry { item: (caller, item), .. } in batch.ready.drain(..) {
                        served[caller as usize].push(item);
                    }
                }
            });
            let callers: Vec<_> = (0..CALLERS)
                .map(|caller| {
                    let (queue, removed, refused) = (&queue, &removed, &refused);
                    scope.spawn(move || {
                        for item in 0..ITEMS {
                            while let Err((_, refusal)) = queue.push(caller, None, (caller, item)) {
                                assert_eq!(refusal.kind(), Kind::Busy);
                                refused.fetch_add(1, Ordering::Relaxed);
                                thread::yield_now();
                            }
                            let gives_up = (u64::from(item) * 7 + caller) % 11 == 0;
                            if gives_up && queue.remove(caller, |(_, i)| *i == item).is_some() {
                                removed.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    })
                })
                .collect();
            callers.into_iter().for_each(|caller| caller.join().unwrap());
            let (sender, receiver) = mpsc::sync_channel(1);
            queue.drain(move || sender.send(()).unwrap());
            receiver.recv().unwrap();
            assert!(queue.close().is_empty());
        });
        let served = served.into_inner().unwrap();
        assert!(served.iter().all(|items| items.is_sorted_by(|a, b| a < b)));
        let total = served.iter().map(Vec::len).sum::<usize>() + removed.load(Ordering::Relaxed);
        assert_eq!(total, CALLERS as usize * ITEMS as usize);
    }
}
