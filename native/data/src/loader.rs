//! Prefetches batches on background threads.
//!
//! 1. Thread i of n makes the batches i, i + n, i + 2n, ... into its own channel. The channels are read in
//!    turn, so the batches and their order do not depend on n.
//! 2. At most `prefetch` batches are ready or being made, not counting the batch that the caller took last. A thread waits
//!    before a batch that is too far ahead ([`Ahead`]), so the depth may change while the loader runs. Batches and their
//!    order do not depend on it.
//! 3. If making a batch fails or panics, the thread sends the error instead of the batch, and ends. A batch
//!    that misses the deadline is an error that names the source.
//! 4. Dropping a loader stops its threads, each after its current batch. The drop does not wait for them,
//!    because a thread that hangs in a read would block it.

mod ahead;
mod draws;
mod follow;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

pub use ahead::Ahead;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
pub use draws::{Draw, Drawn, Draws};
use follow::Follow;
use sconce_tensor::metrics::METRICS;
use sconce_tensor::pool::Class;
use sconce_tensor::trace::{self, Kind};
use sconce_tensor::{Error, Result, memory, pool};
use serde::{Deserialize, Serialize};

/// Options of a loader.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LoaderOptions {
    /// Maximum batches that are ready or being made. With 0, each batch is made on demand by the thread pool,
    /// and the other options have no effect.
    pub prefetch: usize,
    /// Whether the depth begins at `prefetch` and follows the caller's waits, from 1 to 16 batches.
    pub auto: bool,
    /// Maximum bytes of the prefetched batches. One batch is prefetched even if it is larger.
    pub max_bytes: u64,
    /// Background threads, at most one per prefetched batch.
    pub threads: usize,
    /// Milliseconds that a caller waits for a batch before the wait is an error.
    pub deadline_ms: u64,
}

impl Default for LoaderOptions {
    fn default() -> Self {
        LoaderOptions {
            prefetch: 2,
            auto: false,
            max_bytes: 1 << 30,
            threads: 1,
            deadline_ms: 60_000,
        }
    }
}

impl LoaderOptions {
    /// Checks the bounds of the options.
    pub fn validate(&self) -> Result<()> {
        within("prefetch", self.prefetch as u64, 0, MAX_PREFETCH)?;
        within("loader_threads", self.threads as u64, 1, pool::MAX_THREADS as u64)?;
        within("deadline_ms", self.deadline_ms, 1, u64::from(u32::MAX))
    }

    /// Returns the number of batches to prefetch if each has `bytes` bytes.
    pub fn depth(&self, bytes: u64) -> usize {
        let prefetch = match self.auto {
            true => self.prefetch.clamp(follow::LEAST, follow::MOST),
            false => self.prefetch,
        };
        prefetch.min(self.most(bytes))
    }

    /// The most batches that `max_bytes` allows.
    fn most(&self, bytes: u64) -> usize {
        usize::try_from(self.max_bytes / bytes.max(1)).unwrap_or(usize::MAX).max(1)
    }
}

fn within(field: &str, value: u64, min: u64, max: u64) -> Result<()> {
    match (min..=max).contains(&value) {
        true => Ok(()),
        false => Err(Error::out_of_range(field, value as f64, min as f64, max as f64)),
    }
}

const MAX_PREFETCH: u64 = 4096;
/// Interval at which a waiting caller checks for cancellation.
const LOOK: Duration = Duration::from_millis(20);

/// Throughput of a loader since it started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Flow {
    /// Batches taken.
    pub batches: u64,
    /// Frames of the batches taken.
    pub rows: u64,
    /// Bytes of the batches taken.
    pub bytes: u64,
    /// Batches made but not taken yet.
    pub ready: u64,
    /// Steps skipped without a batch; always 0.
    pub dropped: u64,
    /// Seconds from the start to the last batch taken.
    pub seconds: f64,
    /// Seconds that the caller waited for batches.
    pub data_wait_seconds: f64,
    /// Seconds that the threads waited because their channels were full, summed over threads.
    pub room_wait_seconds: f64,
    /// Seconds spent making batches, summed over threads.
    pub making_seconds: f64,
    /// Frames taken per second.
    pub rows_per_second: f64,
    /// Bytes taken per second.
    pub bytes_per_second: f64,
    /// Maximum batches that are ready or being made.
    pub prefetch: usize,
    /// Background threads.
    pub threads: usize,
}

/// Nanoseconds spent by the threads, and the count of batches made.
#[derive(Default)]
struct Spent {
    making: AtomicU64,
    room: AtomicU64,
    made: AtomicU64,
    /// Set when the loader is dropped.
    gone: AtomicBool,
}

/// Background threads of all loaders of this process.
static LIVE: AtomicUsize = AtomicUsize::new(0);

/// Background threads of all loaders of this process.
pub fn live_threads() -> usize {
    LIVE.load(Ordering::Acquire)
}

/// Makes batches in the order of their steps.
pub struct Loader<D: Draw> {
    name: String,
    options: LoaderOptions,
    maker: Maker<D>,
    first: u64,
    /// The step of the next batch.
    step: u64,
    spent: Arc<Spent>,
    started: Instant,
    /// Time from `started` until the last batch was taken.
    taken: Duration,
    waited: Duration,
    batches: u64,
    rows: u64,
    bytes: u64,
}

enum Maker<D> {
    /// Batches are made on the caller's thread; `None` after a panic.
    Caller(Option<D>),
    Threads {
        turns: Vec<Receiver<Made>>,
        ahead: Arc<Ahead>,
        follow: Option<Follow>,
    },
}

/// A step and its result.
type Made = (u64, Result<Drawn>);

impl<D: Draw> Loader<D> {
    /// Starts at the batch of step `first`. Errors name the source by `name`.
    pub fn start(
        name: impl Into<String>,
        draw: D,
        options: &LoaderOptions,
        first: u64,
    ) -> Result<Self> {
        options.validate()?;
        let spent = Arc::<Spent>::default();
        let name = name.into();
        let count = 1 + options.depth(draw.bytes()) as u64;
        memory::room(&format!("batches of {name}"), draw.bytes().saturating_mul(count))?;
        let maker = match options.depth(draw.bytes()) {
            0 => Maker::Caller(Some(draw)),
            depth => {
                let threads = options.threads.min(depth);
                let most = options.most(draw.bytes());
                let ahead = Arc::new(Ahead::new(&name, depth, most, first, draw.bytes()));
                let turn = |i: usize| {
                    // `Ahead` bounds what lies in it: a bounded channel takes the memory of its largest depth at once.
                    #[allow(clippy::disallowed_methods)]
                    let (sender, receiver) = unbounded();
                    let steps = (first + i as u64, threads as u64);
                    let (name, draw, spent) = (name.clone(), draw.clone(), spent.clone());
                    let ahead = ahead.clone();
                    Producer { name, draw, steps, ahead, spent, sender }.spawn(i)?;
                    Ok(receiver)
                };
                let turns: Result<_> = (0..threads).map(turn).collect();
                // Threads that have started end if another one cannot start.
                let turns = turns.inspect_err(|_| ahead.end())?;
                Maker::Threads { turns, ahead, follow: options.auto.then(Follow::default) }
            }
        };
        Ok(Loader {
            name,
            options: options.clone(),
            maker,
            first,
            step: first,
            spent,
            started: Instant::now(),
            taken: Duration::ZERO,
            waited: Duration::ZERO,
            batches: 0,
            rows: 0,
            bytes: 0,
        })
    }

    /// The step of the batch that [`Self::next`] returns.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Returns the next batch, or [`Error::Cancelled`] soon after `cancel` is set. Without prefetch, `cancel`
    /// is checked only before the batch is begun. A cancelled call loses no batch.
    pub fn next(&mut self, cancel: &AtomicBool) -> Result<Drawn> {
        let asked = Instant::now();
        let made = {
            let _span = trace::span(Kind::Wait, "wait for a batch");
            self.take(asked, cancel)
        };
        let waited = asked.elapsed();
        self.waited += waited;
        METRICS.batch_wait.record(waited);
        let (step, drawn) = made?;
        let drawn = drawn?;
        self.taken = self.started.elapsed();
        self.step = step + 1;
        self.batches += 1;
        self.follow(waited);
        self.rows += drawn.batch.weights.len() as u64;
        self.bytes += drawn.batch.bytes();
        Ok(drawn)
    }

    /// Moves the depth after a call that waited for this time, if the depth follows waits.
    fn follow(&mut self, waited: Duration) {
        let ready = self.spent.made.load(Ordering::Relaxed).saturating_sub(self.batches);
        let Maker::Threads { ahead, follow: Some(follow), .. } = &mut self.maker else { return };
        let depth = ahead.depth();
        // Memory is short if it would not hold these batches twice again.
        let bytes = ahead.bytes().saturating_mul(2 * depth as u64);
        let next = follow.observe(depth, waited, ready, || !memory::fits(bytes));
        if next != depth {
            // Without memory for more, the depth stays.
            drop(ahead.set(next));
        }
    }

    /// The depth of the threads, which may be changed from elsewhere; `None` without prefetch.
    pub fn ahead(&self) -> Option<Arc<Ahead>> {
        match &self.maker {
            Maker::Caller(_) => None,
            Maker::Threads { ahead, .. } => Some(ahead.clone()),
        }
    }

    fn take(&mut self, asked: Instant, cancel: &AtomicBool) -> Result<Made> {
        let (turns, ahead) = match &mut self.maker {
            Maker::Caller(whole) => {
                let Some(mut draw) = whole.take() else { return Err(self.ended()) };
                let drawn = make(self.step, &self.name, &mut draw, &self.spent, cancel);
                *whole = Some(draw).filter(|_| !matches!(drawn, Err(Error::Panic { .. })));
                if let Err(Error::Cancelled) = drawn {
                    return Err(Error::Cancelled);
                }
                return Ok((self.step, drawn));
            }
            Maker::Threads { turns, ahead, .. } => (turns, ahead),
        };
        let turn = ((self.step - self.first) % turns.len().max(1) as u64) as usize;
        let Some(turn) = turns.get(turn) else { return Err(self.ended()) };
        let deadline = Duration::from_millis(self.options.deadline_ms);
        loop {
            let left = deadline.saturating_sub(asked.elapsed());
            match turn.recv_timeout(left.min(LOOK)) {
                Ok(made) => {
                    ahead.took(made.0 + 1);
                    return Ok(made);
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.ended()),
                Err(RecvTimeoutError::Timeout) if cancel.load(Ordering::Relaxed) => {
                    return Err(Error::Cancelled);
                }
                Err(RecvTimeoutError::Timeout) if left.is_zero() => return Err(self.stalled(asked)),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// The error of a call after the thread ended because an earlier batch failed.
    fn ended(&self) -> Error {
        let reason = format!("it ended before batch {}", self.step);
        Error::Unavailable { what: format!("loader of {}", self.name), reason }
    }

    fn stalled(&self, asked: Instant) -> Error {
        let what = format!("batch {} of {}", self.step, self.name);
        let waited_ms = asked.elapsed().as_secs_f64() * 1e3;
        Error::Deadline { what, deadline_ms: self.options.deadline_ms, waited_ms }
    }

    /// Throughput so far.
    pub fn flow(&self) -> Flow {
        let seconds = self.taken.as_secs_f64();
        let spent = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64 / 1e9;
        let (prefetch, threads) = match &self.maker {
            Maker::Caller(_) => (0, 0),
            Maker::Threads { turns, ahead, .. } => (ahead.depth(), turns.len()),
        };
        Flow {
            batches: self.batches,
            rows: self.rows,
            bytes: self.bytes,
            ready: self.spent.made.load(Ordering::Relaxed).saturating_sub(self.batches),
            dropped: self.step - self.first - self.batches,
            seconds,
            data_wait_seconds: self.waited.as_secs_f64(),
            room_wait_seconds: spent(&self.spent.room),
            making_seconds: spent(&self.spent.making),
            rows_per_second: self.rows as f64 / seconds.max(f64::EPSILON),
            bytes_per_second: self.bytes as f64 / seconds.max(f64::EPSILON),
            prefetch,
            threads,
        }
    }
}

impl<D: Draw> Drop for Loader<D> {
    fn drop(&mut self) {
        self.spent.gone.store(true, Ordering::Relaxed);
        if let Maker::Threads { ahead, .. } = &self.maker {
            ahead.end();
        }
    }
}

/// A thread that makes every `steps.1`-th batch, starting at step `steps.0`.
struct Producer<D> {
    name: String,
    draw: D,
    steps: (u64, u64),
    ahead: Arc<Ahead>,
    spent: Arc<Spent>,
    sender: Sender<Made>,
}

impl<D: Draw> Producer<D> {
    fn spawn(self, i: usize) -> Result<()> {
        let (live, class) = (Live::new(), Class::current());
        let thread = thread::Builder::new().name(format!("sconce-loader-{i}"));
        let spawned = thread.spawn(move || {
            let _live = live;
            class.enter();
            // The work is small and runs on this thread, because the thread pool computes the training step.
            pool::serial(|| self.work());
        });
        let failed = |e: std::io::Error| Error::Unavailable {
            what: "a thread".into(),
            reason: e.to_string(),
        };
        spawned.map(drop).map_err(failed)
    }

    fn work(mut self) {
        let (first, stride) = self.steps;
        for step in (first..).step_by(usize::try_from(stride).unwrap_or(1).max(1)) {
            let waits = Instant::now();
            let goes_on = self.ahead.wait(step);
            count(&self.spent.room, waits);
            if !goes_on {
                return;
            }
            let drawn = make(step, &self.name, &mut self.draw, &self.spent, &self.spent.gone);
            let failed = drawn.is_err();
            if self.sender.send((step, drawn)).is_err() || failed {
                return;
            }
        }
    }
}

/// Makes the batch of a step. A panic becomes an error. Returns [`Error::Cancelled`] if `cancel` is set
/// before the batch is begun.
fn make<D: Draw>(
    step: u64,
    name: &str,
    draw: &mut D,
    spent: &Spent,
    cancel: &AtomicBool,
) -> Result<Drawn> {
    let began = Instant::now();
    let _span = trace::span(Kind::Step, "make a batch");
    let work = || loop {
        if cancel.load(Ordering::Relaxed) {
            return Err(Error::Cancelled);
        }
        if draw.approach(step) {
            return draw.draw(step);
        }
    };
    // After a panic, `draw` may be inconsistent. The producer ends, so `draw` is not used again.
    let drawn = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| {
        let batch = format!("batch {step} of {name}");
        Err(match Error::of_panic(payload) {
            Error::Panic { message } => Error::Panic { message: format!("{batch}: {message}") },
            error => error.asking(&batch, draw.bytes()),
        })
    });
    count(&spent.making, began);
    if let Ok(drawn) = &drawn {
        METRICS.batches.add(1);
        METRICS.batch_frames.add(drawn.batch.weights.len() as u64);
        METRICS.batch_time.since(began);
    }
    if !matches!(drawn, Err(Error::Cancelled)) {
        spent.made.fetch_add(1, Ordering::Relaxed);
    }
    drawn
}

fn count(nanos: &AtomicU64, since: Instant) {
    let elapsed = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
    nanos.fetch_add(elapsed, Ordering::Relaxed);
}

/// Adds 1 to [`live_threads`] until dropped.
struct Live;

impl Live {
    fn new() -> Self {
        LIVE.fetch_add(1, Ordering::AcqRel);
        Live
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        LIVE.fetch_sub(1, Ordering::AcqRel);
    }
}
