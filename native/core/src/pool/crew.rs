//! Threads that help with work which is cut into shards.

use std::any::Any;
use std::collections::VecDeque;
use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle, Thread};

/// How often a helper looks for the next work before it sleeps, some 100 us: the parts of a training step
/// follow each other faster than a sleeping thread wakes, which takes some 50 us on a virtual machine. Who
/// waits for the last shard looks as often.
const PATIENCE: usize = 2500;

pub struct Crew {
    board: Arc<Board>,
    helpers: Vec<JoinHandle<()>>,
}

/// Where work is announced.
#[derive(Default)]
struct Board {
    jobs: Mutex<Jobs>,
    news: Condvar,
    /// Jobs announced so far, for those who look without the lock.
    announced: AtomicUsize,
    closed: AtomicBool,
}

#[derive(Default)]
struct Jobs {
    open: VecDeque<Arc<Job>>,
    /// Helpers that sleep.
    asleep: usize,
}

/// Work of which whoever is free takes the next shard.
struct Job {
    /// Lives as long as a shard is not done: its owner waits for that.
    work: *const (dyn Fn(usize) + Sync),
    shards: usize,
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

impl Crew {
    pub fn new(helpers: usize) -> std::io::Result<Self> {
        let mut crew = Crew { board: Arc::default(), helpers: Vec::with_capacity(helpers) };
        for i in 0..helpers {
            let board = crew.board.clone();
            let builder = thread::Builder::new().name(format!("sconce-{i}"));
            crew.helpers.push(builder.spawn(move || super::serial(|| board.help()))?);
        }
        Ok(crew)
    }

    pub fn helpers(&self) -> usize {
        self.helpers.len()
    }

    /// Runs `work(shard)` for every shard, here and wherever a helper is free. A panic in a shard goes on
    /// here when all others are done.
    pub fn run<'a>(&self, shards: usize, work: &'a (dyn Fn(usize) + Sync + 'a)) {
        let work: *const (dyn Fn(usize) + Sync + 'a) = work;
        // SAFETY: this only forgets how long `work` lives, and `Job::work` says why that is enough.
        let work: *const (dyn Fn(usize) + Sync + 'static) = unsafe { std::mem::transmute(work) };
        let job = Arc::new(Job {
            work,
            shards,
            next: AtomicUsize::new(0),
            undone: AtomicUsize::new(shards),
            owner: thread::current(),
            panic: Mutex::default(),
        });
        self.board.announce(job.clone(), (shards - 1).min(self.helpers.len()));
        job.help();
        self.board.withdraw(&job);
        job.wait();
        let panic = job.panic.lock().unwrap_or_else(|e| e.into_inner()).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        let jobs = self.board.lock();
        self.board.closed.store(true, Ordering::Release);
        drop(jobs);
        self.board.news.notify_all();
        for helper in self.helpers.drain(..) {
            // The last share of a crew may be dropped by one of its own.
            if helper.thread().id() != thread::current().id() {
                let _ = helper.join();
            }
        }
    }
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn announce(&self, job: Arc<Job>, wanted: usize) {
        let mut jobs = self.lock();
        jobs.open.push_back(job);
        self.announced.fetch_add(1, Ordering::Release);
        let asleep = jobs.asleep.min(wanted);
        drop(jobs);
        (0..asleep).for_each(|_| self.news.notify_one());
    }

    /// Nobody new begins to help with it.
    fn withdraw(&self, job: &Arc<Job>) {
        self.lock().open.retain(|open| !Arc::ptr_eq(open, job));
    }

    /// What a helper does until the board is closed.
    fn help(&self) {
        while let Some(job) = self.next() {
            job.help();
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
            // Both change under the lock alone: no news is missed between looking and sleeping.
            let seen = self.announced.load(Ordering::Acquire);
            let quiet = || {
                self.announced.load(Ordering::Acquire) == seen
                    && !self.closed.load(Ordering::Acquire)
            };
            drop(jobs);
            (0..PATIENCE).take_while(|_| quiet()).for_each(|_| spin_loop());
            jobs = self.lock();
            if quiet() {
                jobs.asleep += 1;
                jobs = self.news.wait(jobs).unwrap_or_else(|e| e.into_inner());
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
    fn help(&self) {
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
        (0..PATIENCE).take_while(|_| !done()).for_each(|_| spin_loop());
        while !done() {
            thread::park();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Runs `shards` of work on a crew and says how often each was done.
    fn visits(crew: &Crew, shards: usize) -> Vec<usize> {
        let visits: Vec<_> = (0..shards).map(|_| AtomicUsize::new(0)).collect();
        crew.run(shards, &|shard| _ = visits[shard].fetch_add(1, Ordering::Relaxed));
        visits.into_iter().map(AtomicUsize::into_inner).collect()
    }

    #[test]
    fn every_shard_is_done_once_for_every_owner() -> std::io::Result<()> {
        let crew = Crew::new(3)?;
        thread::scope(|scope| {
            for owner in 0..4 {
                let crew = &crew;
                scope.spawn(move || {
                    for shards in (1..200).map(|i| 1 + (i * 7 + owner) % 40) {
                        assert_eq!(visits(crew, shards), vec![1; shards]);
                    }
                });
            }
        });
        Ok(())
    }

    #[test]
    fn who_has_work_does_it_alone_where_all_helpers_are_busy() -> std::io::Result<()> {
        let crew = Crew::new(1)?;
        let (busy, is_busy) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let (busy, released) = (Mutex::new(busy), Mutex::new(released));
        thread::scope(|scope| {
            let owner = scope.spawn(|| {
                // Both shards, the owner's and the helper's, wait to be released.
                crew.run(2, &|_| {
                    let _ = busy.lock().map(|busy| busy.send(()));
                    let _ = released.lock().map(|released| released.recv());
                });
            });
            (0..2).for_each(|_| assert!(is_busy.recv().is_ok()));
            assert_eq!(visits(&crew, 5), vec![1; 5]);
            assert!(!owner.is_finished());
            (0..2).for_each(|_| assert!(release.send(()).is_ok()));
        });
        Ok(())
    }

    #[test]
    fn a_panic_reaches_the_owner_when_all_other_shards_are_done() -> std::io::Result<()> {
        let crew = Crew::new(2)?;
        for bad in [0, 7, 19] {
            let done = AtomicUsize::new(0);
            let work = |shard| match shard == bad {
                true => panic!("shard {shard}"),
                false => _ = done.fetch_add(1, Ordering::Relaxed),
            };
            let panic = catch_unwind(AssertUnwindSafe(|| crew.run(20, &work))).unwrap_err();
            assert_eq!(panic.downcast_ref::<String>(), Some(&format!("shard {bad}")));
            assert_eq!(done.into_inner(), 19);
            assert_eq!(visits(&crew, 9), vec![1; 9]);
        }
        Ok(())
    }
}
