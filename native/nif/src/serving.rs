//! Servings: `Sconce.Serving`, one policy shared by many callers.

mod figures;

use std::ops::Deref;
use std::sync::Arc;

use rustler::{Binary, Encoder, Env, LocalPid, Monitor, Reference, Resource, ResourceArc, Term};
use sconce_serve::Deadline;
use sconce_serve::pass::Pass;
use sconce_serve::serving::{self, Answer, GaveUp, Options, Serving, Work};
use sconce_serve::session::{self, Lane, Session};
use sconce_tensor::{Error, Result};

use crate::border::{
    Handle, Handled, Reply, call, decode, error, guard, inline, next_turn, perform, pool, timed,
};
use crate::outbox::{Deliver, Outbox};
use crate::policy::{Given, Looked, PolicyHandle, pass};
use crate::session::{Answered, Decider, Request, SessionHandle, Taken, Ticket, vectors};

mod atoms {
    rustler::atoms! { ok, queued }
}

/// A serving with the outbox of its answers.
#[derive(Clone)]
pub(crate) struct Server {
    serving: Arc<Serving<Queued>>,
    outbox: Arc<Outbox<Queued>>,
}

impl Deref for Server {
    type Target = Serving<Queued>;

    fn deref(&self) -> &Self::Target {
        &self.serving
    }
}

/// A serving, which ends with the process that started it or with this handle. Its sessions outlive it, because they
/// own their memory.
pub(crate) struct ServingHandle(pub Server);

#[rustler::resource_impl]
impl Resource for ServingHandle {
    fn down<'a>(&'a self, _env: Env<'a>, _pid: LocalPid, _monitor: Monitor) {
        self.end();
    }
}

impl Handled for ServingHandle {
    const NOUN: &'static str = "serving";
}

impl ServingHandle {
    fn end(&self) {
        self.0.stop();
        self.0.outbox.close();
    }
}

impl Drop for ServingHandle {
    fn drop(&mut self) {
        self.end();
    }
}

/// A queued request with its reply.
pub(crate) enum Queued {
    Act(Box<Acting>),
    Forward(Box<Looking>),
}

/// A queued decision. Fields drop in order: the session is put back before its owner gets an answer.
pub(crate) struct Acting {
    request: Request,
    /// Whether the session has already read the request.
    asked: bool,
    taken: Taken,
    waiting: Waiting,
}

/// A queued forward pass.
pub(crate) struct Looking {
    pass: Pass,
    waiting: Waiting,
}

/// A pending answer. Dropping it answers, unless the ticket was claimed elsewhere.
struct Waiting {
    ticket: Ticket,
    claimed: bool,
    reply: Option<Reply>,
    outbox: Arc<Outbox<Queued>>,
}

impl Waiting {
    fn new(
        env: Env,
        op: &'static str,
        reference: Reference,
        ticket: Ticket,
        outbox: &Arc<Outbox<Queued>>,
    ) -> Self {
        let reply = Some(Reply::new(env, op, reference));
        Waiting { ticket, claimed: false, reply, outbox: outbox.clone() }
    }

    fn claim(&mut self) -> bool {
        self.claimed = self.claimed || self.ticket.claim();
        self.claimed
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let claimed = self.claim();
        match self.reply.take() {
            Some(reply) if !claimed => reply.dismiss(),
            // The reply answers as it is dropped.
            unanswered => drop(unanswered),
        }
    }
}

impl Queued {
    pub(crate) fn has(&self, ticket: &Ticket) -> bool {
        match self {
            Queued::Act(acting) => acting.waiting.ticket.is(ticket),
            Queued::Forward(looking) => looking.waiting.ticket.is(ticket),
        }
    }

    fn waiting(&mut self) -> &mut Waiting {
        match self {
            Queued::Act(acting) => &mut acting.waiting,
            Queued::Forward(looking) => &mut looking.waiting,
        }
    }
}

impl Deliver for Queued {
    fn send(mut self, result: Result<Answer>, process: Option<Env>) {
        let Some(reply) = self.waiting().reply.take() else { return };
        match (result, self) {
            (Ok(Answer::Act), Queued::Act(mut acting)) => {
                let logits = acting.request.logits;
                let session = acting.taken.session();
                let answer = session.map(|session| Answered::of(session, logits));
                let message = reply.prepare(answer, process);
                acting.taken.figures().decided();
                // The session is put back before the answer is sent: its owner may then call again.
                drop(acting);
                message.send();
            }
            (Ok(Answer::Forward(made)), _) => reply.prepare(Ok(Looked(made)), process).send(),
            (Ok(Answer::Act), _) => reply.prepare::<bool>(Err(Error::Cancelled), process).send(),
            (Err(failure), request) => {
                if let (Error::Deadline { .. }, Queued::Act(acting)) = (&failure, &request) {
                    acting.taken.figures().late();
                }
                drop(request);
                reply.prepare::<bool>(Err(failure), process).send();
            }
        }
    }
}

impl serving::Request for Queued {
    type Caller = LocalPid;

    fn work(&mut self) -> Result<Work<'_>> {
        Ok(match self {
            Queued::Act(acting) => Work::Act {
                session: acting.taken.session()?,
                raw: &acting.request.raw,
                overrides: &acting.request.overrides,
                asked: acting.asked,
            },
            Queued::Forward(looking) => Work::Forward(&looking.pass),
        })
    }

    fn claim(&mut self) -> bool {
        self.waiting().claim()
    }

    fn answer(mut self, result: Result<Answer>) {
        match &self {
            // Encoding the outputs takes too long for a scheduler.
            Queued::Forward(_) => self.send(result, None),
            Queued::Act(_) => {
                let outbox = self.waiting().outbox.clone();
                outbox.put(self, result);
            }
        }
    }

    fn dismiss(mut self) {
        if let Some(reply) = self.waiting().reply.take() {
            reply.dismiss();
        }
    }
}

impl Decider for Server {
    fn act<'a>(
        &self,
        env: Env<'a>,
        reference: Reference,
        request: Request,
        mut taken: Taken,
        deadline: Option<Deadline>,
    ) -> Term<'a> {
        let figures = taken.figures().clone();
        let decided = guard(|| {
            self.check(deadline).inspect_err(|error| {
                if let Error::Deadline { .. } = error {
                    figures.late();
                }
            })?;
            let session = taken.session()?;
            let made = self.serving.act(session, &request.raw, &request.overrides)?;
            let made = made.inspect(|()| figures.decided());
            Ok(made.map(|()| Answered::of(session, request.logits).encode(env)))
        });
        let told = |told: Result<Term<'a>>| told.unwrap_or_else(|e| error(env, "act", &e));
        match decided {
            Ok(None) => timed(env, || {
                let queued = submit_act(env, self, reference, request, taken, deadline);
                told(queued.map(|()| atoms::queued().encode(env)))
            }),
            decided => {
                // Callers take turns, as in the queue.
                next_turn(env);
                told(decided.map(|answer| (atoms::ok(), answer).encode(env)))
            }
        }
    }

    fn give_up(&self, caller: LocalPid, why: GaveUp, ticket: &Ticket) {
        self.serving.give_up(caller, why, |request| request.has(ticket));
    }
}

fn submit_act(
    env: Env,
    server: &Server,
    reference: Reference,
    request: Request,
    mut taken: Taken,
    deadline: Option<Deadline>,
) -> Result<()> {
    // The frame is read on the scheduler, because there are more schedulers than workers.
    let asked = server.ask(taken.session()?, &request.raw, &request.overrides)?;
    let waiting = Waiting::new(env, "act", reference, taken.ticket.clone(), &server.outbox);
    let acting = Box::new(Acting { request, asked, taken, waiting });
    server.submit(env.pid(), deadline, Queued::Act(acting))
}

/// Frames of the window whose cost is measured at the start.
const WINDOW: usize = 60;

/// Starts a serving on a native thread, where packing and measuring delay no scheduler, and sends its handle. The
/// process `sender` gets `:deliver` when there are answers, and then calls `serving_deliver`.
#[rustler::nif]
fn serving_start<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    policy: Handle<PolicyHandle>,
    options: Term<'a>,
    sender: LocalPid,
) -> Term<'a> {
    perform(env, "start", || {
        let (policy, options) = (policy.get()?, decode::<Options>(options)?);
        let pid = env.pid();
        pool::submit(env, "start", reference, move || {
            let model = policy.model(options.weights)?;
            model.cost(WINDOW)?;
            let serving = Serving::start(model, options)?;
            let server = Server { serving, outbox: Arc::new(Outbox::new(sender)) };
            let handle = ResourceArc::new(ServingHandle(server));
            let alive = handle.monitor(None, &pid).is_some();
            if alive { Ok(handle) } else { Err(Error::Cancelled) }
        })
    })
}

/// Sends some of the answers; true if more are left.
#[rustler::nif]
fn serving_deliver(env: Env, serving: Handle<ServingHandle>) -> Term {
    timed(env, || serving.get().is_ok_and(|serving| serving.0.outbox.deliver(env)).encode(env))
}

/// Opens a session whose decisions the serving makes. Runs on a native thread, because the first session may measure
/// the model.
#[rustler::nif]
fn serving_open<'a>(
    env: Env<'a>,
    serving: Handle<ServingHandle>,
    reference: Reference<'a>,
    options: Term<'a>,
    project_out: Option<Binary<'a>>,
) -> Term<'a> {
    perform(env, "open", || {
        let server = serving.get()?.0.clone();
        server.check_open()?;
        let options = session::Options {
            project_out: vectors(project_out)?,
            lane: Some(Lane::Worker),
            ..decode(options)?
        };
        let pid = env.pid();
        pool::submit(env, "open", reference, move || {
            let session = Session::over(server.model(), options)?;
            SessionHandle::open(session, pid, Some(Arc::new(server)))
        })
    })
}

/// The handle of a queued forward pass, by which its caller gives it up. The caller's death gives it up as well.
pub(crate) struct TicketHandle {
    ticket: Ticket,
    server: Server,
    caller: LocalPid,
}

#[rustler::resource_impl]
impl Resource for TicketHandle {
    fn down<'a>(&'a self, _env: Env<'a>, _pid: LocalPid, _monitor: Monitor) {
        self.give_up(GaveUp::Died);
    }
}

impl TicketHandle {
    fn give_up(&self, why: GaveUp) -> bool {
        let claimed = self.ticket.claim();
        if claimed {
            self.server.give_up(self.caller, why, &self.ticket);
        }
        claimed
    }
}

/// The `Look` of a pass, and its deadline in milliseconds.
type How<'a> = (Term<'a>, Option<u64>);

/// Returns `{:ok, ticket}`; the answer comes by message, as from `policy_forward`.
#[rustler::nif]
fn serving_forward<'a>(
    env: Env<'a>,
    serving: Handle<ServingHandle>,
    reference: Reference<'a>,
    rows: Binary<'a>,
    shape: (usize, usize),
    given: Given<'a>,
    how: How<'a>,
) -> Term<'a> {
    inline(env, "forward", || submit_forward(env, serving, reference, rows, shape, given, how))
}

/// `serving_forward` on a dirty scheduler, for rows that take too long to copy on a normal one.
#[rustler::nif(schedule = "DirtyCpu")]
fn serving_forward_many<'a>(
    env: Env<'a>,
    serving: Handle<ServingHandle>,
    reference: Reference<'a>,
    rows: Binary<'a>,
    shape: (usize, usize),
    given: Given<'a>,
    how: How<'a>,
) -> Term<'a> {
    call(env, "forward", || submit_forward(env, serving, reference, rows, shape, given, how))
}

fn submit_forward<'a>(
    env: Env<'a>,
    serving: Handle<ServingHandle>,
    reference: Reference<'a>,
    rows: Binary<'a>,
    shape: (usize, usize),
    given: Given<'a>,
    (look, deadline_ms): How<'a>,
) -> Result<ResourceArc<TicketHandle>> {
    let serving = serving.get()?;
    let server = &serving.0;
    let deadline = deadline_ms.map(Deadline::after_ms);
    server.check(deadline)?;
    let model = server.model();
    let pass = pass(&model.policy().spec().heads, Some(rows), shape, given, look)?;
    let (ticket, caller) = (Ticket::default(), env.pid());
    let waiting = Waiting::new(env, "forward", reference, ticket.clone(), &server.outbox);
    let handle = ResourceArc::new(TicketHandle { ticket, server: server.clone(), caller });
    handle.monitor(Some(env), &caller);
    server.submit(caller, deadline, Queued::Forward(Box::new(Looking { pass, waiting })))?;
    Ok(handle)
}

/// Gives up waiting for a pass: true if no answer will come, false if it is in flight or has arrived.
#[rustler::nif]
fn serving_abandon(ticket: ResourceArc<TicketHandle>) -> bool {
    ticket.give_up(GaveUp::Late)
}

#[rustler::nif]
fn serving_swap<'a>(
    env: Env<'a>,
    serving: Handle<ServingHandle>,
    reference: Reference<'a>,
    policy: Handle<PolicyHandle>,
) -> Term<'a> {
    perform(env, "swap", || {
        let (serving, policy) = (serving.get()?, policy.get()?);
        pool::submit(env, "swap", reference, move || {
            let server = &serving.0;
            let model = policy.model(server.options().weights)?;
            // Measured here, before the swap, so that no batch waits for it.
            model.cost(WINDOW)?;
            server.swap(model).map(|()| true)
        })
    })
}

/// Answers when all earlier work is done.
#[rustler::nif]
fn serving_drain<'a>(
    env: Env<'a>,
    serving: Handle<ServingHandle>,
    reference: Reference<'a>,
) -> Term<'a> {
    perform(env, "drain", || {
        let serving = serving.get()?;
        let reply = Reply::new(env, "drain", reference);
        serving.0.drain(move || reply.send(Ok(true)));
        Ok(())
    })
}

#[rustler::nif]
fn serving_stop(env: Env, serving: Handle<ServingHandle>) -> Term {
    perform(env, "stop", || {
        serving.get()?.0.stop();
        Ok(())
    })
}
