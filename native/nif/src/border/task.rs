//! Long work: a thread of its own, events on the way, one answer, and an end when nobody waits.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::Builder;

use rustler::{Env, LocalPid, Monitor, Reference, Resource, ResourceArc};
use sconce_core::{Error, Result, device};

use super::{Answer, Handled, Reply};

/// Deep autograd graphs are walked and dropped recursively: 320 KB, a scheduler's stack, overflow.
const STACK_BYTES: usize = 64 << 20;

/// The handle of running work.
///
/// 1. The work sees `cancelled` and ends soon after it is set.
/// 2. It is set by [`Task::cancel`], by the death of the process that started the work, and when
///    the last reference to the handle is gone.
/// 3. Whatever way it ends, the [`Reply`] answers once. It is made when there is a thread: one that
///    cannot be started answers by the error of [`Task::start`] alone.
pub struct Task {
    cancelled: Arc<AtomicBool>,
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
    /// Starts `work(reply, cancelled)` for the calling process.
    pub fn start<T: Answer + Send + 'static>(
        env: Env,
        op: &'static str,
        reference: Reference,
        work: impl FnOnce(&Reply, &AtomicBool) -> Result<T> + Send + 'static,
    ) -> Result<ResourceArc<Task>> {
        let cancelled = Arc::new(AtomicBool::new(false));
        let task = ResourceArc::new(Task { cancelled: cancelled.clone() });
        let (sender, receiver) = mpsc::channel::<Reply>();
        let named = |what: &str| Builder::new().name(format!("sconce-{op}{what}"));
        let worker = named("").stack_size(STACK_BYTES).spawn(move || {
            let reply = receiver.recv().ok()?;
            let result = super::guard(|| work(&reply, &cancelled));
            Some((reply, result))
        });
        let unavailable =
            |e: io::Error| Error::Unavailable { what: "a thread".into(), reason: e.to_string() };
        let worker = worker.map_err(unavailable)?;
        // What a thread keeps of a card leaves it with the thread: who hears of the end finds it free.
        let teller = named("-end").spawn(move || {
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

    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.cancel();
    }
}
