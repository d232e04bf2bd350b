//! Views of replays: values, versions, rollbacks, and the order of states and inputs.

mod support;

use sconce_data::melee::Group;
use sconce_data::{Corpus, View};
use sconce_fixtures::{self as fixtures, ACTION_BASE, Fixture, NUM_ITEMS, Player, State};
use sconce_nn::embedding::melee::{
    OPPONENT, OWN, PLAYER_FIELDS, PREVIOUS, PROJECTILE_WIDTH, PROJECTILES, RAW_WIDTH, STAGE,
};
use sconce_nn::spec::{Heads, HeadsKind};
use support::{corpus, game};

fn views(fixture: Fixture) -> (tempfile::TempDir, Corpus, Vec<View>) {
    let (dir, corpus) = corpus(&[fixture]);
    let views = corpus.views(&[0]).unwrap();
    (dir, corpus, views)
}

fn raw(view: &View, t: usize) -> Vec<f32> {
    let mut row = vec![f32::NAN; RAW_WIDTH];
    view.raw(t, &mut row).unwrap();
    row
}

fn at(row: &[f32], player: usize, field: &str) -> f32 {
    row[player + PLAYER_FIELDS.iter().position(|f| f.name == field).unwrap()]
}

fn heads() -> Heads {
    Heads::controller(HeadsKind::Independent)
}

fn label(view: &View, t: usize, delay: usize, mirror: bool) -> Vec<f32> {
    let mut labels = vec![0.0; 13];
    view.labels(t, delay, mirror, &heads(), &mut labels).unwrap();
    labels
}

/// The expected raw fields of a player, for a replay version that records all fields.
fn expect(state: &State) -> Vec<(&'static str, f32)> {
    let v = state.velocities;
    vec![
        ("percent", state.percent),
        ("facing", state.direction),
        ("x", state.x),
        ("y", state.y),
        ("action", state.state.into()),
        ("character", state.character.into()),
        ("invulnerable", (state.hurtbox_state > 0).into()),
        ("jumps_left", state.jumps.into()),
        ("shield_strength", state.shield),
        ("on_ground", (state.airborne == 0).into()),
        ("speed_air_x_self", v[0]),
        ("speed_ground_x_self", v[4]),
        ("speed_y_self", v[1]),
        ("speed_x_attack", v[2]),
        ("speed_y_attack", v[3]),
        ("hitstun_frames_left", if state.in_hitstun { state.misc_as } else { 0.0 }),
        ("action_frame", state.state_age),
        ("stock", state.stocks.into()),
    ]
}

/// Fields that a version lacks; they take their fallback.
fn missing(version: (u8, u8)) -> Vec<&'static str> {
    let fields = sconce_data::fields().iter().filter(|f| f.group == Group::Player);
    fields.filter(|f| f.since > version).map(|f| f.name).collect()
}

fn check_states(fixture: Fixture) {
    let (seed, version, frames) = (fixture.seed, fixture.version, fixture.frames);
    let (_dir, corpus, views) = views(fixture);
    assert_eq!(corpus.games()[0].frames, frames);
    let missing = missing(version);
    for (own, view) in views.iter().enumerate() {
        assert_eq!(view.frames(), frames - 83);
        for t in (0..view.frames()).step_by(13) {
            let frame = t as i32 - 40;
            assert_eq!(view.frame_number(t), frame);
            let row = raw(view, t);
            for (place, player) in [(OWN, own), (OPPONENT, 1 - own)] {
                for (field, value) in expect(&fixtures::state(seed, player, frame)) {
                    let value = if missing.contains(&field) { 0.0 } else { value };
                    assert_eq!(at(&row, place, field), value, "{field} at {frame}");
                }
            }
        }
    }
}

#[test]
fn both_views_return_the_states_of_a_replay() {
    check_states(Fixture { seed: 1, ..Fixture::default() });
}

#[test]
fn old_and_new_versions_import_with_their_fallbacks() {
    for version in [(0, 1), (1, 0), (1, 7), (2, 0), (2, 2), (3, 4), (3, 7), (3, 18)] {
        check_states(Fixture { version, seed: 2, ..Fixture::default() });
    }
}

#[test]
fn the_last_row_of_a_rolled_back_frame_is_kept() {
    check_states(Fixture { rollback_every: 7, seed: 3, ..Fixture::default() });
}

#[test]
fn an_input_has_physical_buttons_and_processed_sticks() {
    let (_dir, _corpus, views) = views(Fixture { seed: 4, ..Fixture::default() });
    for (player, view) in views.iter().enumerate() {
        for t in 0..200 {
            let input = fixtures::input(4, player, t as i32 - 40);
            let controller = view.input(t).unwrap().unwrap();
            for (i, bit) in [8, 9, 10, 11, 4, 6, 5, 3].iter().enumerate() {
                assert_eq!(controller[i], f32::from(input.buttons >> bit & 1), "button {i}");
            }
            for (i, stick) in input.sticks.iter().enumerate() {
                assert_eq!(controller[8 + i], (stick + 1.0) / 2.0);
            }
            assert_eq!(controller[12], input.trigger);
            let row = raw(view, t);
            assert_eq!(row[PREVIOUS], 1.0);
            assert_eq!(row[PREVIOUS + 1..PREVIOUS + 14], controller);
        }
    }
}

#[test]
fn a_player_without_a_pad_has_processed_buttons() {
    let players = [false, true].map(|cpu| Player { character: 2, cpu }).to_vec();
    let (_dir, corpus, views) = views(Fixture { players, seed: 5, ..Fixture::default() });
    assert_eq!(corpus.games()[0].kinds, ["human", "cpu"]);
    let pressed = (0..300).filter(|&t| views[1].input(t).unwrap().unwrap()[..8].contains(&1.0));
    assert!(pressed.count() > 50);
}

/// The fixture leaks on purpose: the action after frame f encodes the stick of frame f.
#[test]
fn no_state_reveals_the_input_that_answers_it() {
    let (_dir, _corpus, views) = views(Fixture { seed: 6, frames: 4000, ..Fixture::default() });
    for (player, view) in views.iter().enumerate() {
        let n = view.len(0);
        assert_eq!(n, view.frames() - 1);
        let told = |t: usize| at(&raw(view, t), OWN, "action") - f32::from(ACTION_BASE);
        let main_x = |t: usize| label(view, t, 0, false)[8];
        // The leak exists: the next state reveals this label, and this state reveals the previous one.
        assert!((0..n).all(|t| told(t + 1) == main_x(t)));
        assert!((1..n).all(|t| told(t) == main_x(t - 1)));
        assert!((0..n).all(|t| (raw(view, t)[PREVIOUS + 9] * 16.0).round() == told(t)));
        // A state predicts its own label no better than chance, 1 in 17.
        let guessed = (0..n).filter(|&t| told(t) == main_x(t)).count() as f64 / n as f64;
        assert!((guessed - 1.0 / 17.0).abs() < 0.015, "{guessed}");
        assert_eq!(main_x(0), f32::from(fixtures::main_x_bucket(6, player, -39)));
    }
}

#[test]
fn a_delay_moves_labels_and_nothing_else() {
    let (_dir, _corpus, views) = views(Fixture { seed: 7, ..Fixture::default() });
    let view = &views[1];
    for delay in [0, 1, 5] {
        assert_eq!(view.len(delay), view.frames() - 1 - delay);
        for t in [0, 1, 50, view.len(delay) - 1] {
            assert_eq!(label(view, t, delay, false), label(view, t + delay, 0, false));
        }
        let mut out = vec![0.0; 13];
        let beyond = view.labels(view.len(delay), delay, false, &heads(), &mut out);
        assert_eq!(beyond.map_err(|e| e.kind().name()), Err("out_of_range"));
    }
}

#[test]
fn a_mirrored_label_is_the_mirrored_stick() {
    let (_dir, _corpus, views) = views(Fixture { seed: 8, ..Fixture::default() });
    for t in 0..100 {
        let (plain, mirrored) = (label(&views[0], t, 0, false), label(&views[0], t, 0, true));
        assert_eq!(plain[..8], mirrored[..8]);
        assert_eq!((16.0 - plain[8], plain[9]), (mirrored[8], mirrored[9]));
        assert_eq!(
            (16.0 - plain[10], plain[11], plain[12]),
            (mirrored[10], mirrored[11], mirrored[12])
        );
    }
}

#[test]
fn the_first_five_items_are_in_order_of_their_ids() {
    let (_dir, _corpus, views) = views(Fixture { items: true, seed: 9, ..Fixture::default() });
    for (own, view) in views.iter().enumerate() {
        let row = raw(view, 60);
        assert_eq!(row[PROJECTILES], NUM_ITEMS as f32);
        for slot in 0..5 {
            let (kind, [x, y, speed_x, speed_y], _, port) = fixtures::item(slot, 20);
            let owner = match port {
                -1 => 0.0,
                p if p as usize == own => 1.0,
                _ => 2.0,
            };
            let at = PROJECTILES + 1 + slot * PROJECTILE_WIDTH;
            let expected = [owner, kind.into(), x, y, speed_x, speed_y];
            assert_eq!(row[at..at + PROJECTILE_WIDTH], expected, "slot {slot}");
        }
    }
}

#[test]
fn versions_without_items_or_owners_have_none() {
    let items = |version| Fixture { version, items: true, seed: 10, ..Fixture::default() };
    let (_dir, _corpus, old) = views(items((2, 0)));
    assert_eq!(raw(&old[0], 9)[PROJECTILES..], [0.0; 31]);
    let (_dir, _corpus, ownerless) = views(items((3, 4)));
    let row = raw(&ownerless[0], 9);
    assert_eq!((row[PROJECTILES], row[PROJECTILES + 1]), (6.0, 0.0));
    assert_ne!(row[PROJECTILES + 2], 0.0);
}

#[test]
fn nana_has_values_only_while_she_exists() {
    let climbers = Player { character: fixtures::ICE_CLIMBERS, cpu: false };
    let players = vec![climbers, Player { character: 2, cpu: false }];
    let (_dir, _corpus, views) = views(Fixture { players, seed: 11, ..Fixture::default() });
    for t in 0..40 {
        let frame = t as i32 - 40;
        let row = raw(&views[0], t);
        let there = fixtures::nana_is_there(frame);
        assert_eq!(at(&row, OWN, "nana_exists"), f32::from(there));
        let state = fixtures::state(11, fixtures::nana(0), frame);
        let x = if there { state.x } else { 0.0 };
        assert_eq!(at(&row, OWN, "nana_x"), x);
        assert_eq!(at(&row, OWN, "nana_action") > 0.0, there);
        assert_eq!(at(&row, OPPONENT, "nana_exists"), 0.0);
    }
}

#[test]
fn a_game_has_metadata_and_its_unknown_ids_are_counted() {
    let usual = Fixture::default();
    let odd = Fixture { odd_ids: true, stage: 30, version: (3, 18), seed: 12, ..usual.clone() };
    let (_dir, corpus) = corpus(&[usual, odd]);
    let info = &corpus.games()[game(&corpus, 1)];
    assert_eq!((info.version.as_str(), info.stage), ("3.18.0", 30));
    assert_eq!((&info.ports[..], &info.characters[..]), (&[1, 2][..], &[1, 2][..]));
    assert_eq!(info.start_characters, [2, 9]);
    assert_eq!(info.tags, ["Player 0", "Player 1"]);
    // Frames -100, 0, 100, ..., 600, for both players.
    assert_eq!((info.other_ids.actions, info.other_ids.stages), (16, 1));
    assert_eq!(corpus.info().other_ids, info.other_ids);
    let views = corpus.views(&[game(&corpus, 1)]).unwrap();
    let row = raw(&views[0], 40);
    assert_eq!((row[STAGE], at(&row, OWN, "action")), (30.0, 500.0));
}
