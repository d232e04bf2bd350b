//! Real games. Runs only if `SCONCE_REPLAYS` names a folder with train/, validation/ and edge/.
#![allow(clippy::disallowed_methods)]

mod support;

use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::slice;

use peppi::frame::Rollbacks;
use peppi::frame::transpose::Frame;
use sconce_data::{Corpus, Reason, View};
use sconce_nn::embedding::melee::{OPPONENT, OWN, PLAYER_FIELDS, PREVIOUS, PROJECTILES, RAW_WIDTH};
use support::run;

fn replays() -> Option<PathBuf> {
    let found = std::env::var_os("SCONCE_REPLAYS").map(PathBuf::from);
    if found.is_none() {
        eprintln!("skipped: SCONCE_REPLAYS is not set to a folder of real games");
    }
    found
}

fn stem(path: &str) -> &str {
    Path::new(path).file_stem().and_then(|s| s.to_str()).unwrap_or_default()
}

#[test]
fn every_edge_case_is_imported_or_refused_for_its_reason() {
    let Some(root) = replays() else { return };
    let dir = tempfile::tempdir().unwrap();
    let report = run(&[root.join("edge")], dir.path()).unwrap();
    let refused: Vec<_> = report.skipped.iter().map(|s| (stem(&s.file), s.reason)).collect();
    for (file, reasons) in [
        ("corrupt", &[Reason::Corrupt, Reason::Truncated][..]),
        ("incomplete", &[Reason::Corrupt, Reason::Truncated]),
        ("homeRun_jp", &[Reason::Corrupt]),
        ("crazy_name_tags", &[Reason::NotTwoPlayers]),
        ("doubles", &[Reason::NotTwoPlayers]),
        ("ics", &[Reason::TooShort]),
        ("nametags", &[Reason::TooShort]),
        ("netplay", &[Reason::TooShort]),
    ] {
        let found = refused.iter().find(|r| r.0 == file);
        assert!(found.is_some_and(|r| reasons.contains(&r.1)), "{file}: {found:?}");
    }
    let corpus = Corpus::open(dir.path()).unwrap();
    let mut added: Vec<_> = corpus.games().iter().map(|g| stem(&g.source)).collect();
    added.sort_unstable();
    assert_eq!(added, ["items", "transform", "unknown_event", "v0.1", "v3.18"]);
    assert_eq!(refused.len(), 8);
}

#[test]
fn all_training_games_are_imported() {
    let Some(root) = replays() else { return };
    let dir = tempfile::tempdir().unwrap();
    let report = run(&[root.join("train")], dir.path()).unwrap();
    let (games, seconds) = (report.added, report.seconds);
    eprintln!("{games} games, {} frames, {} bytes, {seconds:.2} s", report.frames, report.bytes);
    eprintln!("{:?}", report.other_ids);
    assert_eq!((report.added, report.skipped), (14, vec![]));
    let corpus = Corpus::open(dir.path()).unwrap();
    let game = |name: &str| corpus.games().iter().find(|g| stem(&g.source) == name);
    assert_eq!(game("rollback_frames").map(|g| g.frames), Some(9277));
    assert_eq!(game("nintendont").map(|g| g.frames), Some(12036));
    let all: Vec<_> = (0..14).collect();
    for view in corpus.views(&all).unwrap() {
        assert_eq!(view.frame_number(0), -40);
        let mut raw = vec![0.0; view.raw_width()];
        for t in (0..view.frames()).step_by(101) {
            view.raw(t, &mut raw).unwrap();
            assert!(raw.iter().all(|v| v.is_finite()));
        }
    }
}

/// Compares each row with peppi's own frame.
#[test]
fn raw_rows_match_peppi() {
    let Some(root) = replays() else { return };
    for name in ["rollback_frames", "ics2", "nintendont", "throw_grab"] {
        let file = root.join("train").join(name).with_extension("slp");
        let dir = tempfile::tempdir().unwrap();
        run(slice::from_ref(&file), dir.path()).unwrap();
        let views = Corpus::open(dir.path()).unwrap().views(&[0]).unwrap();
        let bytes = std::fs::read(&file).unwrap();
        let game = peppi::io::slippi::read(Cursor::new(bytes), None).unwrap();
        let superseded = game.frames.rollbacks(Rollbacks::ExceptLast);
        let version = game.start.slippi.version;
        let mut compared = 0;
        for (row, _) in superseded.iter().enumerate().filter(|(_, superseded)| !**superseded) {
            let frame = game.frames.transpose_one(row, version);
            let Ok(t) = usize::try_from(frame.id + 40) else { continue };
            for (own, view) in views.iter().enumerate() {
                compare(view, t, &frame, own);
            }
            compared += 1;
        }
        assert_eq!(compared, views[0].frames(), "{name}");
    }
}

fn compare(view: &View, t: usize, frame: &Frame, own: usize) {
    let mut raw = vec![f32::NAN; RAW_WIDTH];
    view.raw(t, &mut raw).unwrap();
    assert_eq!(view.frame_number(t), frame.id);
    for (at, player) in [(OWN, own), (OPPONENT, 1 - own)] {
        let field =
            |name: &str| raw[at + PLAYER_FIELDS.iter().position(|f| f.name == name).unwrap()];
        let (post, port) = (&frame.ports[player].leader.post, &frame.ports[player]);
        let nana = port.follower.as_ref().filter(|_| field("nana_exists") == 1.0);
        assert_eq!((field("x"), field("y")), (post.position.x, post.position.y));
        assert_eq!(field("percent"), post.percent);
        assert_eq!(field("facing"), post.direction);
        assert_eq!(field("action"), f32::from(post.state));
        assert_eq!(field("character"), f32::from(post.character));
        assert_eq!(field("stock"), f32::from(post.stocks));
        assert_eq!(field("shield_strength"), post.shield);
        assert_eq!(field("action_frame"), post.state_age.unwrap_or(0.0));
        assert_eq!(field("jumps_left"), f32::from(post.jumps.unwrap_or(0)));
        assert_eq!(field("on_ground"), f32::from(post.airborne.is_some_and(|a| a == 0)));
        assert_eq!(field("speed_y_self"), post.velocities.map_or(0.0, |v| v.self_y));
        assert_eq!(field("nana_x"), nana.map_or(0.0, |n| n.post.position.x));
    }
    let (pre, input) = (&frame.ports[own].leader.pre, view.input(t).unwrap().unwrap());
    let axes = [pre.joystick.x, pre.joystick.y, pre.cstick.x, pre.cstick.y];
    assert_eq!(input[8..12], axes.map(|v| (v + 1.0) / 2.0));
    assert_eq!(input[12], pre.triggers);
    assert_eq!(raw[PREVIOUS + 1..PREVIOUS + 14], input);
    let items = frame.items.as_ref().map_or(0, Vec::len);
    assert_eq!(raw[PROJECTILES], items as f32);
}
