//! Answers of a serving that wait to be sent to their callers.
//!
//! The memory of a message from a native thread belongs to no scheduler. Each receiver returns it by waking another
//! thread, which costs the VM about ten microseconds per message. So a worker stores its answers here and notifies one
//! process of the serving, once for all of them; that process sends them from its scheduler.
//!
//! 1. A stored answer is always sent; after [`Outbox::close`] the thread that stores it sends it at once.
//! 2. The process is notified when there are answers and no notification is pending.

use std::sync::{Mutex, MutexGuard};
use std::{mem, thread};

use rustler::thread::is_scheduler_thread;
use rustler::types::LocalPid;
use rustler::{Encoder, Env, OwnedEnv};
use sconce_serve::serving::Answer;
use sconce_tensor::Result;

mod atoms {
    rustler::atoms! { deliver }
}

/// Maximum number of answers that one call sends, so that the call takes little scheduler time.
const AT_ONCE: usize = 64;

/// A request whose answer goes through the outbox.
pub(crate) trait Deliver: Send + 'static {
    /// Sends the answer from a native thread or, with `process`, from the calling process.
    fn send(self, answer: Result<Answer>, process: Option<Env>);
}

/// The answers of one serving.
pub(crate) struct Outbox<R> {
    /// The process that sends the answers.
    sender: LocalPid,
    state: Mutex<State<R>>,
}

struct State<R> {
    /// At most one answer per session: a session stays taken until its answer is sent.
    answers: Vec<(R, Result<Answer>)>,
    told: bool,
    closed: bool,
}

impl<R: Deliver> Outbox<R> {
    pub(crate) fn new(sender: LocalPid) -> Self {
        let state = State { answers: vec![], told: false, closed: false };
        Outbox { sender, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State<R>> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Stores an answer and notifies the process. For native threads only.
    pub(crate) fn put(&self, request: R, answer: Result<Answer>) {
        let mut state = self.state();
        if state.closed {
            drop(state);
            return request.send(answer, None);
        }
        state.answers.push((request, answer));
        let told = mem::replace(&mut state.told, true);
        drop(state);
        if !told {
            let sent =
                OwnedEnv::new().send_and_clear(&self.sender, |env| atoms::deliver().encode(env));
            if sent.is_err() {
                self.close();
            }
        }
    }

    /// Sends at most [`AT_ONCE`] answers from the notified process; true if more are left.
    pub(crate) fn deliver(&self, env: Env<'_>) -> bool {
        let mut state = self.state();
        let count = state.answers.len().min(AT_ONCE);
        let some: Vec<_> = state.answers.drain(..count).collect();
        let more = !state.answers.is_empty();
        state.told = more;
        drop(state);
        some.into_iter().for_each(|(request, answer)| request.send(answer, Some(env)));
        more
    }

    /// Sends all stored answers; later answers are sent as they are put.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        let left = mem::take(&mut state.answers);
        drop(state);
        let send =
            move || left.into_iter().for_each(|(request, answer)| request.send(answer, None));
        match is_scheduler_thread() {
            // If the thread cannot start, each request answers as it is dropped.
            true => drop(thread::Builder::new().spawn(send)),
            false => send(),
        }
    }
}
