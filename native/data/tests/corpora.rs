//! Corpora on disk: refused, repeated, cancelled and killed imports, and damaged files.
#![allow(clippy::disallowed_methods)]

mod support;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};

use sconce_data::{Corpus, Holdout, ImportOptions, Reason, Schema, VectorGame, import, verify};
use sconce_fixtures::{self as fixtures, Fixture};
use sconce_nn::spec::HeadKind;
use sconce_tensor::{Error, Kind};
use support::{corpus, run, write};

fn replays(dir: &Path, n: u32) -> PathBuf {
    let folder = dir.join("replays");
    fs::create_dir_all(&folder).unwrap();
    for seed in 0..n {
        write(&folder, &format!("{seed}.slp"), &Fixture { seed, ..Fixture::default() });
    }
    folder
}

fn shards(corpus: &Path) -> Vec<PathBuf> {
    let mut all: Vec<_> =
        fs::read_dir(corpus.join("games")).unwrap().map(|e| e.unwrap().path()).collect();
    all.sort();
    all
}

fn kind<T>(result: Result<T, Error>) -> Option<Kind> {
    result.err().map(|e| e.kind())
}

#[test]
fn skipped_files_are_reported_with_their_reasons() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("replays");
    fixtures::write_all(&folder).unwrap();
    fs::copy(folder.join("valid.slp"), folder.join("valid_again.slp")).unwrap();
    fs::write(folder.join("empty.slp"), b"").unwrap();
    fs::write(folder.join("noise.slp"), [7; 5000]).unwrap();
    fs::write(folder.join("notes.txt"), b"not a replay").unwrap();
    let report = run(&[folder], &dir.path().join("corpus")).unwrap();
    let skipped: Vec<_> = report
        .skipped
        .iter()
        .map(|s| (Path::new(&s.file).file_stem().unwrap().to_str().unwrap(), s.reason))
        .filter(|s| s.1 != Reason::Duplicate)
        .collect();
    assert_eq!(
        skipped,
        [
            ("corrupt", Reason::Corrupt),
            ("empty", Reason::Truncated),
            ("noise", Reason::Corrupt),
            ("not_two_players", Reason::NotTwoPlayers),
            ("too_short", Reason::TooShort),
            ("truncated", Reason::Truncated),
        ]
    );
    assert!(report.skipped.iter().all(|s| !s.detail.is_empty() && !s.detail.contains('\n')));
    assert_eq!((report.skipped.len(), report.added), (7, 9));
    assert_eq!(report.frames, 9 * 800);
}

#[test]
fn a_second_run_adds_only_what_is_new() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, into) = (replays(dir.path(), 3), dir.path().join("corpus"));
    let first = run(slice::from_ref(&folder), &into).unwrap();
    assert_eq!((first.added, first.known, first.frames), (3, 0, 2400));
    write(&folder, "new.slp", &Fixture { seed: 99, ..Fixture::default() });
    let second = run(&[folder.clone(), folder.join("new.slp")], &into).unwrap();
    assert_eq!((second.added, second.known, second.frames), (1, 3, 800));
    assert_eq!(run(&[folder], &into).unwrap().known, 4);
    let corpus = Corpus::open(&into).unwrap();
    assert_eq!((corpus.games().len(), corpus.info().views), (4, 8));
    let bytes: u64 = shards(&into).iter().map(|s| s.metadata().unwrap().len()).sum();
    assert_eq!(corpus.info().bytes, bytes);
}

#[test]
fn a_cancelled_import_keeps_what_it_finished() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, into) = (replays(dir.path(), 6), dir.path().join("corpus"));
    let cancel = AtomicBool::new(false);
    let options = ImportOptions { threads: 1, ..ImportOptions::default() };
    let stop_at_two = |p: sconce_data::Progress| cancel.store(p.done == 2, Ordering::Relaxed);
    let stopped = import(slice::from_ref(&folder), &into, &options, &stop_at_two, &cancel);
    assert_eq!(kind(stopped), Some(Kind::Cancelled));
    assert_eq!(Corpus::open(&into).unwrap().games().len(), 2);
    let rest = run(&[folder], &into).unwrap();
    assert_eq!((rest.added, rest.known, rest.adopted), (4, 2, 0));
}

#[test]
fn a_killed_import_loses_nothing_that_was_finished() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, into) = (replays(dir.path(), 4), dir.path().join("corpus"));
    run(slice::from_ref(&folder), &into).unwrap();
    let whole = fs::read(into.join("manifest.json")).unwrap();
    // The state after a kill: no manifest, one partial file, and one shard missing.
    fs::remove_file(into.join("manifest.json")).unwrap();
    let lost = shards(&into).remove(0);
    let partial = lost.with_extension("safetensors.123-0.partial");
    fs::rename(&lost, &partial).unwrap();
    let again = run(&[folder], &into).unwrap();
    assert_eq!((again.adopted, again.known, again.added), (3, 3, 1));
    assert!(!partial.exists());
    assert_eq!(fs::read(into.join("manifest.json")).unwrap(), whole);
}

#[test]
fn missing_or_damaged_shards_are_imported_again() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, into) = (replays(dir.path(), 3), dir.path().join("corpus"));
    run(slice::from_ref(&folder), &into).unwrap();
    let files = shards(&into);
    fs::remove_file(&files[0]).unwrap();
    let half = fs::read(&files[1]).unwrap();
    fs::write(&files[1], &half[..half.len() / 2]).unwrap();
    assert_eq!(kind(Corpus::open(&into)), Some(Kind::NotFound));
    fs::copy(&files[2], &files[0]).unwrap();
    assert_eq!(kind(Corpus::open(&into)), Some(Kind::Corrupt));
    let found = verify(&into, &|_| (), &AtomicBool::new(false)).unwrap();
    assert_eq!(found.damaged.len(), 2);
    fs::remove_file(&files[0]).unwrap();
    assert_eq!(run(&[folder], &into).unwrap().added, 2);
    let corpus = Corpus::open(&into).unwrap();
    assert!(corpus.views(&[0, 1, 2]).is_ok());
    assert_eq!(kind(corpus.views(&[2, 3])), Some(Kind::OutOfRange));
}

#[test]
fn a_shard_with_a_changed_bit_is_written_again_from_its_replay() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, into) = (replays(dir.path(), 3), dir.path().join("corpus"));
    run(slice::from_ref(&folder), &into).unwrap();
    let manifest = fs::read(into.join("manifest.json")).unwrap();
    let shard = shards(&into).remove(1);
    let whole = fs::read(&shard).unwrap();
    // Damages the game's numbers, then its metadata.
    let tag = whole.windows(8).position(|text| text == b"Player 0").unwrap();
    for at in [whole.len() - 1, tag] {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        fs::write(&shard, &bytes).unwrap();
        let report = run(slice::from_ref(&folder), &into).unwrap();
        assert_eq!((report.added, report.known), (1, 2), "{at}");
        assert_eq!(fs::read(&shard).unwrap(), whole);
        assert_eq!(fs::read(into.join("manifest.json")).unwrap(), manifest);
    }
}

#[test]
fn an_import_that_keeps_nothing_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (bad, into) = (dir.path().join("bad.slp"), dir.path().join("corpus"));
    fs::write(&bad, b"no replay").unwrap();
    let go = |into: &Path| run(slice::from_ref(&bad), into).unwrap();
    assert_eq!(go(&into).skipped.len(), 1);
    assert!(!into.exists());
    // A folder that existed before stays unchanged.
    fs::create_dir(&into).unwrap();
    go(&into);
    assert_eq!(fs::read_dir(&into).unwrap().count(), 0);
    run(&[replays(dir.path(), 1)], &into).unwrap();
    go(&into);
    assert_eq!(Corpus::open(&into).unwrap().games().len(), 1);

    let (folder, stopped) = (replays(dir.path(), 1), dir.path().join("stopped"));
    let options = ImportOptions::default();
    let outcome = import(&[folder], &stopped, &options, &|_| (), &AtomicBool::new(true));
    assert_eq!(kind(outcome), Some(Kind::Cancelled));
    assert!(!stopped.exists());
}

#[test]
fn a_broken_manifest_is_an_error_to_read_and_rebuilt_by_an_import() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, into) = (replays(dir.path(), 2), dir.path().join("corpus"));
    run(slice::from_ref(&folder), &into).unwrap();
    let path = into.join("manifest.json");
    let whole = fs::read_to_string(&path).unwrap();
    for len in [0, 1, whole.len() / 2, whole.len() - 1] {
        fs::write(&path, &whole[..len]).unwrap();
        let error = Corpus::open(&into).unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt, "{len}");
        assert!(error.to_string().contains("import into this folder"), "{error}");
    }
    assert_eq!(run(slice::from_ref(&folder), &into).unwrap().adopted, 2);
    assert_eq!(fs::read_to_string(&path).unwrap(), whole);
    let later = whole.replacen("\"version\":1", "\"version\":2", 1);
    fs::write(&path, later).unwrap();
    assert_eq!(kind(Corpus::open(&into)), Some(Kind::Mismatch));
    assert_eq!(kind(run(&[folder], &into)), Some(Kind::Mismatch));
    let outside = whole.replace("games/", "../games/");
    fs::write(&path, outside).unwrap();
    assert_eq!(kind(Corpus::open(&into)), Some(Kind::Corrupt));
}

#[test]
fn an_invalid_digest_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, into) = (replays(dir.path(), 1), dir.path().join("corpus"));
    run(&[folder], &into).unwrap();
    let path = into.join("manifest.json");
    let whole = fs::read_to_string(&path).unwrap();
    let digest = Corpus::open(&into).unwrap().games()[0].digest.clone();
    for other in [
        format!("../../escape/now{}", &digest[16..]),
        format!("{digest}00"),
        digest.to_uppercase(),
        String::new(),
    ] {
        let crafted = whole.replace(&digest, &other);
        let names = (&digest[..16], other.get(..16).unwrap_or(&other));
        fs::write(&path, crafted.replace(names.0, names.1)).unwrap();
        assert_eq!(kind(Corpus::open(&into)), Some(Kind::Corrupt), "{other}");
    }
}

#[test]
fn a_shard_outside_the_games_folder_is_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, into) = (replays(dir.path(), 2), dir.path().join("corpus"));
    run(slice::from_ref(&folder), &into).unwrap();
    let shard = shards(&into).remove(0);
    fs::copy(&shard, into.join(shard.file_name().unwrap())).unwrap();
    assert_eq!(run(&[folder], &into).unwrap().known, 2);
    assert_eq!(Corpus::open(&into).unwrap().games().len(), 2);
}

#[test]
fn an_import_with_too_many_threads_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let options = ImportOptions { threads: 1 << 20, ..ImportOptions::default() };
    let refused = import(&[], dir.path(), &options, &|_| (), &AtomicBool::new(false));
    assert_eq!(kind(refused), Some(Kind::OutOfRange));
}

#[test]
fn no_damage_to_a_shard_makes_a_read_panic() {
    let (_dir, whole) = corpus(&[Fixture { frames: 600, ..Fixture::default() }]);
    let path = whole.dir().join(&whole.games()[0].file);
    let bytes = fs::read(&path).unwrap();
    let read = |bytes: &[u8]| -> Result<(), Error> {
        fs::remove_file(&path).unwrap();
        fs::write(&path, bytes).unwrap();
        let heads = whole.schema().heads();
        for view in Corpus::open(whole.dir())?.views(&[0])? {
            let (mut raw, mut labels) =
                (vec![0.0; view.raw_width()], vec![0.0; heads.num_labels()]);
            for t in (0..view.len(3)).step_by(37) {
                view.raw(t, &mut raw)?;
                view.labels(t, 3, true, &heads, &mut labels)?;
            }
        }
        Ok(())
    };
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let cuts = (0..bytes.len()).step_by(bytes.len() / 60).chain(header - 3..header + 3);
    for len in cuts.chain([0, 1, 7, 8, 9, bytes.len() - 1]) {
        assert_eq!(kind(read(&bytes[..len])), Some(Kind::Corrupt), "cut to {len}");
    }
    for at in (0..header).step_by(41).chain(0..9) {
        for flip in [0x01, 0x80, 0xFF] {
            let mut damaged = bytes.clone();
            damaged[at] ^= flip;
            // A changed name or tag may go unnoticed, but no read may panic.
            let _ = read(&damaged);
        }
    }
    for at in (header..bytes.len()).step_by(997) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0xFF;
        read(&damaged).unwrap();
    }
    read(&bytes).unwrap();
}

#[test]
fn no_damage_to_a_replay_ends_an_import() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = Fixture { frames: 620, items: true, ..Fixture::default() }.bytes().unwrap();
    let folder = dir.path().join("replays");
    fs::create_dir(&folder).unwrap();
    for i in 0..150usize {
        let mut damaged = bytes.clone();
        // Damages payload sizes, the start event, and frames throughout the file.
        let at = if i < 60 { 11 + 9 * i } else { i * bytes.len() / 150 };
        damaged[at] ^= 1 << (i % 8);
        if i % 3 == 0 {
            damaged.truncate(bytes.len() - i * bytes.len() / 160);
        }
        fs::write(folder.join(format!("{i}.slp")), damaged).unwrap();
    }
    let report = run(&[folder], &dir.path().join("corpus")).unwrap();
    assert_eq!(report.added + report.skipped.len(), 150);
    assert!(report.skipped.len() > 50 && report.added > 20, "{}", report.added);
    let corpus = Corpus::open(&dir.path().join("corpus")).unwrap();
    let all: Vec<_> = (0..corpus.games().len()).collect();
    assert_eq!(corpus.views(&all).unwrap().len(), 2 * report.added);
}

#[test]
fn only_one_importer_runs_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, into) = (replays(dir.path(), 1), dir.path().join("corpus"));
    run(slice::from_ref(&folder), &into).unwrap();
    let lock = File::options().write(true).open(into.join("lock")).unwrap();
    lock.lock().unwrap();
    assert_eq!(kind(run(slice::from_ref(&folder), &into)), Some(Kind::Busy));
    drop(lock);
    assert_eq!(run(&[folder], &into).unwrap().known, 1);
}

#[test]
fn a_folder_that_cannot_be_written_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let folder = replays(dir.path(), 1);
    let file = dir.path().join("file");
    fs::write(&file, b"").unwrap();
    for into in [file.join("corpus"), PathBuf::from("/proc/corpus")] {
        match run(slice::from_ref(&folder), &into) {
            Err(Error::Io { path, .. }) => assert!(path.starts_with(&into)),
            other => panic!("{other:?}"),
        }
    }
    let missing = run(&[dir.path().join("nowhere")], &dir.path().join("corpus"));
    assert_eq!(kind(missing), Some(Kind::NotFound));
    assert!(!dir.path().join("corpus").exists());
}

fn vectors(n: usize) -> (Schema, Vec<VectorGame>) {
    let heads = vec![("move".to_owned(), HeadKind::Categorical(3))];
    let game = |g: usize| VectorGame {
        x: (0..40).map(|i| (g * 100 + i) as f32).collect(),
        labels: (0..20).map(|i| ((g + i) % 3) as f32).collect(),
    };
    (Schema::vectors(2, heads), (0..n).map(game).collect())
}

#[test]
fn a_corpus_of_vectors_returns_the_vectors() {
    let dir = tempfile::tempdir().unwrap();
    let (schema, games) = vectors(3);
    let built = Corpus::build(&schema, &games, dir.path()).unwrap();
    assert_eq!((built.info().games, built.info().views, built.info().frames), (3, 3, 60));
    let heads = built.schema().heads();
    for view in built.views(&[0, 1, 2]).unwrap() {
        let game =
            games.iter().enumerate().find(|(g, _)| view.info().source == format!("game {g}"));
        let (g, game) = game.unwrap();
        assert_eq!((view.frames(), view.len(0), view.len(2)), (20, 20, 18));
        let (mut x, mut label, mut previous) = ([0.0; 2], [9.0], [9.0]);
        for t in 0..18 {
            view.raw(t, &mut x).unwrap();
            assert_eq!(x, game.x[2 * t..2 * t + 2]);
            view.labels(t, 2, false, &heads, &mut label).unwrap();
            assert_eq!(label[0] as usize, (g + t + 2) % 3);
            let known = view.previous(t, false, &heads, &mut previous).unwrap();
            assert_eq!(known, t > 0);
            assert!(t == 0 || previous[0] == game.labels[t - 1]);
        }
    }
}

#[test]
fn building_again_replaces_a_corpus_but_not_one_of_another_schema() {
    let dir = tempfile::tempdir().unwrap();
    let (schema, games) = vectors(3);
    Corpus::build(&schema, &games, dir.path()).unwrap();
    let smaller = Corpus::build(&schema, &games[1..], dir.path()).unwrap();
    assert_eq!((smaller.games().len(), shards(dir.path()).len()), (2, 2));
    let wider = Schema::vectors(4, vec![("move".into(), HeadKind::Categorical(3))]);
    let game = VectorGame { x: vec![0.0; 4], labels: vec![0.0] };
    assert_eq!(kind(Corpus::build(&wider, &[game], dir.path())), Some(Kind::Mismatch));
    assert_eq!(kind(run(&[], dir.path())), Some(Kind::Mismatch));
    assert_eq!(Corpus::open(dir.path()).unwrap().games().len(), 2);
}

#[test]
fn a_cancelled_build_leaves_the_earlier_corpus() {
    let dir = tempfile::tempdir().unwrap();
    let (schema, games) = vectors(3);
    let before = Corpus::build(&schema, &games[..2], dir.path()).unwrap();
    let cancelled = AtomicBool::new(true);
    let stopped = Corpus::build_cancellable(&schema, &games, dir.path(), false, &cancelled);
    assert_eq!(kind(stopped), Some(Kind::Cancelled));
    let after = Corpus::open(dir.path()).unwrap();
    assert_eq!(after.games(), before.games());
    assert!(after.views(&[0, 1]).is_ok());
}

#[test]
fn vectors_that_do_not_fit_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (schema, games) = vectors(1);
    let try_with = |change: &dyn Fn(&mut VectorGame)| {
        let mut game = games[0].clone();
        change(&mut game);
        kind(Corpus::build(&schema, &[game], dir.path()))
    };
    assert_eq!(try_with(&|g| g.x[7] = f32::NAN), Some(Kind::NonFinite));
    assert_eq!(try_with(&|g| g.labels[7] = 3.0), Some(Kind::OutOfRange));
    assert_eq!(try_with(&|g| g.x.truncate(39)), Some(Kind::Mismatch));
    assert_eq!(try_with(&|g| g.labels.clear()), Some(Kind::Mismatch));
    let empty = Schema::vectors(0, vec![]);
    assert_eq!(kind(Corpus::build(&empty, &[], dir.path())), Some(Kind::OutOfRange));
}

#[test]
fn a_split_is_by_game_and_adding_games_does_not_move_others() {
    let dir = tempfile::tempdir().unwrap();
    let (schema, games) = vectors(60);
    let digests = |corpus: &Corpus, side: &[usize]| -> Vec<String> {
        side.iter().map(|&g| corpus.games()[g].digest.clone()).collect()
    };
    let few = Corpus::build(&schema, &games[..40], &dir.path().join("few")).unwrap();
    let many = Corpus::build(&schema, &games, &dir.path().join("many")).unwrap();
    let quarter = Holdout::Fraction(0.25);
    let (train, held) = few.split(&quarter, 7).unwrap();
    assert_eq!(train.len() + held.len(), 40);
    assert!((5..16).contains(&held.len()), "{}", held.len());
    let (_, held_of_many) = many.split(&quarter, 7).unwrap();
    let later = digests(&many, &held_of_many);
    assert!(digests(&few, &held).iter().all(|d| later.contains(d)));
    assert_ne!(few.split(&quarter, 8).unwrap().1, held);
    assert_eq!(few.split(&Holdout::Fraction(0.0), 7).unwrap().1, Vec::<usize>::new());
    assert_eq!(few.split(&Holdout::Fraction(0.001), 7).unwrap().1.len(), 1);
    assert_eq!(few.split(&Holdout::Games(vec![3, 1]), 7).unwrap().1, [1, 3]);
    assert_eq!(kind(few.split(&Holdout::Games(vec![40]), 7)), Some(Kind::OutOfRange));
    assert_eq!(kind(few.split(&Holdout::Fraction(1.5), 7)), Some(Kind::OutOfRange));
}

#[test]
fn a_single_changed_bit_is_found_and_its_replay_is_named() {
    let (_dir, corpus) = corpus(&[Fixture::default(), Fixture { seed: 5, ..Fixture::default() }]);
    let check = || {
        let seen = std::cell::Cell::new(0);
        let count = |checked: sconce_data::Checked| seen.set(checked.done);
        let found = verify(corpus.dir(), &count, &AtomicBool::new(false)).unwrap();
        assert_eq!((seen.get(), found.games, found.unrecorded), (2, 2, 0));
        found.damaged
    };
    assert_eq!(check(), []);
    let game = &corpus.games()[1];
    let path = corpus.dir().join(&game.file);
    let whole = fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let tag = whole.windows(game.version.len()).position(|w| w == game.version.as_bytes()).unwrap();
    for at in [header, whole.len() - 1, whole.len() / 2, tag] {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let damaged = check();
        assert_eq!(damaged.len(), 1, "{at}");
        assert_eq!((&damaged[0].file, &damaged[0].source), (&game.file, &game.source));
    }
    let stop = verify(corpus.dir(), &|_| (), &AtomicBool::new(true));
    assert_eq!(kind(stop), Some(Kind::Cancelled));
}

#[cfg(target_os = "linux")]
#[test]
fn a_verified_game_does_not_stay_mapped() {
    let (_dir, corpus) = corpus(&[Fixture::default(), Fixture { seed: 5, ..Fixture::default() }]);
    let folder = corpus.dir().display().to_string();
    let mapped = |_| {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        assert!(!maps.contains(&folder), "{maps}");
    };
    let found = verify(corpus.dir(), &mapped, &AtomicBool::new(false)).unwrap();
    assert_eq!((found.games, found.damaged.len()), (2, 0));
}

#[test]
fn a_corpus_is_not_written_into_a_folder_with_other_files() {
    let dir = tempfile::tempdir().unwrap();
    let folder = replays(dir.path(), 1);
    let into = dir.path().join("home");
    fs::create_dir_all(&into).unwrap();
    // This manifest belongs to a web app; it is not a damaged manifest of a corpus.
    for name in ["manifest.json", "letter.txt"] {
        fs::write(into.join(name), b"{}").unwrap();
        let refused = run(slice::from_ref(&folder), &into);
        assert!(refused.unwrap_err().to_string().contains(name));
        assert_eq!(fs::read_dir(&into).unwrap().count(), 1);
        fs::remove_file(into.join(name)).unwrap();
    }
    assert_eq!(run(slice::from_ref(&folder), &into).unwrap().added, 1);
    fs::write(into.join("letter.txt"), b"later").unwrap();
    assert_eq!(run(&[folder], &into).unwrap().known, 1);
}

#[cfg(unix)]
#[test]
fn links_in_a_loop_are_followed_once() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, into) = (replays(dir.path(), 2), dir.path().join("corpus"));
    for name in ["loop", "other loop"] {
        std::os::unix::fs::symlink(&folder, folder.join(name)).unwrap();
    }
    let report = run(&[folder], &into).unwrap();
    assert_eq!((report.added, report.known, report.skipped.len()), (2, 0, 0));
}
