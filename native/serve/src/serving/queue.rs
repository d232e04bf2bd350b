//! What waits for a worker: a queue of fixed length, fair between callers.
//!
//! 1. A push never waits: a full queue is [`Error::Busy`], one that takes no more work
//!    [`Error::Unavailable`].
//! 2. A batch is what there is, up to its size, as soon as a worker asks for it: nobody waits for company. While
//!    a worker is at work, the next batch grows, and another worker takes it when it is worth a batch of its own
//!    or somebody has a deadline. Weights are read once a batch, so many small ones would take longer.
//! 3. Callers take turns, one entry in each; the entries of one caller leave in the order they came.
//! 4. An entry that waited beyond its deadline leaves beside the batch, and takes nobody's place in it.
//! 5. A push wakes a worker only where one sleeps and none is on its way already.
//! 6. A worker that asks again has done what it took before.

use std::collections::VecDeque;
use std::collections::hash_map::{Entry as Line, HashMap};
use std::hash::Hash;
use std::mem;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use sconce_tensor::{Error, Result};

use crate::worker::Deadline;

/// Something that waits.
#[derive(Debug)]
pub struct Entry<T> {
    pub since: Instant,
    pub deadline: Option<Deadline>,
    pub item: T,
}

/// What one [`Queue::take`] gives. It is a worker's own, and comes back with the next.
#[derive(Debug)]
pub struct Batch<T> {
    pub ready: Vec<Entry<T>>,
    pub late: Vec<Entry<T>>,
    /// When it was taken.
    pub at: Instant,
    at_work: bool,
}

impl<T> Default for Batch<T> {
    fn default() -> Self {
        Batch { ready: vec![], late: vec![], at: Instant::now(), at_work: false }
    }
}

pub struct Queue<K, T> {
    state: Mutex<State<K, T>>,
    filled: Condvar,
    capacity: usize,
    /// Entries for which a second worker begins while another is at work.
    worth: usize,
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
    /// Of each caller who waits for something.
    lines: HashMap<K, VecDeque<Entry<T>>>,
    /// The same callers, the next one first.
    turns: VecDeque<K>,
    /// Lines that ended, for callers to come.
    spare: Vec<VecDeque<Entry<T>>>,
    len: usize,
    /// Of them those with a deadline.
    hurried: usize,
    /// Workers that wait for an entry, and how many of them were told of one.
    asleep: usize,
    told: usize,
    /// Batches that are out.
    at_work: usize,
    /// Callers who help themselves.
    inside: usize,
    drained: Vec<Drained>,
}

impl<K: Copy + Eq + Hash, T> Queue<K, T> {
    pub fn new(capacity: usize, worth: usize) -> Self {
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
        Queue { state: Mutex::new(state), filled: Condvar::new(), capacity, worth }
    }

    fn state(&self) -> MutexGuard<'_, State<K, T>> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Lets an item wait; one that is refused is handed back.
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
        let wake = state.asleep > state.told && state.is_worth(self.worth);
        state.told += usize::from(wake);
        drop(state);
        if wake {
            self.filled.notify_one();
        }
        Ok(())
    }

    /// Takes at most `max` entries, and sleeps until there is one. False when the queue is closed.
    pub fn take(&self, max: usize, batch: &mut Batch<T>) -> bool {
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
            if state.is_worth(self.worth) {
                batch.at = Instant::now();
                batch.at_work = true;
                state.at_work += 1;
                state.fill(max, batch);
                return true;
            }
            state.asleep += 1;
            state = self.filled.wait(state).unwrap_or_else(|e| e.into_inner());
            state.asleep -= 1;
            state.told = state.told.saturating_sub(1);
        }
    }

    /// Lets a caller help itself to what a worker would do, if the queue takes work: it is not drained before that
    /// is done.
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

    /// Takes one that waits out of its line.
    pub fn remove(&self, caller: K, is: impl Fn(&T) -> bool) -> Option<T> {
        self.state().remove(caller, is)
    }

    /// Takes nothing more. `tell` is called once what waits, what is at work and who is inside is done, or the
    /// queue closed.
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

    /// Ends the queue: workers get no more of it. What waited is handed back.
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

    /// Entries that wait.
    pub fn len(&self) -> usize {
        self.state().len
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it has room for one more, or why not.
    pub fn check_room(&self) -> Result<()> {
        self.state().admit(self.capacity)
    }

    /// Whether it takes work, or why not.
    pub fn check_open(&self) -> Result<()> {
        self.state().phase.check_open()
    }
}

/// A caller who helps itself, until this is dropped.
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

    /// Whether one more worker should begin.
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
            // So that a caller who is gone leaves nothing.
            self.lines.remove(&caller).into_iter().for_each(|line| keep(&mut self.spare, line));
            self.turns.retain(|other| *other != caller);
        }
        self.len -= 1;
        self.hurried -= usize::from(entry.deadline.is_some());
        Some(entry.item)
    }

    /// Who is to be told that all is done, if it is.
    fn drained(&mut self) -> Vec<Drained> {
        let done = self.len == 0 && self.at_work == 0 && self.inside == 0;
        match self.phase {
            Phase::Draining if done => mem::take(&mut self.drained),
            Phase::Closed => mem::take(&mut self.drained),
            _ => vec![],
        }
    }
}

/// Lines that are kept for later callers.
const SPARE: usize = 256;

fn keep<T>(spare: &mut Vec<VecDeque<Entry<T>>>, line: VecDeque<Entry<T>>) {
    if spare.len() < SPARE {
        spare.push(line);
    }
}

impl<T> Entry<T> {
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
        let queue = Queue::new(1024, 4);
        entries.iter().for_each(|(caller, item)| queue.push(*caller, None, *item).unwrap());
        queue
    }

    fn take(queue: &Queue<u64, u32>, max: usize) -> Vec<u32> {
        let mut batch = Batch::default();
        assert!(queue.take(max, &mut batch));
        // As a worker that has done it.
        queue.state().at_work -= 1;
        batch.ready.into_iter().map(|entry| entry.item).collect()
    }

    #[test]
    fn a_full_queue_is_busy_until_something_left() {
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
    fn callers_take_turns_and_each_ones_order_stays() {
        let queue = filled(&[(1, 10), (1, 11), (1, 12), (2, 20), (3, 30), (3, 31)]);
        assert_eq!(take(&queue, 2), [10, 20]);
        // Who came later than the flood of the first is not behind it.
        queue.push(4, None, 40).unwrap();
        assert_eq!(take(&queue, 9), [30, 11, 40, 31, 12]);
        assert!(queue.is_empty());
        assert!(queue.state().lines.is_empty() && queue.state().turns.is_empty());
    }

    #[test]
    fn what_is_removed_leaves_its_place_and_no_trace() {
        let queue = filled(&[(1, 10), (2, 20), (2, 21)]);
        assert_eq!(queue.remove(2, |item| *item == 21), Some(21));
        assert_eq!(queue.remove(1, |item| *item == 10), Some(10));
        assert_eq!(queue.remove(1, |item| *item == 10), None);
        queue.push(1, None, 12).unwrap();
        assert_eq!(take(&queue, 9), [20, 12]);
        assert!(queue.state().lines.is_empty() && queue.state().turns.is_empty());
    }

    #[test]
    fn what_is_late_leaves_beside_the_batch() {
        let queue = filled(&[(1, 10)]);
        queue.push(2, Some(Deadline::after_ms(0)), 20).unwrap();
        queue.push(3, Some(Deadline::after_ms(60_000)), 30).unwrap();
        let mut batch = Batch::default();
        assert!(queue.take(2, &mut batch));
        let items = |entries: &[Entry<u32>]| entries.iter().map(|e| e.item).collect::<Vec<_>>();
        assert_eq!((items(&batch.ready), items(&batch.late)), (vec![10, 30], vec![20]));
    }

    #[test]
    fn an_empty_queue_is_slept_at_until_something_comes() {
        let queue = Arc::new(filled(&[]));
        let (sender, receiver) = mpsc::sync_channel(1);
        let worker = thread::spawn({
            let queue = queue.clone();
            move || {
                let mut batch = Batch::default();
                while queue.take(8, &mut batch) {
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
    fn a_second_worker_begins_when_it_is_worth_it_or_somebody_is_in_a_hurry() {
        let queue = filled(&[(1, 10)]);
        let mut first = Batch::default();
        assert!(queue.take(8, &mut first));
        let (sender, receiver) = mpsc::sync_channel(1);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut batch = Batch::default();
                while queue.take(8, &mut batch) {
                    let late = batch.late.drain(..).map(|entry| entry.item);
                    let items: Vec<_> = batch.ready.drain(..).map(|e| e.item).chain(late).collect();
                    sender.send(items).unwrap();
                }
            });
            (2..5).for_each(|caller| queue.push(caller, None, caller as u32).unwrap());
            let waits = receiver.recv_timeout(Duration::from_millis(20));
            assert!(waits.is_err(), "three are not worth it");
            queue.push(5, None, 5).unwrap();
            assert_eq!(receiver.recv().unwrap(), [2, 3, 4, 5]);
            queue.push(6, Some(Deadline::after_ms(60_000)), 6).unwrap();
            assert_eq!(receiver.recv().unwrap(), [6]);
            while queue.state().asleep == 0 {
                thread::yield_now();
            }
            // Not worth a second worker: who is done takes it.
            queue.push(7, None, 7).unwrap();
            first.ready.clear();
            assert!(queue.take(8, &mut first));
            assert_eq!(first.ready.drain(..).map(|entry| entry.item).collect::<Vec<_>>(), [7]);
            queue.close();
        });
    }

    #[test]
    fn who_is_inside_is_waited_for_by_a_drain_and_let_in_before_it_alone() {
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
    fn a_draining_queue_refuses_the_new_and_tells_when_the_old_is_done() {
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
        assert!(queue.take(8, &mut batch));
        assert_eq!(told.load(Ordering::SeqCst), 0, "the batch is out");
        thread::scope(|scope| {
            let worker = scope.spawn(|| queue.take(8, &mut batch));
            while told.load(Ordering::SeqCst) == 0 {
                thread::yield_now();
            }
            tell();
            assert_eq!(told.load(Ordering::SeqCst), 2, "there is nothing to wait for");
            assert!(queue.close().is_empty());
            assert!(!worker.join().unwrap());
        });
    }

    #[test]
    fn a_closed_queue_hands_back_what_waited_and_wakes_everybody() {
        let queue = filled(&[(1, 10), (1, 11)]);
        let told = Arc::new(AtomicUsize::new(0));
        let mut left = queue.close();
        left.sort_unstable();
        assert_eq!(left, [10, 11]);
        assert!(!queue.take(8, &mut Batch::default()));
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

    /// Every item is taken, given back or removed, once; and those of a caller in their order.
    #[test]
    fn nothing_is_lost_doubled_or_overtaken_by_many_threads() {
        const CALLERS: u64 = 8;
        const ITEMS: u32 = 4000;
        let queue = Queue::<u64, (u64, u32)>::new(16, 4);
        let served: Mutex<Vec<Vec<u32>>> = Mutex::new(vec![vec![]; CALLERS as usize]);
        let (removed, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            // One worker: with two the order in which they note things would be theirs.
            scope.spawn(|| {
                let mut batch = Batch::default();
                while queue.take(5, &mut batch) {
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
