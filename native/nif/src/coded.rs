//! Policies as integer codes, and pruned policies: `Sconce.Compress.Policy`.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use rustler::{Encoder, Env, Reference, ResourceArc, Term};
use sconce_compress::{
    Coding, FactoredReport, Factoring, Hessians, MatrixReport, PrunedReport, Pruning, coded,
    factored, hessians, mixed, pruned,
};
use sconce_data::Corpus;
use sconce_nn::Policy;
use sconce_tensor::Result;
use sconce_tensor::pool::Class;
use serde::{Deserialize, Serialize};

use crate::border::{Answer, Handle, Task, call, decode, encode, perform, pool};
use crate::policy::PolicyHandle;

/// The games that a calibration reads, and how many of their frames.
#[derive(Deserialize)]
pub(crate) struct Calibration {
    corpus: PathBuf,
    frames: usize,
    frame_delay: Option<usize>,
}

impl Calibration {
    pub(crate) fn hessians(&self, policy: &Policy, cancelled: &AtomicBool) -> Result<Hessians> {
        let corpus = Corpus::open(&self.corpus)?;
        sconce_train::eval::fits(corpus.schema(), policy.spec())?;
        // A few frames of each of very many games would cost the opening of all.
        const LEAST_FRAMES: usize = 256;
        let count = corpus.games().len();
        let apart = count.div_ceil(self.frames.div_ceil(LEAST_FRAMES).max(1)).max(1);
        let views = corpus.views(&(0..count).step_by(apart).collect::<Vec<_>>())?;
        let delay = self.frame_delay.or(policy.noted("frame_delay")).unwrap_or(0);
        hessians(policy, &views, delay, self.frames, cancelled)
    }
}

/// A smaller policy, and the report of its matrices.
struct Smaller<R> {
    policy: ResourceArc<PolicyHandle>,
    matrices: Vec<R>,
}

impl<R: Serialize> Answer for Smaller<R> {
    fn into_term(self, env: Env<'_>) -> Result<Term<'_>> {
        Ok((self.policy, encode(env, &self.matrices)?).encode(env))
    }
}

/// Sends `{policy, matrices}` by message.
#[rustler::nif]
fn policy_quantise<'a>(
    env: Env<'a>,
    policy: Handle<PolicyHandle>,
    reference: Reference<'a>,
    coding: Term<'a>,
    calibration: Term<'a>,
) -> Term<'a> {
    call(env, "quantise", || {
        let policy = policy.get()?;
        let (coding, calibration): (Coding, Option<Calibration>) =
            (decode(coding)?, decode(calibration)?);
        Task::start(env, "quantise", reference, move |_events, cancelled| {
            Class::Background.enter();
            let policy = policy.policy()?;
            coding.names.check(&policy)?;
            let found = calibration.map(|own| own.hessians(&policy, cancelled)).transpose()?;
            let (own, matrices) = coded(&policy, &coding, &found.unwrap_or_default(), cancelled)?;
            Ok(Smaller::<MatrixReport> { policy: PolicyHandle::new(own), matrices })
        })
    })
}

/// Sends `{policy, matrices}` by message.
#[rustler::nif]
fn policy_low_rank<'a>(
    env: Env<'a>,
    policy: Handle<PolicyHandle>,
    reference: Reference<'a>,
    factoring: Term<'a>,
    calibration: Term<'a>,
) -> Term<'a> {
    call(env, "low_rank", || {
        let policy = policy.get()?;
        let (factoring, calibration): (Factoring, Option<Calibration>) =
            (decode(factoring)?, decode(calibration)?);
        Task::start(env, "low_rank", reference, move |_events, cancelled| {
            Class::Background.enter();
            let policy = policy.policy()?;
            factoring.names.check(&policy)?;
            let found = calibration.map(|own| own.hessians(&policy, cancelled)).transpose()?;
            let found = found.unwrap_or_default();
            let (own, matrices) = factored(&policy, &factoring, &found, cancelled)?;
            Ok(Smaller::<FactoredReport> { policy: PolicyHandle::new(own), matrices })
        })
    })
}

/// Sends `{policy, matrices}` by message.
#[rustler::nif]
fn policy_prune<'a>(
    env: Env<'a>,
    policy: Handle<PolicyHandle>,
    reference: Reference<'a>,
    pruning: Term<'a>,
    calibration: Term<'a>,
) -> Term<'a> {
    call(env, "prune", || {
        let policy = policy.get()?;
        let (pruning, calibration): (Pruning, Option<Calibration>) =
            (decode(pruning)?, decode(calibration)?);
        Task::start(env, "prune", reference, move |_events, cancelled| {
            Class::Background.enter();
            let policy = policy.policy()?;
            pruning.names.check(&policy)?;
            let found = calibration.map(|own| own.hessians(&policy, cancelled)).transpose()?;
            let (own, matrices) = pruned(&policy, &pruning, &found.unwrap_or_default(), cancelled)?;
            Ok(Smaller::<PrunedReport> { policy: PolicyHandle::new(own), matrices })
        })
    })
}

/// The policy with weights of others, by name. Sends `{:ok, policy}` by message.
// On a worker: only native threads work with a card.
#[rustler::nif]
fn policy_mix<'a>(
    env: Env<'a>,
    policy: Handle<PolicyHandle>,
    reference: Reference<'a>,
    others: Vec<(String, Handle<PolicyHandle>)>,
) -> Term<'a> {
    perform(env, "mix", || {
        let policy = policy.get()?;
        let other = |(name, other): (String, Handle<PolicyHandle>)| Ok((name, other.get()?));
        let others = others.into_iter().map(other).collect::<Result<Vec<_>>>()?;
        pool::submit(env, "mix", reference, move || {
            let others = others.into_iter().map(|(name, other)| Ok((name, other.policy()?)));
            let others = others.collect::<Result<Vec<_>>>()?;
            mixed(&*policy.policy()?, &others).map(PolicyHandle::new)
        })
    })
}
