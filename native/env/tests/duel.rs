//! The rules of the duel, its scripted players and its symmetry.

mod support;

use sconce_env::{EnvOptions, player};
use sconce_tensor::rng::Rng;
use support::{Run, options};

const COUNT: usize = 200;
const IDLE: [f32; 2] = [0.0, 0.0];

/// Plays an episode in each environment. Returns the returns of seat 0.
fn games(names: [&str; 2]) -> Vec<f32> {
    let players = names.map(|name| player("duel", name).unwrap());
    let mut run = Run::of("duel", COUNT);
    let mut returns = vec![None; COUNT];
    for t in 0..300 {
        let rng = Rng::new(3, "test", t);
        let mut inputs = vec![0.0; 4 * COUNT];
        for (row, input) in inputs.chunks_mut(2).enumerate() {
            players[row % 2](run.row(row), rng.block(row as u64), input);
        }
        run.step(&inputs);
        let mut episodes = vec![];
        run.envs.episodes(&mut episodes);
        for episode in episodes.iter().filter(|episode| episode.seat == 0) {
            returns[episode.env as usize].get_or_insert(episode.ret);
        }
    }
    returns.into_iter().map(|ret| ret.unwrap()).collect()
}

fn wins(names: [&str; 2]) -> f32 {
    games(names).iter().filter(|ret| **ret > 0.0).count() as f32 / COUNT as f32
}

#[test]
fn three_scripted_players_beat_each_other_in_a_ring() {
    for pair in [["striker", "thrower"], ["thrower", "guarder"], ["guarder", "striker"]] {
        let (forth, back) = (wins(pair), wins([pair[1], pair[0]]));
        assert!(forth > 0.8 && back < 0.1, "{pair:?}: {forth}, {back}");
    }
}

#[test]
fn a_player_that_stands_still_never_wins_and_loses_to_every_attacker() {
    for name in ["striker", "guarder", "thrower", "mixer"] {
        assert_eq!(wins(["idle", name]), 0.0, "{name}");
        assert!(wins([name, "idle"]) > 0.99, "{name}");
    }
    assert!(games(["idle", "idle"]).iter().all(|ret| *ret == 0.0));
}

#[test]
fn swapping_the_seats_mirrors_the_game() {
    let (mut run, mut swapped) = (Run::of("duel", 40), Run::of("duel", 40));
    let swap = |values: &[f32], width: usize| -> Vec<f32> {
        let pairs = values.chunks(2 * width);
        pairs.flat_map(|pair| [&pair[width..], &pair[..width]].concat()).collect()
    };
    for t in 0..400 {
        assert_eq!(swap(&run.observations, 19), swapped.observations, "step {t}");
        let inputs = run.random(t);
        run.step(&inputs);
        swapped.step(&swap(&inputs, 2));
        assert_eq!(swap(&run.rewards, 1), swapped.rewards);
        assert_eq!(run.ended, swapped.ended);
    }
}

#[test]
fn rewards_of_the_two_seats_add_up_to_zero_and_an_episode_ends_at_three_touches() {
    let mut run = Run::of("duel", 50);
    let mut episodes = vec![];
    for t in 0..600 {
        let mut inputs = run.random(t);
        // Random players that approach score often.
        inputs.chunks_mut(2).for_each(|input| input[0] = 1.0);
        run.step(&inputs);
        assert!(run.rewards.chunks(2).all(|pair| pair[0] + pair[1] == 0.0));
        run.envs.episodes(&mut episodes);
    }
    assert!(episodes.iter().all(|e| e.terminated && e.length <= 300 && e.ret.abs() <= 4.0));
    assert!(episodes.chunks(2).all(|pair| pair[0].ret == -pair[1].ret && pair[1].seat == 1));
    assert!(episodes.iter().any(|e| e.length < 300 && e.ret == 4.0));
}

/// The state of a player: position, velocity, stamina, act, remaining frames, shown act, touches.
fn seat(position: f32, act: f32, remaining: f32) -> [f32; 7] {
    [position, 0.0, 1.0, act, remaining, 0.0, 0.0]
}

/// The rewards of seat 0 in frames in which both players stand still, from a state of both.
fn frames(a: [f32; 7], b: [f32; 7], n: usize) -> (Vec<f32>, Vec<f32>) {
    let mut run = Run::of("duel", 1);
    run.envs.set_state(0, &[&a[..], &b, &[0.0, 0.0]].concat()).unwrap();
    let frame = |_| {
        run.step(&[IDLE, IDLE].concat());
        run.rewards[0]
    };
    ((0..n).map(frame).collect(), run.observations.clone())
}

#[test]
fn acts_beat_each_other_as_the_table_says() {
    const FAR: f32 = -0.5;
    let near = |act, remaining| seat(-0.1, act, remaining);
    let (wait, strike, guard, throw) = (0.0, 1.0, 2.0, 3.0);
    let cases = [
        // A strike that lands, and one that does not reach.
        (near(strike, 1.0), near(wait, 0.0), 1.0),
        (near(strike, 1.0), seat(FAR, wait, 0.0), 0.0),
        (near(strike, 1.0), near(guard, 9.0), -1.0),
        (near(strike, 1.0), near(throw, 1.0), 1.0),
        (near(strike, 1.0), near(throw, 5.0), 1.0),
        (near(strike, 1.0), near(strike, 3.0), 1.0),
        (near(strike, 1.0), near(strike, 1.0), 0.0),
        (near(throw, 1.0), near(guard, 9.0), 1.0),
        (near(throw, 1.0), near(wait, 0.0), 1.0),
        (near(throw, 1.0), near(wait, 4.0), 1.0),
        (near(throw, 1.0), near(strike, 3.0), 0.0),
        (near(throw, 1.0), near(throw, 1.0), 0.0),
        (near(throw, 1.0), near(throw, 2.0), 1.0),
        (near(guard, 9.0), near(wait, 0.0), 0.0),
        (near(guard, 9.0), near(guard, 9.0), 0.0),
    ];
    for (a, b, reward) in cases {
        assert_eq!(frames(a, b, 1).0, [reward], "{a:?} {b:?}");
        assert_eq!(frames(b, a, 1).0, [-reward], "{b:?} {a:?}");
    }
    // The strike that a throw could not stop lands.
    assert_eq!(frames(near(throw, 1.0), near(strike, 3.0), 3).0, [0.0, 0.0, -1.0]);
}

#[test]
fn an_act_is_hidden_until_it_lands_and_costs_stamina() {
    let mut run = Run::of("duel", 1);
    let other = |run: &Run| (run.row(1)[11], run.row(1)[12..16].to_vec());
    run.step(&[0.0, 1.0, 0.0, 0.0]);
    assert_eq!((run.row(0)[5], run.row(0)[7]), (1.0 - 0.25 + 0.012, 1.0));
    for _ in 0..5 {
        assert_eq!(other(&run), (1.0, vec![1.0, 0.0, 0.0, 0.0]));
        run.step(&[IDLE, IDLE].concat());
    }
    assert_eq!(other(&run), (1.0, vec![0.0, 1.0, 0.0, 0.0]));
    // Eight frames after the strike the player is free again.
    (0..8).for_each(|_| run.step(&[IDLE, IDLE].concat()));
    assert_eq!(other(&run).0, 0.0);
    // Without stamina no act begins.
    let mut state = run.envs.state(0);
    state[2] = 0.2;
    run.envs.set_state(0, &state).unwrap();
    run.step(&[0.0, 1.0, 0.0, 0.0]);
    assert_eq!(other(&run).0, 0.0);
}

#[test]
fn players_do_not_pass_each_other_or_leave_the_line() {
    let mut run = Run::of("duel", 1);
    for (share, positions) in [(1.0, [-0.05, 0.05]), (-1.0, [-1.0, 1.0])] {
        (0..60).for_each(|_| run.step(&[share, 0.0, share, 0.0]));
        for (got, want) in run.row(0).iter().zip(positions) {
            assert!((got - want).abs() < 1e-6, "{got} {want}");
        }
    }
    // At a wall, the other player does not push through.
    (0..60).for_each(|_| run.step(&[-1.0, 0.0, 1.0, 0.0]));
    assert!((run.row(0)[0] + 1.0).abs() < 1e-6 && (run.row(0)[2] - 0.1).abs() < 1e-6);
}

#[test]
fn the_time_limit_decides_by_touches() {
    let mut run = Run::new(&EnvOptions { time_limit: Some(2), ..options("duel", 3) });
    for (env, touches) in [(0, [2.0, 1.0]), (1, [1.0, 1.0]), (2, [0.0, 1.0])] {
        let mut state = run.envs.state(env);
        (state[6], state[13]) = (touches[0], touches[1]);
        run.envs.set_state(env, &state).unwrap();
    }
    run.step(&[0.0; 12]);
    assert_eq!(run.row(0)[18], 0.5);
    run.step(&[0.0; 12]);
    assert_eq!(run.rewards, [1.0, -1.0, 0.0, -0.0, -1.0, 1.0]);
    assert_eq!(
        (run.terminated.as_slice(), run.truncated.as_slice()),
        ([1; 6].as_slice(), [1; 6].as_slice())
    );
}

#[test]
fn a_scripted_opponent_takes_seat_1() {
    let with = |name: &str| EnvOptions { opponent: Some(name.into()), ..options("duel", 20) };
    let mut run = Run::new(&with("striker"));
    assert_eq!((run.envs.rows(), run.envs.spec().seats), (20, 1));
    assert_eq!(run.envs.spec().players.len(), 5);
    let mut episodes = vec![];
    for _ in 0..300 {
        run.step(&[0.0; 40]);
        run.envs.episodes(&mut episodes);
    }
    assert!(episodes.len() >= 20 && episodes.iter().all(|e| e.ret == -4.0 && e.seat == 0));
    let error = sconce_env::spec(&with("strikers")).unwrap_err();
    let text = r#"opponent "strikers" (the nearest name is "striker") not found"#;
    assert_eq!(error.to_string(), text);
}

#[test]
fn equal_seeds_play_equal_games_against_an_opponent() {
    let all = |seed| {
        let opponent = Some("mixer".into());
        let mut run = Run::new(&EnvOptions { opponent, seed, ..options("duel", 37) });
        let step = |t| {
            run.step(&run.random(t));
            run.bits()
        };
        (0..200).map(step).collect::<Vec<_>>()
    };
    assert_eq!(all(1), all(1));
    assert_ne!(all(1), all(2));
}
