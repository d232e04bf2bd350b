//! Answers from threads of our own.

use std::thread;

use rustler::env::SavedTerm;
use rustler::thread::is_scheduler_thread;
use rustler::types::LocalPid;
use rustler::{Encoder, Env, OwnedEnv, Reference, Term};
use sconce_tensor::{Error, Result};

use super::answer::Answer;
use super::outcome::{atoms, error, guard, outcome};

/// The one answer that a caller waits for: `{:sconce, reference, {:ok, answer} | {:error, error}}`.
///
/// 1. Made in the NIF, on the caller's scheduler; it then moves to the thread that does the work.
/// 2. `send`, `run` and `dismiss` consume it, so it cannot answer twice.
/// 3. Dropped unused it answers for itself, `:panic` while its thread unwinds and `:cancelled`
///    otherwise, so no caller waits for good.
/// 4. A caller that died is no error: the message goes nowhere.
pub(crate) struct Reply {
    pid: LocalPid,
    op: &'static str,
    /// The reference, in the environment of the message that will bear it. None once that is sent.
    unanswered: Option<(OwnedEnv, SavedTerm)>,
}

impl Reply {
    /// For the process that makes the present call. `reference` is the caller's, by which it finds
    /// the answer in its mailbox.
    pub(crate) fn new(env: Env, op: &'static str, reference: Reference) -> Self {
        let owned = OwnedEnv::new();
        let reference = owned.save(reference);
        Self { pid: env.pid(), op, unanswered: Some((owned, reference)) }
    }

    /// Answers.
    pub(crate) fn send<T: Answer>(self, result: Result<T>) {
        self.prepare(result, None).send();
    }

    /// The answer, for the moment when it may be sent: by a thread of ours, or by the process that makes the present
    /// call.
    pub(crate) fn prepare<T: Answer>(mut self, result: Result<T>, process: Option<Env>) -> Message {
        let op = self.op;
        match (process, self.unanswered.take()) {
            (Some(env), Some((own, reference))) => {
                let reference = own.run(|own| reference.load(own).in_env(env));
                let message = (atoms::sconce(), reference, made(env, op, result)).encode(env);
                Message { pid: self.pid, message: Some(Made::InProcess(message)) }
            }
            (_, unanswered) => {
                self.unanswered = unanswered;
                self.answer(|env| made(env, op, result))
            }
        }
    }

    /// Does the work and answers with its result; a panic inside is an error of kind `:panic`.
    pub(crate) fn run<T: Answer>(self, work: impl FnOnce() -> Result<T>) {
        let result = guard(work);
        self.send(result);
    }

    /// Sends `{:sconce, reference, {:event, value}}` ahead of the answer, from a native thread only: on a
    /// scheduler it is not sent. Long work sends its events by [`Events`](super::events::Events), which bounds them.
    pub(crate) fn event(
        &self,
        value: impl for<'a> FnOnce(Env<'a>) -> Result<Term<'a>>,
    ) -> Result<()> {
        if is_scheduler_thread() {
            return Ok(());
        }
        let Some((own, reference)) = &self.unanswered else { return Ok(()) };
        let mut owned = OwnedEnv::new();
        let message = owned.run(|env| -> Result<SavedTerm> {
            let event = (atoms::event(), value(env)?);
            let reference = own.run(|own| reference.load(own).in_env(env));
            Ok(owned.save((atoms::sconce(), reference, event)))
        })?;
        // The only failure is a receiver that no longer lives.
        let _ = owned.send_and_clear(&self.pid, |env| message.load(env));
        Ok(())
    }

    /// For a NIF that answers by returning, as when the queue is full.
    pub(crate) fn dismiss(mut self) {
        self.unanswered = None;
    }

    fn answer<'a>(&mut self, outcome: impl for<'b> FnOnce(Env<'b>) -> Term<'b>) -> Message<'a> {
        let message = self.unanswered.take().map(|(own, reference)| {
            let answer =
                own.run(|env| own.save((atoms::sconce(), reference.load(env), outcome(env))));
            Made::InOwn(own, answer)
        });
        Message { pid: self.pid, message }
    }
}

fn made<'a, T: Answer>(env: Env<'a>, op: &str, result: Result<T>) -> Term<'a> {
    outcome(env, op, guard(|| result?.into_term(env)))
}

/// An answer that is made, and not sent.
#[must_use]
pub(crate) struct Message<'a> {
    pid: LocalPid,
    message: Option<Made<'a>>,
}

/// Where a message lies.
enum Made<'a> {
    InOwn(OwnedEnv, SavedTerm),
    InProcess(Term<'a>),
}

impl Message<'_> {
    pub(crate) fn send(self) {
        let Message { pid, message } = self;
        let (mut own, message) = match message {
            None => return,
            Some(Made::InProcess(message)) => {
                // The only failure is a receiver that no longer lives.
                let _ = message.get_env().send(&pid, message);
                return;
            }
            Some(Made::InOwn(own, message)) => (own, message),
        };
        let mut deliver = move || {
            let _ = own.send_and_clear(&pid, |env| message.load(env));
        };
        // The VM forbids this kind of send on its own threads, where destructors may run.
        if is_scheduler_thread() {
            // Without memory for one more thread the answer is lost, and so is much else.
            let _ = thread::Builder::new().spawn(deliver);
        } else {
            deliver();
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if self.unanswered.is_none() {
            return;
        }
        let failure = if thread::panicking() {
            Error::Panic { message: "the thread ended before it answered".to_owned() }
        } else {
            Error::Cancelled
        };
        let op = self.op;
        self.answer(|env| error(env, op, &failure)).send();
    }
}
