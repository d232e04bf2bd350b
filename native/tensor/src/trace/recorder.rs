//! Where ended spans are kept until a trace takes them: a list per thread.

use std::cell::RefCell;
use std::mem::size_of;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::event::Event;

/// Spans that all traces of a process keep together, 64 MiB. Further ones are counted.
pub(super) const MOST: i64 = (64 << 20) / size_of::<Event>() as i64;
/// Spans that a thread reserves at once.
const CHUNK: usize = 1024;

static ON: AtomicBool = AtomicBool::new(false);
static LEFT: AtomicI64 = AtomicI64::new(MOST);
static LOST: AtomicU64 = AtomicU64::new(0);
static SHARED: Mutex<Shared> = Mutex::new(Shared { traces: 0, threads: Vec::new(), next: 1 });

struct Shared {
    /// Traces that record now.
    traces: usize,
    threads: Vec<Arc<Thread>>,
    /// The number of the next thread.
    next: u64,
}

#[derive(Debug)]
struct Thread {
    number: u64,
    name: String,
    events: Mutex<Chunks>,
}

/// Lists of [`CHUNK`] spans, of which all but the last are full.
type Chunks = Vec<Vec<Event>>;

thread_local! {
    static OWN: RefCell<Option<Arc<Thread>>> = const { RefCell::new(None) };
}

fn shared() -> MutexGuard<'static, Shared> {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

#[inline]
pub(super) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Keeps a span of this thread. A thread that ends keeps none.
pub(super) fn record(event: Event) {
    if !is_on() {
        return;
    }
    let _ = OWN.try_with(|own| {
        let mut own = own.borrow_mut();
        own.get_or_insert_with(|| register(name)).add(event);
    });
}

fn register(name: impl FnOnce(u64) -> String) -> Arc<Thread> {
    let mut shared = shared();
    let number = shared.next;
    shared.next += 1;
    let thread = Arc::new(Thread { number, name: name(number), events: Mutex::default() });
    shared.threads.push(thread.clone());
    thread
}

/// The name of this thread. Threads of the BEAM have one that only the system knows.
fn name(number: u64) -> String {
    let of_system = || crate::fs::kernel(Path::new("/proc/thread-self/comm"));
    let known = std::thread::current().name().map(str::to_owned).or_else(of_system);
    known.map_or_else(|| format!("thread {number}"), |name| name.trim().to_owned())
}

impl Thread {
    fn chunks(&self) -> MutexGuard<'_, Chunks> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, event: Event) {
        let mut chunks = self.chunks();
        if chunks.last().is_none_or(|last| last.len() == CHUNK) && !grow(&mut chunks) {
            lose(1);
            return;
        }
        if let Some(last) = chunks.last_mut() {
            last.push(event);
        }
    }
}

/// Counts spans that are not kept.
pub(super) fn lose(spans: u64) {
    LOST.fetch_add(spans, Ordering::Relaxed);
}

fn grow(chunks: &mut Chunks) -> bool {
    let more = CHUNK as i64;
    let mut chunk = vec![];
    if LEFT.fetch_sub(more, Ordering::Relaxed) >= more && chunk.try_reserve_exact(CHUNK).is_ok() {
        chunks.push(chunk);
        return true;
    }
    LEFT.fetch_add(more, Ordering::Relaxed);
    false
}

/// A track of spans that no thread of this process ran.
#[cfg(feature = "cuda")]
pub(super) struct Foreign(Arc<Thread>);

#[cfg(feature = "cuda")]
impl Foreign {
    pub(super) fn new(name: String) -> Self {
        Foreign(register(|_| name))
    }

    pub(super) fn record(&self, event: Event) {
        if is_on() {
            self.0.add(event);
        }
    }
}

/// Records from now on, and returns the number of spans lost so far.
pub(super) fn begin() -> u64 {
    let mut shared = shared();
    if shared.traces == 0 {
        LOST.store(0, Ordering::Relaxed);
    }
    shared.traces += 1;
    ON.store(true, Ordering::Relaxed);
    lost()
}

/// Spans lost so far.
pub(super) fn lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// The number and the name of each thread, and its spans that began and ended between two instants.
pub(super) fn tracks(start: Instant, end: Instant) -> Vec<(u64, String, Vec<Event>)> {
    let tracks = shared();
    let tracks = tracks
        .threads
        .iter()
        .map(|thread| (thread.number, thread.name.clone(), thread.within(start, end)));
    tracks.filter(|(.., events)| !events.is_empty()).collect()
}

/// Ends what [`begin`] began. The last end frees all spans.
pub(super) fn end() {
    let mut shared = shared();
    shared.traces -= 1;
    if shared.traces > 0 {
        return;
    }
    ON.store(false, Ordering::Relaxed);
    // A thread that ended has left its list here.
    shared.threads.retain(|thread| Arc::strong_count(thread) > 1);
    shared.threads.iter().for_each(|thread| thread.clear());
}

impl Thread {
    fn within(&self, start: Instant, end: Instant) -> Vec<Event> {
        let chunks = self.chunks();
        let events = chunks.iter().flatten();
        events.filter(|event| event.start >= start && event.end <= end).copied().collect()
    }

    fn clear(&self) {
        let chunks = std::mem::take(&mut *self.chunks());
        LEFT.fetch_add((chunks.len() * CHUNK) as i64, Ordering::Relaxed);
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.clear();
    }
}
