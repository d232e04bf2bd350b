//! Policies whose embedding is a small network.

use sconce_nn::backbone::Context;
use sconce_nn::heads::NONE;
use sconce_nn::packed::{Frame, Game, Plan};
use sconce_nn::policy::Frames;
use sconce_nn::sampling::{Draw, Sampling};
use sconce_nn::{Policy, Spec};
use sconce_ops::weights::Weight;
use sconce_realtime::{Format, Scratch};
use sconce_tensor::rng::Rng;
use sconce_tensor::tape;
use sconce_tensor::tensor::{tensor, to_vec};
use serde_json::{Value, json};

const TIME: usize = 6;
/// An image of two channels and three numbers.
const NUMBERS: usize = 2 * 8 * 8 + 3;

fn conv(filters: usize) -> Value {
    json!({"kind": "conv", "filters": filters, "kernel": [3, 3], "stride": [2, 2], "padding": [1, 1],
        "dilation": [1, 1], "groups": 1, "bias": true, "activation": "relu"})
}

fn dense(size: usize) -> Value {
    json!({"kind": "dense", "size": size, "bias": true, "activation": "tanh"})
}

fn net() -> Value {
    let eyes = json!([conv(4), conv(5), {"kind": "flatten"}]);
    json!({
        "inputs": [{"name": "seen", "shape": [2, 8, 8]}, {"name": "felt", "shape": [3]}],
        "layers": [{"kind": "inputs", "branches": [["seen", eyes], ["felt", [dense(4)]]]}, dense(7)],
    })
}

fn spec(net: &Value, backbone: Value) -> Result<Spec, serde_json::Error> {
    let parts = json!([{"name": "go", "kind": {"categorical": 3}, "hidden_size": 0}]);
    let heads = json!({"kind": "independent", "stream_size": 8, "prior": false, "parts": parts});
    serde_json::from_value(json!({"embedding": {"net": net}, "backbone": backbone, "heads": heads}))
}

fn gru() -> Value {
    json!({"gru": {"hidden_size": 6, "num_layers": 1, "layer_norm": false, "input_norm": false,
        "dropout": 0.0, "input_dropout": 0.0}})
}

fn policy() -> Policy {
    Policy::init(&spec(&net(), gru()).unwrap(), 3).unwrap()
}

fn frames(batch: usize) -> Frames {
    let (rng, n) = (Rng::new(7, "frames", 0), batch * TIME);
    Frames {
        batch,
        time: TIME,
        continuous: (0..(n * NUMBERS) as u64).map(|i| rng.normal(i)).collect(),
        ids: vec![],
        previous: vec![NONE; n],
    }
}

fn assert_near(got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(want) {
        assert!((got - want).abs() <= 1e-5 * want.abs().max(1.0), "got {got}, want {want}");
    }
}

fn planned(policy: &Policy, frames: &Frames, format: Format) -> Vec<f32> {
    let plan = Plan::of(policy, format).unwrap().expect("a plan");
    let mut logits = vec![];
    let (mut scratch, mut decision) = (Scratch::default(), plan.blank());
    let mut state = plan.zero_state().to_vec();
    for continuous in frames.continuous[..TIME * NUMBERS].chunks_exact(NUMBERS) {
        let frame = Frame { continuous, ids: &[], previous: &[NONE] };
        let (sampling, rng) = (Sampling::default(), Rng::new(1, "act", 0));
        let mut games = [Game::new(frame, &mut state, &sampling, rng, &mut decision)];
        plan.step(&mut games, &mut scratch);
        let [game] = games;
        game.outcome.unwrap();
        logits.extend(&decision.logits);
    }
    logits
}

#[test]
fn a_packed_step_a_step_and_the_sequence_decide_alike() {
    let (policy, frames) = (policy(), frames(2));
    let zero = policy.zero_state(2).unwrap();
    let (all, _state) = policy.forward(&frames, None, &zero, &Context::default()).unwrap();
    let all = to_vec(&all).unwrap();
    let first = &all[..TIME * 3];
    assert_near(&planned(&policy, &frames, Format::F32), first);

    let (mut logits, mut state) = (vec![], policy.zero_state(1).unwrap());
    for t in 0..TIME {
        let frame = frames.part(&(0..1), &(t..t + 1));
        let rngs = [Rng::new(1, "act", 0)];
        let sampling = Sampling::default();
        let draw = Draw { sampling: &sampling, rngs: &rngs, given: None, mask: None };
        let (decision, next) = policy.act(&frame, &state, draw, &Context::default()).unwrap();
        logits.extend(decision.logits);
        state = next;
    }
    assert_near(&logits, first);
}

#[test]
fn the_network_stays_in_f32_when_a_policy_is_packed_in_int8() {
    let (policy, frames) = (policy(), frames(1));
    let (plain, codes) =
        (planned(&policy, &frames, Format::F32), planned(&policy, &frames, Format::Int8(1.0)));
    let apart = plain.iter().zip(&codes).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(apart < 0.05, "{apart}");
}

#[test]
fn a_file_holds_the_network_and_its_weights() {
    let (policy, frames) = (policy(), frames(1));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("policy.safetensors");
    policy.save(&path, Value::Null).unwrap();
    let loaded = Policy::load(&path).unwrap();
    assert_eq!(loaded.spec(), policy.spec());
    let (a, b) = (planned(&policy, &frames, Format::F32), planned(&loaded, &frames, Format::F32));
    assert_eq!(a, b);
}

#[test]
fn gradients_reach_every_weight_of_the_network_and_equal_finite_differences() {
    let (plain, frames) = (policy(), frames(2));
    let logits = |policy: &Policy| {
        let zero = policy.zero_state(2).unwrap();
        policy.forward(&frames, None, &zero, &Context::default()).unwrap().0
    };
    let trained = plain.trainable(None).unwrap();
    let _tape = tape::record();
    let y = logits(&trained);
    // Half of the sum of squares has the logits as its gradient.
    let store = tape::backward(&y, y.detach()).unwrap();
    let loss = |policy: &Policy| {
        let y = to_vec(&logits(policy)).unwrap();
        y.iter().map(|y| 0.5 * f64::from(*y) * f64::from(*y)).sum::<f64>()
    };
    let mut of_net = 0;
    for (name, weight) in trained.weights() {
        assert!(weight.gather(&store).unwrap(), "{name} has no gradient");
        if !name.starts_with("embedding.") {
            continue;
        }
        of_net += 1;
        let gradient = to_vec(&weight.flat_gradient().unwrap()).unwrap();
        let largest = (0..gradient.len())
            .max_by(|a, b| gradient[*a].abs().total_cmp(&gradient[*b].abs()))
            .unwrap();
        let moved = |by: f32| {
            let all = plain.weights().iter().map(|(own, weight)| {
                let mut numbers = to_vec(weight).unwrap();
                if own == name {
                    numbers[largest] += by;
                }
                (own.clone(), Weight::from(tensor(numbers, weight.dims()).unwrap()))
            });
            loss(&Policy::from_weights(plain.spec(), all.collect()).unwrap())
        };
        let (step, got) = (2e-3, f64::from(gradient[largest]));
        let want = (moved(step) - moved(-step)) / (2.0 * f64::from(step));
        assert!((got - want).abs() <= 2e-2 * want.abs().max(1e-2), "{name}: {got} and {want}");
    }
    assert_eq!(of_net, 8);
}

#[test]
fn networks_that_would_play_otherwise_than_they_were_trained_are_refused() {
    let said = |layers: Value| {
        let net = json!({"inputs": [{"name": "x", "shape": [1, 4, 4]}], "layers": layers});
        let spec = spec(&net, gru()).unwrap();
        Policy::init(&spec, 1).err().map(|error| error.to_string())
    };
    let norm =
        json!({"kind": "batch_norm", "epsilon": 1e-5, "momentum": 0.1, "activation": "none"});
    let flat = json!({"kind": "flatten"});
    assert_eq!(said(json!([conv(2), flat, dense(3)])), None);
    let expected = "embedding.net: expected no batch_norm, got layers.1.running_mean";
    assert_eq!(said(json!([conv(2), norm, flat])).as_deref(), Some(expected));
    let expected = "embedding.net (output): expected a vector, got [2, 2, 2]";
    assert_eq!(said(json!([conv(2)])).as_deref(), Some(expected));
    assert!(said(json!([dense(3)])).is_some());
    let net = json!({"inputs": [{"name": "words", "shape": [4], "vocabulary": 9}],
        "layers": [{"kind": "embed", "size": 2}, {"kind": "flatten"}]});
    let made = Policy::init(&spec(&net, gru()).unwrap(), 1);
    let expected = "embedding.net: expected inputs of numbers, got tokens in input words";
    assert_eq!(made.err().map(|error| error.to_string()).as_deref(), Some(expected));
}

#[test]
fn dense_layers_of_the_network_start_as_orthogonal_matrices_without_biases() {
    let policy = Policy::init_orthogonal(&spec(&net(), gru()).unwrap(), 3).unwrap();
    let numbers = |name: &str| to_vec(&policy.weights()[name]).unwrap();
    assert!(numbers("embedding.layers.1.bias").iter().all(|bias| *bias == 0.0));
    assert!(numbers("embedding.layers.0.branches.0.0.bias").iter().any(|bias| *bias != 0.0));
    let rows = numbers("embedding.layers.1.weight");
    let rows: Vec<&[f32]> = rows.chunks_exact(rows.len() / 7).collect();
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    assert!((dot(rows[0], rows[0]) - 2.0).abs() < 1e-4 && dot(rows[0], rows[1]).abs() < 1e-4);
}
