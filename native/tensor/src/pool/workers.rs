//! Worker threads that take shards of a job beside the thread that submits it.

use std::any::Any;
use std::collections::VecDeque;
use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle, Thread};

use super::Class;
use crate::Precision;

/// How often a worker looks for the next job before it sleeps, some 100 us: the parts of a training step
/// follow each other faster than a sleeping thread wakes, which takes some 50 us on a virtual machine. Who
/// waits for the last shard looks as often.
const SPINS: usize = 2500;

/// None, or so many.
#[derive(Default)]
pub(super) struct Workers {
    queue: Arc<Queue>,
    threads: Vec<JoinHandle<()>>,
}

/// Where jobs are submitted.
#[derive(Default)]
struct Queue {
    jobs: Mutex<Jobs>,
    submission: Condvar,
    /// Jobs submitted so far, for workers that look without the lock.
    submitted: AtomicUsize,
    closed: AtomicBool,
}

#[derive(Default)]
struct Jobs {
    /// At most one job of each thread that submits: it waits for its job.
    open: VecDeque<Arc<Job>>,
    /// Workers that sleep.
    asleep: usize,
}

/// Work of which whoever is free takes the next shard.
struct Job {
    /// Lives as long as a shard is not done: its owner waits for that.
    work: *const (dyn Fn(usize) + Sync),
    shards: usize,
    /// The owner's, which every shard has.
    precision: Precision,
    next: AtomicUsize,
    undone: AtomicUsize,
    owner: Thread,
    /// Of the first shard that panicked.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `work` may be called from any thread, and is only while it lives.
unsafe impl Send for Job {}
// SAFETY: as above.
unsafe impl Sync for Job {}

impl Workers {
    /// Workers of a class. On Linux a thread starts at the priority of the one that starts it: workers of the
    /// foreground are to be started by a foreground thread.
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

    /// Runs `work(shard)` for every shard, here and wherever a worker is free. A panic in a shard goes on
    /// here when all others are done.
    pub(super) fn run<'a>(&self, shards: usize, work: &'a (dyn Fn(usize) + Sync + 'a)) {
        let work: *const (dyn Fn(usize) + Sync + 'a) = work;
        // SAFETY: this only forgets how long `work` lives, and `Job::work` says why that is enough.
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
        job.take_shards();
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
            // The last share may be dropped by a worker itself.
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

    /// No other worker begins with it.
    fn withdraw(&self, job: &Arc<Job>) {
        self.lock().open.retain(|open| !Arc::ptr_eq(open, job));
    }

    /// What a worker does until the queue is closed.
    fn work(&self) {
        while let Some(job) = self.next() {
            job.precision.during(|| job.take_shards());
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
            // Both change under the lock alone: no job is missed between looking and sleeping.
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

    /// Takes shards while there are any.
    fn take_shards(&self) {
        loop {
            let shard = self.next.fetch_add(1, Ordering::Relaxed);
            if shard >= self.shards {
                return;
            }
            // SAFETY: this shard is not done, so its owner still waits and `work` lives.
            let work = unsafe { &*self.work };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| work(shard))) {
                self.panic.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(panic);
            }
            if self.undone.fetch_sub(1, Ordering::AcqRel) == 1 {
                self.owner.unpark();
            }
        }
    }

    /// Until all shards are done; for its owner.
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

    /// Runs `shards` of work and says how often each was done.
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
    fn who_has_work_does_it_alone_where_all_workers_are_busy() -> std::io::Result<()> {
        let workers = Workers::new(1, Class::Foreground)?;
        let (busy, is_busy) = mpsc::sync_channel(2);
        let (release, released) = mpsc::sync_channel::<()>(2);
        let (busy, released) = (Mutex::new(busy), Mutex::new(released));
        thread::scope(|scope| {
            let owner = scope.spawn(|| {
                // Both shards, the owner's and the worker's, wait to be released.
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
    fn a_worker_that_sleeps_is_woken() -> std::io::Result<()> {
        let workers = Workers::new(1, Class::Foreground)?;
        let (done, is_done) = mpsc::sync_channel(2);
        thread::spawn(move || {
            // Two shards that wait for each other: one thread alone would never end.
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
