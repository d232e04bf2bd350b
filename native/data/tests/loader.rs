//! The loader: batches and their order do not depend on how they are made, prefetching is bounded, and
//! failures end it.

mod support;

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use sconce_data::{
    Batch, Corpus, Draw, Drawn, Draws, Loader, LoaderOptions, Reader, Sampler, SamplerOptions,
    Tracks, live_threads,
};
use sconce_fixtures::Fixture;
use sconce_nn::spec::{Embedding, Heads, HeadsKind, Melee};
use sconce_tensor::{Error, Result};
use support::corpus;

/// Held by each test that counts threads, so that only one of them runs at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(|e| e.into_inner())
}

static GO: AtomicBool = AtomicBool::new(false);

fn games() -> (tempfile::TempDir, Corpus) {
    let made = |seed| Fixture { seed, frames: 700 + 10 * seed as usize, ..Fixture::default() };
    corpus(&[made(1), made(2)])
}

fn reader() -> Reader {
    let heads = Heads::controller(HeadsKind::Independent);
    Reader::new(Embedding::melee(Melee::default()), heads, 1)
}

fn windows(corpus: &Corpus) -> Draws {
    let options = SamplerOptions { window: 20, stride: 7, mirror: 0.5, ..Default::default() };
    let sampler = Sampler::new(corpus.views(&[0, 1]).unwrap(), reader(), options).unwrap();
    Draws::Windows { sampler: sampler.into(), batch_size: 8, burn_in: 3 }
}

fn threads(prefetch: usize, threads: usize) -> LoaderOptions {
    LoaderOptions { prefetch, threads, ..LoaderOptions::default() }
}

/// Waits until the threads of all loaders have ended; each may first finish its current batch.
fn no_threads() -> bool {
    let until = Instant::now() + Duration::from_secs(20);
    while live_threads() > 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    live_threads() == 0
}

fn take(loader: &mut Loader<Draws>, steps: usize) -> Vec<Drawn> {
    (0..steps).map(|_| loader.next(&GO).unwrap()).collect()
}

#[test]
fn batches_depend_only_on_their_steps() {
    let _alone = alone();
    let (_dir, corpus) = games();
    let tracks = {
        let options = SamplerOptions { window: 20, mirror: 0.5, ..Default::default() };
        let tracks = Tracks::new(corpus.views(&[0, 1]).unwrap(), reader(), options, 3, 0).unwrap();
        Draws::Tracks { tracks: Box::new(tracks), burn_in: 2 }
    };
    for draws in [windows(&corpus), tracks] {
        let mut own = draws.clone();
        let expected: Vec<_> = (40..52).map(|step| own.draw(step).unwrap()).collect();
        for (prefetch, n) in [(0, 1), (1, 1), (2, 1), (3, 2), (5, 4), (2, 7)] {
            let mut loader =
                Loader::start("games", draws.clone(), &threads(prefetch, n), 40).unwrap();
            assert!(take(&mut loader, 12) == expected, "prefetch {prefetch}, {n} threads");
            assert_eq!(loader.step(), 52);
        }
    }
    assert!(no_threads());
}

#[test]
fn a_loader_on_its_way_to_a_far_step_ends_when_dropped_or_cancelled() {
    let _alone = alone();
    let (_dir, corpus) = games();
    let options = SamplerOptions { window: 20, ..Default::default() };
    let tracks = Tracks::new(corpus.views(&[0, 1]).unwrap(), reader(), options, 3, 0).unwrap();
    let draws = Draws::Tracks { tracks: Box::new(tracks), burn_in: 0 };
    let far = 1 << 60;
    drop(Loader::start("games", draws.clone(), &threads(2, 2), far).unwrap());
    assert!(no_threads());
    let (cancel, mut loader) =
        (AtomicBool::new(true), Loader::start("games", draws, &threads(0, 1), far).unwrap());
    assert!(matches!(loader.next(&cancel), Err(Error::Cancelled)));
    assert_eq!((loader.step(), loader.flow().ready), (far, 0));
}

#[test]
fn burn_in_frames_have_no_weight() {
    let (_dir, corpus) = games();
    let weights = windows(&corpus).draw(0).unwrap().batch.weights;
    assert!(weights.chunks(20).all(|w| w[..3] == [0.0; 3] && w[3..] == [1.0; 17]));
}

/// Makes batches of one row up to the step that the test allows, and counts them.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<u64>, Condvar)>, Arc<AtomicU64>);

impl Gate {
    fn open(&self, batches: u64) {
        *self.0.0.lock().unwrap() = batches;
        self.0.1.notify_all();
    }

    fn made(&self) -> u64 {
        self.1.load(SeqCst)
    }
}

impl Draw for Gate {
    fn draw(&mut self, step: u64) -> Result<Drawn> {
        let open = self.0.0.lock().unwrap();
        drop(self.0.1.wait_while(open, |open| *open <= step).unwrap());
        self.1.fetch_add(1, SeqCst);
        let batch = Batch { weights: vec![step as f32], ..Batch::default() };
        Ok(Drawn { batch, tracks: vec![] })
    }

    fn bytes(&self) -> u64 {
        100
    }
}

#[test]
fn prefetched_batches_never_exceed_their_bound() {
    let _alone = alone();
    let bytes = |max_bytes| LoaderOptions { max_bytes, ..threads(4, 2) };
    for (options, bound) in
        [(threads(1, 1), 1), (threads(5, 2), 5), (threads(2, 9), 2), (bytes(299), 2), (bytes(3), 1)]
    {
        let gate = Gate::default();
        gate.open(u64::MAX);
        let mut loader = Loader::start("gate", gate.clone(), &options, 0).unwrap();
        for taken in 0..20 {
            let until = Instant::now() + Duration::from_secs(20);
            while gate.made() < taken + bound && Instant::now() < until {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(2));
            assert_eq!(gate.made(), taken + bound, "{options:?}");
            assert_eq!(loader.next(&GO).unwrap().batch.weights, [taken as f32]);
        }
        let flow = loader.flow();
        assert_eq!((flow.batches, flow.rows, flow.dropped), (20, 20, 0));
        assert_eq!((flow.bytes, flow.prefetch), (80, bound as usize));
        assert!(flow.room_wait_seconds > 0.0 && flow.rows_per_second > 0.0, "{flow:?}");
    }
    assert!(no_threads());
}

/// Waits until `made` batches were made, and a little longer, in which no other must follow.
fn stays_at(gate: &Gate, made: u64) {
    let until = Instant::now() + Duration::from_secs(20);
    while gate.made() < made && Instant::now() < until {
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(2));
    assert_eq!(gate.made(), made);
}

#[test]
fn the_depth_changes_while_the_loader_runs_and_the_batches_do_not() {
    let _alone = alone();
    let gate = Gate::default();
    gate.open(u64::MAX);
    let options = LoaderOptions { max_bytes: 900, ..threads(2, 2) };
    let mut loader = Loader::start("gate", gate.clone(), &options, 0).unwrap();
    let ahead = loader.ahead().unwrap();
    stays_at(&gate, 2);
    assert_eq!((ahead.set(5).unwrap(), ahead.depth()), (5, 5));
    stays_at(&gate, 5);
    // The byte limit of the loader holds.
    assert_eq!(ahead.set(50).unwrap(), 9);
    stays_at(&gate, 9);
    assert_eq!(ahead.set(1).unwrap(), 1);
    for step in 0..8 {
        assert_eq!(loader.next(&GO).unwrap().batch.weights, [step as f32]);
        stays_at(&gate, 9);
    }
    for step in 8..12 {
        assert_eq!(loader.next(&GO).unwrap().batch.weights, [step as f32]);
        stays_at(&gate, step + 2);
    }
    assert_eq!(loader.flow().prefetch, 1);
    for wrong in [0, 4097] {
        let error = ahead.set(wrong).unwrap_err().to_string();
        assert!(error.starts_with("prefetch: "), "{error}");
    }
    drop(loader);
    assert!(no_threads());
    let own = Loader::start("gate", gate, &threads(0, 1), 0).unwrap();
    assert!(own.ahead().is_none());
}

#[test]
fn an_automatic_depth_grows_while_the_caller_waits_and_the_batches_stay_the_same() {
    let _alone = alone();
    let gate = Gate::default();
    let options = LoaderOptions { auto: true, ..threads(2, 1) };
    let mut loader = Loader::start("gate", gate.clone(), &options, 0).unwrap();
    let mut depths = vec![];
    std::thread::scope(|scope| {
        // Each batch may be made only after its caller has begun to wait.
        let (ask, asked) = std::sync::mpsc::sync_channel::<u64>(24);
        let gate = gate.clone();
        scope.spawn(move || {
            for step in asked {
                std::thread::sleep(Duration::from_millis(2));
                gate.open(step + 1);
            }
        });
        for step in 0..24 {
            ask.send(step).unwrap();
            assert_eq!(loader.next(&GO).unwrap().batch.weights, [step as f32]);
            depths.push(loader.flow().prefetch);
        }
    });
    // Windows of 8 calls; the depth rests for one of them after a move.
    assert_eq!((depths[0], depths[7], depths[15], depths[23]), (2, 3, 3, 4));
    gate.open(u64::MAX);
    drop(loader);
    assert!(no_threads());
    let one = LoaderOptions { auto: true, ..threads(0, 1) };
    assert_eq!((one.depth(1), one.depth(1 << 40)), (1, 1));
    let many = LoaderOptions { auto: true, ..threads(100, 1) };
    assert_eq!(many.depth(1), 16);
}

#[test]
fn a_stalled_source_is_named_and_its_batch_arrives_later() {
    let _alone = alone();
    for n in [1, 2] {
        let gate = Gate::default();
        gate.open(1);
        let options = LoaderOptions { deadline_ms: 50, ..threads(2, n) };
        let mut loader = Loader::start("the slow disk", gate.clone(), &options, 0).unwrap();
        assert!(loader.next(&GO).is_ok());
        let late = loader.next(&GO).unwrap_err();
        let said = "batch 1 of the slow disk missed its deadline of 50 ms, after ";
        assert!(late.to_string().starts_with(said), "{late}");
        assert_eq!(late.kind().name(), "deadline");
        assert!(loader.flow().data_wait_seconds >= 0.05);
        // A cancelled caller does not wait for the deadline.
        let cancelled = loader.next(&AtomicBool::new(true));
        assert!(matches!(cancelled, Err(Error::Cancelled)));
        gate.open(u64::MAX);
        assert_eq!(loader.next(&GO).unwrap().batch.weights, [1.0]);
        drop(loader);
    }
    assert!(no_threads());
}

#[test]
fn a_loader_that_is_dropped_does_not_wait_for_a_hanging_thread() {
    let _alone = alone();
    let gate = Gate::default();
    drop(Loader::start("gate", gate.clone(), &threads(2, 2), 0).unwrap());
    assert_eq!(live_threads(), 2);
    gate.open(u64::MAX);
    assert!(no_threads());
}

#[derive(Clone)]
struct Panics(u64);

impl Draw for Panics {
    fn draw(&mut self, step: u64) -> Result<Drawn> {
        assert!(step < self.0, "no such page");
        Ok(Drawn::default())
    }

    fn bytes(&self) -> u64 {
        1
    }
}

#[test]
fn a_panic_takes_the_place_of_its_batch_and_is_named() {
    let _alone = alone();
    for (prefetch, n) in [(0, 1), (1, 1), (4, 3)] {
        let mut loader = Loader::start("games", Panics(5), &threads(prefetch, n), 0).unwrap();
        (0..5).for_each(|_| drop(loader.next(&GO).unwrap()));
        let error = loader.next(&GO).unwrap_err();
        assert_eq!(error.to_string(), "panic: batch 5 of games: no such page");
        assert_eq!(loader.step(), 5);
        let again = loader.next(&GO).unwrap_err();
        // With several threads, another thread may report a panic of its own.
        let ended = matches!(again, Error::Unavailable { .. });
        assert!(ended || n > 1 && matches!(again, Error::Panic { .. }), "{again}");
    }
    let mut own = Loader::start("games", Panics(5), &threads(0, 1), 0).unwrap();
    assert!(matches!(own.next(&AtomicBool::new(true)), Err(Error::Cancelled)));
    assert_eq!((own.step(), own.next(&GO).is_ok()), (0, true));
    assert!(no_threads());
}

#[test]
fn a_cut_or_missing_shard_is_named() {
    let _alone = alone();
    type Harm = fn(&std::path::Path);
    let cut: Harm = |path| {
        let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        file.set_len(file.metadata().unwrap().len() / 2).unwrap();
    };
    let gone: Harm = |path| std::fs::remove_file(path).unwrap();
    for (harm, kind) in [(cut, "corrupt"), (gone, "not_found")] {
        let (_dir, corpus) = games();
        let view = corpus.views(&[0]).unwrap().remove(0);
        let mut loader = Loader::start("games", windows(&corpus), &threads(2, 1), 0).unwrap();
        take(&mut loader, 2);
        let path = corpus.dir().join(&corpus.games()[0].file);
        harm(&path);
        let error = (0..10).find_map(|_| loader.next(&GO).err()).unwrap();
        assert_eq!(error.kind().name(), kind);
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
        // Evaluation reads follow the same rule.
        assert_eq!(reader().sequence(&view, 0..5).unwrap_err().kind().name(), kind);
    }
    assert!(no_threads());
}

#[test]
fn options_out_of_bounds_are_named() {
    let bad =
        |options| Loader::start("x", Panics(0), &options, 0).map(drop).unwrap_err().to_string();
    assert!(bad(threads(1, 0)).starts_with("loader_threads: 0"));
    assert!(bad(threads(5000, 1)).starts_with("prefetch: 5000"));
    let late = LoaderOptions { deadline_ms: 0, ..LoaderOptions::default() };
    assert!(bad(late).starts_with("deadline_ms: 0"));
}
