//! Archives: `Sconce.Evolve.Archive`.

use std::path::Path;

use rustler::{Env, Reference, Resource, ResourceArc, Term};
use sconce_evolve::{Archive, ArchiveOptions, Batch, Variation};
use sconce_tensor::{Result, memory};

use super::{Column, Locked, background, binaries, length, part, run, wide};
use crate::border::{
    Answer, Data, Given, Handle, Handled, Task, call, decode, error, from_binary, inline,
};

pub(super) struct ArchiveHandle(Locked<Archive>);

#[rustler::resource_impl]
impl Resource for ArchiveHandle {}

impl Handled for ArchiveHandle {
    const NOUN: &'static str = "archive";
}

impl ArchiveHandle {
    /// A handle, and the sizes that its struct keeps: cells, measures, numbers of a solution.
    fn described(archive: Archive) -> (ResourceArc<Self>, (usize, usize, usize)) {
        let space = archive.space();
        let sizes = (space.cells(), space.measures(), archive.solution_size());
        (ResourceArc::new(ArchiveHandle(Locked::new(archive))), sizes)
    }

    pub(super) fn with<R>(&self, work: impl FnOnce(&mut Archive) -> Result<R>) -> Result<R> {
        self.0.with(Self::NOUN, work)
    }
}

/// Runs `work` on an archive. `bytes` decide on which thread.
fn on<'a, T: Answer + Send + 'static>(
    env: Env<'a>,
    op: &'static str,
    archive: Handle<ArchiveHandle>,
    reference: Reference<'a>,
    bytes: usize,
    work: impl FnOnce(&mut Archive) -> Result<T> + Send + 'static,
) -> Term<'a> {
    match archive.get() {
        Ok(archive) => run(env, op, reference, bytes, move || archive.with(work)),
        Err(failure) => error(env, op, &failure),
    }
}

/// The work grows with the number of elites, which only the archive knows.
const ANY: usize = usize::MAX;

/// The elites at these positions: solutions, objectives, measures, cells.
fn picked(archive: &Archive, at: &[usize]) -> Result<Vec<Column>> {
    let (size, width) = (archive.solution_size(), archive.space().measures());
    let bytes = at.len().saturating_mul(4 * size + 8 * width + 12);
    memory::room("elites", 2 * bytes as u64)?;
    let elites = archive.elites();
    let rows = |numbers: &[f64], width: usize| -> Vec<f64> {
        at.iter().flat_map(|at| &numbers[at * width..][..width]).copied().collect()
    };
    let solutions = at.iter().flat_map(|at| &elites.solutions[at * size..][..size]);
    Ok(vec![
        Column::F32(solutions.copied().collect()),
        Column::F64(rows(&elites.objectives, 1)),
        Column::F64(rows(&elites.measures, width)),
        Column::U32(at.iter().map(|at| elites.cells[*at]).collect()),
    ])
}

/// Creates an archive on a thread of its own: centroids may take minutes. Sends `{:ok, {handle, sizes}}` by message.
#[rustler::nif]
fn archive_new<'a>(env: Env<'a>, reference: Reference<'a>, options: Term<'a>) -> Term<'a> {
    let options = decode::<ArchiveOptions>(options);
    background(env, "archive", reference, move |stop| {
        Archive::new_until(&options?, stop).map(ArchiveHandle::described)
    })
}

/// Reads an archive. Sends `{:ok, {handle, sizes}}` by message.
#[rustler::nif]
fn archive_load<'a>(env: Env<'a>, reference: Reference<'a>, path: String) -> Term<'a> {
    call(env, "load", || {
        Task::start(env, "load", reference, move |_events, _cancelled| {
            Archive::load(Path::new(&path)).map(ArchiveHandle::described)
        })
    })
}

/// Writes an archive. Sends `{:ok, true}` by message.
#[rustler::nif]
fn archive_save<'a>(
    env: Env<'a>,
    archive: Handle<ArchiveHandle>,
    reference: Reference<'a>,
    path: String,
) -> Term<'a> {
    call(env, "save", || {
        let archive = archive.get()?;
        Task::start(env, "save", reference, move |_events, _cancelled| {
            archive.with(|archive| archive.save(Path::new(&path))).map(|()| true)
        })
    })
}

/// Offers candidates: solutions f32, objectives and measures f64. Sends `{:ok, [status, improvements]}` by message.
#[rustler::nif]
fn archive_add<'a>(
    env: Env<'a>,
    archive: Handle<ArchiveHandle>,
    reference: Reference<'a>,
    given: Term<'a>,
) -> Term<'a> {
    let bytes = length(given);
    let given = Given::new(env, given);
    on(env, "add", archive, reference, bytes, move |archive| {
        given.read(|given| {
            let given = binaries(given)?;
            let solutions = from_binary("solutions", part(&given, 0), f32::from_le_bytes)?;
            let objectives = wide("objectives", part(&given, 1))?;
            let measures = wide("measures", part(&given, 2))?;
            let (solutions, objectives, measures) = (&*solutions, &*objectives, &*measures);
            let added = archive.add(Batch { solutions, objectives, measures })?;
            let status = added.status.into_iter().map(|status| status as u8).collect();
            Ok(vec![Column::Bytes(status), Column::F64(added.improvements)])
        })
    })
}

/// Offers the elites of another archive. Sends `{:ok, count}` by message, the number of elites that were stored.
#[rustler::nif]
fn archive_merge<'a>(
    env: Env<'a>,
    archive: Handle<ArchiveHandle>,
    reference: Reference<'a>,
    other: Handle<ArchiveHandle>,
) -> Term<'a> {
    match other.get() {
        Ok(other) => on(env, "merge", archive, reference, ANY, move |archive| {
            let added = other.with(|other| archive.merge(other))?;
            Ok(added.status.iter().filter(|status| status.is_added()).count())
        }),
        Err(failure) => error(env, "merge", &failure),
    }
}

/// Figures, without a scan.
#[rustler::nif]
fn archive_stats<'a>(env: Env<'a>, archive: Handle<ArchiveHandle>) -> Term<'a> {
    inline(env, "stats", || archive.get()?.with(|archive| Ok(Data(archive.stats()))))
}

/// All elites. Sends `{:ok, [solutions, objectives, measures, cells]}` by message.
#[rustler::nif]
fn archive_elites<'a>(
    env: Env<'a>,
    archive: Handle<ArchiveHandle>,
    reference: Reference<'a>,
) -> Term<'a> {
    on(env, "elites", archive, reference, ANY, |archive| {
        let all: Vec<usize> = (0..archive.stats().elites).collect();
        picked(archive, &all)
    })
}

/// Removes a share of the elites, the worst ones. Sends `{:ok, count}` by message.
#[rustler::nif]
fn archive_prune<'a>(
    env: Env<'a>,
    archive: Handle<ArchiveHandle>,
    reference: Reference<'a>,
    share: f64,
) -> Term<'a> {
    on(env, "prune", archive, reference, ANY, move |archive| archive.prune(share))
}

/// The solution of the best elite. Sends `{:ok, [solution]}` by message.
#[rustler::nif]
fn archive_best<'a>(
    env: Env<'a>,
    archive: Handle<ArchiveHandle>,
    reference: Reference<'a>,
) -> Term<'a> {
    on(env, "best", archive, reference, ANY, |archive| {
        let size = archive.solution_size();
        let solution = archive.elites().solutions[archive.best()? * size..][..size].to_vec();
        Ok(vec![Column::F32(solution)])
    })
}

/// Elites that are drawn. Sends `{:ok, [solutions, objectives, measures, cells]}` by message.
#[rustler::nif]
fn archive_sample<'a>(
    env: Env<'a>,
    archive: Handle<ArchiveHandle>,
    reference: Reference<'a>,
    count: usize,
    seed: u64,
) -> Term<'a> {
    on(env, "sample", archive, reference, ANY, move |archive| {
        let drawn = archive.sample(count, seed)?;
        picked(archive, &drawn)
    })
}

/// Elites in the cells of measures. Sends `{:ok, [found, solutions, objectives, measures, cells]}` by message: a byte for
/// each row of measures, and the elites that exist.
#[rustler::nif]
fn archive_retrieve<'a>(
    env: Env<'a>,
    archive: Handle<ArchiveHandle>,
    reference: Reference<'a>,
    given: Term<'a>,
) -> Term<'a> {
    let bytes = length(given);
    let given = Given::new(env, given);
    on(env, "retrieve", archive, reference, bytes, move |archive| {
        let measures = given.bytes(|bytes| wide("measures", bytes))?;
        let found = archive.retrieve(&measures)?;
        let mut columns = vec![Column::Bytes(found.iter().map(|at| at.is_some().into()).collect())];
        let at: Vec<usize> = found.into_iter().flatten().collect();
        columns.extend(picked(archive, &at)?);
        Ok(columns)
    })
}

/// Mean distances to the nearest elites. Sends `{:ok, [novelty]}` by message.
#[rustler::nif]
fn archive_novelty<'a>(
    env: Env<'a>,
    archive: Handle<ArchiveHandle>,
    reference: Reference<'a>,
    given: Term<'a>,
    nearest: usize,
) -> Term<'a> {
    let given = Given::new(env, given);
    match archive.get() {
        Ok(archive) => background(env, "novelty", reference, move |stop| {
            let measures = given.bytes(|bytes| wide("measures", bytes))?;
            let novelty = |archive: &mut Archive| archive.novelty_until(&measures, nearest, stop);
            Ok(vec![Column::F64(archive.with(novelty)?)])
        }),
        Err(failure) => error(env, "novelty", &failure),
    }
}

/// Children of random pairs of elites, which take `bytes` bytes. Sends `{:ok, [children]}` by message.
#[rustler::nif]
fn archive_vary<'a>(
    env: Env<'a>,
    archive: Handle<ArchiveHandle>,
    reference: Reference<'a>,
    variation: Term<'a>,
    (count, bytes): (usize, usize),
    stream: (u64, u64),
) -> Term<'a> {
    let variation = decode::<Variation>(variation);
    on(env, "vary", archive, reference, bytes, move |archive| {
        Ok(vec![Column::F32(archive.vary(&variation?, count, stream)?)])
    })
}

/// The pixels of a picture.
#[rustler::nif]
fn archive_raster<'a>(
    env: Env<'a>,
    archive: Handle<ArchiveHandle>,
    reference: Reference<'a>,
) -> Term<'a> {
    on(env, "svg", archive, reference, ANY, |archive| archive.raster().map(Data))
}
