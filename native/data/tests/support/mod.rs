//! Helpers shared by the tests.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use sconce_data::{Corpus, ImportOptions, ImportReport, import};
use sconce_fixtures::Fixture;
use sconce_tensor::Result;

pub(crate) fn write(dir: &Path, name: &str, fixture: &Fixture) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, fixture.bytes().unwrap()).unwrap();
    path
}

pub(crate) fn run(paths: &[PathBuf], dir: &Path) -> Result<ImportReport> {
    let cancel = AtomicBool::new(false);
    import(paths, dir, &ImportOptions::default(), &|_| (), &cancel)
}

/// A corpus of these games, in its own temporary folder.
pub(crate) fn corpus(fixtures: &[Fixture]) -> (tempfile::TempDir, Corpus) {
    let dir = tempfile::tempdir().unwrap();
    let replays = dir.path().join("replays");
    std::fs::create_dir(&replays).unwrap();
    for (i, fixture) in fixtures.iter().enumerate() {
        write(&replays, &format!("{i}.slp"), fixture);
    }
    let report = run(&[replays], &dir.path().join("corpus")).unwrap();
    assert_eq!((report.added, report.skipped), (fixtures.len(), vec![]));
    let corpus = Corpus::open(&dir.path().join("corpus")).unwrap();
    (dir, corpus)
}

/// Index of the game imported from this fixture.
pub(crate) fn game(corpus: &Corpus, fixture: usize) -> usize {
    let name = format!("{fixture}.slp");
    corpus.games().iter().position(|g| g.source == name).unwrap()
}
