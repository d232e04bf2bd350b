//! Special files, replays that would crash the process, and imports after one that died.
#![cfg(unix)]
#![allow(clippy::disallowed_methods)]

mod support;

use std::ffi::CString;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::slice;
use std::sync::atomic::AtomicBool;

use sconce_data::{Corpus, ImportOptions, ImportReport, Reason, import, verify};
use sconce_fixtures::Fixture;
use sconce_tensor::digest::of_file;
use sconce_tensor::{Error, Kind};
use support::{run, write};

fn made(seed: u32) -> Fixture {
    Fixture { seed, frames: 620, ..Fixture::default() }
}

fn folder(dir: &Path, n: u32) -> PathBuf {
    let folder = dir.join("replays");
    fs::create_dir_all(&folder).unwrap();
    for seed in 0..n {
        write(&folder, &format!("{seed}.slp"), &made(seed));
    }
    folder
}

fn pipe(path: &Path) {
    let text = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: the path is a NUL-terminated string that lives through the call.
    assert_eq!(unsafe { libc::mkfifo(text.as_ptr(), 0o600) }, 0);
}

fn hole(path: &Path, bytes: u64) {
    File::create(path).unwrap().set_len(bytes).unwrap();
}

type Make = fn(&Path);

/// File types that may be found where a regular file is expected.
const ODD: [(&str, Make); 5] = [
    ("pipe", |path| pipe(path)),
    ("folder", |path| fs::create_dir(path).unwrap()),
    ("socket", |path| drop(UnixListener::bind(path).unwrap())),
    ("zero", |path| symlink("/dev/zero", path).unwrap()),
    ("hole", |path| hole(path, 9 << 30)),
];

fn remove(path: &Path) {
    fs::remove_file(path).or_else(|_| fs::remove_dir(path)).unwrap();
}

fn kind<T>(result: Result<T, Error>) -> Option<Kind> {
    result.err().map(|e| e.kind())
}

fn reasons(report: &ImportReport) -> Vec<(String, Reason)> {
    let name = |file: &str| Path::new(file).file_name().unwrap().to_string_lossy().into_owned();
    report.skipped.iter().map(|s| (name(&s.file), s.reason)).collect()
}

#[test]
fn a_replay_that_would_overflow_the_stack_is_skipped_and_the_others_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, into) = (folder(dir.path(), 2), dir.path().join("corpus"));
    for levels in [5_000, 1_000_000] {
        let mut bytes = made(9).bytes().unwrap();
        bytes.pop();
        bytes.extend(b"U\x08metadata{");
        bytes.extend(b"U\x01a{".repeat(levels));
        fs::write(folder.join(format!("deep {levels}.slp")), bytes).unwrap();
    }
    let report = run(&[folder], &into).unwrap();
    assert_eq!(report.added, 2);
    let corrupt = |name: &str| (name.to_string(), Reason::Corrupt);
    assert_eq!(reasons(&report), [corrupt("deep 1000000.slp"), corrupt("deep 5000.slp")]);
    assert!(report.skipped[0].detail.contains("1000001 levels deep"), "{report:?}");
    assert_eq!(Corpus::open(&into).unwrap().games().len(), 2);
}

#[test]
fn special_files_do_not_stop_an_import() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, into) = (folder(dir.path(), 1), dir.path().join("corpus"));
    for (name, make) in ODD.into_iter().filter(|odd| odd.0 != "folder") {
        make(&folder.join(format!("{name}.slp")));
    }
    symlink(folder.join("0.slp"), dir.path().join("link.slp")).unwrap();
    let report = run(slice::from_ref(&folder), &into).unwrap();
    let unreadable = |name: &str| (name.to_string(), Reason::Unreadable);
    let hole = ("hole.slp".to_string(), Reason::Corrupt);
    let expected = [hole, unreadable("pipe.slp"), unreadable("socket.slp"), unreadable("zero.slp")];
    assert_eq!(reasons(&report), expected);
    assert!(report.skipped[0].detail.contains("9663676416 bytes"), "{report:?}");
    assert_eq!(report.skipped[1].detail, "a named pipe, not a regular file");
    assert_eq!(report.added, 1);
    assert_eq!(run(&[dir.path().join("link.slp")], &into).unwrap().known, 1);
}

#[test]
fn a_special_file_at_the_path_of_a_corpus_file_is_a_typed_error() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, into) = (folder(dir.path(), 1), dir.path().join("corpus"));
    run(slice::from_ref(&folder), &into).unwrap();
    let shard = into.join(&Corpus::open(&into).unwrap().games()[0].file);
    let expected = |name| Some(if name == "hole" { Kind::Corrupt } else { Kind::Mismatch });
    for (name, make) in ODD {
        let manifest = into.join("manifest.json");
        fs::rename(&manifest, dir.path().join("kept")).unwrap();
        make(&manifest);
        assert_eq!(kind(Corpus::open(&into)), expected(name), "manifest: {name}");
        assert_eq!(kind(verify(&into, &|_| (), &AtomicBool::new(false))), expected(name));
        remove(&manifest);
        fs::rename(dir.path().join("kept"), &manifest).unwrap();

        fs::rename(&shard, dir.path().join("kept")).unwrap();
        make(&shard);
        assert_eq!(kind(Corpus::open(&into)), Some(Kind::Corrupt), "shard: {name}");
        let found = verify(&into, &|_| (), &AtomicBool::new(false)).unwrap();
        assert_eq!(found.damaged.len(), 1, "shard: {name}");
        remove(&shard);
        fs::rename(dir.path().join("kept"), &shard).unwrap();

        if name != "hole" {
            let lock = into.join("lock");
            remove(&lock);
            make(&lock);
            assert_eq!(kind(run(slice::from_ref(&folder), &into)), Some(Kind::Mismatch));
            remove(&lock);
        }
        fs::write(into.join("lock"), b"").unwrap();
        let journal = into.join("journal");
        make(&journal);
        let expected = if name == "hole" { None } else { Some(Kind::Mismatch) };
        assert_eq!(kind(run(slice::from_ref(&folder), &into)), expected, "journal: {name}");
        if journal.symlink_metadata().is_ok() {
            remove(&journal);
        }
        let partial = into.join("games/x.1-1.partial");
        if name != "folder" {
            make(&partial);
        }
        assert_eq!(run(slice::from_ref(&folder), &into).unwrap().known, 1);
        assert!(partial.symlink_metadata().is_err());
    }
    Corpus::open(&into).unwrap().views(&[0]).unwrap();
}

#[test]
fn numbers_in_a_manifest_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, into) = (folder(dir.path(), 1), dir.path().join("corpus"));
    run(&[folder], &into).unwrap();
    let path = into.join("manifest.json");
    let whole = fs::read_to_string(&path).unwrap();
    let reasons = [
        ("\"frames\":620", "\"frames\":1000000000000000000", "more than 2147483648"),
        ("\"ports\":[", "\"ports\":[1,1,1,1,1,1,1,1,", "more than 8 entries"),
        ("\"name\":\"melee\"", "\"name\":\"chess\"", "neither"),
        ("\"columns\":[", &format!("\"columns\":[{}", "[".repeat(1000)), "cut short or damaged"),
    ];
    for (from, to, reason) in reasons {
        assert!(whole.contains(from), "{from}");
        fs::write(&path, whole.replacen(from, to, 1)).unwrap();
        let error = Corpus::open(&into).unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt);
        assert!(error.to_string().contains(reason), "{error}");
    }
    let heads = |text: &str| format!(r#"{{"name":"vector","size":1,"heads":[{text}]}}"#);
    let schemas = [
        (heads(r#"["Odd name",{"categorical":3}]"#), Kind::Mismatch),
        (heads(r#"["go",{"categorical":1}]"#), Kind::OutOfRange),
        (heads(r#"["go",{"bernoulli":1000000000000}]"#), Kind::OutOfRange),
        (r#"{"name":"vector","size":1000000000000,"heads":[]}"#.into(), Kind::OutOfRange),
    ];
    for (schema, expected) in schemas {
        fs::write(&path, whole.replacen(r#"{"name":"melee"}"#, &schema, 1)).unwrap();
        assert_eq!(kind(Corpus::open(&into)), Some(expected), "{schema}");
    }
}

/// A journal line as a death leaves it.
fn line(replay: &Path, deaths: u32) -> String {
    let (file, digest) = (replay.file_name().unwrap().display(), of_file(replay).unwrap());
    let text = format!(r#"{{"file":"{file}","digest":"{digest}","deaths":{deaths}}}"#);
    format!("{text:<511}\n")
}

#[test]
fn an_import_knows_the_replays_in_flight_when_an_earlier_one_died() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, into) = (folder(dir.path(), 4), dir.path().join("corpus"));
    run(&[folder.join("3.slp")], &into).unwrap();
    let journal = into.join("journal");
    assert!(!journal.exists());
    // Two replays were in flight at a death, one of them also at an earlier death.
    let lines = [line(&folder.join("0.slp"), 2), line(&folder.join("1.slp"), 1)];
    fs::write(&journal, lines.concat()).unwrap();
    let report = run(slice::from_ref(&folder), &into).unwrap();
    let mut interrupted: Vec<_> =
        report.interrupted.iter().map(|i| (i.file.as_str(), i.deaths)).collect();
    interrupted.sort();
    assert_eq!(interrupted, [("0.slp", 2), ("1.slp", 1)]);
    assert_eq!((report.added, report.known), (2, 1));
    assert_eq!(reasons(&report), [("0.slp".to_string(), Reason::Fatal)]);
    assert!(report.skipped[0].detail.starts_with("2 imports died while they read it"));
    // The fatal replay stays skipped, and the one that was read is no longer a suspect.
    let again = run(slice::from_ref(&folder), &into).unwrap();
    assert_eq!((again.interrupted.len(), again.skipped.len(), again.known), (1, 1, 3));
    // With `retry` it is read again.
    let options = ImportOptions { retry: true, ..ImportOptions::default() };
    let cancel = AtomicBool::new(false);
    let retried = import(slice::from_ref(&folder), &into, &options, &|_| (), &cancel).unwrap();
    assert_eq!((retried.added, retried.known, retried.skipped.len()), (1, 3, 0));
    assert!(!journal.exists());
    assert_eq!(run(&[folder], &into).unwrap().interrupted, []);
}

#[test]
fn suspect_replays_are_read_one_at_a_time_after_all_others() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, into) = (folder(dir.path(), 6), dir.path().join("corpus"));
    fs::create_dir_all(into.join("games")).unwrap();
    let lines = [0, 1].map(|i| line(&folder.join(format!("{i}.slp")), 1));
    fs::write(into.join("journal"), lines.concat()).unwrap();
    let options = ImportOptions { threads: 3, ..ImportOptions::default() };
    let seen = std::sync::Mutex::new(vec![]);
    let look = |progress: sconce_data::Progress| {
        let games = Corpus::open(&into).map_or(0, |corpus| corpus.games().len());
        seen.lock().unwrap().push((progress.done, games));
    };
    let report = import(&[folder], &into, &options, &look, &AtomicBool::new(false)).unwrap();
    assert_eq!((report.added, report.interrupted.len()), (6, 2));
    // When the suspects are read, the manifest lists all other games.
    let seen = seen.into_inner().unwrap();
    assert!(seen.iter().filter(|(done, _)| *done > 4).all(|(_, games)| *games >= 4), "{seen:?}");
}
