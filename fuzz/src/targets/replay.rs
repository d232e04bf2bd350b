//! Imports a replay and reads its corpus.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use sconce_data::{Corpus, ImportOptions, import};
use sconce_fixtures::{Fixture, ICE_CLIMBERS, Player};
use sconce_tensor::{Error, Result};

use crate::replay::{Replay, metadata};
use crate::rng::Rng;

/// Frames of a fixture. Players have control from the 85th frame on.
const FRAMES: usize = 96;

pub fn fixtures() -> Vec<Fixture> {
    let small = Fixture { frames: FRAMES, ..Fixture::default() };
    let player = |character, cpu| Player { character, cpu };
    vec![
        small.clone(),
        Fixture { version: (1, 0), seed: 1, ..small.clone() },
        Fixture { version: (3, 0), rollback_every: 5, seed: 2, ..small.clone() },
        Fixture { version: (3, 18), items: true, seed: 3, ..small.clone() },
        Fixture { players: vec![player(ICE_CLIMBERS, false), player(9, true)], seed: 4, ..small },
    ]
}

pub fn seeds() -> Vec<Vec<u8>> {
    let of = |fixture: Fixture| {
        let bytes = fixture.bytes().expect("a replay");
        match Replay::parse(&bytes) {
            Some(replay) if fixture.seed.is_multiple_of(2) => {
                Replay { metadata: Some(metadata()), rest: b"}".to_vec(), ..replay }.encode()
            }
            _ => bytes,
        }
    };
    fixtures().into_iter().map(of).collect()
}

pub fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>) {
    crate::replay::mutate(rng, bytes);
}

pub fn run(bytes: &[u8], dir: &Path) -> Result<()> {
    let (path, out) = (super::write(dir, "game.slp", bytes)?, dir.join("corpus"));
    let options = ImportOptions { min_frames: 1, threads: 1, ..ImportOptions::default() };
    let report = import(&[path], &out, &options, &|_| (), &AtomicBool::new(false))?;
    if let Some(skipped) = report.skipped.first() {
        let what = serde_json::to_string(&skipped.reason).unwrap_or_default();
        return Err(Error::corrupt(what, &skipped.detail));
    }
    super::corpus::read(&Corpus::open(&out)?)
}
