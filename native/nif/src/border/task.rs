//! Long work: a thread of its own, events on the way, one answer, and an end when nobody waits.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::Builder;

use rustler::{Env, LocalPid, Monitor, Reference, Resource, ResourceArc};
use sconce_tensor::pool::Class;
use sconce_tensor::{Error, Result, device};

use super::answer::Answer;
use super::events::{Events, Unheard};
use super::handle::Handled;
use super::outcome::guard;
use super::questions::Questions;
use super::reply::Reply;

/// Deep autograd graphs are walked and dropped recursively: 320 KB, a scheduler's stack, overflow.
const STACK_BYTES: usize = 64 << 20;

/// Replies on their way to the thread: the one that it is started for, whose sender never waits.
pub(crate) const REPLIES: usize = 1;

/// The handle of running work.
///
/// 1. The work sees `cancelled` and ends soon after it is set.
/// 2. It is set by [`Task::cancel`], by the death of the process that started the work, and when
///    the last reference to the handle is gone.
/// 3. Whatever way it ends, the [`Reply`] answers once. It is made when there is a thread: one that
///    cannot be started answers by the error of [`Task::start`] alone.
/// 4. The thread is of the background class. Work that drives no card gives way by [`Class::enter`].
/// 5. The process acknowledges each event by [`Task::heard`]; one that falls behind gets fewer, see [`Events`].
/// 6. What the work asks by [`Questions`] the process answers by [`Task::answer`].
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
            let result = guard(|| work(&events, &cancelled));
            Some((events.end(), result))
        });
        let unavailable =
            |e: io::Error| Error::Unavailable { what: "a thread".into(), reason: e.to_string() };
        let worker = worker.map_err(unavailable)?;
        // What a thread keeps of a card leaves it with the thread: the caller finds the card free after the answer.
        let teller = named("-end").spawn(move || {
            Class::Foreground.enter();
            if let Ok(Some((reply, result))) = worker.join() {
                device::settle();
                reply.send(result);
            }
        });
        teller.map_err(unavailable)?;
        env.monitor(&task, &env.pid());
        // The thread waits for it; a reply that is not taken answers for itself.
        drop(sender.send(Reply::new(env, op, reference)));
        Ok(task)
    }

    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Answers a question of the work; false where it is not asked any more.
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
