use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};

use sconce_env::EnvOptions;
use sconce_nn::Spec;
use sconce_nn::checkpoint;
use sconce_nn::spec::{Embedding, Head, HeadKind, Heads, HeadsKind};
use sconce_tensor::pool;
use serde_json::json;
use tempfile::TempDir;

use super::matches::{Payoff, Tournament, play};
use super::*;
use crate::options::PpoOptions;
use crate::rollout::{Player, Rollout};
use crate::run::{Event, PlayReport, Record, Stopped, Task, run};

static GO: AtomicBool = AtomicBool::new(false);

fn duel() -> EnvOptions {
    EnvOptions { env: "duel".into(), ..EnvOptions::default() }
}

fn spec(backbone: Value) -> Spec {
    let env = sconce_env::spec(&duel()).unwrap();
    let mut heads = Heads::of_parts(&env.inputs, HeadsKind::Independent);
    heads.parts.push(Head { name: "value".into(), kind: HeadKind::Value(1), hidden_size: 0 });
    heads.parts.iter_mut().for_each(|head| head.hidden_size = 0);
    let embedding = Embedding::vector(env.observation_size);
    serde_json::from_value(json!({"embedding": embedding, "backbone": backbone, "heads": heads}))
        .unwrap()
}

fn mlp() -> Spec {
    spec(json!({"mlp": {"hidden_sizes": [8], "layer_norm": false, "residual": false,
        "dropout": 0.0, "input_dropout": 0.0}}))
}

fn gru() -> Spec {
    spec(json!({"gru": {"hidden_size": 6, "num_layers": 1, "layer_norm": false,
        "input_norm": false, "dropout": 0.0, "input_dropout": 0.0}}))
}

/// A run of updates of 8 environments, whose episodes are short.
fn options(updates: u64, more: Value) -> PpoOptions {
    let mut all = json!({
        "environments": 8, "rollout_steps": 16, "sequence_length": 8, "minibatches": 2, "seed": 5,
        "time_limit": 20, "steps": 16 * 12 * updates, "past_selves": 3, "snapshot_every": 1,
    });
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(all).unwrap()
}

fn go(spec: &Spec, options: &PpoOptions, out: &Path, resume: bool) -> Result<PlayReport> {
    run(Task { spec, env: "duel", host: None, inbox: None, resume }, options, out, &|_| {}, &GO)
}

/// The bytes of every array of a state, and its league.
fn state(out: &Path) -> (Vec<(String, Vec<u32>)>, Value) {
    let state = checkpoint::load(&out.join("last.safetensors")).unwrap();
    let weights = state
        .weights
        .iter()
        .map(|(name, weight)| (name.clone(), sconce_tensor::tensor::to_vec(weight).unwrap()));
    let all = weights.chain(state.optimiser);
    let bits = |own: Vec<f32>| own.iter().map(|v| v.to_bits()).collect();
    (all.map(|(name, own)| (name, bits(own))).collect(), state.manifest.run["league"].clone())
}

fn saved(spec: &Spec, out: &TempDir, name: &str) -> String {
    let path = out.path().join(name);
    Policy::init(spec, 9).unwrap().save(&path, Value::Null).unwrap();
    path.to_str().unwrap().to_string()
}

#[test]
fn opponents_that_win_are_chosen_more_often_by_priority_and_all_equally_otherwise() {
    let rates = [0.9, 0.5, 0.1];
    assert_eq!(Choice::Uniform.probabilities(&rates, 2.0), [1.0 / 3.0; 3]);
    let own = Choice::Prioritised.probabilities(&rates, 2.0);
    assert!((own.iter().sum::<f64>() - 1.0).abs() < 1e-12, "{own:?}");
    // 0.01, 0.25 and 0.81 of 1.07, and a uniform share of 0.1.
    for (own, wanted) in own.iter().zip([0.0417, 0.2436, 0.7146]) {
        assert!((own - wanted).abs() < 1e-3, "{own} {wanted}");
    }
    assert_eq!(Choice::Prioritised.probabilities(&[1.0, 1.0], 2.0), [0.5; 2]);
    let chances = [(7, 0.25), (8, 0.75)];
    let picked = [0.0, 0.2, 0.3, 0.99].map(|share| choice::pick(&chances, share).unwrap());
    assert_eq!(picked, [7, 7, 8, 8]);
    assert_eq!(choice::pick::<u32>(&[], 0.5), None);
}

#[test]
fn the_payoff_of_three_scripted_players_is_a_ring_in_both_seats() {
    let player = |name| Frozen::Scripted(sconce_env::player("duel", name).unwrap());
    let players = ["striker", "thrower", "guarder", "idle"].map(player);
    let all = play(&players, &duel(), Tournament::default(), &GO).unwrap();
    let rate = |of: &Payoff, a: usize, b: usize| {
        (f64::from(of.wins[a][b]) + 0.5 * f64::from(of.draws[a][b])) / 200.0
    };
    for (a, b) in [(0, 1), (1, 2), (2, 0)] {
        assert!(rate(&all, a, b) > 0.6, "{:?}", all.wins);
        assert_eq!(rate(&all, a, b) + rate(&all, b, a), 1.0);
    }
    // A player that stands still wins in neither seat.
    assert_eq!((all.wins[3][0], all.wins[3][1], all.wins[0][3]), (0, 0, 200));
    assert!(all.ratings[0].elo > all.ratings[3].elo + 200.0);
    let policy = Frozen::Learned(Arc::new(Policy::init(&gru(), 1).unwrap()));
    let mixed = [players[0].clone(), policy];
    let with = |threads: usize, games: usize| {
        pool::set_threads(threads).unwrap();
        play(&mixed, &duel(), Tournament { games, ..Tournament::default() }, &GO).unwrap()
    };
    assert_eq!(with(1, 300), with(3, 300));
    let all = with(2, 200);
    assert!(rate(&all, 0, 1) > 0.5, "{:?} {:?}", all.wins, all.draws);
}

#[test]
fn matches_that_cannot_be_are_refused() {
    let player = |name| Frozen::Scripted(sconce_env::player("duel", name).unwrap());
    let refused = |players: &[Frozen], env: EnvOptions, games: usize| {
        let tournament = Tournament { games, ..Tournament::default() };
        play(players, &env, tournament, &GO).unwrap_err().to_string()
    };
    let both = ["striker", "idle"].map(player);
    assert!(refused(&both[..1], duel(), 10).contains("players"));
    assert!(refused(&both, duel(), 0).contains("games"));
    let cart_pole = EnvOptions { env: "cart_pole".into(), ..EnvOptions::default() };
    assert!(refused(&both, cart_pole, 10).contains("seats"));
    let other = Spec { embedding: Embedding::vector(3), ..mlp() };
    let other = Frozen::Learned(Arc::new(Policy::init(&other, 1).unwrap()));
    assert!(refused(&[both[0].clone(), other], duel(), 10).contains("observation"));
    let stop = AtomicBool::new(true);
    let stopped = play(&both, &duel(), Tournament::default(), &stop);
    assert!(matches!(stopped, Err(Error::Cancelled)));
}

#[test]
fn a_resumed_league_has_the_bits_of_one_that_was_not_interrupted() {
    let files = TempDir::new().unwrap();
    let (memory, plain) = (saved(&gru(), &files, "gru.st"), saved(&mlp(), &files, "mlp.st"));
    let opponents =
        json!({"opponents": ["mixer", memory, plain], "opponent_choice": "prioritised"});
    for (spec, more) in
        [(gru(), opponents), (mlp(), json!({"normalise_observations": true, "frame_stack": 1}))]
    {
        let [whole, parts] = [0, 1].map(|_| TempDir::new().unwrap());
        let given = options(6, more);
        go(&spec, &given, whole.path(), false).unwrap();
        let (stop, updates) = (AtomicBool::new(false), RefCell::new(0));
        let half = |event: Event| {
            if let Event::Update { .. } = event {
                *updates.borrow_mut() += 1;
                stop.store(*updates.borrow() == 4, Ordering::Relaxed);
            }
        };
        let task = Task { spec: &spec, env: "duel", host: None, inbox: None, resume: false };
        let report = run(task, &given, parts.path(), &half, &stop).unwrap();
        assert_eq!((report.stopped, report.updates), (Stopped::Stopped, 4));
        let report = go(&spec, &given, parts.path(), true).unwrap();
        assert_eq!((report.stopped, report.updates), (Stopped::Finished, 6));
        assert_eq!(state(whole.path()), state(parts.path()));
        assert!(report.opponents.iter().map(|own| own.games).sum::<u64>() > 4);
        assert_eq!(report.history[5].opponents, report.opponents);
        assert!(report.mean_return.is_some() && report.elo.is_some());
    }
}

#[test]
fn a_league_has_the_same_bits_with_any_number_of_threads() {
    let of = |threads: usize| {
        let out = TempDir::new().unwrap();
        let more = json!({"environments": 64, "threads": threads, "steps": 6144, "opponents": ["striker"]});
        go(&mlp(), &options(4, more), out.path(), false).unwrap();
        state(out.path())
    };
    let one = of(1);
    assert_eq!(one, of(2));
    assert_eq!(one, of(5));
}

#[test]
fn past_selves_are_spread_over_the_run_and_other_files_are_removed() {
    let out = TempDir::new().unwrap();
    let report = go(&mlp(), &options(9, json!({})), out.path(), false).unwrap();
    let names: Vec<_> = report.opponents.iter().map(|own| own.name.clone()).collect();
    assert_eq!(names.len(), 3, "{names:?}");
    assert_eq!((names[0].as_str(), names[2].as_str()), ("self 0", "self 8"));
    let files = std::fs::read_dir(out.path().join("league")).unwrap();
    let files = files.map(|file| file.unwrap().path()).collect::<Vec<_>>();
    // Those that were let go may still finish an episode.
    assert!((3..=6).contains(&files.len()), "{files:?}");
    assert!(files.iter().all(|file| Policy::load(file).is_ok()));
    let few = report.opponents.iter().map(|own| own.probability).collect::<Vec<_>>();
    assert_eq!(few, [1.0 / 3.0; 3]);
}

/// Updates of the past selves that stay of a run with `snapshots` of them.
fn kept(snapshots: u64, most: usize) -> Vec<u64> {
    let mut own = vec![];
    for update in 0..snapshots {
        own.push(update);
        if let Some(gone) = surplus(&own, most) {
            own.remove(gone);
        }
    }
    own
}

#[test]
fn the_gaps_between_past_selves_are_nearly_even() {
    for snapshots in [50, 200, 1000] {
        let own = kept(snapshots, 3);
        assert_eq!((own.len(), own[0], own[2]), (3, 0, snapshots - 1), "{own:?}");
        let place = own[1] as f64 / own[2] as f64;
        assert!((place - 0.5).abs() < 0.2, "{own:?}");
        for most in [5, 10, 20] {
            let own = kept(snapshots, most);
            assert_eq!((own.len(), own[0], own[most - 1]), (most, 0, snapshots - 1), "{own:?}");
            let even = (snapshots - 1) as f64 / (most - 1) as f64;
            assert!(own.windows(2).all(|two| ((two[1] - two[0]) as f64) < 2.0 * even), "{own:?}");
        }
    }
    assert_eq!((kept(9, 1), kept(9, 2)), (vec![8], vec![0, 8]));
}

#[test]
fn a_damaged_state_of_a_league_is_refused() {
    let (out, env) = (TempDir::new().unwrap(), sconce_env::spec(&duel()).unwrap());
    let given = options(1, json!({"opponents": ["mixer"]})).league;
    let open = |saved: Option<LeagueState>| League::new(&given, &env, Some(out.path()), 5, saved);
    let refused = |saved: LeagueState| open(Some(saved)).err().unwrap().to_string();
    let mut league = open(None).unwrap();
    league.keep(&Policy::init(&mlp(), 1).unwrap(), 0, Value::Null).unwrap();
    let state = league.state().clone();
    assert_eq!(open(Some(state.clone())).unwrap().players().len(), 2);
    let low = LeagueState { next: 1, ..state.clone() };
    assert!(refused(low).contains("the next member is 1"));
    let mut more = LeagueState { next: 3, ..state.clone() };
    more.members.insert(2, Standing::new("gone"));
    assert!(refused(more).contains("no player for member 2, gone"));
    Policy::init(&mlp(), 2).unwrap().save(&league.file(0).unwrap(), Value::Null).unwrap();
    let error = refused(state);
    assert!(error.contains("self-00000000") && error.contains("another file"), "{error}");
}

#[test]
fn left_over_numbers_of_opponents_are_refused() {
    let policy = Policy::init(&mlp(), 1).unwrap();
    let mut player = Player::against(&EnvOptions { count: 4, ..duel() }, &policy, 0.0).unwrap();
    let other = Frozen::Learned(Arc::new(Policy::init(&gru(), 1).unwrap()));
    let members = BTreeMap::from([(0, other)]);
    player.meet(members.iter().map(|(id, own)| (*id, own))).unwrap();
    let numbers = player.numbers().unwrap();
    player.restore_opponents(&numbers, &members).unwrap();
    let mut previous = numbers.words("0.opponents.previous").unwrap();
    previous.push(0);
    let mut memory = numbers.get("0.opponents.memory").unwrap().to_vec();
    memory.push(0.0);
    let (mut words, mut floats) = (numbers.clone(), numbers);
    words.put_words("0.opponents.previous", &previous);
    floats.put("0.opponents.memory", memory);
    for (damaged, what) in [(words, "previous actions"), (floats, "memories")] {
        let error = player.restore_opponents(&damaged, &members).unwrap_err().to_string();
        assert!(error.contains(what) && error.contains("1 numbers are left over"), "{error}");
    }
}

#[test]
fn reward_terms_are_means_of_the_first_seat_in_self_play_and_missing_in_a_league() {
    let out = TempDir::new().unwrap();
    let more = json!({"past_selves": 0, "snapshot_every": 20, "steps": 32_768, "time_limit": 200,
        "rollout_steps": 512, "environments": 32});
    let alone = options(1, more);
    let report = go(&mlp(), &alone, out.path(), false).unwrap();
    let policy = Policy::init_orthogonal(&mlp(), alone.machine.seed).unwrap();
    let mut player = Player::new(&alone.env("duel"), &policy).unwrap();
    player.play(&policy, Rollout { steps: 512, stride: 8 }).unwrap();
    let sums = player.take_terms().unwrap();
    assert!(sums.iter().any(|sum| *sum != 0.0), "{sums:?}");
    let names = player.spec().reward_terms.iter().map(|name| name.to_string());
    let wanted = names.zip(sums.iter().map(|sum| sum / (32.0 * 512.0))).collect();
    assert_eq!(report.history[0].rewards, wanted);
    let out = TempDir::new().unwrap();
    let report = go(&mlp(), &options(1, json!({})), out.path(), false).unwrap();
    assert!(report.history[0].rewards.is_empty());
}

#[test]
fn the_learner_never_loses_to_a_player_that_stands_still_in_either_seat() {
    let out = TempDir::new().unwrap();
    let more = json!({"opponents": ["idle"], "past_selves": 0, "snapshot_every": 20,
        "self_play_share": 0.0, "steps": 100_000, "rollout_steps": 64, "environments": 16,
        "time_limit": 200});
    let report = go(&mlp(), &options(1, more), out.path(), false).unwrap();
    let idle = &report.opponents[0];
    assert!(idle.wins > 0 && idle.losses == 0 && idle.win_rate > 0.5, "{idle:?}");
    assert!(idle.elo < 1200.0 && report.elo.unwrap() > 1200.0);
    assert_eq!((idle.games, report.episodes), (idle.wins + idle.draws, idle.games));
    assert!(!out.path().join("best.safetensors").exists());
}

#[test]
fn leagues_that_cannot_be_are_refused() {
    let (files, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let refused = |more: Value| {
        let out = TempDir::new().unwrap();
        go(&mlp(), &options(1, more), out.path(), false).unwrap_err().to_string()
    };
    let none = json!({"past_selves": 0, "snapshot_every": 20, "self_play_share": 0.2});
    assert!(refused(none).contains("self_play_share"));
    assert!(refused(json!({"past_selves": 0})).contains("snapshot_every"));
    assert!(refused(json!({"opponent": "mixer"})).contains("opponent"));
    assert!(refused(json!({"target_return": 1.0})).contains("opponents that change"));
    assert!(refused(json!({"opponents": ["strikr"]})).contains("striker"));
    assert!(refused(json!({"opponents": ["gone.safetensors"]})).contains("gone.safetensors"));
    let narrow = Spec { embedding: Embedding::vector(3), ..mlp() };
    let narrow = saved(&narrow, &files, "narrow.st");
    assert!(refused(json!({"opponents": [narrow]})).contains("observation"));
    let task = Task { spec: &mlp(), env: "cart_pole", host: None, inbox: None, resume: false };
    let error = run(task, &options(1, json!({})), out.path(), &|_| {}, &GO).unwrap_err();
    assert!(error.to_string().contains("two seats"), "{error}");
    let own = saved(&mlp(), &files, "own.st");
    let given = options(2, json!({"opponents": [own]}));
    go(&mlp(), &given, out.path(), false).unwrap();
    Policy::init(&mlp(), 10).unwrap().save(Path::new(&own), Value::Null).unwrap();
    let error = go(&mlp(), &given, out.path(), true).unwrap_err().to_string();
    assert!(error.contains("own.st") && error.contains("another file"), "{error}");
    let error = go(&mlp(), &options(2, json!({})), out.path(), true).unwrap_err().to_string();
    assert!(error.contains("opponents"), "{error}");
    assert_eq!(Record::read(out.path()).unwrap().options.league.opponents, [own]);
}
