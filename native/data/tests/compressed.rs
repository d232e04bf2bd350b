//! Compressed corpora: the same games in fewer bytes.
#![allow(clippy::disallowed_methods)]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use sconce_data::{
    Beside, Builder, Corpus, Extra, ImportOptions, Reader, Sampler, SamplerOptions, Schema, Tracks,
    VectorGame, import, verify,
};
use sconce_fixtures::Fixture;
use sconce_game::Declaration;
use sconce_nn::spec::{Head, HeadKind, Heads, HeadsKind};
use sconce_tensor::Kind;
use serde_json::json;
use support::{run, write};

fn replays(dir: &Path, seeds: std::ops::Range<u32>) -> Vec<PathBuf> {
    let folder = dir.join(format!("replays{}", seeds.start));
    fs::create_dir_all(&folder).unwrap();
    for seed in seeds {
        write(&folder, &format!("{seed}.slp"), &Fixture { seed, ..Fixture::default() });
    }
    vec![folder]
}

fn compressed(paths: &[PathBuf], into: &Path) -> sconce_data::ImportReport {
    let options = ImportOptions { compress: true, ..ImportOptions::default() };
    import(paths, into, &options, &|_| (), &AtomicBool::new(false)).unwrap()
}

fn shards(corpus: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(corpus.join("games")).unwrap().map(|e| e.unwrap().path());
    let mut all: Vec<_> = all.collect();
    all.sort();
    all
}

/// Batches of windows and of tracks, with a delay, mirrored and with returns where a corpus has rewards.
fn batches(corpus: &Corpus, beside: Vec<Extra>) -> Vec<sconce_data::Batch> {
    let games: Vec<usize> = (0..corpus.games().len()).collect();
    let views = corpus.views(&games).unwrap();
    let schema = corpus.schema();
    let mut reader = Reader::new(schema.embedding(), schema.heads(), 2);
    reader.queue_depth = 2;
    reader.beside = beside;
    let mirror = if schema.name() == "melee" { 0.5 } else { 0.0 };
    let options = SamplerOptions { window: 40, mirror, ..SamplerOptions::default() };
    let sampler = Sampler::new(views.clone(), reader.clone(), options.clone()).unwrap();
    let mut tracks = Tracks::new(views, reader, options, 3, 0).unwrap();
    let windows = (0..4).map(|step| sampler.batch(step, 5).unwrap());
    let walked: Vec<_> = (0..30).map(|step| tracks.batch(step, 2).unwrap().0).collect();
    windows.chain(walked).collect()
}

#[test]
fn a_compressed_corpus_of_replays_gives_the_same_batches() {
    let dir = tempfile::tempdir().unwrap();
    let paths = replays(dir.path(), 0..4);
    let (plain, packed) = (dir.path().join("plain"), dir.path().join("packed"));
    run(&paths, &plain).unwrap();
    assert_eq!(compressed(&paths, &packed).added, 4);
    let (plain, packed) = (Corpus::open(&plain).unwrap(), Corpus::open(&packed).unwrap());
    assert!(packed.info().bytes * 2 < plain.info().bytes, "{} bytes", packed.info().bytes);
    let contents = |corpus: &Corpus| -> Vec<String> {
        corpus.games().iter().map(|game| game.contents.clone()).collect()
    };
    assert_eq!(contents(&plain), contents(&packed));
    assert_eq!(batches(&plain, vec![]), batches(&packed, vec![]));
}

#[test]
fn games_of_both_kinds_lie_in_one_corpus() {
    let dir = tempfile::tempdir().unwrap();
    let into = dir.path().join("corpus");
    run(&replays(dir.path(), 0..2), &into).unwrap();
    let second =
        compressed(&[replays(dir.path(), 0..2), replays(dir.path(), 2..4)].concat(), &into);
    assert_eq!((second.added, second.known), (2, 2));
    let mut sizes: Vec<u64> = shards(&into).iter().map(|s| s.metadata().unwrap().len()).collect();
    sizes.sort_unstable();
    assert!(sizes[1] * 2 < sizes[2], "{sizes:?}");
    assert!(!batches(&Corpus::open(&into).unwrap(), vec![]).is_empty());
    assert_eq!(verify(&into, &|_| (), &AtomicBool::new(false)).unwrap().damaged, vec![]);
}

#[test]
fn vectors_of_many_segments_are_read_across_their_borders() {
    let dir = tempfile::tempdir().unwrap();
    let head = |name: &str, kind| Head { name: name.into(), kind, hidden_size: 4 };
    let parts = vec![head("go", HeadKind::Bernoulli(2)), head("at", HeadKind::Categorical(5))];
    let heads = Heads { parts, ..Heads::controller(HeadsKind::Independent) };
    let schema = Schema::vector(3000, &heads);
    let game = |frames: usize| VectorGame {
        x: (0..frames * 3000).map(|i| (i % 1013) as f32 / 8.0).collect(),
        labels: (0..frames).flat_map(|t| [(t % 2) as f32, 1.0, (t % 5) as f32]).collect(),
    };
    let games: Vec<VectorGame> = [200, 97, 64].map(game).into();
    let never = AtomicBool::new(false);
    let plain = Corpus::build(&schema, &games, &dir.path().join("plain")).unwrap();
    let into = dir.path().join("packed");
    let packed = Corpus::build_cancellable(&schema, &games, &into, true, &never).unwrap();
    assert_eq!(batches(&plain, vec![]), batches(&packed, vec![]));
}

fn walk() -> Declaration {
    serde_json::from_value(json!({
        "name": "walk", "version": 1,
        "fields": [{"name": "t", "kind": {"range": {"min": 0.0, "max": 4000.0}},
                    "scale": {"between": {"min": 0.0, "max": 4000.0}}}],
        "input": [{"name": "go", "kind": {"choice": 2}}],
    }))
    .unwrap()
}

#[test]
fn returns_and_extra_columns_of_a_compressed_game_are_the_same() {
    let schema = Schema::declared(walk(), &[Beside::Reward, Beside::LogLikelihood]);
    let dir = tempfile::tempdir().unwrap();
    let build = |compress: bool| {
        let into = dir.path().join(compress.to_string());
        let mut builder = Builder::new(&schema, &into).unwrap().compress(compress);
        for frames in [3000, 40, 1024] {
            let row = |t: usize| [t as f32, (t % 2) as f32, (t % 7) as f32, -0.5];
            builder.add_rows(&(0..frames).flat_map(row).collect::<Vec<_>>()).unwrap();
        }
        let corpus = builder.finish().unwrap();
        let beside = vec![Extra::Return { discount: 0.99 }, Extra::Stored(Beside::LogLikelihood)];
        batches(&corpus, beside)
    };
    assert_eq!(build(false), build(true));
}

/// Flips a byte of the last segment of the first game.
fn damage(corpus: &Path) -> PathBuf {
    let file = shards(corpus).remove(0);
    let mut bytes = fs::read(&file).unwrap();
    let last = bytes.len() - 9;
    bytes[last] ^= 0x40;
    fs::write(&file, bytes).unwrap();
    file
}

#[test]
fn a_damaged_segment_is_named_and_never_read_as_a_frame() {
    let dir = tempfile::tempdir().unwrap();
    let into = dir.path().join("corpus");
    compressed(&replays(dir.path(), 0..2), &into);
    let file = damage(&into);
    let found = verify(&into, &|_| (), &AtomicBool::new(false)).unwrap();
    assert_eq!(found.damaged.len(), 1);
    assert!(file.ends_with(&found.damaged[0].file), "{:?}", found.damaged);
    let corpus = Corpus::open(&into).unwrap();
    let game = (0..2).find(|game| file.ends_with(&corpus.games()[*game].file)).unwrap();
    let view = corpus.views(&[game]).unwrap().remove(0);
    let reader = Reader::new(corpus.schema().embedding(), corpus.schema().heads(), 0);
    // The first frames are whole.
    assert!(reader.sequence(&view, 0..10).is_ok());
    let last = view.len(0) - 1;
    let error = reader.sequence(&view, last - 10..last).unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt);
    assert!(error.to_string().contains(file.file_name().unwrap().to_str().unwrap()), "{error}");
    assert!(error.to_string().contains("checksum"), "{error}");
    // An import writes the damaged game again.
    let again = compressed(&replays(dir.path(), 0..2), &into);
    assert_eq!((again.added, again.known), (1, 1));
    assert_eq!(verify(&into, &|_| (), &AtomicBool::new(false)).unwrap().damaged, vec![]);
}

#[test]
fn a_table_that_does_not_fit_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let into = dir.path().join("corpus");
    compressed(&replays(dir.path(), 0..1), &into);
    let file = shards(&into).remove(0);
    let whole = fs::read(&file).unwrap();
    let text = String::from_utf8_lossy(&whole).into_owned();
    let at = text.find("\\\"packed\\\":{\\\"frames\\\":").unwrap();
    let digits = at + "\\\"packed\\\":{\\\"frames\\\":".len();
    for digit in *b"0123456789" {
        let mut bytes = whole.clone();
        if bytes[digits] == digit {
            continue;
        }
        bytes[digits] = digit;
        fs::write(&file, bytes).unwrap();
        let corpus = Corpus::open(&into).unwrap();
        let read = corpus.views(&[0]).and_then(|views| {
            let reader = Reader::new(corpus.schema().embedding(), corpus.schema().heads(), 0);
            let frames = views[0].len(0);
            reader.sequence(&views[0], 0..frames).map(drop)
        });
        assert_eq!(read.map_err(|e| e.kind()), Err(Kind::Corrupt), "{}", digit as char);
    }
}

#[test]
fn an_unfinished_build_of_the_other_form_leaves_the_earlier_corpus() {
    let dir = tempfile::tempdir().unwrap();
    let schema = Schema::declared(walk(), &[Beside::Reward]);
    let builds = |compress: bool, stop: bool| {
        let mut builder = Builder::new(&schema, dir.path()).unwrap().compress(compress);
        for game in [1.0, 2.0] {
            builder.add_rows(&[game, 1.0, 0.5].repeat(50)).unwrap();
        }
        // A bad row ends the build after games have been written.
        if !stop {
            builder.finish().unwrap();
        } else {
            assert!(builder.add_rows(&[f32::NAN; 3]).is_err());
        }
    };
    for compress in [false, true] {
        builds(compress, false);
        let before = Corpus::open(dir.path()).unwrap();
        builds(!compress, true);
        let after = Corpus::open(dir.path()).unwrap();
        assert_eq!(after.games(), before.games());
        assert!(after.views(&[0, 1]).is_ok());
        assert_eq!(shards(dir.path()).len(), 2);
    }
    // A killed build leaves games of the other form.
    let whole: Vec<_> = shards(dir.path());
    let left = whole[0].to_str().unwrap().replace(".lz4.", ".");
    builds(false, false);
    let plain = fs::read(&left).unwrap();
    builds(true, false);
    fs::write(&left, plain).unwrap();
    let corpus = Builder::append(&schema, dir.path(), None).unwrap().finish().unwrap();
    assert_eq!((corpus.games().len(), shards(dir.path())), (2, whole));
}
