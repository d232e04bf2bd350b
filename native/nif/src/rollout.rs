//! Live games that a run learns from: `Sconce.Rollout`.

use std::sync::Arc;

use rustler::{Atom, Binary, Env, NifUntaggedEnum, Reference, Resource, ResourceArc, Term};
use sconce_data::{Over, Recorded, Sink};
use sconce_nn::{Policy, Spec, checkpoint};
use sconce_play::live::Inbox;
use sconce_serve::session::{Recording, Reward};
use sconce_tensor::{Error, Result};

use crate::border::{
    Bytes, Data, Handle, Handled, call, decode, from_binary, inline, perform, pool,
};
use crate::policy::PolicyHandle;
use crate::session::{SessionHandle, Taken};

mod atoms {
    rustler::atoms! { terminated, truncated }
}

/// The inbox of a learner, or that of a node whose games have their learner elsewhere.
pub(crate) struct InboxHandle(Arc<Inbox>);

#[rustler::resource_impl]
impl Resource for InboxHandle {}

impl Handled for InboxHandle {
    const NOUN: &'static str = "queue of segments";
}

impl InboxHandle {
    pub(crate) fn inbox(&self) -> Arc<Inbox> {
        self.0.clone()
    }
}

/// An inbox for segments of policies of this Spec with rewards of these terms, which holds at most `capacity` decisions.
#[rustler::nif(schedule = "DirtyCpu")]
fn inbox_new<'a>(env: Env<'a>, spec: Term<'a>, terms: Vec<String>, capacity: usize) -> Term<'a> {
    call(env, "rollout", || {
        let spec: Spec = decode(spec)?;
        let state = Policy::init(&spec, 0)?.state_size()?;
        Ok(ResourceArc::new(InboxHandle(Inbox::new(&spec, state, &terms, capacity)?)))
    })
}

/// Offers segments that came from another node. Returns how many were taken: the rest finds the inbox full.
#[rustler::nif(schedule = "DirtyCpu")]
fn inbox_offer<'a>(
    env: Env<'a>,
    inbox: Handle<InboxHandle>,
    segments: Vec<Binary<'a>>,
) -> Term<'a> {
    call(env, "rollout", || {
        let inbox = inbox.get()?.inbox();
        let mut taken = 0;
        for bytes in segments {
            match inbox.offer_bytes(&bytes) {
                Err(Error::Busy { .. }) => break,
                // A segment that does not fit is counted, and not sent again.
                _ => taken += 1,
            }
        }
        Ok(taken)
    })
}

/// Takes at most `most` segments as binaries.
#[rustler::nif(schedule = "DirtyCpu")]
fn inbox_take<'a>(env: Env<'a>, inbox: Handle<InboxHandle>, most: usize) -> Term<'a> {
    call(env, "rollout", || {
        let segments = inbox.get()?.inbox().take_some(most);
        let binary = |segment: &Recorded| -> Term<'a> {
            rustler::NewBinary::from_slice(env, &segment.to_bytes()).into()
        };
        Ok(segments.iter().map(binary).collect::<Vec<_>>())
    })
}

/// Counts of segments since the start.
#[rustler::nif]
fn inbox_counts(env: Env, inbox: Handle<InboxHandle>) -> Term {
    inline(env, "rollout", || Ok(Data(inbox.get()?.inbox().counts())))
}

/// The newest weights, `{version, policy}`, or nil before the first ones.
#[rustler::nif]
fn inbox_newest(env: Env, inbox: Handle<InboxHandle>) -> Term {
    call(env, "rollout", || {
        let newest = inbox.get()?.inbox().newest();
        Ok(newest.map(|(version, policy)| (version, PolicyHandle::shared(policy))))
    })
}

/// Publishes a policy that came from another node, under the version in its notes.
// Dirty: the weights of a packed policy are read from its file.
#[rustler::nif(schedule = "DirtyIo")]
fn inbox_publish(env: Env, inbox: Handle<InboxHandle>, policy: Handle<PolicyHandle>) -> Term {
    perform(env, "rollout", || {
        let policy = policy.get()?.policy()?;
        let version = policy.noted("version").unwrap_or(0) as u64;
        inbox.get()?.inbox().publish(version, policy);
        Ok(())
    })
}

/// A policy as the bytes of a checkpoint, with its notes. Sends them by message.
#[rustler::nif]
fn policy_bytes<'a>(
    env: Env<'a>,
    policy: Handle<PolicyHandle>,
    reference: Reference<'a>,
) -> Term<'a> {
    perform(env, "save", || {
        let policy = policy.get()?;
        pool::submit(env, "save", reference, move || {
            let policy = policy.policy()?;
            let snapshot = policy.snapshot(policy.notes().clone(), Default::default())?;
            Ok(Bytes(snapshot.encode()?))
        })
    })
}

/// Records the decisions of a session from now on.
#[rustler::nif]
fn session_record<'a>(
    env: Env<'a>,
    session: Handle<SessionHandle>,
    inbox: Handle<InboxHandle>,
    options: Term<'a>,
) -> Term<'a> {
    perform(env, "record", || {
        let options: Recording = decode(options)?;
        let sink: Arc<dyn Sink> = inbox.get()?.inbox();
        Taken::new(env, session.get()?)?.session()?.record(sink, options)
    })
}

/// Adds a reward to a decision of the episode, by its number, or to the last one. The reward is a float, or a list of
/// `{term, float}`.
#[rustler::nif]
fn session_reward<'a>(
    env: Env<'a>,
    session: Handle<SessionHandle>,
    number: Option<u64>,
    reward: Given<'a>,
) -> Term<'a> {
    perform(env, "reward", || {
        let mut taken = Taken::new(env, session.get()?)?;
        match reward {
            Given::Number(reward) => taken.session()?.reward(number, reward as f32),
            Given::Terms(terms) => {
                let terms: Vec<(&str, f32)> =
                    terms.into_iter().map(|(name, number)| (name, number as f32)).collect();
                taken.session()?.reward(number, Reward::Terms(&terms))
            }
        }
    })
}

/// A reward as a term.
#[derive(NifUntaggedEnum)]
enum Given<'a> {
    Number(f64),
    Terms(Vec<(&'a str, f64)>),
}

/// Ends an episode, and begins the next one. The value of a last frame takes a decision.
#[rustler::nif(schedule = "DirtyCpu")]
fn session_done<'a>(
    env: Env<'a>,
    session: Handle<SessionHandle>,
    over: Atom,
    last: Option<Binary<'a>>,
) -> Term<'a> {
    perform(env, "done", || {
        let over = ended(over)?;
        let last = last.map(|last| from_binary("frame", &last, f32::from_le_bytes)).transpose()?;
        Taken::new(env, session.get()?)?.session()?.done(over, last.as_deref())
    })
}

fn ended(over: Atom) -> Result<Over> {
    if over == atoms::terminated() {
        Ok(Over::Terminated)
    } else if over == atoms::truncated() {
        Ok(Over::Truncated)
    } else {
        Err(Error::mismatch("end of an episode", "terminated or truncated", "another"))
    }
}

/// Reads the bytes of [`policy_bytes`]. Sends `{:ok, policy}` by message.
#[rustler::nif]
fn policy_of_bytes<'a>(env: Env<'a>, reference: Reference<'a>, given: Binary<'a>) -> Term<'a> {
    perform(env, "load", || {
        let given: Vec<u8> = given.as_slice().to_vec();
        pool::submit(env, "load", reference, move || {
            let (manifest, weights) = checkpoint::policy_of(&given)?;
            Policy::from_checkpoint(manifest, weights).map(PolicyHandle::new)
        })
    })
}
