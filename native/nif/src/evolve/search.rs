//! Searches: `Sconce.Evolve.Search`.

use std::path::Path;
use std::sync::atomic::Ordering;

use rustler::{Env, Reference, Resource, ResourceArc, Term};
use sconce_evolve::{Archive, Episodes, Event, RunOptions, Search, SearchOptions};
use sconce_nn::Spec;
use sconce_tensor::pool::Class;
use sconce_tensor::{Error, Result, device};

use super::archive::ArchiveHandle;
use super::{Column, Locked, background, device_of};
use crate::border::{Data, Handle, Handled, Task, call, decode, error};

struct SearchHandle {
    search: Locked<Search>,
    archive: Option<ResourceArc<ArchiveHandle>>,
}

#[rustler::resource_impl]
impl Resource for SearchHandle {}

impl Handled for SearchHandle {
    const NOUN: &'static str = "search";
}

impl SearchHandle {
    /// Calls `work` with the search and its archive.
    fn with<R>(
        &self,
        work: impl FnOnce(&mut Search, Option<&mut Archive>) -> Result<R>,
    ) -> Result<R> {
        self.search.with(Self::NOUN, |search| match &self.archive {
            None => work(search, None),
            Some(archive) => archive.with(|archive| work(search, Some(archive))),
        })
    }
}

/// Creates a search. Sends `{:ok, {handle, {individuals, numbers of a solution}}}` by message.
#[rustler::nif]
fn search_new<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    spec: Term<'a>,
    options: Term<'a>,
    episodes: Term<'a>,
    archive: Option<ResourceArc<ArchiveHandle>>,
) -> Term<'a> {
    call(env, "search", || {
        let device = device_of(options)?;
        let (spec, options) = (decode::<Spec>(spec)?, decode::<SearchOptions>(options)?);
        let episodes = decode::<Episodes>(episodes)?;
        Task::start(env, "search", reference, move |_events, _cancelled| {
            let made = |archive: Option<&Archive>| Search::new(&spec, &options, &episodes, archive);
            let device = device::named(&device)?;
            let search = match &archive {
                None => made(None),
                Some(own) => own.with(|archive| made(Some(archive))),
            }?;
            let search = search.on(&device)?;
            let population = search.population();
            let sizes = (population.count(), population.network().size());
            let search = Locked::new(search);
            Ok((ResourceArc::new(SearchHandle { search, archive }), sizes))
        })
    })
}

/// Runs generations in the background, until the caller dies. Sends `{:ok, progress}` by message.
#[rustler::nif]
fn search_run<'a>(
    env: Env<'a>,
    search: Handle<SearchHandle>,
    reference: Reference<'a>,
    generations: u64,
) -> Term<'a> {
    match search.get() {
        Ok(search) => background(env, "run", reference, move |stop| {
            search.with(|search, archive| search.run(archive, generations, stop)).map(Data)
        }),
        Err(failure) => error(env, "run", &failure),
    }
}

/// Runs to the last generation, with events and saves into a folder, in the background. Sends `{:ok, report}` by message.
#[rustler::nif]
fn search_start<'a>(
    env: Env<'a>,
    search: Handle<SearchHandle>,
    reference: Reference<'a>,
    folder: String,
    options: Term<'a>,
) -> Term<'a> {
    call(env, "evolve", || {
        let (search, options) = (search.get()?, decode::<RunOptions>(options)?);
        Task::start(env, "evolve", reference, move |events, cancelled| {
            Class::Background.enter();
            let stop = || cancelled.load(Ordering::Relaxed);
            // A failed event is dropped: it must not end the run.
            let tell = |event: Event| drop(events.progress(Data(event)));
            let run = |search: &mut Search, archive: Option<&mut Archive>| {
                search.execute(archive, Path::new(&folder), &options, tell, &stop)
            };
            search.with(run).map(Data)
        })
    })
}

/// Writes the state to a folder. Sends `{:ok, true}` by message.
#[rustler::nif]
fn search_save<'a>(
    env: Env<'a>,
    search: Handle<SearchHandle>,
    reference: Reference<'a>,
    folder: String,
) -> Term<'a> {
    call(env, "save", || {
        let search = search.get()?;
        Task::start(env, "save", reference, move |_events, _cancelled| {
            let save = |search: &mut Search, archive: Option<&mut Archive>| {
                search.save(Path::new(&folder), archive.as_deref())
            };
            search.with(save).map(|()| true)
        })
    })
}

/// Goes on from the state of a folder, its archive included. Sends `{:ok, true}` by message.
#[rustler::nif]
fn search_resume<'a>(
    env: Env<'a>,
    search: Handle<SearchHandle>,
    reference: Reference<'a>,
    folder: String,
) -> Term<'a> {
    call(env, "resume", || {
        let search = search.get()?;
        Task::start(env, "resume", reference, move |_events, _cancelled| {
            let folder = Path::new(&folder);
            let _lock = Search::lock_saved(folder)?;
            let resume = |search: &mut Search, archive: Option<&mut Archive>| {
                let saved = Search::archive(folder)?;
                match (archive, saved) {
                    (Some(own), Some(saved)) => {
                        own.check_alike(&saved)?;
                        search.resume(folder)?;
                        *own = saved;
                        Ok(true)
                    }
                    (None, None) => search.resume(folder).map(|()| true),
                    (own, _) => {
                        let (with, without) = ("a search with an archive", "one without");
                        let (own, saved) =
                            if own.is_some() { (with, without) } else { (without, with) };
                        Err(Error::mismatch("saved search", own, saved))
                    }
                }
            };
            search.with(resume)
        })
    })
}

/// The mean of a strategy. Sends `{:ok, [mean]}`, or `{:ok, []}` for other sources, by message.
#[rustler::nif]
fn search_mean<'a>(
    env: Env<'a>,
    search: Handle<SearchHandle>,
    reference: Reference<'a>,
) -> Term<'a> {
    call(env, "mean", || {
        let search = search.get()?;
        Task::start(env, "mean", reference, move |_events, _cancelled| {
            search.with(|search, _archive| {
                Ok(search.mean().map(Column::F32).into_iter().collect::<Vec<_>>())
            })
        })
    })
}
