//! Decisions of many sessions in one call: `Sconce.Session.act_many/2`.

use std::time::Instant;

use rustler::{Binary, Encoder, Env, Reference, Term};
use sconce_serve::Deadline;
use sconce_serve::session::{Call, Lane, Overrides, decide_many, lane};
use sconce_tensor::metrics::METRICS;
use sconce_tensor::{Error, Result};

use crate::border::{Answer, Handle, Reply, call, decode, error, from_binary, guard, pool, timed};
use crate::session::{Answered, SessionHandle, Taken, Ticket, closed, vectors};

mod atoms {
    rustler::atoms! { queued }
}

/// A session, its frame, whether its logits are returned, the overrides, and directions.
type Asked<'a> = (Handle<SessionHandle>, Binary<'a>, bool, Term<'a>, Option<Binary<'a>>);

/// Returns `{:ok, [answer]}`, each as from `session_act`, or `:queued` if they come by message. The decisions share one
/// ticket, so they are given up together. Reading many games takes time, which is reported to the scheduler.
#[rustler::nif]
fn session_act_many<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    asked: Vec<Asked<'a>>,
    deadline_ms: Option<u64>,
) -> Term<'a> {
    timed(env, || {
        let deadline = deadline_ms.map(Deadline::after_ms);
        let ticket = Ticket::default();
        let mut many = Many(asked.into_iter().map(|of| One::take(env, of, &ticket)).collect());
        match many.lane() {
            Lane::Inline => call(env, "act", || {
                deadline
                    .map_or(Ok(()), |deadline| deadline.check())
                    .inspect_err(|_| many.late())?;
                many.decide();
                Ok(many.answers())
            }),
            Lane::Worker => match queue(env, reference, many, ticket, deadline) {
                Ok(()) => atoms::queued().encode(env),
                Err(failure) => error(env, "act", &failure),
            },
        }
    })
}

fn queue(
    env: Env,
    reference: Reference,
    mut many: Many,
    ticket: Ticket,
    deadline: Option<Deadline>,
) -> Result<()> {
    let permit = pool::shared()?.permit()?;
    let reply = Reply::new(env, "act", reference);
    permit.submit(deadline, move |start| {
        let decided = guard(|| {
            start?;
            many.decide();
            Ok(())
        });
        // Only the claimant may change the sessions and answer.
        if !ticket.claim() {
            return reply.dismiss();
        }
        if matches!(decided, Err(Error::Deadline { .. })) {
            many.late();
        }
        // The sessions are put back before the answer is sent: their owner may then call again.
        reply.send(decided.map(|()| many.answers()));
    });
    Ok(())
}

/// The decision of one session, or the error of taking the session or of reading its arguments.
struct One {
    taken: Result<Taken>,
    raw: Vec<f32>,
    overrides: Overrides,
    logits: bool,
    outcome: Result<()>,
}

impl One {
    fn take(
        env: Env,
        (handle, frame, logits, overrides, project_out): Asked,
        all: &Ticket,
    ) -> Self {
        let read = guard(|| {
            let raw = from_binary("frame", &frame, f32::from_le_bytes)?;
            let mut overrides = match overrides.is_atom() {
                true => Overrides::default(),
                false => decode(overrides)?,
            };
            overrides.project_out = vectors(project_out)?;
            Ok((Taken::with(env, handle.get()?, all.clone())?, raw, overrides))
        });
        let (taken, raw, overrides) = match read {
            Ok((taken, raw, overrides)) => (Ok(taken), raw, overrides),
            Err(failure) => (Err(failure), vec![], Overrides::default()),
        };
        One { taken, raw, overrides, logits, outcome: Ok(()) }
    }

    /// Commits the decision, if there is one, and returns it.
    fn answer(self) -> Result<Answered<'static>> {
        let mut taken = self.taken?;
        self.outcome?;
        let session = taken.session()?;
        session.commit();
        let answered = Answered::of(session, self.logits).into_owned();
        taken.figures().decided();
        Ok(answered)
    }
}

struct Many(Vec<One>);

impl Many {
    fn lane(&mut self) -> Lane {
        let taken = self.0.iter_mut().filter_map(|one| one.taken.as_mut().ok()?.session().ok());
        lane(taken.map(|session| &*session))
    }

    fn decide(&mut self) {
        let mut calls = vec![];
        let mut outcomes = vec![];
        for One { taken, raw, overrides, outcome, .. } in &mut self.0 {
            let Ok(taken) = taken else { continue };
            if taken.is_closed() {
                *outcome = Err(closed());
                continue;
            }
            match taken.session() {
                Ok(session) => {
                    calls.push(Call { session, raw, overrides, asked: false, outcome: Ok(()) });
                    outcomes.push(outcome);
                }
                Err(failure) => *outcome = Err(failure),
            }
        }
        let start = Instant::now();
        decide_many(&mut calls);
        let time = start.elapsed();
        METRICS.decision_time.record(time);
        let games = calls.len().max(1) as u32;
        for (outcome, call) in outcomes.into_iter().zip(calls) {
            *outcome = call.outcome;
        }
        self.sessions().for_each(|taken| taken.figures().took(time / games));
    }

    fn sessions(&self) -> impl Iterator<Item = &Taken> {
        self.0.iter().filter_map(|one| one.taken.as_ref().ok())
    }

    /// Counts the decisions, whose deadline has passed.
    fn late(&self) {
        METRICS.deadlines_missed.add(self.sessions().count() as u64);
        self.sessions().for_each(|taken| taken.figures().late());
    }

    fn answers(self) -> Answers {
        Answers(self.0.into_iter().map(One::answer).collect())
    }
}

struct Answers(Vec<Result<Answered<'static>>>);

impl Answer for Answers {
    fn into_term(self, env: Env<'_>) -> Result<Term<'_>> {
        let one = |answer| call(env, "act", || answer);
        Ok(self.0.into_iter().map(one).collect::<Vec<Term>>().encode(env))
    }
}
