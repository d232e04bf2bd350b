//! A run that learns from live games: sessions play CartPole, and their segments go to the learner.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sconce_data::{Over, Recorded, Sink};
use sconce_env::{EnvOptions, Envs, Stepped};
use sconce_nn::sampling::Sampling;
use sconce_nn::spec::{Embedding, Normalised};
use sconce_nn::{Policy, Spec, checkpoint};
use sconce_play::live::Inbox;
use sconce_play::options::PpoOptions;
use sconce_play::run::{Event, PlayReport, Task, run};
use sconce_serve::session::{Mode, Options, Overrides, Recording, Reward, Session};
use sconce_serve::{Format, Model};
use serde_json::json;

fn spec(backbone: serde_json::Value) -> Spec {
    serde_json::from_value(json!({
        "embedding": {"vector": 4},
        "backbone": backbone,
        "heads": {
            "kind": "independent", "stream_size": 8, "prior": false,
            "parts": [
                {"name": "action", "kind": {"categorical": 2}, "hidden_size": 0},
                {"name": "value", "kind": {"value": 1}, "hidden_size": 0},
            ],
        },
    }))
    .unwrap()
}

fn mlp() -> Spec {
    spec(json!({"mlp": {"hidden_sizes": [32], "layer_norm": false, "residual": false,
        "dropout": 0.0, "input_dropout": 0.0, "activation": "tanh"}}))
}

fn gru() -> Spec {
    spec(json!({"gru": {"hidden_size": 8, "num_layers": 1, "layer_norm": false,
        "input_norm": false, "dropout": 0.0, "input_dropout": 0.0}}))
}

fn session_options(mode: Mode, seed: u64, rollback: usize) -> Options {
    let sampling = Sampling::default();
    serde_json::from_value(json!({
        "mode": mode, "window_size": 4, "sampling": sampling, "seed": seed, "rollback": rollback,
    }))
    .unwrap()
}

/// One game of CartPole, which a session plays.
struct Game {
    session: Session,
    env: Envs,
    seen: Vec<f32>,
}

impl Game {
    fn new(model: &Arc<Model>, sink: Arc<dyn Sink>, seed: u64, recording: Recording) -> Self {
        let mut session =
            Session::over(model.clone(), session_options(Mode::Carry, seed, 0)).unwrap();
        session.record(sink, recording).unwrap();
        let options = EnvOptions { env: "cart_pole".into(), seed, ..EnvOptions::default() };
        let env = Envs::new(&options).unwrap();
        let mut seen = vec![0.0; 4];
        env.observe(&mut seen);
        Game { session, env, seen }
    }

    fn step(&mut self) {
        let act = self.session.act(&self.seen, &Overrides::default()).unwrap();
        let (mut reward, mut over) = ([0.0], [[0], [0]]);
        let [terminated, truncated] = &mut over;
        let (mut ended, mut last) = (vec![], vec![]);
        let mut out = Stepped {
            observations: &mut self.seen,
            rewards: &mut reward,
            terminated,
            truncated,
            ended: &mut ended,
            final_observations: &mut last,
        };
        self.env.step(&act.decision.choices, &mut out).unwrap();
        self.session.reward(None, reward[0]).unwrap();
        match over {
            [[1], _] => self.session.done(Over::Terminated, None).unwrap(),
            [_, [1]] => self.session.done(Over::Truncated, Some(&last)).unwrap(),
            _ => {}
        }
    }
}

fn terms(names: &[&str]) -> Arc<[String]> {
    names.iter().map(|name| name.to_string()).collect()
}

/// A sink that keeps all segments.
#[derive(Default)]
struct All(std::sync::Mutex<Vec<Recorded>>);

impl Sink for All {
    fn terms(&self) -> Arc<[String]> {
        terms(&["reward"])
    }

    fn put(&self, segment: Recorded) {
        self.0.lock().unwrap().push(segment);
    }
}

/// A sink of rewards with two terms.
#[derive(Default)]
struct Both(All);

impl Sink for Both {
    fn terms(&self) -> Arc<[String]> {
        terms(&["damage", "stock"])
    }

    fn put(&self, segment: Recorded) {
        self.0.put(segment);
    }
}

/// Sets a flag when it is dropped.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_policy_learns_from_live_games_whose_sessions_get_its_new_weights() {
    learns(false);
}

#[test]
fn a_policy_that_normalises_learns_from_live_games_whose_sessions_get_its_statistics() {
    learns(true);
}

fn learns(normalises: bool) {
    let spec = mlp();
    let inbox = Inbox::new(&spec, 0, &terms(&["reward"]), 8192).unwrap();
    let out = tempfile::tempdir().unwrap();
    let options: PpoOptions = serde_json::from_value(json!({
        "environments": 8, "rollout_steps": 64, "steps": 60_000, "target_return": 100.0, "seed": 3,
        "normalise_observations": normalises,
    }))
    .unwrap();
    let stop = AtomicBool::new(false);
    let report = std::thread::scope(|scope| {
        // A panic of the games ends the run too.
        let _end = Ending(&stop);
        let (inbox, stop, spec, options) = (&inbox, &stop, &spec, &options);
        let learner = scope.spawn(move || {
            let task = Task { spec, env: "live", host: None, inbox: Some(inbox), resume: false };
            let report = run(task, options, out.path(), &|_: Event| {}, stop);
            stop.store(true, Ordering::Relaxed);
            report
        });
        let mut games: Vec<Game> = vec![];
        let (mut version, mut model) = (None, None);
        if normalises {
            // These games begin before the run has weights, by those of their serving.
            let first = Arc::new(Policy::init(spec, 1).unwrap());
            model = Some(Arc::new(Model::new(first, Format::F32).unwrap()));
            version = Some(u64::MAX);
        }
        while !stop.load(Ordering::Relaxed) {
            let newest = inbox.newest();
            if let Some((newest, policy)) = newest.filter(|(newest, _)| version != Some(*newest)) {
                assert_eq!(policy.spec().embedding.normalises(), normalises);
                let new = Arc::new(Model::new(policy, Format::F32).unwrap());
                assert_eq!(new.version(), newest);
                for game in &mut games {
                    game.session.adopt(&new).unwrap();
                }
                (version, model) = (Some(newest), Some(new));
            }
            let Some(model) = &model else { continue };
            if games.is_empty() {
                let recording = Recording { steps: 32, stride: 16, hold: 0 };
                let game = |seed| Game::new(model, inbox.clone(), seed, recording);
                games = (0..8).map(game).collect();
            }
            // The games wait for the learner, so that weights are at most a few updates old.
            match inbox.counts().waiting < 64 {
                true => games.iter_mut().for_each(Game::step),
                false => std::thread::yield_now(),
            }
        }
        learner.join().unwrap().unwrap()
    });
    assert!(report.mean_return.unwrap() >= 100.0, "{:?}", report.mean_return);
    let figures = &report.history.last().unwrap().figures;
    assert!(figures["lag"] <= 8.0 && figures["misfits"] == 0.0, "{figures:?}");
}

#[test]
fn a_segment_is_what_the_learner_would_have_computed() {
    for spec in [mlp(), gru()] {
        let policy = Arc::new(Policy::init(&spec, 1).unwrap());
        let model = Arc::new(Model::new(policy.clone(), Format::F32).unwrap());
        let all = Arc::<All>::default();
        let recording = Recording { steps: 10, stride: 4, hold: 0 };
        let mut game = Game::new(&model, all.clone(), 7, recording);
        (0..200).for_each(|_| game.step());
        let segments = std::mem::take(&mut *all.0.lock().unwrap());
        assert!(segments.iter().any(|one| one.over == Over::Terminated));
        let zero = policy.zero_state(1).unwrap();
        let numbers = zero.to_vec().unwrap().len();
        let (mut episode, mut begins) = (0, true);
        for segment in &segments {
            segment.check(&spec, numbers, &terms(&["reward"])).unwrap();
            assert_eq!(Recorded::from_bytes(&segment.to_bytes()).unwrap(), *segment);
            assert!(segment.rewards.iter().all(|reward| *reward == 1.0));
            if begins && numbers > 0 {
                assert!(segment.states[..numbers].iter().all(|number| *number == 0.0));
            }
            // From each stored memory the sequence form has the recorded logits.
            for (i, start) in (0..segment.steps()).step_by(4).enumerate() {
                let time = 4.min(segment.steps() - start);
                let frames = sconce_nn::policy::Frames {
                    batch: 1,
                    time,
                    continuous: segment.continuous[4 * start..4 * (start + time)].to_vec(),
                    ids: vec![],
                    previous: segment.previous[start..start + time].to_vec(),
                };
                let state = match numbers {
                    0 => zero.clone(),
                    _ => zero.with_values(&segment.states[i * numbers..][..numbers]).unwrap(),
                };
                let (logits, _) =
                    policy.forward(&frames, None, &state, &Default::default()).unwrap();
                let logits: Vec<f32> = logits.flatten_all().unwrap().to_vec1().unwrap();
                for (own, other) in segment.logits[3 * start..].iter().zip(logits) {
                    assert!((own - other).abs() < 1e-5, "{own} and {other}");
                }
            }
            episode += segment.steps();
            begins = segment.over != Over::No;
            if begins {
                assert_eq!(segment.episode, (vec![episode as f32], episode as u32));
                episode = 0;
            }
        }
    }
}

#[test]
fn late_rewards_reach_their_decision_while_it_is_held() {
    let model =
        Arc::new(Model::new(Arc::new(Policy::init(&mlp(), 1).unwrap()), Format::F32).unwrap());
    let all = Arc::<All>::default();
    let mut session = Session::over(model.clone(), session_options(Mode::Carry, 1, 0)).unwrap();
    assert!(session.reward(None, 1.0).is_err(), "there is no recording");
    let recording = Recording { steps: 4, stride: 4, hold: 6 };
    session.record(all.clone(), recording).unwrap();
    assert!(session.reward(None, 1.0).unwrap_err().to_string().contains("a decision to reward"));
    let frame = [0.1, 0.2, 0.3, 0.4];
    let act = |session: &mut Session| session.act(&frame, &Overrides::default()).unwrap().frame;
    assert_eq!((0..9).map(|_| act(&mut session)).collect::<Vec<_>>(), (1..=9).collect::<Vec<_>>());
    // The first segment is complete, and only five newer decisions exist.
    session.reward(Some(2), 5.0).unwrap();
    session.reward(Some(9), 1.0).unwrap();
    act(&mut session);
    assert_eq!(all.0.lock().unwrap().len(), 0);
    act(&mut session);
    assert_eq!(all.0.lock().unwrap().len(), 1);
    let error = session.reward(Some(4), 1.0).unwrap_err().to_string();
    assert!(error.contains("5 to 11"), "{error}");
    assert!(session.reward(Some(12), 1.0).is_err());
    assert!(session.reward(None, f32::NAN).unwrap_err().to_string().contains("reward"));
    session.done(Over::Terminated, None).unwrap();
    let segments = std::mem::take(&mut *all.0.lock().unwrap());
    let rewards: Vec<_> = segments.iter().map(|one| one.rewards.clone()).collect();
    assert_eq!(rewards, [vec![0.0, 5.0, 0.0, 0.0], vec![0.0; 4], vec![1.0, 0.0, 0.0]]);
    let last = segments.last().unwrap();
    assert_eq!(
        (last.over, last.next_value, &last.episode),
        (Over::Terminated, 0.0, &(vec![6.0], 11))
    );
    // The value after a segment is that of the next decision.
    assert_eq!(segments[0].next_value, segments[1].logits[2]);
    // An episode that ends where a segment ends.
    assert_eq!((0..4).map(|_| act(&mut session)).last(), Some(4));
    session.done(Over::Truncated, Some(&frame)).unwrap();
    let segments = std::mem::take(&mut *all.0.lock().unwrap());
    assert_eq!((segments.len(), segments[0].over, segments[0].steps()), (1, Over::Truncated, 4));
    assert_eq!(segments[0].next_value, segments[0].logits[2]);
    // Other episodes draw other actions.
    assert_eq!(act(&mut session), 1);
    session.reset(None).unwrap();
    assert!(session.reward(None, 1.0).is_err(), "a game that was left is forgotten");
}

#[test]
fn taken_back_decisions_are_not_recorded_and_foreign_choices_are_refused() {
    for spec in [mlp(), gru()] {
        let model =
            Arc::new(Model::new(Arc::new(Policy::init(&spec, 1).unwrap()), Format::F32).unwrap());
        let open = |rollback: usize| {
            Session::over(model.clone(), session_options(Mode::Carry, 1, rollback)).unwrap()
        };
        let (straight, back) = (Arc::<All>::default(), Arc::<All>::default());
        let recording = Recording { steps: 5, stride: 3, hold: 0 };
        let frame = |i: usize| [0.1 * i as f32, 0.2, -0.1 * i as f32, 0.4];
        let (mut one, mut two) = (open(0), open(8));
        one.record(straight.clone(), recording).unwrap();
        two.record(back.clone(), recording).unwrap();
        for i in 0..20 {
            one.act(&frame(i), &Overrides::default()).unwrap();
            two.act(&frame(i), &Overrides::default()).unwrap();
            if i % 7 == 6 {
                two.back_to(i as u64 - 5).unwrap();
                (i - 5..=i).for_each(|i| drop(two.act(&frame(i), &Overrides::default()).unwrap()));
            }
        }
        one.done(Over::Terminated, None).unwrap();
        two.done(Over::Terminated, None).unwrap();
        // Only the number of the episode is another.
        let numbered = |all: &All, number: u64| -> Vec<Recorded> {
            let all = all.0.lock().unwrap();
            all.iter().map(|one| Recorded { number, ..one.clone() }).collect()
        };
        assert_eq!(numbered(&straight, 0), numbered(&back, 0));
        let given = Overrides { choices: Some(vec![1.0]), ..Overrides::default() };
        assert!(one.act(&frame(0), &given).unwrap_err().to_string().contains("recorded"));
        let cold: Overrides = serde_json::from_value(json!({"temperature": 0.5})).unwrap();
        assert!(one.act(&frame(0), &cold).unwrap_err().to_string().contains("recorded"));
        one.act(&frame(0), &Overrides::default()).unwrap();
    }
    // A decision after a segment that is taken back, and made on another frame.
    let model =
        Arc::new(Model::new(Arc::new(Policy::init(&mlp(), 1).unwrap()), Format::F32).unwrap());
    let mut session = Session::over(model, session_options(Mode::Carry, 1, 4)).unwrap();
    let all = Arc::<All>::default();
    session.record(all.clone(), Recording { steps: 4, stride: 4, hold: 0 }).unwrap();
    let play = |session: &mut Session, x: f32| {
        session.act(&[x, 0.0, 0.0, 0.0], &Overrides::default()).unwrap().decision.logits[2]
    };
    (0..5).for_each(|i| assert!(play(&mut session, i as f32).is_finite()));
    session.back_to(4).unwrap();
    let value = play(&mut session, -3.0);
    // A session that goes back to a snapshot leaves what it has not sent.
    let snapshot = session.snapshot().unwrap();
    (0..4).for_each(|i| assert!(play(&mut session, i as f32).is_finite()));
    assert_eq!(all.0.lock().unwrap()[0].next_value, value);
    session.restore(&snapshot).unwrap();
    assert!(session.reward(Some(5), 1.0).is_err());
    assert!(play(&mut session, 1.0).is_finite());
    session.reward(Some(6), 2.0).unwrap();
    // The session takes back as many decisions as it may. The end of the episode still reaches the sink.
    (0..4).for_each(|i| assert!(play(&mut session, i as f32).is_finite()));
    session.back_to(6).unwrap();
    session.done(Over::Terminated, None).unwrap();
    let segments = std::mem::take(&mut *all.0.lock().unwrap());
    assert_eq!(segments.len(), 2);
    assert_eq!((segments[1].over, &segments[1].rewards[..]), (Over::Terminated, &[2.0][..]));

    let window = session_options(Mode::Window, 1, 0);
    let model = Model::new(Arc::new(Policy::init(&gru(), 1).unwrap()), Format::F32).unwrap();
    let mut windows = Session::over(Arc::new(model), window).unwrap();
    let recording = Recording { steps: 5, stride: 3, hold: 0 };
    let error = windows.record(Arc::<All>::default(), recording).unwrap_err().to_string();
    assert!(error.contains("mode"), "{error}");
}

#[test]
fn a_reward_is_reported_by_its_terms_also_late_and_unknown_ones_are_refused_by_name() {
    let model =
        Arc::new(Model::new(Arc::new(Policy::init(&mlp(), 1).unwrap()), Format::F32).unwrap());
    let both = Arc::<Both>::default();
    let mut session = Session::over(model, session_options(Mode::Carry, 1, 2)).unwrap();
    session.record(both.clone(), Recording { steps: 3, stride: 3, hold: 3 }).unwrap();
    let act = |session: &mut Session| {
        session.act(&[0.1, 0.2, 0.3, 0.4], &Overrides::default()).unwrap();
    };
    (0..5).for_each(|_| act(&mut session));
    session.reward(None, Reward::Terms(&[("stock", -1.0), ("damage", 0.25)])).unwrap();
    session.reward(Some(2), Reward::Terms(&[("damage", 0.5)])).unwrap();
    session.reward(Some(2), Reward::Terms(&[("damage", 0.5), ("damage", 1.0)])).unwrap();
    for (reward, said) in [
        (Reward::Number(1.0), "a number for each of damage, stock"),
        (Reward::Terms(&[("damage", 1.0), ("stocks", 1.0)]), "reward term stocks"),
        (Reward::Terms(&[("damage", f32::INFINITY)]), "reward term damage"),
    ] {
        let error = session.reward(Some(2), reward).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
    // A decision that is taken back loses its terms.
    session.back_to(4).unwrap();
    act(&mut session);
    session.done(Over::Terminated, None).unwrap();
    act(&mut session);
    session.done(Over::Terminated, None).unwrap();
    let segments = std::mem::take(&mut *both.0.0.lock().unwrap());
    let rewards: Vec<_> = segments.iter().map(|one| one.rewards.clone()).collect();
    assert_eq!(rewards, [vec![0.0, 0.0, 2.0, 0.0, 0.0, 0.0], vec![0.0; 4], vec![0.0; 2]]);
    assert_eq!(segments[1].episode, (vec![2.0, 0.0], 5));
    segments.iter().for_each(|one| one.check(&mlp(), 0, &both.terms()).unwrap());
    // Segments of one episode have its number, and their places in it.
    let [first, second, third] = &segments[..] else { panic!("three segments") };
    assert_eq!((first.before, second.before, third.before), (0, 3, 0));
    assert!(first.number == second.number && first.number != third.number);
}

/// Learns from these segments in a run that stops after each number of updates and resumes. Returns the bits of the last
/// state.
fn learned(
    spec: &Spec,
    given: &PpoOptions,
    segments: &[Recorded],
    parts: &[u64],
) -> (Vec<(String, Vec<u32>)>, PlayReport) {
    let (out, inbox) = (tempfile::tempdir().unwrap(), {
        Inbox::new(spec, 0, &terms(&["reward"]), 1 << 20).unwrap()
    });
    segments.iter().for_each(|segment| inbox.offer(segment.clone()).unwrap());
    let mut report = None;
    for (i, updates) in parts.iter().enumerate() {
        let (stop, told) = (AtomicBool::new(false), std::cell::Cell::new(0));
        let events = |event: Event| {
            if let Event::Update { .. } = event {
                told.set(told.get() + 1);
                stop.store(told.get() == *updates, Ordering::Relaxed);
            }
        };
        let task = Task { spec, env: "live", host: None, inbox: Some(&inbox), resume: i > 0 };
        report = Some(run(task, given, out.path(), &events, &stop).unwrap());
    }
    let state = checkpoint::load(&out.path().join("last.safetensors")).unwrap();
    let weights = state
        .weights
        .iter()
        .map(|(name, weight)| (name.clone(), sconce_tensor::tensor::to_vec(weight).unwrap()));
    let all = weights.chain(state.optimiser);
    let bits = |own: Vec<f32>| own.iter().map(|v| v.to_bits()).collect();
    (all.map(|(name, own)| (name, bits(own))).collect(), report.unwrap())
}

#[test]
fn a_live_run_with_statistics_and_a_teacher_resumes_with_the_same_bits() {
    let (spec, files) = (mlp(), tempfile::tempdir().unwrap());
    let teacher = files.path().join("teacher.safetensors");
    Policy::init(&gru(), 5).unwrap().save(&teacher, serde_json::Value::Null).unwrap();
    let model =
        Arc::new(Model::new(Arc::new(Policy::init(&spec, 1).unwrap()), Format::F32).unwrap());
    let all = Arc::<All>::default();
    let recording = Recording { steps: 6, stride: 4, hold: 0 };
    let mut games: Vec<Game> =
        (0..4).map(|seed| Game::new(&model, all.clone(), seed, recording)).collect();
    (0..200).for_each(|_| games.iter_mut().for_each(Game::step));
    let mut segments = std::mem::take(&mut *all.0.lock().unwrap());
    // The run looks at the decisions of one update, and then publishes weights that decide the rest.
    let (mut seen, rollout, first_version) = (0, 64, 101);
    for segment in &mut segments {
        if seen >= rollout {
            segment.versions.fill(first_version);
        }
        seen += segment.steps();
    }
    let given = |scales: bool| -> PpoOptions {
        serde_json::from_value(json!({
            "environments": 4, "rollout_steps": 16, "sequence_length": 4, "minibatches": 2,
            "seed": 3, "steps": 64 * 6, "max_lag": 100, "normalise_observations": true,
            "normalise_rewards": scales, "teacher": teacher, "reward_weights": [["reward", 0.5]],
        }))
        .unwrap()
    };
    let (whole, report) = learned(&spec, &given(true), &segments, &[6]);
    assert!(whole.iter().any(|(name, _)| name == "live.memories"), "episodes go on");
    for parts in [&[3, 3][..], &[1, 4, 1]] {
        let (resumed, again) = learned(&spec, &given(true), &segments, parts);
        assert_eq!(whole, resumed);
        assert_eq!((report.mean_return, report.episodes), (again.mean_return, again.episodes));
    }
    let point = report.history.last().unwrap();
    assert!(point.figures["teacher_kl"] > 0.0);
    assert_eq!(point.rewards["reward"], 1.0);
    assert_eq!(report.mean_return.unwrap(), 0.5 * point.mean_length.unwrap());
    assert!(report.spec.embedding.normalises());
    // The scale of rewards has an effect.
    assert_ne!(learned(&spec, &given(false), &segments, &[6]).0, whole);
}

#[test]
fn frames_are_recorded_as_they_are_and_the_run_normalises_them() {
    let spec = mlp();
    let policy = Policy::init(&spec, 1).unwrap();
    let by = |mean: f32, deviation: f32| {
        let own = Normalised { mean: vec![mean; 4], deviation: vec![deviation; 4] };
        let spec = Spec { embedding: Embedding::normalised(own), ..spec.clone() };
        let policy = Policy::from_weights(&spec, policy.weights().clone()).unwrap();
        Arc::new(Model::new(Arc::new(policy), Format::F32).unwrap())
    };
    let (first, second) = (by(0.0, 0.01), by(1.0, 2.0));
    let all = Arc::<All>::default();
    let mut session = Session::over(first.clone(), session_options(Mode::Carry, 1, 0)).unwrap();
    let recording = Recording { steps: 4, stride: 4, hold: 0 };
    session.record(all.clone(), recording).unwrap();
    // The first statistics would clip these numbers.
    let frame = |t: usize| [t as f32, 1.0, -0.5, 3.0];
    let act = |session: &mut Session, t: usize| {
        session.act(&frame(t), &Overrides::default()).unwrap().decision.logits
    };
    let mut logits: Vec<_> = (0..2).map(|t| act(&mut session, t)).collect();
    assert!(session.adopt(&second).unwrap());
    logits.extend((2..4).map(|t| act(&mut session, t)));
    session.done(Over::Terminated, None).unwrap();
    let segment = all.0.lock().unwrap().pop().unwrap();
    assert_eq!(segment.continuous, (0..4).flat_map(frame).collect::<Vec<_>>());
    // Logits are those of the statistics that decided.
    for (t, (model, logits)) in
        [&first, &first, &second, &second].into_iter().zip(logits).enumerate()
    {
        assert_eq!(segment.logits[3 * t..3 * t + 3], logits);
        let mut fresh = Session::over(model.clone(), session_options(Mode::Carry, 1, 0)).unwrap();
        assert_eq!(act(&mut fresh, t), logits);
    }
    // An inbox of plain frames takes it.
    Inbox::new(&spec, 0, &terms(&["reward"]), 9).unwrap().offer(segment).unwrap();
}
