//! One policy shared by many callers: their requests wait in a queue, and threads answer them by the batch.
//!
//! 1. A request is answered once, by a worker or by the end of the serving, unless its caller gave up or
//!    died first: whoever claims it ([`Request::claim`]) has the say.
//! 2. A decision is the session's own only after the claim. A request that is late, refused, given up, or
//!    hit by a panic leaves its session as it was.
//! 3. A panic answers each request of its batch with [`Error::Panic`]; the worker lives on.
//! 4. Weights change between two batches: each batch takes those that are served when it begins.
//! 5. Where a step alone takes little more than one in company, its caller's own thread makes it ([`Serving::act`]), of
//!    the same weights and into the same statistics. What may take long on it is a worker's: windows, weights that
//!    the session has not yet, directions to be projected out.
//! 6. Workers end with [`Serving::stop`], after the batch they have; what waits is [`Error::Cancelled`].

mod queue;
mod statistics;

use std::hash::Hash;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use sconce_core::pool::Class;
use sconce_core::{Error, Kind, Result};
use sconce_realtime::Format;
use serde::{Deserialize, Serialize};

use crate::model::Model;
use crate::pass::{Forward, Pass, run_many};
use crate::session::{Call, INLINE_US, Lane, Overrides, Session, check_inline, decide_many};
use crate::worker::{Deadline, STACK_BYTES};
pub use queue::{Batch, Entry, Queue};
use statistics::count;
pub use statistics::{Counted, Histogram, Report, Snapshot, Statistics, Summary};

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// Requests in a batch, at most.
    pub max_batch: usize,
    /// Requests that may wait.
    pub max_queue: usize,
    /// Threads.
    pub workers: usize,
    pub weights: Format,
    /// Where steps are made, instead of the lane that their measured cost asks for.
    pub lane: Option<Lane>,
}

impl Default for Options {
    fn default() -> Self {
        Options { max_batch: 64, max_queue: 1024, workers: 1, weights: Format::F32, lane: None }
    }
}

impl Options {
    fn validate(&self) -> Result<()> {
        let bounded = |field: &str, n: usize, max: usize| match n {
            n if (1..=max).contains(&n) => Ok(()),
            n => Err(Error::out_of_range(field, n as f64, 1.0, max as f64)),
        };
        bounded("max_batch", self.max_batch, 4096)?;
        bounded("max_queue", self.max_queue, 1 << 20)?;
        bounded("workers", self.workers, 256)
    }
}

/// What is asked for.
pub enum Work<'a> {
    Act {
        session: &'a mut Session,
        raw: &'a [f32],
        overrides: &'a Overrides,
        /// Whether the session was [asked](Session::ask) this already.
        asked: bool,
    },
    Forward(&'a Pass),
}

pub enum Answer {
    /// The last one of the session.
    Act,
    Forward(Forward),
}

/// A caller who waits. One that is dropped unanswered answers for itself, unless somebody else claimed it.
pub trait Request: Send + 'static {
    /// What callers are told apart by.
    type Caller: Copy + Eq + Hash + Send;

    fn work(&mut self) -> Result<Work<'_>>;

    /// True for the first who asks, here or where its caller gives up: that one has the say.
    fn claim(&mut self) -> bool;

    /// Answers, after the claim.
    fn answer(self, result: Result<Answer>);

    /// Ends it without an answer: its caller knows.
    fn dismiss(self);
}

/// Why nobody waits any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GaveUp {
    Late,
    Died,
}

type Hook = Box<dyn FnOnce() + Send>;

/// A step alone that takes so many microseconds longer than one in company is worth a request's way to a worker and
/// back. That way takes 9 of schedulers and worker (64 callers, two cores); the others are for that callers may be on
/// as many schedulers, and wait for nobody.
const TRIP_US: f64 = 13.0;

pub struct Serving<R: Request> {
    options: Options,
    queue: Queue<R::Caller, R>,
    served: Mutex<Served>,
    statistics: Statistics,
    told: Mutex<Snapshot>,
    hook: Mutex<Option<Hook>>,
}

/// Weights, and where steps by them are made.
#[derive(Clone)]
struct Served {
    model: Arc<Model>,
    lane: Lane,
}

impl Served {
    /// Measures the model, unless its cost is known or steps are a worker's anyway. The inline lane is refused for steps
    /// beyond [`MAX_INLINE_US`](crate::session::MAX_INLINE_US).
    fn new(model: Arc<Model>, options: &Options) -> Result<Self> {
        let lane = match options.lane {
            // What is not packed has no steps that a scheduler could wait for.
            _ if model.plan().is_none() => Lane::Worker,
            Some(Lane::Inline) => {
                check_inline(options.lane, model.step_us()?)?;
                Lane::Inline
            }
            Some(Lane::Worker) => Lane::Worker,
            None if is_inline(model.step_us()?, model.game_us()?) => Lane::Inline,
            None => Lane::Worker,
        };
        Ok(Served { model, lane })
    }
}

/// Whether a step is made where its caller is: of so many microseconds alone, and so many in company.
fn is_inline(alone: f64, together: f64) -> bool {
    alone < INLINE_US && alone < together + TRIP_US
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// Runs `work`; a panic, or a buffer that is refused, is an error.
fn guard<T>(work: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).map_err(Error::of_panic)
}

impl<R: Request> Serving<R> {
    /// Starts the workers, threads named `sconce-serve-0`, ...
    pub fn start(model: Arc<Model>, options: Options) -> Result<Arc<Self>> {
        options.validate()?;
        let served = Served::new(model, &options)?;
        let serving = Arc::new(Serving {
            options,
            queue: Queue::new(options.max_queue, options.max_batch.div_ceil(4)),
            served: Mutex::new(served),
            statistics: Statistics::default(),
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

    /// Whether a call that begins now is in time: one that is not need not be made.
    pub fn check(&self, deadline: Option<Deadline>) -> Result<()> {
        let checked = deadline.map_or(Ok(()), |deadline| deadline.check());
        let counters = &self.statistics.counters;
        for counter in [&counters.requests, &counters.late] {
            count(counter, u64::from(checked.is_err()));
        }
        checked
    }

    /// What of a request need not wait for a worker: whether there is room for it, and reading its frame. False if that
    /// is a worker's as well.
    pub fn ask(&self, session: &mut Session, raw: &[f32], overrides: &Overrides) -> Result<bool> {
        let counters = &self.statistics.counters;
        self.queue.check_room().inspect_err(|refusal| {
            count(&counters.busy, u64::from(refusal.kind() == Kind::Busy));
        })?;
        if is_long(overrides) {
            return Ok(false);
        }
        let asked = guard(|| session.ask(raw, overrides));
        let asked = asked.and_then(|asked| asked);
        for counter in [&counters.requests, &counters.answered] {
            count(counter, u64::from(asked.is_err()));
        }
        asked.map(|()| true)
    }

    /// A decision of the session on the present thread; None if a worker is to make it.
    pub fn act(
        &self,
        session: &mut Session,
        raw: &[f32],
        overrides: &Overrides,
    ) -> Result<Option<()>> {
        let Served { model, lane } = self.served();
        // To take over other weights may measure them, and give back the memory of those before.
        let here = lane == Lane::Inline && session.is_of(&model) && session.steps();
        if !here || is_long(overrides) {
            return Ok(None);
        }
        let _inside = self.queue.enter()?;
        count(&self.statistics.counters.requests, 1);
        let start = Instant::now();
        self.statistics.wait.record_time(Duration::ZERO);
        let made = self.compute(1, || session.decide(raw, overrides));
        let made = made.and_then(|made| made);
        if made.is_ok() {
            session.commit();
        }
        count(&self.statistics.counters.answered, 1);
        self.statistics.latency.record_time(start.elapsed());
        made.map(Some)
    }

    /// Queues a request of this caller, or says why not; then it is dropped unanswered.
    pub fn submit(&self, caller: R::Caller, deadline: Option<Deadline>, request: R) -> Result<()> {
        let counters = &self.statistics.counters;
        match self.queue.push(caller, deadline, request) {
            Ok(()) => {
                count(&counters.requests, 1);
                Ok(())
            }
            Err((request, refusal)) => {
                count(&counters.busy, u64::from(refusal.kind() == Kind::Busy));
                request.dismiss();
                Err(refusal)
            }
        }
    }

    /// Takes a request, claimed by whoever gives up, out of the queue; one in a batch stays there.
    pub fn give_up(&self, caller: R::Caller, why: GaveUp, is: impl Fn(&R) -> bool) {
        let counters = &self.statistics.counters;
        let counter = match why {
            GaveUp::Late => &counters.late,
            GaveUp::Died => &counters.cancelled,
        };
        count(counter, 1);
        drop(self.queue.remove(caller, is));
    }

    /// Serves other weights of the same Spec, from the next batch on.
    pub fn swap(&self, model: Arc<Model>) -> Result<()> {
        if self.model().policy().spec() != model.policy().spec() {
            return Err(Error::mismatch("policy", "the Spec that is served", "another"));
        }
        let served = Served::new(model, &self.options)?;
        let before = mem::replace(&mut *lock(&self.served), served);
        // Freed after the lock, if nobody else has them.
        drop(before);
        count(&self.statistics.counters.swaps, 1);
        Ok(())
    }

    /// Takes no more work; `tell` is called once all that came before is done, or the serving has ended.
    pub fn drain(&self, tell: impl FnOnce() + Send + 'static) {
        self.queue.drain(tell);
    }

    /// Ends the serving. Waits for nothing: what is queued is cancelled on a thread of its own, workers end
    /// with the batch they have.
    pub fn stop(&self) {
        let left: Vec<R> = self.queue.close().into_iter().filter_map(claimed).collect();
        if left.is_empty() {
            return;
        }
        count(&self.statistics.counters.cancelled, left.len() as u64);
        let cancel = move || left.into_iter().for_each(|one| one.answer(Err(Error::Cancelled)));
        // Without memory for a thread each answers as it is dropped.
        let _ = thread::Builder::new().name("sconce-serve-end".into()).spawn(cancel);
    }

    pub fn options(&self) -> Options {
        self.options
    }

    /// Where steps are made.
    pub fn lane(&self) -> Lane {
        self.served().lane
    }

    pub fn model(&self) -> Arc<Model> {
        self.served().model
    }

    fn served(&self) -> Served {
        lock(&self.served).clone()
    }

    /// Requests that wait.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Requests that wait or are in a batch, but for those that were given up.
    pub fn load(&self) -> u64 {
        self.statistics.counters.open()
    }

    /// Whether it takes work, or why not.
    pub fn check_open(&self) -> Result<()> {
        self.queue.check_open()
    }

    /// All since the start.
    pub fn statistics(&self) -> Snapshot {
        self.statistics.snapshot()
    }

    /// What happened since the last call of this.
    pub fn news(&self) -> Snapshot {
        let now = self.statistics.snapshot();
        let before = mem::replace(&mut *lock(&self.told), now.clone());
        now.since(&before)
    }

    /// Runs `hook` as a part of the next batch: for tests of what a batch that panics or takes long does
    /// to its callers.
    pub fn with_next_batch(&self, hook: impl FnOnce() + Send + 'static) {
        *lock(&self.hook) = Some(Box::new(hook));
    }

    fn work(&self) {
        let mut batch = Batch::default();
        while self.queue.take(self.options.max_batch, &mut batch) {
            // What is dropped by a panic answers for itself; the thread lives on.
            let ran = guard(|| {
                self.refuse_late(&mut batch);
                self.run(&mut batch);
            });
            count(&self.statistics.counters.panics, u64::from(ran.is_err()));
        }
    }

    fn refuse_late(&self, batch: &mut Batch<R>) {
        let at = batch.at;
        batch.late.drain(..).for_each(|entry| self.refuse(entry, at));
    }

    fn refuse(&self, entry: Entry<R>, now: Instant) {
        self.statistics.wait.record_time(entry.waited(now));
        let late = entry.deadline.map_or(Error::Cancelled, |deadline| deadline.error(now));
        if let Some(request) = claimed(entry.item) {
            count(&self.statistics.counters.late, 1);
            request.answer(Err(late));
        }
    }

    /// Steps first, and all at once. Decisions that look at a window and passes of whole games take long: their
    /// turn comes when those are answered.
    fn run(&self, batch: &mut Batch<R>) {
        let model = self.model();
        let (mut steps, mut windows) = (Vec::with_capacity(batch.ready.len()), vec![]);
        let mut passes = vec![];
        for mut entry in batch.ready.drain(..) {
            self.statistics.wait.record_time(entry.waited(batch.at));
            match entry.item.work() {
                Ok(Work::Act { session, .. }) if session.steps() => steps.push(entry),
                Ok(Work::Act { .. }) => windows.push(entry),
                Ok(Work::Forward(_)) => passes.push(entry),
                Err(ended) => self.finish(entry, Err(ended), |_, answer| Ok(answer)),
            }
        }
        self.serve(steps, |steps| decide(&model, steps), commit);
        for entry in windows {
            let now = Instant::now();
            match entry.deadline {
                Some(deadline) if deadline.check().is_err() => self.refuse(entry, now),
                _ => self.serve(vec![entry], |one| decide(&model, one), commit),
            }
        }
        self.serve(passes, |passes| forward(&model, passes), |_, made| Ok(Answer::Forward(made)));
    }

    /// Computes for all of them, and makes each answer of what was made for it.
    fn serve<T>(
        &self,
        mut entries: Vec<Entry<R>>,
        compute: impl FnOnce(&mut [Entry<R>]) -> Vec<Result<T>>,
        commit: impl Fn(&mut R, T) -> Result<Answer>,
    ) {
        if entries.is_empty() {
            return;
        }
        let made = self.compute(entries.len(), || compute(&mut entries));
        let made = made.unwrap_or_else(|error| {
            let again = || match &error {
                Error::OutOfMemory { what, bytes, available } => {
                    let (what, bytes, available) = (what.clone(), *bytes, *available);
                    Err(Error::OutOfMemory { what, bytes, available })
                }
                Error::Panic { message } => Err(Error::Panic { message: message.clone() }),
                other => Err(Error::Panic { message: other.to_string() }),
            };
            entries.iter().map(|_| again()).collect()
        });
        for (entry, made) in entries.into_iter().zip(made) {
            self.finish(entry, made, &commit);
        }
    }

    /// Computes a batch of requests; a panic inside is an error.
    fn compute<T>(&self, batch: usize, compute: impl FnOnce() -> T) -> Result<T> {
        let start = Instant::now();
        let hook = lock(&self.hook).take();
        let made = guard(|| {
            hook.into_iter().for_each(|hook| hook());
            compute()
        });
        self.statistics.compute.record_time(start.elapsed());
        self.statistics.batch.record(batch as u64);
        count(&self.statistics.counters.panics, u64::from(made.is_err()));
        made
    }

    fn finish<T>(
        &self,
        entry: Entry<R>,
        made: Result<T>,
        commit: impl Fn(&mut R, T) -> Result<Answer>,
    ) {
        let Some(mut request) = claimed(entry.item) else { return };
        // Before its caller hears of it and asks for the figures.
        count(&self.statistics.counters.answered, 1);
        self.statistics.latency.record_time(entry.since.elapsed());
        // A request whose answer panics is dropped by that, and answers for itself.
        let answered = guard(|| {
            let answer = made.and_then(|made| commit(&mut request, made));
            request.answer(answer);
        });
        count(&self.statistics.counters.panics, u64::from(answered.is_err()));
    }
}

/// Whether reading such a request takes longer than a scheduler has: directions are made orthogonal first.
fn is_long(overrides: &Overrides) -> bool {
    overrides.project_out.as_ref().is_some_and(|vectors| !vectors.is_empty())
}

/// The request if it may be answered; otherwise its caller has given up.
fn claimed<R: Request>(mut request: R) -> Option<R> {
    match request.claim() {
        true => Some(request),
        false => {
            request.dismiss();
            None
        }
    }
}

/// A decision for each, all at once.
fn decide<R: Request>(model: &Arc<Model>, entries: &mut [Entry<R>]) -> Vec<Result<()>> {
    let mut calls = Vec::with_capacity(entries.len());
    let mut refused = vec![];
    for (i, entry) in entries.iter_mut().enumerate() {
        match call(model, &mut entry.item) {
            Ok(call) => calls.push(call),
            Err(refusal) => refused.push((i, refusal)),
        }
    }
    decide_many(&mut calls);
    let mut outcomes: Vec<Result<()>> = calls.into_iter().map(|call| call.outcome).collect();
    // In the order of their places, which so are right again.
    refused.into_iter().for_each(|(i, refusal)| outcomes.insert(i, Err(refusal)));
    outcomes
}

fn call<'a, R: Request>(model: &Arc<Model>, request: &'a mut R) -> Result<Call<'a>> {
    match request.work()? {
        Work::Act { session, raw, overrides, asked } => {
            let asked = !session.adopt(model)? && asked;
            Ok(Call { session, raw, overrides, asked, outcome: Ok(()) })
        }
        Work::Forward(_) => Err(Error::Cancelled),
    }
}

fn commit<R: Request>(request: &mut R, (): ()) -> Result<Answer> {
    if let Work::Act { session, .. } = request.work()? {
        session.commit();
    }
    Ok(Answer::Act)
}

/// A pass for each, those that are alike at once.
fn forward<R: Request>(model: &Model, entries: &mut [Entry<R>]) -> Vec<Result<Forward>> {
    let mut passes = Vec::with_capacity(entries.len());
    for entry in entries {
        if let Ok(Work::Forward(pass)) = entry.item.work() {
            passes.push(pass);
        }
    }
    run_many(model, &passes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_inline_where_it_is_short_and_gains_little_by_company() {
        for (alone, together, inline) in
            [(12.0, 6.0, true), (24.0, 12.0, true), (80.0, 12.0, false), (300.0, 299.0, false)]
        {
            assert_eq!(is_inline(alone, together), inline, "{alone} and {together}");
        }
    }
}
