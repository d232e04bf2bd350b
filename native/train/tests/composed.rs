//! Steps and decisions composed of candle's ops, compared with those of Sconce's own ops; on a card too.
//!
//! The composed form runs in f64. No other form of an op takes f64, and no f32 tensor can be combined with it: every
//! tensor made on the way has to be of the weights' kind, as on another device.

use std::cell::RefCell;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use candle_core::{DType, Device};
use sconce_data::{Corpus, Schema, VectorGame};
use sconce_nn::backbone::{Context, State};
use sconce_nn::policy::Frames;
use sconce_nn::projection::Projection;
use sconce_nn::sampling::{Draw, Sampling};
use sconce_nn::spec::{Backbone, Embedding, Head, HeadKind, Heads, HeadsKind, Melee};
use sconce_nn::{Policy, Spec, checkpoint};
use sconce_ops::weights::Weight;
use sconce_tensor::rng::Rng;
use sconce_tensor::{device, tensor};
use sconce_train::bench::examples;
use sconce_train::eval::evaluate;
use sconce_train::objective::imitation::LossOptions;
use sconce_train::optimiser::{Kind, OptimiserConfig};
use sconce_train::options::{
    DataOptions, EvaluateOptions, MachineOptions, Mode, ObjectiveOptions, OptimiserOptions,
    SavingOptions, ScheduleOptions, TrainOptions,
};
use sconce_train::report::{Event, RunReport};
use sconce_train::run::run;
use sconce_train::step::{Stepper, Unroll};
use serde_json::json;

fn mlp() -> Backbone {
    let mlp = json!({
        "hidden_sizes": [24, 17], "layer_norm": true, "residual": true,
        "dropout": 0.2, "input_dropout": 0.1,
    });
    serde_json::from_value(json!({ "mlp": mlp })).unwrap()
}

fn recurrent(name: &str) -> Backbone {
    let sizes = json!({
        "hidden_size": 16, "num_layers": 2, "layer_norm": true, "input_norm": true,
        "dropout": 0.2, "input_dropout": 0.0,
    });
    serde_json::from_value(json!({ name: sizes })).unwrap()
}

fn attention() -> Backbone {
    let sizes = json!({
        "hidden_size": 16, "num_layers": 2, "num_heads": 2, "head_dim": 8, "window_size": 6,
        "qk_layernorm": true, "input_norm": false, "dropout": 0.2, "input_dropout": 0.0,
    });
    serde_json::from_value(json!({ "sliding_window": sizes })).unwrap()
}

/// Controllers of both kinds, with and without a hidden layer and a prior.
fn controllers() -> Vec<Spec> {
    let embedding = Embedding::melee(Melee { queue_depth: 2, ..Melee::packed() });
    let spec = |backbone, kind, prior, hidden_size| {
        let mut heads = Heads { prior, ..Heads::controller(kind) };
        heads.parts.iter_mut().for_each(|head| head.hidden_size = hidden_size);
        Spec { embedding: embedding.clone(), backbone, heads, critic: None }
    };
    vec![
        spec(mlp(), HeadsKind::Independent, true, 12),
        spec(recurrent("gru"), HeadsKind::Independent, false, 0),
        spec(recurrent("lstm"), HeadsKind::Autoregressive, true, 12),
        spec(attention(), HeadsKind::Independent, false, 12),
    ]
}

/// The policy with weights of this type.
fn of_type(policy: &Policy, dtype: DType) -> Policy {
    let weights = policy.weights().iter();
    let typed = |(name, w): (&String, &Weight)| (name.clone(), w.to_dtype(dtype).unwrap().into());
    Policy::from_weights(policy.spec(), weights.map(typed).collect()).unwrap()
}

/// The policy in f64, and on the card if `SCONCE_TEST_CARD` is set.
fn elsewhere(policy: &Policy) -> Vec<(String, Policy)> {
    let wide = ("f64".to_string(), of_type(policy, DType::F64));
    let card = std::env::var_os("SCONCE_TEST_CARD").map(|_| device::open(0).unwrap());
    let on_card = card.map(|card| ("the card".to_string(), on(policy, &card)));
    std::iter::once(wide).chain(on_card).collect()
}

fn on(policy: &Policy, device: &Device) -> Policy {
    of_type(policy, DType::F32).on(device).unwrap()
}

fn assert_near(got: &[f32], want: &[f32], tolerance: f32, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    let scale = want.iter().fold(1e-6f32, |m, v| m.max(v.abs()));
    for (got, want) in got.iter().zip(want) {
        // False if one of them is NaN.
        let near = (got - want).abs() <= tolerance * scale;
        assert!(near, "{what}: {got} is not {want} at a scale of {scale}");
    }
}

/// Results of some steps.
struct Steps {
    losses: Vec<f32>,
    norms: Vec<f32>,
    weights: Vec<f32>,
    averages: Vec<f32>,
    state: Vec<f32>,
}

fn numbers(policy: &Policy) -> Vec<f32> {
    policy.weights().values().flat_map(|w| tensor::to_vec(w).unwrap()).collect()
}

const BATCH: usize = 3;
const TIME: usize = 8;

fn stepper(
    policy: &Policy,
    loss: &LossOptions,
    unroll: Unroll,
    config: OptimiserConfig,
) -> Stepper<'static> {
    let bits = policy.spec().heads.parts.iter().map(|head| head.kind.bits()).sum();
    let loss = loss.clone().with_press_rates(&vec![0.3; bits]);
    let stepper = Stepper::imitating(policy, &loss, config, 0.5, 7).unwrap();
    stepper.unrolling(unroll).averaging(Some(0.9))
}

/// Five steps, each from the state after the one before.
fn steps(policy: &Policy, loss: &LossOptions, unroll: Unroll, config: OptimiserConfig) -> Steps {
    let mut stepper = stepper(policy, loss, unroll, config);
    let x = &examples(policy.spec(), BATCH, TIME, 3);
    let mut state = stepper.policy().zero_state(BATCH).unwrap();
    let (mut losses, mut norms) = (vec![], vec![]);
    for step in 0..5 {
        let (stepped, after) = stepper.step_from(x, &state, step, 3e-3).unwrap();
        losses.push(stepped.figures.total as f32);
        norms.push(stepped.grad_norm as f32);
        state = after.unwrap_or(state);
    }
    let averages = numbers(&stepper.averaged().unwrap());
    let weights = numbers(stepper.policy());
    Steps { losses, norms, weights, averages, state: state.to_vec().unwrap() }
}

#[test]
fn composed_steps_are_those_of_sconces_own_ops() {
    let full = LossOptions { head_normalize: true, ..LossOptions::default() };
    let carried = Unroll { carry: true, ..Unroll::default() };
    let parts = Unroll { truncate_bptt: Some(3), micro_batch: Some(2), ..carried };
    let adamw = OptimiserConfig::default();
    let lamb = OptimiserConfig::new(Kind::Lamb);
    let ways = [
        (LossOptions::plain(), Unroll::default(), adamw),
        (LossOptions::plain(), parts, adamw),
        (full, carried, lamb),
    ];
    for spec in controllers() {
        let policy = Policy::init(&spec, 4).unwrap();
        for (way, (loss, unroll, config)) in ways.iter().enumerate() {
            let want = steps(&policy, loss, *unroll, *config);
            assert!(want.losses[4] < want.losses[0] && want.norms[0] > 0.0);
            for (place, there) in elsewhere(&policy) {
                let got = steps(&there, loss, *unroll, *config);
                let what = |of: &str| format!("{of} of {:?}, way {way}, {place}", spec.heads.kind);
                assert_near(&got.losses, &want.losses, 1e-4, &what("losses"));
                assert_near(&got.norms, &want.norms, 1e-3, &what("norms"));
                assert_near(&got.weights, &want.weights, 1e-3, &what("weights"));
                assert_near(&got.averages, &want.averages, 1e-3, &what("averages"));
                assert_near(&got.state, &want.state, 1e-3, &what("state"));
            }
        }
    }
}

/// The same steps, recorded by the first and played by the others; their figures come together.
#[cfg(feature = "cuda")]
fn played(policy: &Policy, loss: &LossOptions, unroll: Unroll, config: OptimiserConfig) -> Steps {
    let mut stepper = stepper(policy, loss, unroll, config);
    let x = &examples(policy.spec(), BATCH, TIME, 3);
    let mut state = stepper.policy().zero_state(BATCH).unwrap();
    for step in 0..5 {
        assert!(stepper.records(x));
        state = stepper.begin(x, &state, step, 3e-3).unwrap().unwrap_or(state);
    }
    assert_eq!(stepper.pending(), 5);
    let stepped = stepper.results().unwrap().into_iter().map(Result::unwrap);
    let (losses, norms) = stepped.map(|s| (s.figures.total as f32, s.grad_norm as f32)).unzip();
    assert_eq!(stepper.optimiser().updates(), 5);
    let averages = numbers(&stepper.averaged().unwrap());
    let weights = numbers(stepper.policy());
    Steps { losses, norms, weights, averages, state: state.to_vec().unwrap() }
}

/// On a card only.
#[cfg(feature = "cuda")]
#[test]
fn a_played_step_that_is_not_finite_fails_alone_and_changes_nothing() {
    let Some(_) = std::env::var_os("SCONCE_TEST_CARD") else { return };
    let spec = controllers().swap_remove(0);
    let policy = on(&Policy::init(&spec, 4).unwrap(), &device::open(0).unwrap());
    let loss = LossOptions::plain();
    let mut stepper =
        Stepper::imitating(&policy, &loss, OptimiserConfig::default(), 0.5, 7).unwrap();
    let mut x = examples(&spec, BATCH, TIME, 3);
    let state = stepper.policy().zero_state(BATCH).unwrap();
    let mut begin = |stepper: &mut Stepper, number: f32| {
        x.frames.continuous[0] = number;
        stepper.begin(&x, &state, 0, 3e-3).unwrap();
    };
    begin(&mut stepper, 0.5);
    assert!(stepper.results().unwrap().swap_remove(0).is_ok());
    let before = numbers(stepper.policy());
    for number in [f32::NAN, 0.5] {
        begin(&mut stepper, number);
    }
    let results = stepper.results().unwrap();
    assert!(matches!(results[0], Err(sconce_tensor::Error::NonFinite { .. })), "{:?}", results[0]);
    assert!(results[1].is_ok() && stepper.optimiser().updates() == 2);
    assert!(numbers(stepper.policy()) != before);
    begin(&mut stepper, f32::NAN);
    let before = numbers(stepper.policy());
    assert!(stepper.results().unwrap()[0].is_err());
    assert!(numbers(stepper.policy()) == before && before.iter().all(|v| v.is_finite()));
}

/// On a card only.
#[cfg(feature = "cuda")]
#[test]
fn recorded_and_played_steps_equal_steps_that_are_launched_one_by_one() {
    let Some(_) = std::env::var_os("SCONCE_TEST_CARD") else { return };
    let card = device::open(0).unwrap();
    let carried = Unroll { carry: true, ..Unroll::default() };
    let sums = LossOptions { entropy_weight: 0.01, focal_gamma: Some(2.0), ..LossOptions::plain() };
    let ways = [(LossOptions::plain(), Unroll::default()), (sums, carried)];
    let adamw = OptimiserConfig::default();
    for spec in controllers() {
        let policy = on(&Policy::init(&spec, 4).unwrap(), &card);
        for (way, (loss, unroll)) in ways.iter().enumerate() {
            let want = steps(&policy, loss, *unroll, adamw);
            let got = played(&policy, loss, *unroll, adamw);
            let what = |of: &str| format!("{of} of {}, way {way}", spec.backbone.name());
            assert_near(&got.losses, &want.losses, 1e-6, &what("losses"));
            assert_near(&got.norms, &want.norms, 1e-6, &what("norms"));
            assert_near(&got.weights, &want.weights, 1e-6, &what("weights"));
            assert_near(&got.averages, &want.averages, 1e-6, &what("averages"));
            assert_near(&got.state, &want.state, 1e-6, &what("state"));
        }
    }
}

/// Plays some frames: logits and choices of each, and the state after them.
fn play(policy: &Policy, context: &Context) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    let frames = examples(policy.spec(), BATCH, TIME, 5).frames;
    let mut state = policy.zero_state(BATCH).unwrap();
    let (mut logits, mut choices) = (vec![], vec![]);
    for t in 0..TIME {
        let frame: Frames = frames.part(&(0..BATCH), &(t..t + 1));
        let rngs: Vec<Rng> = (0..BATCH as u64).map(|row| Rng::new(row, "act", t as u64)).collect();
        let draw = Draw { sampling: &Sampling::default(), rngs: &rngs, given: None, mask: None };
        let (decision, after): (_, State) = policy.act(&frame, &state, draw, context).unwrap();
        logits.extend(decision.logits);
        choices.extend(decision.choices);
        state = after;
    }
    (logits, choices, state.to_vec().unwrap())
}

#[test]
fn composed_decisions_are_those_of_sconces_own_ops() {
    for spec in controllers() {
        let policy = Policy::init(&spec, 4).unwrap();
        let direction: Vec<f32> = (0..policy.trunk_width()).map(|i| (i as f32).sin()).collect();
        let projection = Projection::new(&direction, policy.trunk_width()).unwrap();
        let context = Context::default().projecting(Some(projection.into()));
        let (logits, choices, state) = play(&policy, &context);
        for (place, there) in elsewhere(&policy) {
            let got = play(&there, &context);
            let what = format!("{:?}, {place}", spec.heads.kind);
            assert_near(&got.0, &logits, 1e-4, &what);
            assert_near(&got.2, &state, 1e-4, &what);
            assert_eq!(got.1, choices, "{what}");
        }
    }
}

/// Backbones with the options of their runs.
fn backbones() -> Vec<(Backbone, TrainOptions)> {
    let options = || TrainOptions {
        data: DataOptions {
            batch_size: 8,
            window_size: 20,
            stride: 10,
            val_split: 0.25,
            ..DataOptions::default()
        },
        schedule: ScheduleOptions {
            steps: Some(30),
            warmup_steps: 2,
            learning_rate: 1e-2,
            ..ScheduleOptions::default()
        },
        saving: SavingOptions {
            validate_every: Some(10),
            gradient_report: Some(10),
            ..SavingOptions::default()
        },
        optimiser: OptimiserOptions { ema_decay: Some(0.9), ..OptimiserOptions::default() },
        ..TrainOptions::default()
    };
    let carried = TrainOptions {
        data: DataOptions { unroll: Mode::Carry, ..options().data },
        optimiser: OptimiserOptions { accumulation_steps: 2, ..options().optimiser },
        ..options()
    };
    let again = TrainOptions {
        machine: MachineOptions { gradient_checkpoint: true, ..options().machine },
        ..options()
    };
    vec![
        (mlp(), options()),
        (recurrent("gru"), carried.clone()),
        (recurrent("lstm"), again),
        (attention(), options()),
        (attention(), carried),
    ]
}

fn heads() -> Heads {
    let head = |name: &str, kind| Head { name: name.into(), kind, hidden_size: 8 };
    let parts = vec![head("sign", HeadKind::Categorical(3)), head("large", HeadKind::Bernoulli(2))];
    Heads { kind: HeadsKind::Independent, parts, stream_size: 8, prior: false }
}

/// Two numbers a frame. Labels are the sign of one, and whether each is large.
fn corpus(dir: &Path) -> Corpus {
    let game = |game: u64| {
        let rng = Rng::new(1, "test", game);
        let x: Vec<f32> = (0..180).map(|i| rng.normal(i)).collect();
        let labels = x.chunks_exact(2).flat_map(|x| {
            let sign = if x[0].abs() < 0.1 { 2 } else { u16::from(x[0] > 0.0) };
            [sign, u16::from(x[0].abs() > 1.0), u16::from(x[1].abs() > 0.5)].map(f32::from)
        });
        VectorGame { labels: labels.collect(), x }
    };
    let games: Vec<VectorGame> = (0..8).map(game).collect();
    Corpus::build(&Schema::vector(2, &heads()), &games, dir).unwrap()
}

/// A run to step `stop`: the loss of each step, and the report.
fn trained(
    corpus: &Corpus,
    spec: &Spec,
    options: &TrainOptions,
    out: &Path,
    stop: u64,
) -> (Vec<f32>, RunReport) {
    let (losses, cancel) = (RefCell::new(vec![]), AtomicBool::new(false));
    let listen = |event| {
        if let Event::Step { step, loss, .. } = event {
            losses.borrow_mut().push(loss as f32);
            cancel.store(step == stop, Ordering::Relaxed);
        }
    };
    let report = run(corpus, spec, options, out, &listen, &cancel).unwrap();
    (losses.into_inner(), report)
}

/// All numbers of the last state, by name.
fn saved(out: &Path) -> Vec<(String, Vec<f32>)> {
    let file = checkpoint::load(&out.join("last.safetensors")).unwrap();
    let weights = file.weights.iter().map(|(name, w)| (name.clone(), tensor::to_vec(w).unwrap()));
    weights.chain(file.optimiser).collect()
}

#[test]
fn a_run_on_a_card_learns_saves_resumes_and_scores_as_one_on_a_cpu() {
    if std::env::var_os("SCONCE_TEST_CARD").is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    // Two teachers, one with a memory.
    let taught = |(backbone, options): (Backbone, TrainOptions)| {
        let teacher = |(i, backbone): (u64, Backbone)| {
            let (embedding, path) = (Embedding::vector(2), dir.path().join(format!("teacher-{i}")));
            let spec = Spec { embedding, backbone, heads: heads(), critic: None };
            Policy::init(&spec, 20 + i).unwrap().save(&path, json!({})).unwrap();
            path
        };
        let paths: Vec<_> = (0..).zip([mlp(), recurrent("lstm")]).map(teacher).collect();
        let objective = ObjectiveOptions {
            teacher: Some(paths.try_into().unwrap()),
            teacher_temperature: 2.0,
            ..options.objective
        };
        (backbone, TrainOptions { objective, ..options })
    };
    let (mut all, carried) = (backbones(), backbones().swap_remove(1));
    all.push(taught(carried));
    for (i, (backbone, options)) in all.into_iter().enumerate() {
        let spec = Spec { embedding: Embedding::vector(2), backbone, heads: heads(), critic: None };
        let out = |name: &str| dir.path().join(format!("{i}-{name}"));
        let go =
            |name, options: &TrainOptions, stop| trained(&corpus, &spec, options, &out(name), stop);
        let what = |of: &str| format!("{of} of {}, {i}", spec.backbone.name());
        let there = TrainOptions {
            machine: MachineOptions { device: "cuda:0".into(), ..options.clone().machine },
            ..options.clone()
        };
        let (want, own) = go("cpu", &options, 0);
        let (got, on_card) = go("card", &there, 0);
        assert!(want.len() == 30 && want[29] < 0.8 * want[0], "{want:?}");
        assert_near(&got, &want, 1e-3, &what("losses"));
        for ((name, got), (_, want)) in saved(&out("card")).iter().zip(&saved(&out("cpu"))) {
            assert_near(got, want, 2e-2, &what(name));
        }

        // Stopped and resumed: the same bits, and after steps on the CPU the same numbers.
        let resume = |options: &TrainOptions| TrainOptions {
            machine: MachineOptions { resume: true, ..options.clone().machine },
            ..options.clone()
        };
        let mut cut = go("cut", &resume(&there), 13).0;
        cut.extend(go("cut", &resume(&there), 0).0);
        assert_eq!(cut, got, "{}", what("losses of the run that was cut"));
        assert!(saved(&out("cut")) == saved(&out("card")), "{}", what("state"));
        let mut mixed = go("mixed", &resume(&options), 13).0;
        mixed.extend(go("mixed", &resume(&there), 0).0);
        assert_near(&mixed, &want, 1e-3, &what("losses of both"));

        // A policy scores the same on both devices, wherever it was trained.
        let nll = |report: &RunReport| report.policy.as_ref().unwrap().nll as f32;
        assert_near(&[nll(&on_card)], &[nll(&own)], 1e-3, &what("NLL"));
        let best = Policy::load(&out("card").join("best.safetensors")).unwrap();
        let never = AtomicBool::new(false);
        let score = |device: Option<&str>| {
            let options =
                EvaluateOptions { device: device.map(str::to_owned), ..EvaluateOptions::default() };
            let scored = evaluate(&best, &corpus, None, &options, &|_| (), &never).unwrap();
            scored.policy.nll as f32
        };
        assert_near(&[score(Some("cuda:0"))], &[score(None)], 1e-5, &what("score"));
    }
}
