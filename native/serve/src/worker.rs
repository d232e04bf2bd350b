//! A thread pool behind a queue of fixed length.
//!
//! 1. A new [`Pool`] starts its threads. They live until the pool is dropped; a panic in a job ends only that job.
//! 2. The caller first reserves a place in the queue ([`Pool::permit`], or [`Error::Busy`]), then uses or releases it.
//!    So a full queue is known before a job is made, and no job is ever handed back.
//! 3. A job is called exactly once: with `Ok` if a thread takes it in time, with [`Error::Deadline`] if its deadline
//!    has passed by then, with [`Error::Cancelled`] if the pool ends first. The job answers its caller itself. Its
//!    running time is not limited.
//! 4. The place is free again when a thread takes the job from the queue, before the job runs.
//! 5. Dropping the pool cancels queued jobs, waits for running ones, and ends the threads. A job that drops its own
//!    pool is not waited for.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use sconce_tensor::metrics::METRICS;
use sconce_tensor::pool::Class;
use sconce_tensor::{Error, Result};

/// Stack size of a thread. Candle walks and drops its graphs recursively; deep graphs overflow the default size.
pub(crate) const STACK_BYTES: usize = 64 << 20;

/// The time after which an answer is no longer useful.
#[derive(Debug, Clone, Copy)]
pub struct Deadline {
    from: Instant,
    at: Instant,
    ms: u64,
}

impl Deadline {
    /// A deadline `ms` milliseconds from now.
    pub fn after_ms(ms: u64) -> Self {
        let now = Instant::now();
        // A time beyond the clock's range becomes a century from now.
        let at = now.checked_add(Duration::from_millis(ms));
        let century = Duration::from_secs(100 * 366 * 24 * 3600);
        Deadline { from: now, at: at.unwrap_or(now + century), ms }
    }

    /// Whether the deadline has passed at `now`.
    pub fn is_past(&self, now: Instant) -> bool {
        now >= self.at
    }

    /// Returns [`Error::Deadline`] if the deadline has passed.
    pub fn check(&self) -> Result<()> {
        match Instant::now() {
            now if self.is_past(now) => Err(self.error(now)),
            _ => Ok(()),
        }
    }

    /// The error for an answer that is still missing at `now`.
    pub fn error(&self, now: Instant) -> Error {
        let waited = now.saturating_duration_since(self.from);
        Error::Deadline {
            what: "the answer".into(),
            deadline_ms: self.ms,
            waited_ms: waited.as_secs_f64() * 1e3,
        }
    }
}

type Job = Box<dyn FnOnce(Result<()>) + Send>;

struct Entry {
    queued: Instant,
    place: Reservation,
    deadline: Option<Deadline>,
    job: Job,
}

/// A thread pool with a bounded queue of jobs.
pub struct Pool {
    sender: Option<Sender<Entry>>,
    threads: Vec<JoinHandle<()>>,
    waiting: Arc<AtomicUsize>,
    capacity: usize,
    closing: Arc<AtomicBool>,
}

impl Pool {
    /// Starts `threads` threads named `NAME-0`, `NAME-1`, ... behind a queue of `capacity` jobs.
    pub fn new(name: &str, threads: usize, capacity: usize) -> Result<Self> {
        let (sender, receiver) = bounded(capacity);
        let mut pool = Pool {
            sender: Some(sender),
            threads: Vec::with_capacity(threads),
            waiting: Arc::default(),
            capacity,
            closing: Arc::default(),
        };
        for i in 0..threads.max(1) {
            let (receiver, closing) = (receiver.clone(), pool.closing.clone());
            let thread = thread::Builder::new()
                .name(format!("{name}-{i}"))
                .stack_size(STACK_BYTES)
                .spawn(move || {
                    Class::Foreground.enter();
                    work(&receiver, &closing);
                })
                .map_err(|e| Error::Unavailable {
                    what: "threads".into(),
                    reason: e.to_string(),
                })?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// Reserves a place in the queue, or returns [`Error::Busy`] if it is full.
    pub fn permit(&self) -> Result<Permit<'_>> {
        let one_more = |n: usize| (n < self.capacity).then_some(n + 1);
        match self.waiting.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more) {
            Ok(_) => Ok(Permit { pool: self, place: Reservation(self.waiting.clone()) }),
            Err(_) => Err(Error::Busy { what: format!("queue of {} jobs", self.capacity) }),
        }
    }

    /// Number of jobs that wait for a thread.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }

    /// Queues a job. Returns [`Error::Busy`] if the queue is full; the job is then not called.
    pub fn try_submit(
        &self,
        deadline: Option<Deadline>,
        job: impl FnOnce(Result<()>) + Send + 'static,
    ) -> Result<()> {
        self.permit().map(|permit| permit.submit(deadline, job))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Release);
        self.sender = None;
        for thread in self.threads.drain(..) {
            if thread.thread().id() != thread::current().id() {
                // A thread that panicked outside a job returns an error here; no code there panics.
                let _ = thread.join();
            }
        }
    }
}

/// A reserved place in the queue. Dropping it unused frees the place.
pub struct Permit<'a> {
    pool: &'a Pool,
    place: Reservation,
}

impl Permit<'_> {
    /// Queues a job in the reserved place. Does not wait.
    pub fn submit(self, deadline: Option<Deadline>, job: impl FnOnce(Result<()>) + Send + 'static) {
        let entry =
            Entry { queued: Instant::now(), place: self.place, deadline, job: Box::new(job) };
        let refused = match &self.pool.sender {
            // Each entry in the channel holds a place, and the number of places is the channel's capacity, so `send`
            // does not wait.
            Some(sender) => sender.send(entry).err().map(|refused| refused.into_inner()),
            None => Some(entry),
        };
        // Unreachable: a borrowed pool has its sender and its threads.
        if let Some(entry) = refused {
            (entry.job)(Err(Error::Cancelled));
        }
    }
}

struct Reservation(Arc<AtomicUsize>);

impl Drop for Reservation {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn work(receiver: &Receiver<Entry>, closing: &AtomicBool) {
    for Entry { queued, place, deadline, job } in receiver {
        drop(place);
        METRICS.jobs.add(1);
        METRICS.job_wait.since(queued);
        let start = match deadline {
            _ if closing.load(Ordering::Acquire) => Err(Error::Cancelled),
            Some(deadline) => deadline.check(),
            None => Ok(()),
        };
        // A job handles its own panics; this only keeps the thread alive.
        let _ = catch_unwind(AssertUnwindSafe(|| job(start)));
    }
}

#[cfg(test)]
mod tests {
    use sconce_tensor::Kind;

    use super::*;

    fn answer(pool: &Pool, deadline: Option<Deadline>) -> Receiver<Result<()>> {
        let (sender, receiver) = bounded(1);
        pool.try_submit(deadline, move |start| sender.send(start).unwrap()).unwrap();
        receiver
    }

    /// A job that runs until its gate is dropped; it has begun when this returns.
    fn occupy(pool: &Pool) -> Sender<()> {
        let (gate, wait) = bounded::<()>(0);
        let (begun, begins) = bounded(0);
        pool.try_submit(None, move |_| {
            begun.send(()).unwrap();
            let _ = wait.recv();
        })
        .unwrap();
        begins.recv().unwrap();
        gate
    }

    #[test]
    fn a_full_queue_is_busy_and_has_room_again_when_a_job_is_taken() {
        let pool = Pool::new("test", 1, 1).unwrap();
        let gate = occupy(&pool);
        let queued = answer(&pool, None);
        let refused = pool.try_submit(None, |_| panic!("must not be called")).unwrap_err();
        assert_eq!(refused.kind(), Kind::Busy);
        drop(gate);
        assert!(queued.recv().unwrap().is_ok());
        assert!(answer(&pool, None).recv().unwrap().is_ok());
    }

    #[test]
    fn an_unused_permit_gives_its_place_back() {
        let pool = Pool::new("test", 1, 1).unwrap();
        let permit = pool.permit().unwrap();
        assert_eq!(pool.permit().err().unwrap().kind(), Kind::Busy);
        drop(permit);
        assert!(pool.permit().is_ok());
    }

    #[test]
    fn a_panic_ends_the_job_and_not_its_thread() {
        let pool = Pool::new("test", 1, 4).unwrap();
        pool.try_submit(None, |_| panic!("deliberate")).unwrap();
        assert!(answer(&pool, None).recv().unwrap().is_ok());
    }

    #[test]
    fn a_job_that_is_taken_too_late_gets_a_deadline_error() {
        let pool = Pool::new("test", 1, 4).unwrap();
        let late = answer(&pool, Some(Deadline::after_ms(0))).recv().unwrap().unwrap_err();
        assert!(matches!(late, Error::Deadline { deadline_ms: 0, .. }));
        assert!(answer(&pool, Some(Deadline::after_ms(u64::MAX))).recv().unwrap().is_ok());
    }

    #[test]
    fn dropping_the_pool_cancels_queued_jobs_and_ends_the_threads() {
        let pool = Pool::new("test", 2, 8).unwrap();
        let gates = [occupy(&pool), occupy(&pool)];
        let queued = answer(&pool, None);
        let dropping = thread::spawn(move || drop(pool));
        thread::sleep(Duration::from_millis(20));
        drop(gates);
        dropping.join().unwrap();
        assert_eq!(queued.recv().unwrap().unwrap_err().kind(), Kind::Cancelled);
    }

    #[test]
    fn a_job_may_drop_its_own_pool() {
        let pool = Arc::new(Pool::new("test", 1, 4).unwrap());
        let (sender, receiver) = bounded(1);
        let own = pool.clone();
        pool.try_submit(None, move |_| {
            while Arc::strong_count(&own) > 1 {
                thread::yield_now();
            }
            drop(own);
            sender.send(()).unwrap();
        })
        .unwrap();
        drop(pool);
        receiver.recv().unwrap();
    }

    #[test]
    fn threads_have_the_pools_name_and_room_for_deep_recursion() {
        fn depth(n: usize) -> usize {
            let pad = std::hint::black_box([n; 32]);
            if n == 0 { 0 } else { depth(n - 1) + pad[0] / n.max(1) }
        }
        let pool = Pool::new("test", 1, 1).unwrap();
        let (sender, receiver) = bounded(1);
        pool.try_submit(None, move |_| {
            let name = thread::current().name().map(String::from);
            sender.send((name, depth(50_000))).unwrap();
        })
        .unwrap();
        assert_eq!(receiver.recv().unwrap(), (Some("test-0".into()), 50_000));
    }
}
