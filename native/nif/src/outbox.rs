//! Answers of a serving, on their way to their callers.
//!
//! A message that a thread of ours sends has memory of no scheduler, which each receiver hands back by waking another
//! thread: some ten microseconds of the VM's for each. So a worker leaves its answers here and tells a process of the
//! serving, once for all of them, and that process sends them from its scheduler.
//!
//! 1. An answer that was put here is sent, whatever ends: after [`Outbox::close`] by the thread that puts it.
//! 2. The process is told when there is something and it was not told already.

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

/// Answers that one call sends: a moment of a scheduler.
const AT_ONCE: usize = 64;

/// A request that is answered from here.
pub(crate) trait Deliver: Send + 'static {
    /// Answers, from a thread of ours or as the process that makes the present call.
    fn send(self, answer: Result<Answer>, process: Option<Env>);
}

pub(crate) struct Outbox<R> {
    /// Who sends them.
    sender: LocalPid,
    state: Mutex<State<R>>,
}

struct State<R> {
    /// At most one answer of each session, which is taken until its answer is sent.
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

    /// From threads of ours.
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

    /// Sends some of what there is, as the process that is told; true if there is more.
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

    /// Sends what there is, and from now on nothing is left here.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        let left = mem::take(&mut state.answers);
        drop(state);
        let send =
            move || left.into_iter().for_each(|(request, answer)| request.send(answer, None));
        match is_scheduler_thread() {
            // Without memory for a thread each answers for itself as it is dropped.
            true => drop(thread::Builder::new().spawn(send)),
            false => send(),
        }
    }
}
