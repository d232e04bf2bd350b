//! One policy shared by many callers: requests wait in a queue, and worker threads answer them in batches.
//!
//! 1. A request is answered once, by a worker or by the end of the serving, unless its caller gives up or dies first.
//!    The first claim ([`Request::claim`]) decides.
//! 2. A session commits a decision only after the claim. A request that is late, refused or given up, or whose batch
//!    panics, leaves its session unchanged.
//! 3. After a panic each request of the batch is answered with [`Error::Panic`]; the worker continues.
//! 4. Weights change only between batches: a batch uses the weights that are served when it begins.
//! 5. If an unbatched step takes little longer than a batched one, the caller's thread runs the step ([`Serving::act`])
//!    with the same weights and statistics. Workers do the long work: windows, weights that are new to the session, and
//!    directions to project out.
//! 6. [`Serving::stop`] ends the workers after their present batch; queued requests are [`Error::Cancelled`].

mod options;
mod queue;
mod request;
mod served;
mod statistics;
mod work;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use std::{mem, thread};

pub use options::Options;
use options::bounded;
pub use queue::{Batch, Entry, Queue};
use request::claimed;
pub use request::{Answer, GaveUp, Request, Work};
use sconce_tensor::pool::Class;
use sconce_tensor::{Error, Kind, Result};
use served::Served;
use statistics::{Batches, count};
pub use statistics::{Counted, Met, Report, Snapshot, Statistics};

use crate::model::Model;
use crate::session::{Lane, Overrides, Session};
use crate::worker::{Deadline, STACK_BYTES};

type Hook = Box<dyn FnOnce() + Send>;

/// One policy with its queue, its workers and its statistics.
pub struct Serving<R: Request> {
    options: Options,
    queue: Queue<R::Caller, R>,
    served: Mutex<Served>,
    statistics: Statistics,
    batches: Batches,
    told: Mutex<Snapshot>,
    hook: Mutex<Option<Hook>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// Runs `work`; a panic or a failed allocation becomes an error.
fn guard<T>(work: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).map_err(Error::of_panic)
}

impl<R: Request> Serving<R> {
    /// Starts the workers: threads named `sconce-serve-0`, ...
    pub fn start(model: Arc<Model>, options: Options) -> Result<Arc<Self>> {
        options.validate()?;
        let served = Served::new(model, &options)?;
        let serving = Arc::new(Serving {
            options,
            queue: Queue::new(options.max_queue, options.max_batch),
            served: Mutex::new(served),
            statistics: Statistics::default(),
            batches: Batches::default(),
            told: Mutex::default(),
            hook: Mutex::default(),
        });
        for i in 0..options.workers {
            let own = serving.clone();
            let started = thread::Builder::new()
                .name(format!("sconce-serve-{i}"))
                .stack_size(STACK_BYTES)
                .spawn(move || {
                    Class::Foreground.enter();
                    own.work();
                });
            if let Err(e) = started {
                serving.stop();
                return Err(Error::Unavailable { what: "threads".into(), reason: e.to_string() });
            }
        }
        Ok(serving)
    }

    /// Returns [`Error::Deadline`] if the deadline has passed before the call begins, and counts the request as late.
    pub fn check(&self, deadline: Option<Deadline>) -> Result<()> {
        let checked = deadline.map_or(Ok(()), |deadline| deadline.check());
        if checked.is_err() {
            self.statistics.admitted();
            self.statistics.late();
        }
        checked
    }

    /// Does the part of a request that needs no worker: checks that the queue is not full and reads the frame. False if
    /// a worker must read the frame.
    pub fn ask(&self, session: &mut Session, raw: &[f32], overrides: &Overrides) -> Result<bool> {
        self.queue.check_room().inspect_err(|refusal| self.refused(refusal))?;
        if is_long(overrides) {
            return Ok(false);
        }
        let asked = guard(|| session.ask(raw, overrides));
        let asked = asked.and_then(|asked| asked);
        if asked.is_err() {
            self.statistics.admitted();
            count(&self.statistics.counters.answered, 1);
        }
        asked.map(|()| true)
    }

    /// Decides for the session on the present thread; `None` if a worker must decide.
    pub fn act(
        &self,
        session: &mut Session,
        raw: &[f32],
        overrides: &Overrides,
    ) -> Result<Option<()>> {
        let Served { model, lane } = self.served();
        // Only a worker adopts new weights, because that may measure them and free the memory of the old ones.
        let here = lane == Lane::Inline && session.is_of(&model) && session.steps();
        if !here || is_long(overrides) {
            return Ok(None);
        }
        let _inside = self.queue.enter()?;
        self.statistics.admitted();
        let start = Instant::now();
        self.statistics.waited(Duration::ZERO);
        let made = self.compute(1, || session.decide(raw, overrides));
        let made = made.and_then(|made| made);
        if made.is_ok() {
            session.commit();
        }
        self.statistics.answered(start.elapsed());
        made.map(Some)
    }

    /// Queues a request of this caller. On failure the request is dismissed unanswered.
    pub fn submit(&self, caller: R::Caller, deadline: Option<Deadline>, request: R) -> Result<()> {
        match self.queue.push(caller, deadline, request) {
            Ok(()) => {
                self.statistics.admitted();
                Ok(())
            }
            Err((request, refusal)) => {
                self.refused(&refusal);
                request.dismiss();
                Err(refusal)
            }
        }
    }

    fn refused(&self, refusal: &Error) {
        if refusal.kind() == Kind::Busy {
            self.statistics.busy();
        }
    }

    /// Removes a request from the queue after its caller has claimed it to give up. A request in a batch stays there.
    pub fn give_up(&self, caller: R::Caller, why: GaveUp, is: impl Fn(&R) -> bool) {
        match why {
            GaveUp::Late => self.statistics.late(),
            GaveUp::Died => count(&self.statistics.counters.cancelled, 1),
        }
        drop(self.queue.remove(caller, is));
    }

    /// Serves other weights of the same Spec, from the next batch on. The statistics of a normalisation may differ, as
    /// those of a run that learns do.
    pub fn swap(&self, model: Arc<Model>) -> Result<()> {
        if !self.model().policy().spec().is_alike(model.policy().spec()) {
            return Err(Error::mismatch("policy", "the Spec that is served", "another"));
        }
        let served = Served::new(model, &self.options)?;
        let before = mem::replace(&mut *lock(&self.served), served);
        // The old weights are dropped after the lock is released.
        drop(before);
        count(&self.statistics.counters.swaps, 1);
        Ok(())
    }

    /// Stops taking work. `tell` is called once all earlier work is done, or the serving has ended.
    pub fn drain(&self, tell: impl FnOnce() + Send + 'static) {
        self.queue.drain(tell);
    }

    /// Ends the serving without waiting: a separate thread cancels the queued requests, and workers end after their
    /// present batch.
    pub fn stop(&self) {
        let left: Vec<R> = self.queue.close().into_iter().filter_map(claimed).collect();
        if left.is_empty() {
            return;
        }
        count(&self.statistics.counters.cancelled, left.len() as u64);
        let cancel = move || left.into_iter().for_each(|one| one.answer(Err(Error::Cancelled)));
        // If the thread cannot start, each request answers as it is dropped.
        let _ = thread::Builder::new().name("sconce-serve-end".into()).spawn(cancel);
    }

    /// The options of the start.
    pub fn options(&self) -> Options {
        self.options
    }

    /// Maximum number of requests in a batch now.
    pub fn max_batch(&self) -> usize {
        self.queue.max()
    }

    /// Changes the maximum number of requests in a batch, from the next batch on.
    ///
    /// # Errors
    /// `OutOfRange` for 0, or more than the options of the start.
    pub fn limit(&self, max_batch: usize) -> Result<()> {
        bounded("max_batch", max_batch, self.options.max_batch)?;
        self.queue.set_max(max_batch);
        Ok(())
    }

    /// The batches since the last call of `batches`.
    pub fn batches(&self) -> Met {
        self.batches.take()
    }

    /// The lane of a step.
    pub fn lane(&self) -> Lane {
        self.served().lane
    }

    /// The model that is served.
    pub fn model(&self) -> Arc<Model> {
        self.served().model
    }

    fn served(&self) -> Served {
        lock(&self.served).clone()
    }

    /// Number of queued requests.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Number of requests that are queued or in a batch, without those given up.
    pub fn load(&self) -> u64 {
        self.statistics.counters.open()
    }

    /// Returns [`Error::Unavailable`] with the reason if the serving takes no work.
    pub fn check_open(&self) -> Result<()> {
        self.queue.check_open()
    }

    /// Statistics since the start.
    pub fn statistics(&self) -> Snapshot {
        self.statistics.snapshot()
    }

    /// Statistics since the last call of `news`.
    pub fn news(&self) -> Snapshot {
        let now = self.statistics.snapshot();
        let before = mem::replace(&mut *lock(&self.told), now.clone());
        now.since(&before)
    }

    /// Runs `hook` as a part of the next batch. Tests use it for a batch that panics or takes long.
    pub fn with_next_batch(&self, hook: impl FnOnce() + Send + 'static) {
        *lock(&self.hook) = Some(Box::new(hook));
    }

    /// Computes a batch of requests; a panic inside is an error.
    fn compute<T>(&self, batch: usize, compute: impl FnOnce() -> T) -> Result<T> {
        let start = Instant::now();
        let hook = lock(&self.hook).take();
        let made = guard(|| {
            hook.into_iter().for_each(|hook| hook());
            compute()
        });
        let time = start.elapsed();
        self.batches.record(batch, time);
        self.statistics.compute.record_time(time);
        self.statistics.batch.record(batch as u64);
        count(&self.statistics.counters.panics, u64::from(made.is_err()));
        made
    }
}

/// Whether reading the request takes too long for a scheduler: directions are made orthogonal first.
fn is_long(overrides: &Overrides) -> bool {
    overrides.project_out.as_ref().is_some_and(|vectors| !vectors.is_empty())
}
