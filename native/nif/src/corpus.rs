//! Corpora: `Sconce.Corpus`, to import, build, open and describe games on disk.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustler::{Binary, Env, Reference, Resource, ResourceArc, Term};
use sconce_data::{
    Builder, Corpus, ImportOptions, Schema, VectorGame, fields, import, import_tables, verify,
};
use sconce_game::Declaration;
use sconce_tensor::pool::Class;
use sconce_tensor::{Error, Result};

use crate::border::{
    Data, Handle, Handled, Task, call, decode, encode, from_binary, labels_from, labels_to,
    to_binary,
};

/// An open corpus; its shards stay mapped until it is dropped.
pub(crate) struct CorpusHandle(pub Corpus);

#[rustler::resource_impl]
impl Resource for CorpusHandle {}

impl Handled for CorpusHandle {
    const NOUN: &'static str = "corpus";
}

#[rustler::nif]
fn corpus_import<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    paths: Vec<String>,
    dir: String,
    options: Term<'a>,
) -> Term<'a> {
    call(env, "import", || {
        let options: ImportOptions = decode(options)?;
        let paths: Vec<PathBuf> = paths.into_iter().map(PathBuf::from).collect();
        Task::start(env, "import", reference, move |events, cancelled| {
            Class::Background.enter();
            // Progress that cannot be sent is dropped: it must not end the import.
            let tell = |progress| drop(events.progress(Data(progress)));
            import(&paths, Path::new(&dir), &options, &tell, cancelled).map(Data)
        })
    })
}

/// Imports files of a declared game, one game per file.
#[rustler::nif]
fn corpus_import_tables<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    game: Term<'a>,
    paths: Vec<String>,
    dir: String,
    options: Term<'a>,
) -> Term<'a> {
    call(env, "import", || {
        let options: ImportOptions = decode(options)?;
        let game: Declaration = decode(game)?;
        game.validate()?;
        let paths: Vec<PathBuf> = paths.into_iter().map(PathBuf::from).collect();
        Task::start(env, "import", reference, move |events, cancelled| {
            Class::Background.enter();
            let tell = |progress| drop(events.progress(Data(progress)));
            import_tables(&game, &paths, Path::new(&dir), &options, &tell, cancelled).map(Data)
        })
    })
}

/// A corpus that is being built, game by game. An unfinished corpus is removed when its handle is dropped.
pub(crate) struct BuilderHandle(Mutex<Option<Builder>>);

#[rustler::resource_impl]
impl Resource for BuilderHandle {}

impl Handled for BuilderHandle {
    const NOUN: &'static str = "corpus builder";
}

impl BuilderHandle {
    fn lock(&self) -> MutexGuard<'_, Option<Builder>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[rustler::nif(schedule = "DirtyIo")]
fn builder_open<'a>(
    env: Env<'a>,
    schema: Term<'a>,
    dir: String,
    append: bool,
    compress: bool,
    frame_delay: Option<u16>,
) -> Term<'a> {
    call(env, "build", || {
        let schema: Schema = decode(schema)?;
        let dir = Path::new(&dir);
        let builder = match append {
            true => Builder::append(&schema, dir, frame_delay)?,
            false => Builder::new(&schema, dir)?,
        };
        Ok(ResourceArc::new(BuilderHandle(Mutex::new(Some(builder.compress(compress))))))
    })
}

/// Adds a game: rows of f32 values, little-endian. Answers false for a game that the corpus has already.
#[rustler::nif(schedule = "DirtyIo")]
fn builder_add<'a>(env: Env<'a>, builder: Handle<BuilderHandle>, rows: Binary<'a>) -> Term<'a> {
    call(env, "build", || {
        let rows = from_binary("rows of a game", &rows, f32::from_le_bytes)?;
        let builder = builder.get()?;
        let mut builder = builder.lock();
        let finished = || Error::not_found("corpus builder (finished)");
        builder.as_mut().ok_or_else(finished)?.add_rows(&rows)
    })
}

/// Finishes the corpus, or discards it if `whole` is false.
#[rustler::nif(schedule = "DirtyIo")]
fn builder_finish<'a>(env: Env<'a>, builder: Handle<BuilderHandle>, whole: bool) -> Term<'a> {
    call(env, "build", || match builder.get()?.lock().take() {
        Some(builder) if whole => builder.finish().map(drop),
        _ => Ok(()),
    })
}

/// Builds a corpus. Each game is a pair of binaries: values (f32) and labels, both little-endian.
#[rustler::nif(schedule = "DirtyCpu")]
fn corpus_build<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    schema: Term<'a>,
    games: Vec<(Binary<'a>, Binary<'a>)>,
    dir: String,
    compress: bool,
) -> Term<'a> {
    call(env, "build", || {
        let schema: Schema = decode(schema)?;
        let words = schema.heads().are_words();
        let games = games
            .iter()
            .enumerate()
            .map(|(i, (x, labels))| {
                let game = format!("game {i}");
                let x = from_binary(&game, x, f32::from_le_bytes)?;
                Ok(VectorGame { x, labels: labels_from(&game, labels, words)? })
            })
            .collect::<Result<Vec<_>>>()?;
        Task::start(env, "build", reference, move |_events, cancelled| {
            Class::Background.enter();
            let dir = Path::new(&dir);
            let corpus = Corpus::build_cancellable(&schema, &games, dir, compress, cancelled)?;
            Ok(Data(corpus.info()))
        })
    })
}

/// Reads and checks all bytes of the games in a folder, and reports progress.
#[rustler::nif]
fn corpus_verify<'a>(env: Env<'a>, reference: Reference<'a>, dir: String) -> Term<'a> {
    call(env, "verify", || {
        Task::start(env, "verify", reference, move |events, cancelled| {
            Class::Background.enter();
            let tell = |checked| drop(events.progress(Data(checked)));
            verify(Path::new(&dir), &tell, cancelled).map(Data)
        })
    })
}

#[rustler::nif(schedule = "DirtyIo")]
fn corpus_open(env: Env, dir: String) -> Term {
    call(env, "open", || Corpus::open(Path::new(&dir)).map(CorpusHandle).map(ResourceArc::new))
}

#[rustler::nif(schedule = "DirtyCpu")]
fn corpus_info<'a>(env: Env<'a>, corpus: Handle<CorpusHandle>) -> Term<'a> {
    call(env, "info", || Ok(Data(corpus.get()?.0.info())))
}

#[rustler::nif(schedule = "DirtyCpu")]
fn corpus_games<'a>(env: Env<'a>, corpus: Handle<CorpusHandle>) -> Term<'a> {
    call(env, "games", || encode(env, &corpus.get()?.0.games()))
}

/// One player's view of a game: `{raw rows (f32), values per row, labels, {labels per row, whether they are u16}}`. The last
/// states of a game may have no label: there are fewer labels than rows.
#[rustler::nif(schedule = "DirtyCpu")]
fn corpus_recording<'a>(
    env: Env<'a>,
    corpus: Handle<CorpusHandle>,
    game: usize,
    player: usize,
) -> Term<'a> {
    call(env, "recording", || {
        let corpus = corpus.get()?;
        let views = corpus.0.views(&[game])?;
        let known = views.len() as f64 - 1.0;
        let out_of_range = || Error::out_of_range("player", player as f64, 0.0, known);
        let view = views.get(player).ok_or_else(out_of_range)?;
        let heads = corpus.0.schema().heads();
        let (n, width) = (view.len(0), heads.num_labels());
        let mut rows = vec![0.0; view.frames() * view.raw_width()];
        let mut labels = vec![0.0; n * width];
        for (t, row) in rows.chunks_exact_mut(view.raw_width()).enumerate() {
            view.raw(t, row)?;
        }
        for (t, label) in labels.chunks_exact_mut(width).enumerate() {
            view.labels(t, 0, false, &heads, label)?;
        }
        view.verify()?;
        let words = heads.are_words();
        let labels = labels_to(env, &labels, words);
        Ok((to_binary(env, &rows), view.raw_width(), labels, (width, words)))
    })
}

#[rustler::nif]
fn corpus_fields(env: Env) -> Term {
    call(env, "fields", || Ok(Data(fields())))
}
