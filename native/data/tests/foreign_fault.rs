//! A SIGBUS outside every guard, in a process that already has a handler for it.
#![cfg(unix)]

use std::sync::atomic::{AtomicUsize, Ordering};

use sconce_data::{Corpus, Reader, Schema, VectorGame};
use sconce_nn::spec::HeadKind;

static SEEN: AtomicUsize = AtomicUsize::new(0);

extern "C" fn handle(_signal: libc::c_int) {
    SEEN.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn a_foreign_fault_goes_to_the_previous_handler_and_ours_stays_installed() {
    let dir = tempfile::tempdir().unwrap();
    let schema = Schema::vectors(64, vec![("go".into(), HeadKind::Bernoulli(1))]);
    let games = [VectorGame { x: vec![1.0; 64 * 1000], labels: vec![0.0; 1000] }];
    // SAFETY: a plain call of the C library; the handler only adds to an atomic number.
    unsafe { libc::signal(libc::SIGBUS, handle as *const () as usize) };
    let corpus = Corpus::build(&schema, &games, dir.path()).unwrap();
    let view = corpus.views(&[0]).unwrap().remove(0);
    for count in 1..=2 {
        // SAFETY: the signal has a handler.
        unsafe { libc::raise(libc::SIGBUS) };
        assert_eq!(SEEN.load(Ordering::SeqCst), count);
    }
    let path = dir.path().join(&corpus.games()[0].file);
    std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(5000).unwrap();
    let reader = Reader::new(schema.embedding(), schema.heads(), 0);
    let error = reader.sequence(&view, 0..1000).unwrap_err();
    assert_eq!(error.kind().name(), "corrupt");
    assert_eq!(SEEN.load(Ordering::SeqCst), 2);
}
