//! Filters of games at import and in a corpus.

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use sconce_data::{
    Corpus, Filter, Holdout, ImportOptions, ImportReport, LeftOut, Reason, Schema, VectorGame,
    View, import,
};
use sconce_fixtures::{Fixture, Player};
use sconce_nn::spec::HeadKind;
use sconce_tensor::Result;
use support::{corpus, game, write};

/// A short game on stage 2, a game on stage 32, and a game against the computer.
fn fixtures() -> [Fixture; 3] {
    let mut cpu = Fixture { seed: 3, frames: 1000, ..Fixture::default() };
    cpu.players[1] = Player { cpu: true, ..cpu.players[1] };
    [
        Fixture { seed: 1, stage: 2, frames: 700, ..Fixture::default() },
        Fixture { seed: 2, frames: 900, ..Fixture::default() },
        cpu,
    ]
}

fn all(corpus: &Corpus) -> Vec<View> {
    corpus.views(&(0..corpus.games().len()).collect::<Vec<_>>()).unwrap()
}

/// The sources and players that a filter keeps, and what it leaves out.
fn kept(corpus: &Corpus, filter: &Filter) -> Result<(Vec<(String, usize)>, LeftOut)> {
    let (views, left_out) = filter.select(all(corpus))?;
    let of = |view: &View| (view.info().source.clone(), view.player());
    let mut kept: Vec<_> = views.iter().map(of).collect();
    kept.sort();
    Ok((kept, left_out))
}

fn both(names: &[&str]) -> Vec<(String, usize)> {
    names.iter().flat_map(|name| [0, 1].map(|player| (name.to_string(), player))).collect()
}

#[test]
fn each_condition_keeps_its_views_and_counts_the_others_by_reason() {
    let (_dir, corpus) = corpus(&fixtures());
    let own = Filter::default;
    // A fixture's players both take a quarter percent a frame.
    for (filter, names, reason) in [
        (Filter { stages: vec![32, 31], ..own() }, vec!["1.slp", "2.slp"], Reason::Stage),
        (Filter { humans: true, ..own() }, vec!["0.slp", "1.slp"], Reason::NotHuman),
        (Filter { min_frames: Some(701), ..own() }, vec!["1.slp", "2.slp"], Reason::TooShort),
        (Filter { max_frames: Some(900), ..own() }, vec!["0.slp", "1.slp"], Reason::TooLong),
        (Filter { min_damage_dealt: 224.0, ..own() }, vec!["1.slp", "2.slp"], Reason::Damage),
        (Filter { min_damage_taken: 249.0, ..own() }, vec!["2.slp"], Reason::Damage),
        // All but the length, and the 17 action states of 50, is full.
        (Filter { min_quality: 66.5, ..own() }, vec!["2.slp"], Reason::Quality),
    ] {
        let (views, left_out) = kept(&corpus, &filter).unwrap();
        assert_eq!(views, both(&names), "{filter:?}");
        let missing = 6 - 2 * names.len();
        assert_eq!(left_out, BTreeMap::from([(reason, missing)]), "{filter:?}");
    }
    let (views, left_out) = kept(&corpus, &own()).unwrap();
    assert_eq!((views.len(), left_out), (6, LeftOut::new()));

    let (views, left_out) = kept(&corpus, &Filter { characters: vec![2], ..own() }).unwrap();
    assert!(views.iter().all(|(_, player)| *player == 1));
    assert_eq!(left_out, BTreeMap::from([(Reason::Character, 3)]));
    // The first condition that a view does not meet counts.
    let both = Filter { stages: vec![2], humans: true, ..own() };
    assert_eq!(kept(&corpus, &both).unwrap().1, BTreeMap::from([(Reason::Stage, 4)]));
    let none = Filter { stages: vec![3], ..own() };
    let error = kept(&corpus, &none).unwrap_err();
    assert_eq!(error.to_string(), "a view that the filters keep (6 stage) not found");
}

#[test]
fn one_port_is_one_view_of_each_game_among_those_that_are_kept() {
    let (_dir, corpus) = corpus(&fixtures());
    let own = Filter { dual_port: false, ..Filter::default() };
    let (views, left_out) = kept(&corpus, &own).unwrap();
    assert_eq!(views, ["0.slp", "1.slp", "2.slp"].map(|name| (name.to_string(), 0)));
    assert_eq!(left_out, BTreeMap::from([(Reason::Port, 3)]));
    let second = Filter { characters: vec![2], ..own };
    let (views, left_out) = kept(&corpus, &second).unwrap();
    assert_eq!(views, ["0.slp", "1.slp", "2.slp"].map(|name| (name.to_string(), 1)));
    assert_eq!(left_out, BTreeMap::from([(Reason::Character, 3)]));
}

fn imported(paths: &[PathBuf], into: &Path, filter: Filter) -> Result<ImportReport> {
    let options = ImportOptions { filter, threads: 1, ..ImportOptions::default() };
    import(paths, into, &options, &|_| (), &AtomicBool::new(false))
}

#[test]
fn an_import_skips_games_by_the_same_conditions() {
    let dir = tempfile::tempdir().unwrap();
    let paths: Vec<_> = fixtures()
        .iter()
        .enumerate()
        .map(|(i, fixture)| write(dir.path(), &format!("{i}.slp"), fixture))
        .collect();
    let into = dir.path().join("corpus");
    let filter = Filter { stages: vec![32], humans: true, ..Filter::default() };
    let report = imported(&paths, &into, filter).unwrap();
    let skipped: Vec<_> =
        report.skipped.iter().map(|skipped| (skipped.reason, skipped.detail.as_str())).collect();
    assert_eq!(skipped, [(Reason::Stage, "stage 2"), (Reason::NotHuman, "human and cpu")]);
    assert_eq!(Corpus::open(&into).unwrap().games().len(), 1);
    // A game is kept if one of its players meets the conditions, with both views.
    let filter = Filter { characters: vec![2], min_damage_dealt: 200.0, ..Filter::default() };
    let report = imported(&paths, &into, filter).unwrap();
    assert_eq!((report.added, report.known), (1, 1));
    // The reason is that of the first player.
    assert_eq!(report.skipped[0].reason, Reason::Character);
    assert_eq!(all(&Corpus::open(&into).unwrap()).len(), 4);
    let filter = Filter { characters: vec![7], ..Filter::default() };
    let report = imported(&paths, &into, filter).unwrap();
    assert_eq!(report.skipped[0].detail, "character 1");
    // The game that no filter leaves out any more is read now.
    assert_eq!(imported(&paths, &into, Filter::default()).unwrap().added, 1);
}

#[test]
fn a_second_recording_of_a_game_is_left_out_on_request() {
    let dir = tempfile::tempdir().unwrap();
    // A recording in an earlier version of the format: other bytes, the same values.
    let recordings = [(3, 14), (3, 13)].map(|version| Fixture { version, ..Fixture::default() });
    let [first, second] = &recordings;
    let paths = [write(dir.path(), "0.slp", first), write(dir.path(), "1.slp", second)];
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    let unique = Filter { unique: true, ..Filter::default() };
    let report = imported(&paths, &one, unique.clone()).unwrap();
    assert_eq!((report.added, report.skipped[0].reason), (1, Reason::Duplicate));
    // It is left out of an existing corpus, too.
    let report = imported(&paths, &one, unique.clone()).unwrap();
    assert_eq!((report.known, report.skipped.len()), (1, 1));

    assert_eq!(imported(&paths, &two, Filter::default()).unwrap().added, 2);
    let corpus = Corpus::open(&two).unwrap();
    assert_ne!(corpus.games()[0].digest, corpus.games()[1].digest);
    let (views, left_out) = kept(&corpus, &unique).unwrap();
    assert_eq!((views.len(), left_out), (2, BTreeMap::from([(Reason::Duplicate, 2)])));
    assert_eq!(game(&corpus, 0), usize::from(corpus.games()[0].source != "0.slp"));
}

#[test]
fn recordings_of_a_game_are_on_the_same_side_of_a_split() {
    let dir = tempfile::tempdir().unwrap();
    let fixtures = [
        Fixture { version: (3, 14), ..Fixture::default() },
        Fixture { version: (3, 13), ..Fixture::default() },
        Fixture { seed: 7, ..Fixture::default() },
        Fixture { seed: 8, ..Fixture::default() },
    ];
    let paths: Vec<PathBuf> =
        (0..).zip(&fixtures).map(|(i, f)| write(dir.path(), &format!("{i}.slp"), f)).collect();
    imported(&paths, &dir.path().join("corpus"), Filter::default()).unwrap();
    let corpus = Corpus::open(&dir.path().join("corpus")).unwrap();
    let copies: Vec<usize> = (0..4)
        .filter(|&i| ["0.slp", "1.slp"].contains(&corpus.games()[i].source.as_str()))
        .collect();
    let mut sides = [0, 0];
    for seed in 0..20 {
        let (train, validation) = corpus.split(&Holdout::Fraction(0.5), seed).unwrap();
        let held = copies.iter().filter(|copy| validation.contains(copy)).count();
        assert!(held == 0 || held == 2, "seed {seed}: {train:?} {validation:?}");
        sides[held / 2] += 1;
    }
    assert!(sides[0] > 0 && sides[1] > 0, "{sides:?}");
}

#[test]
fn conditions_on_replays_are_refused_by_name_for_other_games() {
    let dir = tempfile::tempdir().unwrap();
    let heads = vec![("go".to_owned(), HeadKind::Bernoulli(1))];
    let games = [20, 30].map(|n| VectorGame { x: vec![0.5; n], labels: vec![1.0; n] });
    let corpus = Corpus::build(&Schema::vectors(1, heads), &games, dir.path()).unwrap();
    let own = Filter::default;
    for (filter, name) in [
        (Filter { stages: vec![2], ..own() }, "stages"),
        (Filter { humans: true, ..own() }, "humans"),
        (Filter { min_damage_dealt: 1.0, ..own() }, "min_damage_dealt"),
        (Filter { min_damage_taken: 1.0, ..own() }, "min_damage_taken"),
        (Filter { min_quality: 1.0, ..own() }, "min_quality"),
    ] {
        let error = kept(&corpus, &filter).unwrap_err().to_string();
        assert_eq!(error, format!("{name}: expected a corpus of replays, got vector"));
    }
    let (views, left_out) =
        kept(&corpus, &Filter { min_frames: Some(21), unique: true, ..own() }).unwrap();
    assert_eq!((views.len(), left_out), (1, BTreeMap::from([(Reason::TooShort, 1)])));
}
