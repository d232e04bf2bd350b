//! Figures of a serving, and the limit of its batches.

use rustler::{Env, Term};
use sconce_serve::serving::{Options, Report};
use sconce_serve::{Encoding, Plan};

use super::ServingHandle;
use crate::border::{Data, Handle, inline};

#[derive(serde::Serialize)]
struct Stats {
    #[serde(flatten)]
    report: Report,
    waiting: usize,
    /// Requests of a batch at most, now.
    max_batch: usize,
}

/// Statistics since the start or, with `news`, since the last call with `news`.
#[rustler::nif]
fn serving_stats(env: Env, serving: Handle<ServingHandle>, news: bool) -> Term {
    inline(env, "stats", || {
        let serving = serving.get()?;
        let server = &serving.0;
        let snapshot = if news { server.news() } else { server.statistics() };
        let (waiting, max_batch) = (server.waiting(), server.max_batch());
        Ok(Data(Stats { report: snapshot.report(), waiting, max_batch }))
    })
}

/// Number of requests in the queue or in flight, or the reason why the serving takes no more requests.
#[rustler::nif]
fn serving_load(env: Env, serving: Handle<ServingHandle>) -> Term {
    inline(env, "load", || {
        let serving = serving.get()?;
        serving.0.check_open().map(|()| serving.0.load())
    })
}

/// Changes the maximum number of requests in a batch.
#[rustler::nif]
fn serving_limit(env: Env, serving: Handle<ServingHandle>, max_batch: usize) -> Term {
    inline(env, "limit", || {
        let serving = serving.get()?;
        serving.0.limit(max_batch).map(|()| true)
    })
}

/// The batches since the last call: milliseconds of the one that a request meets, and requests of the largest one.
#[rustler::nif]
fn serving_batches(env: Env, serving: Handle<ServingHandle>) -> Term {
    inline(env, "stats", || {
        let met = serving.get()?.0.batches();
        Ok((met.us / 1e3, met.largest))
    })
}

#[derive(serde::Serialize)]
struct Info {
    #[serde(flatten)]
    options: Options,
    /// Whether a plan makes the decisions.
    packed: bool,
    /// The encoding that the plan took.
    encoding: Encoding,
    step_us: f64,
}

#[rustler::nif]
fn serving_info(env: Env, serving: Handle<ServingHandle>) -> Term {
    inline(env, "info", || {
        let serving = serving.get()?;
        let server = &serving.0;
        let model = server.model();
        let step_us = model.step_us()?;
        let options = Options { lane: Some(server.lane()), ..server.options() };
        let encoding = model.plan().map_or(Encoding::F32, Plan::encoding);
        Ok(Data(Info { options, packed: model.plan().is_some(), encoding, step_us }))
    })
}
