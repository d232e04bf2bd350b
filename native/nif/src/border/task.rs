//! Long work: a thread of its own, events, one answer, and cancellation when no process waits.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::Builder;

use rustler::{Env, LocalPid, Monitor, Reference, Resource, ResourceArc};
use sconce_tensor::pool::Class;
use sconce_tensor::trace::{self, Kind};
use sconce_tensor::{Error, Result, device};

use super::answer::Answer;
use super::events::{Events, Unheard};
use super::handle::Handled;
use super::outcome::guard;
use super::questions::Questions;
use super::reply::Reply;

/// Stack size of the thread. Deep autograd graphs are walked and dropped recursively, which overflows the 320 KB of a
/// scheduler's stack.
const STACK_BYTES: usize = 64 << 20;

/// Capacity of the channel that brings a new thread its one reply; the sender never waits.
pub(crate) const REPLIES: usize = 1;

/// The handle of running work.
///
/// 1. The work checks `cancelled` and ends soon after it is set.
/// 2. The flag is set by [`Task::cancel`], by the death of the process that started the work, and by the drop of the
///    last reference to the handle.
/// 3. The [`Reply`] answers exactly once, however the work ends. It is made after the thread has started: if the thread
///    cannot start, only [`Task::start`] returns the error.
/// 4. The thread has the background class. Work that drives no card lowers its priority by [`Class::enter`].
/// 5. The process acknowledges each event by [`Task::heard`]. A process that falls behind gets fewer, see [`Events`].
/// 6. The process answers each question of [`Questions`] by [`Task::answer`].
pub(crate) struct Task {
    cancelled: Arc<AtomicBool>,
    unheard: Arc<Unheard>,
    questions: Arc<Questions>,
}

#[rustler::resource_impl]
impl Resource for Task {
    fn down<'a>(&'a self, _env: Env<'a>, _pid: LocalPid, _monitor: Monitor) {
        self.cancel();
    }
}

impl Handled for Task {
    const NOUN: &'static str = "task";
}

impl Task {
    /// Starts `work(events, cancelled)` for the calling process.
    pub(crate) fn start<T: Answer + Send + 'static>(
        env: Env,
        op: &'static str,
        reference: Reference,
        work: impl FnOnce(&Events, &AtomicBool) -> Result<T> + Send + 'static,
    ) -> Result<ResourceArc<Task>> {
        let (cancelled, unheard) = (Arc::<AtomicBool>::default(), Arc::<Unheard>::default());
        let questions = Arc::<Questions>::default();
        let task = ResourceArc::new(Task {
            cancelled: cancelled.clone(),
            unheard: unheard.clone(),
            questions: questions.clone(),
        });
        let (sender, receiver) = sync_channel::<Reply>(REPLIES);
        let named = |what: &str| Builder::new().name(format!("sconce-{op}{what}"));
        let worker = named("").stack_size(STACK_BYTES).spawn(move || {
            Class::Background.enter_at_full_priority();
            let events = Events::new(receiver.recv().ok()?, unheard, questions);
            let result = {
                let _span = trace::span(Kind::Job, op);
                guard(|| work(&events, &cancelled))
            };
            Some((events.end(), result))
        });
        let unavailable =
            |e: io::Error| Error::Unavailable { what: "a thread".into(), reason: e.to_string() };
        let worker = worker.map_err(unavailable)?;
        // A thread's memory on a card is freed when the thread ends. So the answer is sent after the join: the caller
        // then finds the card free.
        let teller = named("-end").spawn(move || {
            Class::Foreground.enter();
            if let Ok(Some((reply, result))) = worker.join() {
                device::settle();
                reply.send(result);
            }
        });
        teller.map_err(unavailable)?;
        env.monitor(&task, &env.pid());
        // The thread waits for the reply. A reply that the thread does not take answers as it is dropped.
        drop(sender.send(Reply::new(env, op, reference)));
        Ok(task)
    }

    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Answers a question of the work; false if the question is no longer open.
    pub(crate) fn answer(&self, number: u64, answer: serde_json::Value) -> bool {
        self.questions.answer(number, answer)
    }

    /// Acknowledges an event.
    pub(crate) fn heard(&self) {
        self.unheard.remove();
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.cancel();
    }
}
