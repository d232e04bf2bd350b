//! The workers: they take batches from the queue and answer the requests.

use std::sync::Arc;
use std::time::Instant;

use sconce_tensor::trace::{self, Kind};
use sconce_tensor::{Error, Result};

use super::queue::{Batch, Entry};
use super::request::{Answer, Request, Work, claimed};
use super::statistics::count;
use super::{Serving, guard};
use crate::model::Model;
use crate::pass::{Forward, run_many};
use crate::session::{Call, decide_many};

impl<R: Request> Serving<R> {
    pub(super) fn work(&self) {
        let mut batch = Batch::default();
        while self.queue.take(&mut batch) {
            // A request that a panic drops answers its caller; the thread continues.
            let ran = guard(|| {
                self.refuse_late(&mut batch);
                self.run(&mut batch);
            });
            count(&self.statistics.counters.panics, u64::from(ran.is_err()));
        }
    }

    fn refuse_late(&self, batch: &mut Batch<R>) {
        let at = batch.at;
        batch.late.drain(..).for_each(|entry| self.refuse(entry, at));
    }

    fn refuse(&self, entry: Entry<R>, now: Instant) {
        self.statistics.waited(entry.waited(now));
        let late = entry.deadline.map_or(Error::Cancelled, |deadline| deadline.error(now));
        if let Some(request) = claimed(entry.item) {
            self.statistics.late();
            request.answer(Err(late));
        }
    }

    /// Runs a batch: first all steps, together. Windows and passes take long, so they run after the steps are answered.
    fn run(&self, batch: &mut Batch<R>) {
        let model = self.model();
        let (mut steps, mut windows) = (Vec::with_capacity(batch.ready.len()), vec![]);
        let mut passes = vec![];
        for mut entry in batch.ready.drain(..) {
            self.statistics.waited(entry.waited(batch.at));
            match entry.item.work() {
                Ok(Work::Act { session, .. }) if session.steps() => steps.push(entry),
                Ok(Work::Act { .. }) => windows.push(entry),
                Ok(Work::Forward(_)) => passes.push(entry),
                Err(ended) => self.finish(entry, Err(ended), |_, answer| Ok(answer)),
            }
        }
        self.serve(steps, |steps| decide(&model, steps), commit);
        for entry in windows {
            let now = Instant::now();
            match entry.deadline {
                Some(deadline) if deadline.check().is_err() => self.refuse(entry, now),
                _ => self.serve(vec![entry], |one| decide(&model, one), commit),
            }
        }
        self.serve(passes, |passes| forward(&model, passes), |_, made| Ok(Answer::Forward(made)));
    }

    /// Computes results for all entries, then commits and answers each.
    fn serve<T>(
        &self,
        mut entries: Vec<Entry<R>>,
        compute: impl FnOnce(&mut [Entry<R>]) -> Vec<Result<T>>,
        commit: impl Fn(&mut R, T) -> Result<Answer>,
    ) {
        if entries.is_empty() {
            return;
        }
        let made = {
            let _span = trace::span(Kind::Step, "serve a batch");
            self.compute(entries.len(), || compute(&mut entries))
        };
        let made = made.unwrap_or_else(|error| {
            let again = || match &error {
                Error::OutOfMemory { what, bytes, available } => {
                    let (what, bytes, available) = (what.clone(), *bytes, *available);
                    Err(Error::OutOfMemory { what, bytes, available })
                }
                Error::Panic { message } => Err(Error::Panic { message: message.clone() }),
                other => Err(Error::Panic { message: other.to_string() }),
            };
            entries.iter().map(|_| again()).collect()
        });
        for (entry, made) in entries.into_iter().zip(made) {
            self.finish(entry, made, &commit);
        }
    }

    fn finish<T>(
        &self,
        entry: Entry<R>,
        made: Result<T>,
        commit: impl Fn(&mut R, T) -> Result<Answer>,
    ) {
        let Some(mut request) = claimed(entry.item) else { return };
        // Counted before the answer: the caller may read the statistics next.
        self.statistics.answered(entry.since.elapsed());
        // If the answer panics, the request is dropped, and the drop answers its caller.
        let answered = guard(|| {
            let answer = made.and_then(|made| commit(&mut request, made));
            request.answer(answer);
        });
        count(&self.statistics.counters.panics, u64::from(answered.is_err()));
    }
}

/// Decides for all entries together.
fn decide<R: Request>(model: &Arc<Model>, entries: &mut [Entry<R>]) -> Vec<Result<()>> {
    let mut calls = Vec::with_capacity(entries.len());
    let mut refused = vec![];
    for (i, entry) in entries.iter_mut().enumerate() {
        match call(model, &mut entry.item) {
            Ok(call) => calls.push(call),
            Err(refusal) => refused.push((i, refusal)),
        }
    }
    decide_many(&mut calls);
    let mut outcomes: Vec<Result<()>> = calls.into_iter().map(|call| call.outcome).collect();
    // Inserted in ascending order, so that each outcome has the index of its entry.
    refused.into_iter().for_each(|(i, refusal)| outcomes.insert(i, Err(refusal)));
    outcomes
}

fn call<'a, R: Request>(model: &Arc<Model>, request: &'a mut R) -> Result<Call<'a>> {
    match request.work()? {
        Work::Act { session, raw, overrides, asked } => {
            let asked = !session.adopt(model)? && asked;
            Ok(Call { session, raw, overrides, asked, outcome: Ok(()) })
        }
        Work::Forward(_) => Err(Error::Cancelled),
    }
}

fn commit<R: Request>(request: &mut R, (): ()) -> Result<Answer> {
    if let Work::Act { session, .. } = request.work()? {
        session.commit();
    }
    Ok(Answer::Act)
}

/// Runs a pass for each entry; similar passes run together.
fn forward<R: Request>(model: &Model, entries: &mut [Entry<R>]) -> Vec<Result<Forward>> {
    let mut passes = Vec::with_capacity(entries.len());
    for entry in entries {
        if let Ok(Work::Forward(pass)) = entry.item.work() {
            passes.push(pass);
        }
    }
    run_many(model, &passes)
}
