//! A thread that drops values whose destructors are slow.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};

type Drops = Box<dyn FnOnce() + Send>;

/// Capacity of the queue. Sessions and policies are dropped on BEAM schedulers, which must not wait. If the queue is
/// full, the caller drops the value itself.
const LEAVING: usize = 4096;

/// The queue of the dropping thread. `None` if the thread could not be started.
pub(super) struct Leaving(Option<SyncSender<Drops>>);

impl Leaving {
    pub(super) fn start(name: &str) -> Self {
        let (sender, receiver) = sync_channel::<Drops>(LEAVING);
        let work = move || {
            for drops in receiver {
                let _ = catch_unwind(AssertUnwindSafe(drops));
            }
        };
        let thread = std::thread::Builder::new().name(name.into()).spawn(work);
        Leaving(thread.ok().map(|_| sender))
    }

    /// Calls `drops` on the dropping thread, or on the caller's thread if the queue is full.
    pub(super) fn leave(&self, drops: impl FnOnce() + Send + 'static) {
        match &self.0 {
            Some(thread) => match thread.try_send(Box::new(drops)) {
                Ok(()) => {}
                Err(TrySendError::Full(drops)) => drops(),
                // The thread has ended: the closure is dropped here.
                Err(TrySendError::Disconnected(drops)) => drop(drops),
            },
            None => drops(),
        }
    }

    /// Waits until everything queued so far has been dropped.
    pub(super) fn wait(&self) {
        if let Some(thread) = &self.0 {
            let (last, gone) = sync_channel::<()>(0);
            if thread.send(Box::new(move || drop(last))).is_ok() {
                let _ = gone.recv();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::thread;

    use super::*;

    #[test]
    fn a_full_queue_drops_on_the_caller_and_everything_else_in_order() {
        let leaving = Leaving::start("leaving");
        let (begun, under_way) = sync_channel::<()>(0);
        let (go_on, stopped) = sync_channel::<()>(0);
        leaving.leave(move || {
            begun.send(()).unwrap();
            stopped.recv().unwrap();
        });
        under_way.recv().unwrap();
        let left = Arc::new(Mutex::new(vec![]));
        let drops = |n: usize| {
            let left = left.clone();
            move || left.lock().unwrap().push((n, thread::current().id()))
        };
        (0..LEAVING).for_each(|n| leaving.leave(drops(n)));
        assert_eq!(left.lock().unwrap().len(), 0);
        // The thread is busy and its queue is full.
        let here = thread::current().id();
        leaving.leave(drops(LEAVING));
        assert_eq!(*left.lock().unwrap(), [(LEAVING, here)]);
        go_on.send(()).unwrap();
        leaving.wait();
        let left = left.lock().unwrap();
        let numbers: Vec<_> = left[1..].iter().map(|(n, _)| *n).collect();
        assert_eq!(numbers, (0..LEAVING).collect::<Vec<_>>());
        assert!(left[1..].iter().all(|(_, thread)| *thread != here));
    }

    #[test]
    fn a_panic_does_not_end_the_thread() {
        let leaving = Leaving::start("leaving");
        leaving.leave(|| std::panic::resume_unwind(Box::new("on purpose")));
        let (told, heard) = sync_channel(1);
        leaving.leave(move || told.send(thread::current().id()).unwrap());
        leaving.wait();
        assert!(heard.try_recv().is_ok_and(|thread| thread != thread::current().id()));
    }
}
