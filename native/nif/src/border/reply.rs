//! Answers from native threads.

use std::thread;

use rustler::env::SavedTerm;
use rustler::thread::is_scheduler_thread;
use rustler::types::LocalPid;
use rustler::{Encoder, Env, OwnedEnv, Reference, Term};
use sconce_tensor::trace::{self, Kind};
use sconce_tensor::{Error, Result};

use super::answer::Answer;
use super::outcome::{atoms, error, guard, outcome};

/// The one answer that a caller waits for: `{:sconce, reference, {:ok, answer} | {:error, error}}`.
///
/// 1. A reply is made in the NIF, on the caller's scheduler, and then moves to the thread that does the work.
/// 2. `send`, `run` and `dismiss` consume it, so it cannot answer twice.
/// 3. A reply that is dropped unused sends an error: `:panic` while its thread unwinds, `:cancelled` otherwise. So no
///    caller waits forever.
/// 4. A dead caller is no error: the message is lost.
pub(crate) struct Reply {
    pid: LocalPid,
    op: &'static str,
    /// The reference, in the environment of the future message. `None` once the answer is made.
    unanswered: Option<(OwnedEnv, SavedTerm)>,
}

impl Reply {
    /// A reply to the calling process. `reference` identifies the answer in its mailbox.
    pub(crate) fn new(env: Env, op: &'static str, reference: Reference) -> Self {
        let owned = OwnedEnv::new();
        let reference = owned.save(reference);
        Self { pid: env.pid(), op, unanswered: Some((owned, reference)) }
    }

    /// Sends the answer.
    pub(crate) fn send<T: Answer>(self, result: Result<T>) {
        self.prepare(result, None).send();
    }

    /// Builds the answer, to be sent later by a native thread or, with `process`, by the calling process.
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

    /// Runs the work and sends its result; a panic inside is an error of kind `:panic`.
    pub(crate) fn run<T: Answer>(self, work: impl FnOnce() -> Result<T>) {
        let result = {
            let _span = trace::span(Kind::Job, self.op);
            guard(work)
        };
        self.send(result);
    }

    /// Sends `{:sconce, reference, {:event, value}}` ahead of the answer; a no-op on a scheduler. Long work sends its
    /// events through [`Events`](super::events::Events), which bounds them.
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
        // Sending fails only if the receiver is dead.
        let _ = owned.send_and_clear(&self.pid, |env| message.load(env));
        Ok(())
    }

    /// Drops the reply unsent, for a NIF that returns the answer directly, for example when the queue is full.
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

/// An answer that is built and not yet sent.
#[must_use]
pub(crate) struct Message<'a> {
    pid: LocalPid,
    message: Option<Made<'a>>,
}

/// A message and the environment that holds it.
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
                // Sending fails only if the receiver is dead.
                let _ = message.get_env().send(&pid, message);
                return;
            }
            Some(Made::InOwn(own, message)) => (own, message),
        };
        let mut deliver = move || {
            let _ = own.send_and_clear(&pid, |env| message.load(env));
        };
        // The VM forbids this kind of send on scheduler threads, where destructors may run.
        if is_scheduler_thread() {
            // If the thread cannot start, the answer is lost.
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
