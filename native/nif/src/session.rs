//! Sessions: `Sconce.Session`, the memory of a running game.

mod answered;
pub(crate) mod figures;

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use rustler::{Binary, Encoder, Env, LocalPid, Monitor, Reference, Resource, ResourceArc, Term};
use sconce_serve::Deadline;
use sconce_serve::serving::GaveUp;
use sconce_serve::session::{Lane, Options, Overrides, Session};
use sconce_tensor::metrics::METRICS;
use sconce_tensor::{Error, Result, memory};

pub(crate) use self::answered::Answered;
use self::figures::Figures;
use crate::border::{
    Bytes, Data, Handle, Handled, Reply, call, decode, error, from_binary, guard, inline_counted,
    perform, pool,
};
use crate::policy::PolicyHandle;

mod atoms {
    rustler::atoms! { queued }
}

/// A session and the process that owns it.
///
/// 1. It is `Idle`, or `Working` while a call has it, or `Closed`. A call takes the session out, so no lock is held
///    while it computes, and puts it back; a second call finds it `Working` and is `:busy`.
/// 2. Calls of a process that is not the owner are `:busy`. The owner's death closes the session.
/// 3. Closing frees the memory, at once or when the call that has the session ends; so does dropping the handle. Calls
///    on a closed session are `:not_found`.
/// 4. A queued decision has a [`Ticket`], which is claimed once. If the thread claims it, it commits the decision and
///    answers. If the caller gives up or dies and claims it, the session is unchanged and no message comes; in a
///    serving the request then leaves the queue.
pub(crate) struct SessionHandle {
    slot: Mutex<Slot>,
    owner: Mutex<Owner>,
    /// Makes the session's decisions, if a serving does so instead of the session's own lane.
    decider: Option<Arc<dyn Decider>>,
    figures: Arc<Figures>,
}

/// The interface of a serving to its sessions.
pub(crate) trait Decider: Send + Sync {
    /// Decides at once, or queues the request. A refused request leaves the session unchanged.
    fn act<'a>(
        &self,
        env: Env<'a>,
        reference: Reference,
        request: Request,
        taken: Taken,
        deadline: Option<Deadline>,
    ) -> Term<'a>;

    /// Removes the request of a claimed ticket from the queue.
    fn give_up(&self, caller: LocalPid, why: GaveUp, ticket: &Ticket);
}

enum Slot {
    Idle(Box<Session>),
    Working(Ticket),
    Closed,
}

struct Owner {
    pid: LocalPid,
    monitor: Option<Monitor>,
}

/// The right to end a request, claimed once.
#[derive(Clone, Default)]
pub(crate) struct Ticket(Arc<AtomicBool>);

impl Ticket {
    /// True for the first claim.
    pub(crate) fn claim(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn is(&self, other: &Ticket) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

#[rustler::resource_impl]
impl Resource for SessionHandle {
    fn down<'a>(&'a self, _env: Env<'a>, _pid: LocalPid, monitor: Monitor) {
        // The death of a former owner is ignored.
        if self.owner().monitor == Some(monitor) {
            self.close();
        }
    }
}

impl Handled for SessionHandle {
    const NOUN: &'static str = "session";
}

impl SessionHandle {
    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn owner(&self) -> MutexGuard<'_, Owner> {
        self.owner.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn check_owner(&self, env: Env) -> Result<()> {
        if matches!(*self.slot(), Slot::Closed) {
            return Err(closed());
        }
        match self.owner().pid == env.pid() {
            true => Ok(()),
            false => Err(Error::Busy { what: "session (owned by another process)".into() }),
        }
    }

    fn close(&self) {
        self.figures.close();
        let before = mem::replace(&mut *self.slot(), Slot::Closed);
        if let Slot::Working(ticket) = &before {
            self.give_up(ticket, GaveUp::Died);
        }
        // The session is freed after the lock is released.
        if let Slot::Idle(session) = before {
            session.leave();
        }
    }

    /// Gives up the decision of this ticket; true if it will not be made.
    fn give_up(&self, ticket: &Ticket, why: GaveUp) -> bool {
        let claimed = ticket.claim();
        if claimed {
            if matches!(why, GaveUp::Late) {
                self.figures.late();
            }
            match &self.decider {
                Some(decider) => decider.give_up(self.owner().pid, why, ticket),
                None if matches!(why, GaveUp::Late) => METRICS.deadlines_missed.add(1),
                None => {}
            }
        }
        claimed
    }

    pub(crate) fn is_closed(&self) -> bool {
        matches!(*self.slot(), Slot::Closed)
    }

    /// A session that process `pid` owns. For native threads only.
    pub(crate) fn open(
        session: Session,
        pid: LocalPid,
        decider: Option<Arc<dyn Decider>>,
    ) -> Result<ResourceArc<Self>> {
        let figures = Figures::of(session.policy().spec().backbone.name(), pid);
        let handle = ResourceArc::new(SessionHandle {
            slot: Mutex::new(Slot::Idle(Box::new(session))),
            owner: Mutex::new(Owner { pid, monitor: None }),
            decider,
            figures,
        });
        // The lock is held until the monitor is stored, so that `down` recognises the owner's death.
        let mut owner = handle.owner();
        owner.monitor = handle.monitor(None, &pid);
        let alive = owner.monitor.is_some();
        drop(owner);
        if alive { Ok(handle) } else { Err(Error::Cancelled) }
    }
}

impl Drop for SessionHandle {
    fn drop(&mut self) {
        self.close();
    }
}

pub(crate) fn closed() -> Error {
    Error::not_found("session (closed)")
}

/// A session that one call has taken. Dropping this puts the session back, unless it was closed meanwhile.
pub(crate) struct Taken {
    handle: ResourceArc<SessionHandle>,
    session: Option<Box<Session>>,
    pub ticket: Ticket,
}

impl Taken {
    pub(crate) fn new(env: Env, handle: ResourceArc<SessionHandle>) -> Result<Self> {
        Taken::with(env, handle, Ticket::default())
    }

    /// Takes a session with a ticket that other sessions share.
    pub(crate) fn with(
        env: Env,
        handle: ResourceArc<SessionHandle>,
        ticket: Ticket,
    ) -> Result<Self> {
        handle.check_owner(env)?;
        let session = {
            let mut slot = handle.slot();
            match mem::replace(&mut *slot, Slot::Working(ticket.clone())) {
                Slot::Idle(session) => session,
                other => {
                    let refused = match &other {
                        Slot::Closed => closed(),
                        _ => Error::Busy { what: "session".into() },
                    };
                    *slot = other;
                    return Err(refused);
                }
            }
        };
        Ok(Taken { handle, session: Some(session), ticket })
    }

    /// Whether its owner died or closed it meanwhile.
    pub(crate) fn is_closed(&self) -> bool {
        self.handle.is_closed()
    }

    pub(crate) fn session(&mut self) -> Result<&mut Session> {
        self.session.as_deref_mut().ok_or_else(closed)
    }

    pub(crate) fn figures(&self) -> &Arc<Figures> {
        &self.handle.figures
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let Some(session) = self.session.take() else { return };
        let mut slot = self.handle.slot();
        if matches!(*slot, Slot::Working(_)) {
            *slot = Slot::Idle(session);
        } else {
            // Closed meanwhile: the session is freed after the lock is released.
            drop(slot);
            session.leave();
        }
    }
}

/// Opens a session on a native thread, where measuring delays no scheduler.
#[rustler::nif]
fn session_open<'a>(
    env: Env<'a>,
    policy: Handle<PolicyHandle>,
    reference: Reference<'a>,
    options: Term<'a>,
    project_out: Option<Binary<'a>>,
) -> Term<'a> {
    perform(env, "open", || {
        let options = Options { project_out: vectors(project_out)?, ..decode(options)? };
        let (policy, pid) = (policy.get()?, env.pid());
        pool::submit(env, "open", reference, move || {
            let session = Session::over(policy.model(options.weights)?, options)?;
            SessionHandle::open(session, pid, None)
        })
    })
}

pub(crate) fn vectors(binary: Option<Binary>) -> Result<Option<Vec<f32>>> {
    binary.map(|binary| from_binary("project_out", &binary, f32::from_le_bytes)).transpose()
}

/// Returns `{:ok, answer}`, or `:queued` if the answer comes by message.
#[rustler::nif]
fn session_act<'a>(
    env: Env<'a>,
    handle: Handle<SessionHandle>,
    reference: Reference<'a>,
    frame: Binary<'a>,
    (logits, deadline_ms): (bool, Option<u64>),
    overrides: Term<'a>,
    project_out: Option<Binary<'a>>,
) -> Term<'a> {
    let deadline = deadline_ms.map(Deadline::after_ms);
    let prepared = guard(|| {
        let raw = from_binary("frame", &frame, f32::from_le_bytes)?;
        let mut overrides = match overrides.is_atom() {
            true => Overrides::default(),
            false => decode(overrides)?,
        };
        overrides.project_out = vectors(project_out)?;
        let handle = handle.get()?;
        let decider = handle.decider.clone();
        let mut taken = Taken::new(env, handle)?;
        let lane = taken.session()?.next_lane();
        Ok((Request { raw, overrides, logits }, taken, decider.ok_or(lane)))
    });
    let queued = |queued: Result<()>| match queued {
        Ok(()) => atoms::queued().encode(env),
        Err(failure) => error(env, "act", &failure),
    };
    match prepared {
        Ok((request, taken, Ok(decider))) => decider.act(env, reference, request, taken, deadline),
        Ok((request, mut taken, Err(Lane::Inline))) => {
            let figures = taken.figures().clone();
            let count = |time| {
                METRICS.decision_time.record(time);
                figures.took(time);
            };
            inline_counted(env, "act", count, || {
                in_time(deadline, &figures)?;
                let session = taken.session()?;
                session.decide(&request.raw, &request.overrides)?;
                session.commit();
                figures.decided();
                Ok(Answered::of(session, request.logits).encode(env))
            })
        }
        Ok((request, taken, Err(Lane::Worker))) => {
            queued(queue(env, reference, request, taken, deadline))
        }
        Err(failure) => error(env, "act", &failure),
    }
}

/// Returns the error of a deadline that has passed, and counts it.
fn in_time(deadline: Option<Deadline>, figures: &Figures) -> Result<()> {
    deadline.map_or(Ok(()), |deadline| deadline.check()).inspect_err(|_| {
        METRICS.deadlines_missed.add(1);
        figures.late();
    })
}

pub(crate) struct Request {
    pub raw: Vec<f32>,
    pub overrides: Overrides,
    pub logits: bool,
}

impl Request {
    /// Decides, and commits if the claim succeeds.
    fn answer(&self, taken: &mut Taken, claim: impl FnOnce() -> bool) -> Result<Answered<'static>> {
        let start = Instant::now();
        let figures = taken.figures().clone();
        let session = taken.session()?;
        session.decide(&self.raw, &self.overrides)?;
        if !claim() {
            return Err(Error::Cancelled);
        }
        session.commit();
        let time = start.elapsed();
        METRICS.decision_time.record(time);
        figures.decided();
        figures.took(time);
        Ok(Answered::of(session, self.logits).into_owned())
    }
}

fn queue(
    env: Env,
    reference: Reference,
    request: Request,
    mut taken: Taken,
    deadline: Option<Deadline>,
) -> Result<()> {
    let permit = pool::shared()?.permit()?;
    let reply = Reply::new(env, "act", reference);
    permit.submit(deadline, move |start| {
        let ticket = taken.ticket.clone();
        let mut claimed = false;
        let result = guard(|| {
            start?;
            // The owner may have died while the job was queued.
            if taken.is_closed() {
                return Err(closed());
            }
            request.answer(&mut taken, || {
                claimed = ticket.claim();
                claimed
            })
        });
        let claimed = claimed || ticket.claim();
        if claimed && matches!(result, Err(Error::Deadline { .. })) {
            METRICS.deadlines_missed.add(1);
            taken.figures().late();
        }
        // The session is put back before the answer is sent: its owner may then call again.
        drop(taken);
        if claimed { reply.send(result) } else { reply.dismiss() }
    });
    Ok(())
}

/// Gives up waiting for a queued decision: true if it will not be made, false if its answer is in flight or has
/// arrived. Only the owner can give up a call.
#[rustler::nif]
fn session_abandon(env: Env, handle: Handle<SessionHandle>) -> bool {
    let owned = handle.get().and_then(|handle| handle.check_owner(env).map(|()| handle));
    let Ok(handle) = owned else { return false };
    let ticket = match &*handle.slot() {
        Slot::Working(ticket) => Some(ticket.clone()),
        Slot::Idle(_) | Slot::Closed => None,
    };
    ticket.is_some_and(|ticket| handle.give_up(&ticket, GaveUp::Late))
}

#[rustler::nif]
fn session_reset(env: Env, handle: Handle<SessionHandle>, seed: Option<u64>) -> Term {
    perform(env, "reset", || Taken::new(env, handle.get()?)?.session()?.reset(seed))
}

/// Takes back the decisions of a game frame and of later ones; returns their count.
#[rustler::nif]
fn session_rollback(env: Env, handle: Handle<SessionHandle>, game_frame: i64) -> Term {
    call(env, "rollback", || Taken::new(env, handle.get()?)?.session()?.rollback(game_frame))
}

/// Takes back the decisions after the first `frames` decisions.
#[rustler::nif]
fn session_back_to(env: Env, handle: Handle<SessionHandle>, frames: u64) -> Term {
    perform(env, "act", || Taken::new(env, handle.get()?)?.session()?.back_to(frames))
}

/// Sends a snapshot by message. A dirty call would build its answer on the heap of a process that may be exiting; that
/// crashes the VM (OTP 25.2) if a connection to another node delays the exit.
#[rustler::nif]
fn session_snapshot<'a>(
    env: Env<'a>,
    handle: Handle<SessionHandle>,
    reference: Reference<'a>,
) -> Term<'a> {
    perform(env, "snapshot", || {
        let mut taken = Taken::new(env, handle.get()?)?;
        pool::submit(env, "snapshot", reference, move || Ok(Bytes(taken.session()?.snapshot()?)))
    })
}

/// Restores a snapshot. Sends `{:ok, true}` by message, as [`session_snapshot`] does.
#[rustler::nif]
fn session_restore<'a>(
    env: Env<'a>,
    handle: Handle<SessionHandle>,
    reference: Reference<'a>,
    snapshot: Binary<'a>,
) -> Term<'a> {
    perform(env, "restore", || {
        let (mut taken, snapshot) = (Taken::new(env, handle.get()?)?, memory::copied(&snapshot));
        pool::submit(env, "restore", reference, move || {
            taken.session()?.restore(&snapshot).map(|()| true)
        })
    })
}

#[rustler::nif]
fn session_info(env: Env, handle: Handle<SessionHandle>) -> Term {
    call(env, "info", || Ok(Data(Taken::new(env, handle.get()?)?.session()?.info())))
}

/// Hands the session to a living process.
#[rustler::nif]
fn session_transfer(env: Env, handle: Handle<SessionHandle>, pid: LocalPid) -> Term {
    perform(env, "transfer", || {
        let handle = handle.get()?;
        handle.check_owner(env)?;
        // The lock is held until the new owner is stored, so that `down` recognises its death.
        let mut owner = handle.owner();
        let monitor = handle.monitor(Some(env), &pid).ok_or_else(|| Error::not_found("process"))?;
        let before = mem::replace(&mut *owner, Owner { pid, monitor: Some(monitor) });
        handle.figures.belong_to(pid);
        drop(owner);
        if let Some(monitor) = before.monitor {
            handle.demonitor(Some(env), &monitor);
        }
        Ok(())
    })
}

#[rustler::nif]
fn session_close(env: Env, handle: Handle<SessionHandle>) -> Term {
    perform(env, "close", || {
        let handle = handle.get()?;
        if handle.is_closed() {
            return Ok(());
        }
        handle.check_owner(env)?;
        handle.close();
        let monitor = handle.owner().monitor.take();
        if let Some(monitor) = monitor {
            handle.demonitor(Some(env), &monitor);
        }
        Ok(())
    })
}
