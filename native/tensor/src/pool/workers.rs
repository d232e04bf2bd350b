//! Worker threads that take shards of a job beside its owner, the thread that submits it.

use std::any::Any;
use std::collections::VecDeque;
use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle, Thread};

use super::Class;
use crate::Precision;
use crate::trace::{self, Span};

/// Spins (about 100 us) of a worker that looks for the next job before sleeping. Waking takes about 50 us on a virtual
/// machine, longer than the gap between two jobs of a training step. An owner that waits for the last shard spins as
/// often.
const SPINS: usize = 2500;

/// The worker threads of a class; the default has none.
#[derive(Default)]
pub(super) struct Workers {
    queue: Arc<Queue>,
    threads: Vec<JoinHandle<()>>,
}

/// The queue of submitted jobs.
#[derive(Default)]
struct Queue {
    jobs: Mutex<Jobs>,
    submission: Condvar,
    /// The number of jobs submitted so far, which workers read without the lock.
    submitted: AtomicUsize,
    closed: AtomicBool,
}

#[derive(Default)]
struct Jobs {
    /// At most one job per owner, because an owner waits for its job.
    open: VecDeque<Arc<Job>>,
    /// The number of sleeping workers.
    asleep: usize,
}

/// Work in shards. Each free thread takes the next one.
struct Job {
    /// Valid while a shard is not done, because the owner waits until all shards are done.
    work: *const (dyn Fn(usize) + Sync),
    shards: usize,
    /// The owner's precision, which every shard uses.
    precision: Precision,
    next: AtomicUsize,
    undone: AtomicUsize,
    owner: Thread,
    /// The payload of the first shard that panicked.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `work` is `Sync`, and is called only while it lives.
unsafe impl Send for Job {}
// SAFETY: as for `Send`.
unsafe impl Sync for Job {}

impl Workers {
    /// Starts workers of a class. On Linux a thread inherits the priority of the thread that starts it, so foreground
    /// workers have to be started by a foreground thread.
    pub(super) fn new(threads: usize, class: Class) -> std::io::Result<Self> {
        let mut workers = Workers { queue: Arc::default(), threads: Vec::with_capacity(threads) };
        let name = match class {
            Class::Foreground => "sconce",
            Class::Background => "sconce-back",
        };
        for i in 0..threads {
            let queue = workers.queue.clone();
            let builder = thread::Builder::new().name(format!("{name}-{i}"));
            let work = move || {
                class.enter();
                super::serial(|| queue.work());
            };
            workers.threads.push(builder.spawn(work)?);
        }
        Ok(workers)
    }

    pub(super) fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Runs `work(shard)` for every shard, on this thread and on free workers. If a shard panics, the panic resumes
    /// here once all other shards are done.
    pub(super) fn run<'a>(&self, shards: usize, work: &'a (dyn Fn(usize) + Sync + 'a)) {
        let work: *const (dyn Fn(usize) + Sync + 'a) = work;
        // SAFETY: only the lifetime of `work` is erased. `Job::work` says why the pointer stays valid.
        let work: *const (dyn Fn(usize) + Sync + 'static) = unsafe { std::mem::transmute(work) };
        let job = Arc::new(Job {
            work,
            shards,
            precision: Precision::current(),
            next: AtomicUsize::new(0),
            undone: AtomicUsize::new(shards),
            owner: thread::current(),
            panic: Mutex::default(),
        });
        self.queue.submit(job.clone(), (shards - 1).min(self.threads.len()));
        // The owner's span is that of its work.
        job.take_shards(|| None);
        self.queue.withdraw(&job);
        job.wait();
        let panic = job.panic.lock().unwrap_or_else(|e| e.into_inner()).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let jobs = self.queue.lock();
        self.queue.closed.store(true, Ordering::Release);
        drop(jobs);
        self.queue.submission.notify_all();
        for thread in self.threads.drain(..) {
            // The thread that drops the last reference may be a worker.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn submit(&self, job: Arc<Job>, wanted: usize) {
        let mut jobs = self.lock();
        jobs.open.push_back(job);
        self.submitted.fetch_add(1, Ordering::Release);
        let asleep = jobs.asleep.min(wanted);
        drop(jobs);
        (0..asleep).for_each(|_| self.submission.notify_one());
    }

    /// Removes a job, so that no other worker starts on it.
    fn withdraw(&self, job: &Arc<Job>) {
        self.lock().open.retain(|open| !Arc::ptr_eq(open, job));
    }

    /// Runs jobs until the queue is closed. The loop of a worker.
    fn work(&self) {
        while let Some(job) = self.next() {
            job.precision
                .during(|| job.take_shards(|| Some(trace::span(trace::Kind::Shards, "shards"))));
        }
    }

    fn next(&self) -> Option<Arc<Job>> {
        let mut jobs = self.lock();
        loop {
            if self.closed.load(Ordering::Acquire) {
                return None;
            }
            if let Some(job) = jobs.open.iter().find(|job| job.has_more()) {
                return Some(job.clone());
            }
            // Both values change only under the lock, so a worker cannot miss a job between looking and sleeping.
            let seen = self.submitted.load(Ordering::Acquire);
            let quiet = || {
                self.submitted.load(Ordering::Acquire) == seen
                    && !self.closed.load(Ordering::Acquire)
            };
            drop(jobs);
            (0..SPINS).take_while(|_| quiet()).for_each(|_| spin_loop());
            jobs = self.lock();
            if quiet() {
                jobs.asleep += 1;
                jobs = self.submission.wait(jobs).unwrap_or_else(|e| e.into_inner());
                jobs.asleep -= 1;
            }
        }
    }
}

impl Job {
    fn has_more(&self) -> bool {
        self.next.load(Ordering::Relaxed) < self.shards
    }

    /// Takes and runs shards until none is left. `begin` is called if there is one.
    fn take_shards(&self, begin: impl Fn() -> Option<Span>) {
        let mut span = None;
        loop {
            let shard = self.next.fetch_add(1, Ordering::Relaxed);
            if shard >= self.shards {
                return;
            }
            span = span.or_else(&begin);
            // SAFETY: this shard is not done, so the owner still waits and `work` is alive.
            let work = unsafe { &*self.work };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| work(shard))) {
                self.panic.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(panic);
            }
            if self.undone.fetch_sub(1, Ordering::AcqRel) == 1 {
                self.owner.unpark();
            }
        }
    }

    /// Waits until all shards are done. Called by the owner.
    fn wait(&self) {
        let done = || self.undone.load(Ordering::Acquire) == 0;
        (0..SPINS).take_while(|_| !done()).for_each(|_| spin_loop());
        while !done() {
            thread::park();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// Runs `shards` shards and returns how often each was run.
    fn visits(workers: &Workers, shards: usize) -> Vec<usize> {
        let visits: Vec<_> = (0..shards).map(|_| AtomicUsize::new(0)).collect();
        workers.run(shards, &|shard| _ = visits[shard].fetch_add(1, Ordering::Relaxed));
        visits.into_iter().map(AtomicUsize::into_inner).collect()
    }

    #[test]
    fn every_shard_is_done_once_for_every_owner() -> std::io::Result<()> {
        let workers = Workers::new(3, Class::Foreground)?;
        thread::scope(|scope| {
            for owner in 0..4 {
                let workers = &workers;
                scope.spawn(move || {
                    for shards in (1..200).map(|i| 1 + (i * 7 + owner) % 40) {
                        assert_eq!(visits(workers, shards), vec![1; shards]);
                    }
                });
            }
        });
        Ok(())
    }

    #[test]
    fn an_owner_runs_all_shards_while_the_workers_are_busy() -> std::io::Result<()> {
        let workers = Workers::new(1, Class::Foreground)?;
        let (busy, is_busy) = mpsc::sync_channel(2);
        let (release, released) = mpsc::sync_channel::<()>(2);
        let (busy, released) = (Mutex::new(busy), Mutex::new(released));
        thread::scope(|scope| {
            let owner = scope.spawn(|| {
                // Both shards, the owner's and the worker's, wait for a release.
                workers.run(2, &|_| {
                    let _ = busy.lock().map(|busy| busy.send(()));
                    let _ = released.lock().map(|released| released.recv());
                });
            });
            (0..2).for_each(|_| assert!(is_busy.recv().is_ok()));
            assert_eq!(visits(&workers, 5), vec![1; 5]);
            assert!(!owner.is_finished());
            (0..2).for_each(|_| assert!(release.send(()).is_ok()));
        });
        Ok(())
    }

    #[test]
    fn a_sleeping_worker_is_woken() -> std::io::Result<()> {
        let workers = Workers::new(1, Class::Foreground)?;
        let (done, is_done) = mpsc::sync_channel(2);
        thread::spawn(move || {
            // Two shards that wait for each other: one thread alone would never finish.
            let both = std::sync::Barrier::new(2);
            for _ in 0..5 {
                thread::sleep(Duration::from_millis(20));
                workers.run(2, &|_| _ = both.wait());
            }
            let _ = done.send(());
        });
        assert_eq!(is_done.recv_timeout(Duration::from_secs(60)), Ok(()));
        Ok(())
    }

    #[test]
    fn a_panic_reaches_the_owner_when_all_other_shards_are_done() -> std::io::Result<()> {
        let workers = Workers::new(2, Class::Foreground)?;
        for bad in [0, 7, 19] {
            let done = AtomicUsize::new(0);
            let work = |shard| match shard == bad {
                true => panic!("shard {shard}"),
                false => _ = done.fetch_add(1, Ordering::Relaxed),
            };
            let panic = catch_unwind(AssertUnwindSafe(|| workers.run(20, &work))).unwrap_err();
            assert_eq!(panic.downcast_ref::<String>(), Some(&format!("shard {bad}")));
            assert_eq!(done.into_inner(), 19);
            assert_eq!(visits(&workers, 9), vec![1; 9]);
        }
        Ok(())
    }
}
