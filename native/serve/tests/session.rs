//! Decisions of a session, against the policy that it steps.

use std::sync::{Arc, Barrier, Mutex, MutexGuard, RwLock, mpsc};
use std::time::Duration;

use sconce_nn::backbone::Context;
use sconce_nn::embedding::melee;
use sconce_nn::heads::NONE;
use sconce_nn::policy::Frames;
use sconce_nn::sampling::Sampling;
use sconce_nn::spec::{
    AttentionConfig, Backbone, Embedding, Head, HeadKind, Heads, HeadsConfig, HeadsKind, Melee,
    MlpConfig, Normalised, RecurrentConfig,
};
use sconce_nn::{Policy, Spec};
use sconce_serve::frames::{self, Beyond};
use sconce_serve::session::{
    Call, Lane, MAX_INLINE_US, Mode, Options, Overrides, Path, Session, decide_many, lane, live,
};
use sconce_serve::{Format, Model, Plan};
use sconce_tensor::{Kind, pool, tensor};

const WINDOW: usize = 5;

/// Live sessions are counted per process, so tests that open sessions run one at a time.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|e| e.into_inner())
}

fn recurrent(hidden_size: usize) -> RecurrentConfig {
    RecurrentConfig {
        hidden_size,
        num_layers: 2,
        layer_norm: true,
        input_norm: true,
        dropout: 0.1,
        input_dropout: 0.0,
        initial_state: true,
        ..Default::default()
    }
}

fn backbones() -> [Backbone; 3] {
    let mlp = MlpConfig {
        hidden_sizes: vec![16, 16],
        layer_norm: false,
        residual: true,
        activation: Default::default(),
        dropout: 0.1,
        input_dropout: 0.0,
    };
    [Backbone::Mlp(mlp), Backbone::Lstm(recurrent(12)), Backbone::Gru(recurrent(12))]
}

/// Attention with a window shorter than the games of the tests, so that its rings wrap around.
fn attention() -> Backbone {
    Backbone::SlidingWindow(AttentionConfig {
        hidden_size: 16,
        num_layers: 2,
        num_heads: 2,
        head_dim: 8,
        window_size: 4,
        qk_layernorm: true,
        input_norm: true,
        dropout: 0.0,
        input_dropout: 0.0,
    })
}

fn heads(kind: HeadsKind) -> Heads {
    let head = |name: &str, kind| Head { name: name.into(), kind, hidden_size: 8 };
    let parts = vec![head("fire", HeadKind::Bernoulli(2)), head("move", HeadKind::Categorical(4))];
    Heads { kind, parts, stream_size: 8, prior: false }
}

fn policy(embedding: Embedding, backbone: Backbone, heads: Heads) -> Arc<Policy> {
    let policy = Policy::init(&Spec { embedding, backbone, heads, critic: None }, 11).unwrap();
    for weight in policy.weights().iter().filter(|(name, _)| name.contains("initial_state")) {
        let fill =
            |v: &mut [f32]| v.iter_mut().enumerate().for_each(|(i, v)| *v = (i as f32).sin());
        tensor::update(weight.1, fill).unwrap();
    }
    Arc::new(policy)
}

fn vector(backbone: Backbone) -> Arc<Policy> {
    policy(Embedding::vector(3), backbone, heads(HeadsKind::Autoregressive))
}

fn controller(backbone: Backbone) -> Arc<Policy> {
    let heads = Heads { prior: true, ..Heads::controller(HeadsKind::Independent) };
    policy(Embedding::melee(Melee::default()), backbone, heads)
}

fn options(mode: Mode) -> Options {
    Options {
        mode,
        window_size: WINDOW,
        sampling: Sampling::default(),
        seed: 5,
        lane: None,
        frame_delay: None,
        project_out: None,
        weights: Format::F32,
        rollback: 0,
    }
}

fn open(policy: &Arc<Policy>, mode: Mode) -> Session {
    Session::open(policy.clone(), options(mode)).unwrap()
}

fn unpacked(policy: &Arc<Policy>, mode: Mode) -> Session {
    let model = Model::unpacked(policy.clone()).unwrap();
    Session::over(Arc::new(model), options(mode)).unwrap()
}

fn raw(t: usize) -> Vec<f32> {
    (0..3).map(|i| ((t * 3 + i) as f32 * 0.7).sin() * 2.0).collect()
}

/// Logits of the last frame, from a pass over the whole window whose autoregressive heads read `choices`.
fn logits(policy: &Policy, raw: &[Vec<f32>], choices: &[f32]) -> Vec<f32> {
    let frames = embedded(policy, raw);
    let state = policy.zero_state(1).unwrap();
    let labels = choices.repeat(raw.len());
    let (all, _) = policy.forward(&frames, Some(&labels), &state, &Context::default()).unwrap();
    let width = all.dim(1).unwrap();
    let all = tensor::to_vec(&all).unwrap();
    all[all.len() - width..].to_vec()
}

fn embedded(policy: &Policy, raw: &[Vec<f32>]) -> Frames {
    frames::embed(policy.spec(), &raw.concat(), 1, raw.len(), Beyond::default()).unwrap()
}

fn assert_close(got: &[f32], want: &[f32], about: &str) {
    assert_eq!(got.len(), want.len(), "{about}");
    for (g, w) in got.iter().zip(want) {
        assert!((g - w).abs() < 1e-5, "{about}: {g} is not {w}");
    }
}

/// The last [`WINDOW`] frames of `0..=t`, padded at the start with copies of the first.
fn padded(t: usize) -> Vec<Vec<f32>> {
    (0..WINDOW).map(|k| raw((t + 1 + k).saturating_sub(WINDOW))).collect()
}

#[test]
fn a_window_is_the_model_on_the_last_frames_padded_with_the_first() {
    let _turn = turn();
    for backbone in backbones() {
        let policy = vector(backbone);
        let mut session = open(&policy, Mode::Window);
        for t in 0..3 * WINDOW {
            let act = session.act(&raw(t), &Overrides::default()).unwrap();
            let want = logits(&policy, &padded(t), &act.decision.choices);
            assert_close(&act.decision.logits, &want, &format!("frame {t}"));
            assert_eq!(act.frame, t as u64 + 1);
        }
    }
}

#[test]
fn a_carried_state_is_one_long_pass_that_begins_with_a_window_of_the_first_frame() {
    let _turn = turn();
    for backbone in backbones() {
        let policy = vector(backbone);
        let mut session = open(&policy, Mode::Carry);
        let mut all = vec![raw(0); WINDOW - 1];
        for t in 0..3 * WINDOW {
            let act = session.act(&raw(t), &Overrides::default()).unwrap();
            all.push(raw(t));
            let want = logits(&policy, &all, &act.decision.choices);
            assert_close(&act.decision.logits, &want, &format!("frame {t}"));
        }
    }
}

#[test]
fn a_resync_begins_again_from_the_last_window() {
    let _turn = turn();
    let every = 3;
    for backbone in backbones() {
        let policy = vector(backbone);
        let mut session = open(&policy, Mode::Resync(every as u64));
        let mut since = vec![];
        for t in 0..3 * WINDOW {
            match t % every {
                0 => since = padded(t),
                _ => since.push(raw(t)),
            }
            let act = session.act(&raw(t), &Overrides::default()).unwrap();
            let want = logits(&policy, &since, &act.decision.choices);
            assert_close(&act.decision.logits, &want, &format!("frame {t}"));
        }
    }
}

#[test]
fn the_same_seed_draws_the_same_actions_and_another_seed_does_not() {
    let _turn = turn();
    let play = |session: &mut Session, seed: Option<u64>| -> Vec<f32> {
        let overrides = Overrides { seed, ..Overrides::default() };
        (0..40).flat_map(|t| session.act(&raw(t), &overrides).unwrap().decision.choices).collect()
    };
    let policy = vector(Backbone::Gru(recurrent(12)));
    let mut session = open(&policy, Mode::Carry);
    let first = play(&mut session, None);
    session.reset(None).unwrap();
    assert_eq!(play(&mut session, None), first);
    session.reset(Some(6)).unwrap();
    assert_ne!(play(&mut session, None), first);
    session.reset(Some(6)).unwrap();
    assert_eq!(play(&mut session, Some(5)), first, "a call's seed replaces the session's");
}

#[test]
fn a_restored_session_continues_exactly_where_the_snapshot_was_taken() {
    let _turn = turn();
    for backbone in backbones() {
        let policy = vector(backbone);
        for mode in [Mode::Carry, Mode::Window, Mode::Resync(4)] {
            for taken_at in [0, 2, WINDOW, 2 * WINDOW] {
                let mut session = open(&policy, mode);
                let act = |session: &mut Session, t| session.act(&raw(t), &Overrides::default());
                (0..taken_at).for_each(|t| drop(act(&mut session, t).unwrap()));
                let snapshot = session.snapshot().unwrap();
                let mut other =
                    Session::open(policy.clone(), Options { seed: 9, ..options(mode) }).unwrap();
                act(&mut other, 77).unwrap();
                other.restore(&snapshot).unwrap();
                for t in taken_at..taken_at + 2 * WINDOW {
                    let want = act(&mut session, t).unwrap();
                    assert_eq!(act(&mut other, t).unwrap(), want, "{mode:?} {taken_at}");
                }
            }
        }
    }
}

#[test]
fn a_snapshot_of_another_model_mode_or_window_is_a_mismatch() {
    let _turn = turn();
    let policy = vector(Backbone::Gru(recurrent(12)));
    let snapshot = open(&policy, Mode::Carry).snapshot().unwrap();
    let wider = Options { window_size: WINDOW + 1, ..options(Mode::Carry) };
    for mut other in [
        open(&vector(Backbone::Gru(recurrent(13))), Mode::Carry),
        open(&policy, Mode::Window),
        Session::open(policy.clone(), wider).unwrap(),
    ] {
        assert_eq!(other.restore(&snapshot).unwrap_err().kind(), Kind::Mismatch);
    }
}

#[test]
fn a_refused_frame_leaves_the_session_unchanged() {
    let _turn = turn();
    let policy = vector(Backbone::Lstm(recurrent(12)));
    for mode in [Mode::Carry, Mode::Window, Mode::Resync(2)] {
        let mut session = open(&policy, mode);
        for t in 0..WINDOW + 2 {
            let before = session.snapshot().unwrap();
            let hot = Overrides { temperature: Some(f32::NAN), ..Overrides::default() };
            let held = Overrides { previous: Some(vec![0.0, 1.0, 4.0]), ..Overrides::default() };
            for (frame, overrides, kind) in [
                (vec![0.0, f32::NAN, 0.0], Overrides::default(), Kind::NonFinite),
                (vec![0.0; 2], Overrides::default(), Kind::Mismatch),
                (raw(t), hot, Kind::OutOfRange),
                (raw(t), held, Kind::OutOfRange),
            ] {
                assert_eq!(session.act(&frame, &overrides).unwrap_err().kind(), kind);
                assert_eq!(session.snapshot().unwrap(), before);
            }
            session.decide(&raw(t), &Overrides::default()).unwrap();
            assert_eq!(session.snapshot().unwrap(), before, "deciding alone changes nothing");
            session.act(&raw(t), &Overrides::default()).unwrap();
        }
    }
}

/// A RetNet whose keys and values are so large that their product overflows on any frame that is not tiny. The first
/// norm keeps tiny frames tiny. Its queries are so small that the logits of a window stay finite.
fn overflowing() -> Arc<Policy> {
    let policy = vector(Backbone::Retnet(HeadsConfig {
        hidden_size: 4,
        num_layers: 1,
        num_heads: 1,
        expand_factor: 1,
        input_norm: false,
        dropout: 0.0,
        input_dropout: 0.0,
    }));
    let change = |name: &str, change: &dyn Fn(usize, &mut f32)| {
        let fill = |all: &mut [f32]| all.iter_mut().enumerate().for_each(|(i, w)| change(i, w));
        tensor::update(&policy.weights()[&format!("backbone.{name}")], fill).unwrap();
    };
    change("input.bias", &|_, w| *w = 0.0);
    // Rows of queries, keys, values and gates, four of each.
    let scales = [1e-25, 1e25, 1e15, 1.0];
    change("layers.0.mixer.qkvg_proj.weight", &|i, w| *w *= scales[i / 16]);
    policy
}

#[test]
fn a_state_that_overflows_before_the_logits_leaves_the_session_unchanged() {
    let _turn = turn();
    let policy = overflowing();
    let tiny = |t: usize| raw(t).iter().map(|v| v * 1e-10).collect::<Vec<f32>>();
    let act = |session: &mut Session, raw: &[f32]| session.act(raw, &Overrides::default());
    let [mut session, mut other] = [0, 1].map(|_| open(&policy, Mode::Resync(2)));
    for session in [&mut session, &mut other] {
        (0..2).for_each(|t| drop(act(session, &tiny(t)).unwrap()));
    }
    let before = session.snapshot().unwrap();

    let window = [tiny(0), tiny(0), tiny(0), tiny(1), raw(2)];
    assert!(logits(&policy, &window, &[0.0, 0.0, 0.0]).iter().all(|v| v.is_finite()));
    let error = act(&mut session, &raw(2)).unwrap_err();
    assert_eq!(error.kind(), Kind::NonFinite);
    assert!(error.to_string().starts_with("state[0] is not finite"), "{error}");
    assert_eq!(session.snapshot().unwrap(), before);
    for t in 2..8 {
        let want = act(&mut other, &tiny(t)).unwrap();
        assert_eq!(act(&mut session, &tiny(t)).unwrap(), want, "{t}");
    }
}

#[test]
fn a_session_of_windows_ignores_a_state_that_overflows() {
    let _turn = turn();
    let policy = overflowing();
    let [mut session, mut other] = [0, 1].map(|_| open(&policy, Mode::Window));
    for t in 0..3 * WINDOW {
        session.act(&raw(t), &Overrides::default()).unwrap();
    }
    other.restore(&session.snapshot().unwrap()).unwrap();
    let act = |session: &mut Session| session.act(&raw(99), &Overrides::default()).unwrap();
    assert_eq!(act(&mut other), act(&mut session));
}

/// A Melee frame without a previous action.
fn frame(x: f32) -> Vec<f32> {
    let mut raw = vec![0.0; melee::RAW_WIDTH];
    for (name, value) in [
        ("own.x", x),
        ("opponent.x", 20.0),
        ("own.action", 14.0),
        ("stage", 31.0),
        ("own.stock", 4.0),
    ] {
        raw[melee::game().column(name).unwrap()] = value;
    }
    raw
}

fn with_previous(mut raw: Vec<f32>, labels: &[f32], heads: &Heads) -> Vec<f32> {
    Embedding::melee(Melee::default()).set_previous(labels, heads, &mut raw).unwrap();
    raw
}

#[test]
fn the_previous_action_comes_from_the_call_else_the_frame_else_the_session() {
    let _turn = turn();
    let policy = controller(Backbone::Gru(recurrent(12)));
    let heads = policy.spec().heads.clone();
    let given = [1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 16.0, 0.0, 3.0, 8.0, 4.0];
    let mut session = open(&policy, Mode::Window);
    let first = session.act(&frame(0.0), &Overrides::default()).unwrap().decision;
    // The first frame has no previous action, and neither have its copies in the padded window.
    let want = logits(&policy, &vec![frame(0.0); WINDOW], &[]);
    assert_close(&first.logits, &want, "no previous action");

    let second = session.act(&frame(1.0), &Overrides::default()).unwrap().decision;
    let own = with_previous(frame(1.0), &first.choices, &heads);
    let mut rows = vec![frame(0.0); WINDOW - 1];
    rows.push(own);
    assert_close(&second.logits, &logits(&policy, &rows, &[]), "its own");

    let theirs = with_previous(frame(2.0), &given, &heads);
    let third = session.act(&theirs, &Overrides::default()).unwrap().decision;
    rows.remove(0);
    rows.push(theirs);
    assert_close(&third.logits, &logits(&policy, &rows, &[]), "the frame's");

    let overrides = Overrides { previous: Some(given.to_vec()), ..Overrides::default() };
    let fourth =
        session.act(&with_previous(frame(3.0), &second.choices, &heads), &overrides).unwrap();
    rows.remove(0);
    rows.push(with_previous(frame(3.0), &given, &heads));
    assert_close(&fourth.decision.logits, &logits(&policy, &rows, &[]), "the call's");
}

fn queued(depth: usize) -> Arc<Policy> {
    let melee = Melee { queue_depth: depth, num_delays: 9, ..Melee::default() };
    let heads = Heads::controller(HeadsKind::Independent);
    policy(Embedding::melee(melee), Backbone::Gru(recurrent(12)), heads)
}

/// Logits of the last of these frames; each frame has a queue of inputs, newest first.
fn behind(policy: &Policy, raw: &[Vec<f32>], queues: &[Vec<Vec<f32>>], delay: usize) -> Vec<f32> {
    let queue = queues.concat().concat();
    let beyond = Beyond { queue: Some(&queue), delay };
    let frames = frames::embed(policy.spec(), &raw.concat(), 1, raw.len(), beyond).unwrap();
    let state = policy.zero_state(1).unwrap();
    let (logits, _) = policy.forward_last(&frames, None, &state, &Context::default()).unwrap();
    tensor::to_vec(&logits).unwrap()
}

#[test]
fn a_queue_holds_the_latest_decisions_newest_first_whatever_the_frame_shows() {
    let _turn = turn();
    let (policy, delay) = (queued(4), 3);
    let options = Options { frame_delay: Some(delay), ..options(Mode::Window) };
    let mut session = Session::open(policy.clone(), options.clone()).unwrap();
    assert_eq!(session.info().frame_delay, delay);
    let none = vec![NONE; 13];
    let mut past: Vec<Vec<f32>> = vec![none.clone(); 4];
    let mut queues = vec![past.clone(); WINDOW];
    let mut rows = vec![frame(0.0); WINDOW];
    for t in 0..2 * WINDOW {
        if t > 0 {
            rows.remove(0);
            rows.push(frame(t as f32));
            queues.remove(0);
            queues.push(past.clone());
        }
        let act = session.act(&frame(t as f32), &Overrides::default()).unwrap().decision;
        assert_close(&act.logits, &behind(&policy, &rows, &queues, delay), &format!("{t}"));
        past.insert(0, act.choices);
        past.truncate(4);
    }
    // Inputs in flight are part of the memory: another session continues from a snapshot, and so does this one.
    let snapshot = session.snapshot().unwrap();
    let mut other = Session::open(policy.clone(), options.clone()).unwrap();
    other.restore(&snapshot).unwrap();
    let next = |session: &mut Session| session.act(&frame(-1.0), &Overrides::default()).unwrap();
    let first = next(&mut session);
    assert_eq!(next(&mut other), first);
    session.restore(&snapshot).unwrap();
    assert_eq!(next(&mut session), first);
    session.reset(None).unwrap();
    let fresh = behind(&policy, &vec![frame(-1.0); WINDOW], &vec![vec![none; 4]; WINDOW], delay);
    assert_close(&next(&mut session).decision.logits, &fresh, "after a reset");
    let mut sooner = Session::open(policy, Options { frame_delay: Some(2), ..options }).unwrap();
    let error = sooner.restore(&snapshot).unwrap_err().to_string();
    assert_eq!(error, "frame delay of the snapshot: expected the session's, got another");
}

#[test]
fn inputs_given_by_a_call_or_a_frame_replace_the_decisions_and_are_remembered() {
    let _turn = turn();
    let (policy, delay) = (queued(4), 2);
    let heads = policy.spec().heads.clone();
    let input = |n: u16| -> Vec<f32> {
        [n & 1, 0, 0, 0, 0, 0, 0, 0, n, 8, 8, 8, 0].map(f32::from).to_vec()
    };
    let one = Options { frame_delay: Some(delay), window_size: 1, ..options(Mode::Window) };
    let mut session = Session::open(policy.clone(), one).unwrap();
    let none = vec![NONE; 13];
    let see = |session: &mut Session, raw: &[f32], overrides: &Overrides, queue: [&[f32]; 4]| {
        let queue = queue.map(<[f32]>::to_vec).to_vec();
        let act = session.act(raw, overrides).unwrap().decision;
        let want = behind(&policy, &[raw.to_vec()], &[queue], delay);
        assert_close(&act.logits, &want, &format!("{overrides:?}"));
        act.choices
    };
    // The frame's own input is the one that led to it, two before the newest.
    let shown = with_previous(frame(0.0), &input(3), &heads);
    let first = see(&mut session, &shown, &Overrides::default(), [&none, &none, &input(3), &none]);
    let queue = [input(9), vec![NONE; 13], input(5)].concat();
    let given = Overrides { queue: Some(queue), ..Overrides::default() };
    let second = see(&mut session, &frame(1.0), &given, [&input(9), &none, &input(5), &input(3)]);
    assert_ne!(first, input(9));
    let led = Overrides { previous: Some(input(7)), ..Overrides::default() };
    see(&mut session, &frame(2.0), &led, [&second, &input(9), &input(7), &input(5)]);
    for (queue, said) in [
        (vec![0.0; 5 * 13], "queue (inputs): 5 is outside 0..4"),
        (vec![0.0; 14], "labels of an action: expected 13, got 1"),
        (input(99), "main_x: 99 is outside 0..16"),
    ] {
        let given = Overrides { queue: Some(queue), ..Overrides::default() };
        assert_eq!(session.act(&frame(3.0), &given).unwrap_err().to_string(), said);
    }
    let late = Options { frame_delay: Some(10_001), ..options(Mode::Carry) };
    let error = Session::open(policy.clone(), late).map(drop).unwrap_err().to_string();
    assert_eq!(error, "frame_delay: 10001 is outside 0..10000");
}

#[test]
fn with_a_delay_the_previous_action_is_the_one_that_led_to_the_frame() {
    let _turn = turn();
    let policy = controller(Backbone::Gru(recurrent(12)));
    let heads = policy.spec().heads.clone();
    let options = Options { frame_delay: Some(1), window_size: 1, ..options(Mode::Window) };
    let mut session = Session::open(policy.clone(), options).unwrap();
    let mut chosen: Vec<Vec<f32>> = vec![];
    for t in 0..5 {
        let raw = frame(t as f32);
        let act = session.act(&raw, &Overrides::default()).unwrap().decision;
        let seen = match t {
            0 | 1 => raw,
            t => with_previous(raw, &chosen[t - 2], &heads),
        };
        assert_close(&act.logits, &logits(&policy, &[seen], &[]), &format!("{t}"));
        chosen.push(act.choices);
    }
}

#[test]
fn held_buttons_follow_their_thresholds() {
    let _turn = turn();
    let policy = vector(Backbone::Gru(recurrent(12)));
    let mut session = open(&policy, Mode::Carry);
    let pressed = |session: &mut Session, press, release, held: f32| {
        let overrides = Overrides {
            deterministic: Some(true),
            press_threshold: Some(press),
            release_threshold: Some(release),
            previous: Some(vec![held, held, 0.0]),
            ..Overrides::default()
        };
        session.act(&raw(0), &overrides).unwrap().decision.choices[..2].to_vec()
    };
    assert_eq!(pressed(&mut session, 1.0, 0.0, 1.0), [1.0, 1.0], "held stays held");
    assert_eq!(pressed(&mut session, 1.0, 0.0, 0.0), [0.0, 0.0], "released stays released");
    assert_eq!(pressed(&mut session, 0.0, 1.0, 1.0), [0.0, 0.0]);
    assert_eq!(pressed(&mut session, 0.0, 1.0, 0.0), [1.0, 1.0]);
    // If the call gives no previous action, the session's last output is held.
    let sticky = Overrides {
        deterministic_buttons: Some(true),
        press_threshold: Some(1.0),
        release_threshold: Some(0.0),
        ..Overrides::default()
    };
    assert_eq!(session.act(&raw(1), &sticky).unwrap().decision.choices[..2], [1.0, 1.0]);
}

#[test]
fn a_frame_with_an_id_out_of_range_is_refused_and_the_field_named() {
    let _turn = turn();
    let mut session = open(&controller(Backbone::Lstm(recurrent(12))), Mode::Carry);
    let mut raw = frame(0.0);
    raw[melee::game().column("own.action").unwrap()] = 5000.0;
    let error = session.act(&raw, &Overrides::default()).unwrap_err();
    assert_eq!(error.to_string(), "own.action: 5000 is outside 0..398");
    assert_eq!(session.info().frames, 0);
}

#[test]
fn a_frame_without_a_previous_action_has_none_when_embedded() {
    let spec = controller(Backbone::Gru(recurrent(12))).spec().clone();
    let row = frames::EmbeddedFrame::embed(&spec, &frame(0.0)).unwrap();
    assert_eq!(row.previous, vec![NONE; 13]);
}

#[test]
fn options_out_of_range_are_refused_by_name() {
    let _turn = turn();
    let policy = vector(Backbone::Gru(recurrent(12)));
    let cold = Sampling { temperature: 0.0, ..Sampling::default() };
    for (options, name) in [
        (Options { window_size: 0, ..options(Mode::Carry) }, "window_size"),
        (Options { window_size: 1 << 20, ..options(Mode::Window) }, "window_size"),
        (options(Mode::Resync(0)), "resync"),
        (Options { sampling: cold, ..options(Mode::Carry) }, "temperature"),
    ] {
        let error = Session::open(policy.clone(), options).err().unwrap();
        assert_eq!(error.kind(), Kind::OutOfRange);
        assert!(error.to_string().starts_with(name), "{error}");
    }
}

#[test]
fn the_lane_is_the_option_or_follows_the_cost() {
    let _turn = turn();
    let small = vector(Backbone::Mlp(MlpConfig {
        hidden_sizes: vec![4],
        layer_norm: false,
        residual: false,
        activation: Default::default(),
        dropout: 0.0,
        input_dropout: 0.0,
    }));
    let session = open(&small, Mode::Window);
    let info = session.info();
    assert!(info.cost.step_us > 0.0 && info.cost.step_us.is_finite());
    for lane in [Lane::Inline, Lane::Worker] {
        let options = Options { lane: Some(lane), ..options(Mode::Carry) };
        assert_eq!(Session::open(small.clone(), options).unwrap().next_lane(), lane);
    }
    // A thousand steps of a wide cell are far beyond what an inline call may take.
    let wide = vector(Backbone::Gru(recurrent(256)));
    let options = Options { window_size: 1000, ..options(Mode::Window) };
    assert_eq!(Session::open(wide, options).unwrap().next_lane(), Lane::Worker);
}

#[test]
fn a_decision_beyond_a_millisecond_is_never_inline() {
    let _turn = turn();
    let wide = vector(Backbone::Gru(recurrent(256)));
    let inline = |mode| Options { window_size: 4000, lane: Some(Lane::Inline), ..options(mode) };
    let refused = Session::open(wide.clone(), inline(Mode::Window)).err().unwrap();
    assert_eq!(refused.kind(), Kind::OutOfRange);
    assert!(refused.to_string().contains("lane: inline"), "{refused}");
    assert!(refused.to_string().ends_with("is outside 0..1000"), "{refused}");
    // In a session that steps, the window that warms the state runs on a worker.
    let session = Session::open(wide, inline(Mode::Carry)).unwrap();
    let info = session.info();
    assert_eq!((info.lane, info.window_lane), (Lane::Inline, Lane::Worker));
    assert_eq!(session.next_lane(), Lane::Worker);
}

#[test]
fn inline_decisions_of_one_call_run_on_a_worker_if_they_sum_to_over_a_millisecond() {
    let _turn = turn();
    let small = vector(Backbone::Gru(recurrent(12)));
    let options = Options { lane: Some(Lane::Inline), ..options(Mode::Carry) };
    let mut session = Session::open(small, options).unwrap();
    session.act(&raw(0), &Overrides::default()).unwrap();
    assert_eq!(lane([&session].into_iter()), Lane::Inline);
    let too_many = (MAX_INLINE_US / session.info().cost.step_us) as usize + 1;
    assert_eq!(lane(std::iter::repeat_n(&session, too_many)), Lane::Worker);
}

#[test]
fn an_inline_decision_waits_for_no_other_thread() {
    let _turn = turn();
    // The window has many shards, and opening the session measures it.
    let policy = vector(Backbone::Gru(recurrent(12)));
    let options = Options { window_size: 256, lane: Some(Lane::Inline), ..options(Mode::Window) };
    let (both, gate) = (Barrier::new(3), RwLock::new(()));
    pool::set_threads(2).unwrap();
    let (sender, done) = mpsc::sync_channel(1);
    std::thread::scope(|scope| {
        let held = gate.write().unwrap();
        scope.spawn(|| {
            pool::for_each(2, |_| {
                both.wait();
                drop(gate.read());
            });
        });
        both.wait();
        scope.spawn(move || {
            let mut session = Session::open(policy, options).unwrap();
            sender.send(session.act(&raw(0), &Overrides::default()).is_ok())
        });
        let answer = done.recv_timeout(Duration::from_secs(60));
        drop(held);
        assert_eq!(answer, Ok(true));
    });
    pool::set_threads(pool::available()).unwrap();
}

#[test]
fn sessions_are_counted_and_their_storage_is_allocated_once() {
    let _turn = turn();
    let before = live();
    let policy = vector(Backbone::Gru(recurrent(12)));
    let mut session = open(&policy, Mode::Window);
    let empty = session.info().bytes;
    assert_eq!(live(), before + 1);
    session.act(&raw(0), &Overrides::default()).unwrap();
    let full = session.info().bytes;
    (1..20).for_each(|t| drop(session.act(&raw(t), &Overrides::default()).unwrap()));
    assert_eq!(session.info().bytes, full);
    assert_eq!(full, empty);
    drop(session);
    assert_eq!((live(), Arc::strong_count(&policy)), (before, 1));
}

#[test]
fn a_state_of_copies_is_the_state_of_the_trunk() {
    // The warm start, done by hand: one forward pass over the copies, then one step.
    let policy = vector(Backbone::Gru(recurrent(12)));
    let zero = policy.zero_state(1).unwrap();
    let copies = embedded(&policy, &vec![raw(0); WINDOW - 1]);
    let (_, warm) = policy.trunk(&copies, &zero, &Context::default()).unwrap();
    let frame = embedded(&policy, &[raw(0)]);
    let (_, stepped) = policy.trunk(&frame, &warm, &Context::default()).unwrap();
    let window = embedded(&policy, &vec![raw(0); WINDOW]);
    let (_, whole) = policy.trunk(&window, &zero, &Context::default()).unwrap();
    assert_close(&stepped.to_vec().unwrap(), &whole.to_vec().unwrap(), "state");
}

#[test]
fn a_session_with_a_plan_chooses_and_remembers_as_a_session_without() {
    let _turn = turn();
    for backbone in backbones() {
        for kind in [HeadsKind::Independent, HeadsKind::Autoregressive] {
            let heads = Heads { prior: true, ..Heads::controller(kind) };
            let policy = policy(Embedding::melee(Melee::default()), backbone.clone(), heads);
            let mut unpacked = unpacked(&policy, Mode::Carry);
            let mut packed = open(&policy, Mode::Carry);
            assert_eq!((unpacked.info().path, packed.info().path), (Path::Ops, Path::Packed));
            let frame = |t: usize| frame((t as f32 * 0.3).sin() * 40.0);
            for t in 0..40 {
                // Each session restores a snapshot of the other.
                if t % 16 == 8 {
                    let (own, other) = (packed.snapshot().unwrap(), unpacked.snapshot().unwrap());
                    assert_eq!(own.len(), other.len());
                    packed.restore(&other).unwrap();
                    unpacked.restore(&own).unwrap();
                }
                let want = unpacked.act(&frame(t), &Overrides::default()).unwrap();
                let got = packed.act(&frame(t), &Overrides::default()).unwrap();
                assert_close(&got.decision.logits, &want.decision.logits, &format!("frame {t}"));
                assert_eq!(got.decision.choices, want.decision.choices, "frame {t}");
            }
            assert_eq!(unpacked.info().bytes, packed.info().bytes);
        }
    }
}

fn of_game(frame: i64) -> Overrides {
    Overrides { game_frame: Some(frame), ..Overrides::default() }
}

#[test]
fn one_game_frame_has_one_decision_however_often_it_is_asked() {
    let _turn = turn();
    for mode in [Mode::Carry, Mode::Window, Mode::Resync(3)] {
        let policy = vector(Backbone::Gru(recurrent(12)));
        let wanted = Options { rollback: 8, ..options(mode) };
        let mut session = Session::open(policy, wanted).unwrap();
        let mut made = vec![];
        for t in 0..20 {
            made.push(session.act(&raw(t), &of_game(t as i64)).unwrap());
            let before = session.snapshot().unwrap();
            // The same decision comes back for another raw frame, up to eight decisions back.
            for (back, act) in made.iter().rev().take(9).enumerate() {
                let again = session.act(&raw(77), &of_game((t - back) as i64)).unwrap();
                assert_eq!(&again, act, "{back} before {t}");
            }
            if t > 8 {
                let error = session.act(&raw(t), &of_game(t as i64 - 9)).unwrap_err();
                assert_eq!(error.kind(), Kind::NotFound);
            }
            assert_eq!(session.snapshot().unwrap(), before);
        }
    }
}

#[test]
fn a_rollback_leaves_no_trace_of_the_decisions() {
    let _turn = turn();
    for mode in [Mode::Carry, Mode::Window, Mode::Resync(3), Mode::Resync(7)] {
        for backbone in backbones().into_iter().chain([attention()]) {
            let policy = vector(backbone);
            let wanted = Options { rollback: 8, ..options(mode) };
            let mut session = Session::open(policy.clone(), wanted.clone()).unwrap();
            let mut other = Session::open(policy, wanted).unwrap();
            let mut next = 0;
            for round in [3, 1, 8, 0, 5, 8] {
                for t in next..next + 10 {
                    session.act(&raw(t + 500), &of_game(t as i64 - 123)).unwrap();
                }
                let first = next + 10 - round;
                assert_eq!(session.rollback(first as i64 - 123).unwrap(), round);
                assert_eq!(session.rollback(first as i64 - 123).unwrap(), 0);
                // The other session never saw the frames that were taken back.
                for t in next..first {
                    other.act(&raw(t + 500), &of_game(t as i64 - 123)).unwrap();
                }
                assert_eq!(session.snapshot().unwrap(), other.snapshot().unwrap());
                next = first;
            }
            for t in next..next + 9 {
                session.act(&raw(t), &of_game(t as i64 - 123)).unwrap();
            }
            let before = session.snapshot().unwrap();
            assert_eq!(session.rollback(next as i64 - 123).unwrap_err().kind(), Kind::NotFound);
            assert_eq!(session.snapshot().unwrap(), before);
        }
    }
}

#[test]
fn a_game_rolled_back_to_its_start_replays_the_same_decisions() {
    let _turn = turn();
    for mode in [Mode::Carry, Mode::Window, Mode::Resync(3)] {
        let policy = vector(Backbone::Gru(recurrent(12)));
        let mut session = Session::open(policy, Options { rollback: 8, ..options(mode) }).unwrap();
        let fresh = session.snapshot().unwrap();
        let made: Vec<_> =
            (0..6).map(|t| session.act(&raw(t), &of_game(t as i64)).unwrap()).collect();
        assert_eq!(session.rollback(0).unwrap(), 6);
        assert_eq!(session.snapshot().unwrap(), fresh);
        for (t, made) in made.iter().enumerate() {
            assert_eq!(&session.act(&raw(t), &of_game(t as i64)).unwrap(), made);
        }
    }
}

#[test]
fn a_restored_session_repeats_its_last_decision_and_takes_back_none_before_it() {
    let _turn = turn();
    let policy = vector(Backbone::Gru(recurrent(12)));
    let wanted = Options { rollback: 8, ..options(Mode::Carry) };
    let mut session = Session::open(policy.clone(), wanted.clone()).unwrap();
    let made: Vec<_> =
        (90..=100).map(|t| session.act(&raw(t), &of_game(t as i64)).unwrap()).collect();
    let mut other = Session::open(policy, wanted).unwrap();
    other.restore(&session.snapshot().unwrap()).unwrap();
    // The last frame before a node failed, asked again on the next node.
    assert_eq!(&other.act(&raw(7), &of_game(100)).unwrap(), made.last().unwrap());
    (101..=103).for_each(|t| drop(other.act(&raw(t), &of_game(t as i64)).unwrap()));
    assert_eq!(other.rollback(99).unwrap_err().kind(), Kind::NotFound);
    assert_eq!(other.rollback(100).unwrap_err().kind(), Kind::NotFound);
    assert_eq!(other.rollback(101).unwrap(), 3);
    assert_eq!(other.snapshot().unwrap(), session.snapshot().unwrap());
}

#[test]
fn a_decision_without_a_number_belongs_to_the_one_before() {
    let _turn = turn();
    let policy = vector(Backbone::Gru(recurrent(12)));
    let wanted = Options { rollback: 8, ..options(Mode::Carry) };
    let mut session = Session::open(policy, wanted).unwrap();
    session.act(&raw(4), &of_game(4)).unwrap();
    let before = session.snapshot().unwrap();
    let made = session.act(&raw(5), &of_game(5)).unwrap();
    session.act(&raw(6), &Overrides::default()).unwrap();
    assert_eq!(session.act(&raw(0), &of_game(5)).unwrap(), made);
    assert_eq!(session.rollback(5).unwrap(), 2);
    assert_eq!(session.snapshot().unwrap(), before);
    // A new game has frame numbers of its own.
    session.reset(None).unwrap();
    session.act(&raw(0), &of_game(-123)).unwrap();
    assert_eq!(session.rollback(-123).unwrap(), 1);
}

#[test]
fn windows_of_many_sessions_equal_bit_for_bit_those_of_one() {
    let _turn = turn();
    let policy = vector(Backbone::Gru(recurrent(64)));
    let model = Arc::new(Model::new(policy, Format::F32).unwrap());
    let sessions = || -> Vec<Session> {
        let wanted = Options { window_size: 20, ..options(Mode::Window) };
        (0..20).map(|_| Session::over(model.clone(), wanted.clone()).unwrap()).collect()
    };
    let (mut together, mut alone) = (sessions(), sessions());
    for t in 0..3 {
        let raws: Vec<Vec<f32>> = (0..20).map(|i| raw(t + 100 * i)).collect();
        let overrides = Overrides::default();
        let mut calls: Vec<Call<'_>> = together
            .iter_mut()
            .zip(&raws)
            .map(|(session, raw)| Call {
                session,
                raw,
                overrides: &overrides,
                asked: false,
                outcome: Ok(()),
            })
            .collect();
        decide_many(&mut calls);
        for ((call, other), raw) in calls.into_iter().zip(&mut alone).zip(&raws) {
            call.outcome.unwrap();
            call.session.commit();
            let want = other.act(raw, &overrides).unwrap();
            assert_eq!(call.session.last(), (&want.decision, want.frame));
        }
    }
}

#[test]
fn a_decision_that_its_caller_never_received_is_taken_back() {
    let _turn = turn();
    for mode in [Mode::Carry, Mode::Window, Mode::Resync(3)] {
        for backbone in backbones() {
            let wanted = Options { rollback: 1, ..options(mode) };
            let mut session = Session::open(vector(backbone), wanted).unwrap();
            for t in 0..10 {
                session.act(&raw(t), &Overrides::default()).unwrap();
                let before = session.snapshot().unwrap();
                let heard = session.info().frames;
                session.back_to(heard).unwrap();
                assert_eq!(session.snapshot().unwrap(), before);
                session.act(&raw(t + 500), &Overrides::default()).unwrap();
                session.back_to(heard).unwrap();
                assert_eq!(session.snapshot().unwrap(), before);
            }
            session.act(&raw(10), &Overrides::default()).unwrap();
            assert_eq!(session.back_to(9).unwrap_err().kind(), Kind::OutOfRange);
        }
    }
}

#[test]
fn a_state_that_catches_up_equals_the_state_that_is_stepped() {
    let _turn = turn();
    let policy = vector(attention());
    for rollback in [0, 1, 8] {
        let wanted = Options { rollback, ..options(Mode::Carry) };
        let mut session = Session::open(policy.clone(), wanted).unwrap();
        let mut unpacked = unpacked(&policy, Mode::Carry);
        for t in 0..40 {
            // A refused frame leaves the next moment half made.
            if t % 5 == 3 {
                assert!(session.act(&[f32::NAN; 3], &Overrides::default()).is_err());
            }
            if t % 9 == 5 {
                session.decide(&raw(t + 50), &Overrides::default()).unwrap();
            }
            let got = session.act(&raw(t), &Overrides::default()).unwrap();
            let want = unpacked.act(&raw(t), &Overrides::default()).unwrap();
            assert_close(&got.decision.logits, &want.decision.logits, &format!("frame {t}"));
            assert_eq!(got.decision.choices, want.decision.choices);
            let (own, other) = (session.snapshot().unwrap(), unpacked.snapshot().unwrap());
            assert_eq!(own.len(), other.len());
            if t % 11 == 7 {
                session.restore(&other).unwrap();
            }
        }
    }
}

#[test]
fn sessions_decide_in_one_call_as_each_decides_alone() {
    let _turn = turn();
    let policies: Vec<Arc<Policy>> = backbones().into_iter().map(vector).collect();
    let models: Vec<Arc<Model>> = policies
        .iter()
        .map(|policy| Arc::new(Model::new(policy.clone(), Format::F32).unwrap()))
        .collect();
    let sessions = || -> Vec<Session> {
        (0..12)
            .map(|i| {
                let mode = [Mode::Carry, Mode::Window, Mode::Resync(3), Mode::Carry][i % 4];
                let wanted = Options { seed: i as u64, ..options(mode) };
                match i {
                    0 => unpacked(&policies[1], mode),
                    _ => Session::over(models[i % 3].clone(), wanted).unwrap(),
                }
            })
            .collect()
    };
    let (mut together, mut alone) = (sessions(), sessions());
    for t in 0..10 {
        // One session gets a wrong frame.
        let raws: Vec<Vec<f32>> =
            (0..12).map(|i| if i == t { vec![f32::NAN; 3] } else { raw(t + 100 * i) }).collect();
        let overrides = Overrides::default();
        let mut calls: Vec<Call<'_>> = together
            .iter_mut()
            .zip(&raws)
            .map(|(session, raw)| Call {
                session,
                raw,
                overrides: &overrides,
                asked: false,
                outcome: Ok(()),
            })
            .collect();
        decide_many(&mut calls);
        for (i, (call, other)) in calls.into_iter().zip(&mut alone).enumerate() {
            assert_eq!(call.outcome.is_err(), i == t);
            call.session.commit();
            if i != t {
                let want = other.act(&raws[i], &overrides).unwrap();
                assert_eq!(call.session.last(), (&want.decision, want.frame), "{i} at {t}");
            }
            assert_eq!(call.session.snapshot().unwrap(), other.snapshot().unwrap());
        }
    }
}

#[test]
fn a_session_adopts_other_weights_and_keeps_its_memory() {
    let _turn = turn();
    let policy = vector(Backbone::Gru(recurrent(12)));
    let other = Arc::new(Policy::init(policy.spec(), 12).unwrap());
    let packed = Arc::new(Model::new(other.clone(), Format::F32).unwrap());
    let unpacked = Arc::new(Model::unpacked(other.clone()).unwrap());
    for model in [packed, unpacked] {
        let mut session = open(&policy, Mode::Carry);
        (0..5).for_each(|t| drop(session.act(&raw(t), &Overrides::default()).unwrap()));
        let mut fresh = open(&other, Mode::Carry);
        fresh.restore(&session.snapshot().unwrap()).unwrap();
        session.adopt(&model).unwrap();
        for t in 5..9 {
            let got = session.act(&raw(t), &Overrides::default()).unwrap();
            let want = fresh.act(&raw(t), &Overrides::default()).unwrap();
            assert_close(&got.decision.logits, &want.decision.logits, &format!("frame {t}"));
        }
    }
    let mlp = Model::new(vector(backbones()[0].clone()), Format::F32).unwrap();
    let error = open(&policy, Mode::Carry).adopt(&Arc::new(mlp)).unwrap_err();
    assert_eq!(error.kind(), Kind::Mismatch);
}

#[test]
fn frames_that_a_window_keeps_are_normalised_by_the_statistics_of_the_present_weights() {
    let _turn = turn();
    let [_, lstm, _] = backbones();
    let plain = policy(Embedding::vector(3), lstm, heads(HeadsKind::Independent));
    let by = |mean: f32, deviation: f32| {
        let own = Normalised { mean: vec![mean; 3], deviation: vec![deviation; 3] };
        let spec = Spec { embedding: Embedding::normalised(own), ..plain.spec().clone() };
        let policy = Policy::from_weights(&spec, plain.weights().clone()).unwrap();
        Arc::new(Model::new(Arc::new(policy), Format::F32).unwrap())
    };
    let first = Arc::new(Model::new(plain.clone(), Format::F32).unwrap());
    // The second statistics clip most of these numbers.
    let models = [first, by(0.0, 0.01), by(1.0, 3.0)];
    let frame = |t: usize| [t as f32, -2.0, 0.5 * t as f32];
    for mode in [Mode::Window, Mode::Resync(6)] {
        let open = |model: &Arc<Model>| Session::over(model.clone(), options(mode)).unwrap();
        let act = |session: &mut Session, t: usize| {
            session.act(&frame(t), &Overrides::default()).unwrap().decision.logits
        };
        let replayed = |model: &Arc<Model>| {
            let mut fresh = open(model);
            (0..6).map(|t| act(&mut fresh, t)).last().unwrap()
        };
        let mut session = open(&models[0]);
        (0..5).for_each(|t| drop(act(&mut session, t)));
        let snapshot = session.snapshot().unwrap();
        for model in &models[1..] {
            // A decision at which the window is read.
            let mut adopts = open(&models[0]);
            (0..5).for_each(|t| drop(act(&mut adopts, t)));
            assert!(adopts.adopt(model).unwrap());
            let mut restored = open(model);
            restored.restore(&snapshot).unwrap();
            let (one, other) = (act(&mut adopts, 5), act(&mut restored, 5));
            assert_eq!(one, other);
            if mode == Mode::Window {
                assert_eq!(one, replayed(model));
            }
        }
    }
    let wider = vector(backbones()[1].clone());
    let mut session = Session::over(models[1].clone(), options(Mode::Window)).unwrap();
    let other = Arc::new(Model::new(wider, Format::F32).unwrap());
    assert_eq!(session.adopt(&other).unwrap_err().kind(), Kind::Mismatch);
}

#[test]
fn packed_weights_alone_decide_like_the_policy_in_every_mode() {
    let _turn = turn();
    let mut backbones = backbones().to_vec();
    backbones.push(attention());
    for backbone in backbones {
        let policy = vector(backbone);
        let plan = Plan::of(&policy, Format::F32).unwrap().unwrap();
        let outline = Arc::new(Policy::outline(policy.spec(), policy.notes().clone()).unwrap());
        let alone = Arc::new(Model::of_plan(outline, Arc::new(plan)).unwrap());
        for mode in [Mode::Carry, Mode::Window, Mode::Resync(4)] {
            let mut packed = Session::over(alone.clone(), options(mode)).unwrap();
            let mut other = open(&policy, mode);
            assert_eq!(packed.info().path, Path::Packed);
            let steps = !alone.remembers();
            for t in 0..12 {
                let choices = vec![1.0, 0.0, (t % 4) as f32];
                let overrides = Overrides { choices: Some(choices), ..Overrides::default() };
                packed.act(&raw(t), &overrides).unwrap();
                other.act(&raw(t), &overrides).unwrap();
                let [got, want] = [&packed, &other].map(|session| session.last().0.clone());
                let about = format!("{mode:?} {t}: {:?}", policy.spec().backbone);
                // Without memory both make the same steps; with it windows are summed in another order.
                match steps {
                    true => assert_eq!(got, want, "{about}"),
                    false => assert_close(&got.logits, &want.logits, &about),
                }
            }
            // A game that starts again takes the same decisions.
            let before = packed.last().0.clone();
            packed.reset(None).unwrap();
            (0..12).for_each(|t| {
                let choices = vec![1.0, 0.0, (t % 4) as f32];
                let overrides = Overrides { choices: Some(choices), ..Overrides::default() };
                packed.act(&raw(t), &overrides).unwrap();
            });
            assert_eq!(packed.last().0, &before);
        }
    }
}
