//! Policies with fewer units, and means of policies: `Sconce.Compress.Policy`.

use rustler::{Encoder, Env, Reference, ResourceArc, Term};
use sconce_compress::{Shrinking, UnitsReport, averaged, shrunk};
use sconce_tensor::Result;
use sconce_tensor::pool::Class;

use crate::border::{Answer, Handle, Task, call, decode, encode, perform, pool};
use crate::coded::Calibration;
use crate::policy::PolicyHandle;

/// A policy with fewer units, and the report of its units.
struct Shrunk {
    policy: ResourceArc<PolicyHandle>,
    layers: Vec<UnitsReport>,
}

impl Answer for Shrunk {
    fn into_term(self, env: Env<'_>) -> Result<Term<'_>> {
        Ok((self.policy, encode(env, &self.layers)?).encode(env))
    }
}

/// Sends `{policy, layers}` by message.
#[rustler::nif]
fn policy_shrink<'a>(
    env: Env<'a>,
    policy: Handle<PolicyHandle>,
    reference: Reference<'a>,
    shrinking: Term<'a>,
    calibration: Term<'a>,
) -> Term<'a> {
    call(env, "shrink", || {
        let policy = policy.get()?;
        let (shrinking, calibration): (Shrinking, Option<Calibration>) =
            (decode(shrinking)?, decode(calibration)?);
        Task::start(env, "shrink", reference, move |_events, cancelled| {
            Class::Background.enter();
            let policy = policy.policy()?;
            shrinking.check(&policy)?;
            let found = calibration.map(|own| own.hessians(&policy, cancelled)).transpose()?;
            let (own, layers) = shrunk(&policy, &shrinking, &found.unwrap_or_default(), cancelled)?;
            Ok(Shrunk { policy: PolicyHandle::new(own), layers })
        })
    })
}

/// The weighted mean of policies on the CPU. Sends `{:ok, policy}` by message.
#[rustler::nif]
fn policy_average<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    policies: Vec<Handle<PolicyHandle>>,
    shares: Vec<f64>,
) -> Term<'a> {
    perform(env, "average", || {
        let of = |policy: Handle<PolicyHandle>| policy.get();
        let policies = policies.into_iter().map(of).collect::<Result<Vec<_>>>()?;
        pool::submit(env, "average", reference, move || {
            let policies = policies.iter().map(|own| own.policy()).collect::<Result<Vec<_>>>()?;
            averaged(&policies, &shares).map(PolicyHandle::new)
        })
    })
}
