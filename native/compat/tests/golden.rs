//! Policies that ExPhil saved, with the answers that Axon computed for them (`test/golden/exphil/README.md`).

mod reference;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use reference::{Initial, Params, Rows, heads, trunk};
use safetensors::{Dtype, SafeTensors};
use sconce_compat::{Asked, Imported, config, file, import, state};
use sconce_nn::backbone::Context;
use sconce_nn::policy::Frames;
use sconce_nn::sampling::Sampling;
use sconce_nn::spec::Embedding;
use sconce_nn::{Policy, Spec};
use sconce_serve::Format;
use sconce_serve::session::{Mode, Options, Overrides, Session};
use sconce_tensor::tensor::to_vec;

/// Name of the policy and, if its answers have another name, of the answers.
const POLICIES: &[&str] = &[
    "mlp",
    "mlp_ln_res",
    "mlp_small",
    "mlp_small_trained",
    "lstm",
    "gru",
    "lstm_fused",
    "gru_fused",
    "min_gru",
    "min_gru_bf16",
    "min_lstm",
    "mamba",
    "mamba_2",
    "mamba_ssd",
    "attention",
    "lstm_hybrid",
    "jamba",
    "gated_ssm",
    "deep_res_lstm",
];

/// Allowance for sums in f32: Axon's answers come from `Nx.BinaryBackend`, which adds products in 64 bits.
const F32: f64 = 3e-7;

const HEADS: [&str; 6] = ["buttons", "main_x", "main_y", "c_x", "c_y", "shoulder"];

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../test/golden/exphil").join(name)
}

fn bytes(name: &str) -> Vec<u8> {
    sconce_tensor::fs::read(&golden(name), u64::MAX)
        .unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Tensors of a file by name.
type Tensors = BTreeMap<String, (Vec<usize>, Vec<f64>)>;

fn answers(name: &str) -> Tensors {
    let bytes = bytes(&format!("{name}.answers.safetensors"));
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let numbers = |dtype, data: &[u8]| match dtype {
        Dtype::F32 => data.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x).into()).collect(),
        Dtype::I64 => data.as_chunks().0.iter().map(|x| i64::from_le_bytes(*x) as f64).collect(),
        other => panic!("{other:?}"),
    };
    let tensor = |(name, t): (String, safetensors::tensor::TensorView)| {
        (name, (t.shape().to_vec(), numbers(t.dtype(), t.data())))
    };
    file.tensors().into_iter().map(tensor).collect()
}

/// Row `i` of a tensor, as rows of vectors.
fn rows((shape, numbers): &(Vec<usize>, Vec<f64>), i: usize) -> Rows {
    let each: usize = shape[1..].iter().product();
    let width = *shape.last().unwrap();
    numbers[i * each..(i + 1) * each].chunks(width).map(<[f64]>::to_vec).collect()
}

fn read(name: &str) -> Params {
    let bytes = bytes(name);
    let file = file::read(name, &bytes, false).unwrap();
    Params::new(&file.layers, config::of_term(&file.config.unwrap()).unwrap())
}

/// `max |a - b| / max(1, max |b|)`.
fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let most = b.iter().fold(1.0, |most: f64, b| most.max(b.abs()));
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max) / most
}

/// The first frame `frames - k` times in front of the first k.
fn padded(x: &Rows, k: usize) -> Rows {
    let front = std::iter::repeat_n(x[0].clone(), x.len() - k);
    front.chain(x[..k].iter().cloned()).collect()
}

/// The initial states of a window in the answers.
fn initial(answers: &Tensors) -> Initial {
    let of = |name: &str| {
        let (shape, numbers) = answers.get(name)?;
        Some(numbers.chunks(shape[1]).map(<[f64]>::to_vec).collect())
    };
    Initial { h: of("h0"), c: of("c0") }
}

/// The largest distance of the answers of `name` from those that `of` computes for a window.
fn worst(
    name: &str,
    prefix: &str,
    answers: &Tensors,
    of: impl Fn(&Rows) -> BTreeMap<&'static str, Vec<f64>>,
) -> f64 {
    let x = &answers["x"];
    let mut most: f64 = 0.0;
    for i in 0..x.0[0] {
        let got = of(&rows(x, i));
        for head in HEADS {
            let want = &answers[&format!("{prefix}.{head}")];
            let n = want.0[1];
            let gap = distance(&got[head], &want.1[i * n..(i + 1) * n]);
            assert!(gap.is_finite(), "{name} {head}");
            most = most.max(gap);
        }
    }
    most
}

/// The logits of a policy of Sconce for a window, by head.
fn logits(policy: &Policy, x: &Rows) -> BTreeMap<&'static str, Vec<f64>> {
    let continuous = x.iter().flatten().map(|x| *x as f32).collect();
    let previous = vec![sconce_nn::spec::NONE; x.len() * policy.spec().heads.num_labels()];
    let frames = Frames { batch: 1, time: x.len(), continuous, ids: vec![], previous };
    let state = policy.zero_state(1).unwrap();
    let (logits, _) = policy.forward_last(&frames, None, &state, &Context::default()).unwrap();
    by_head(to_vec(&logits).unwrap().into_iter().map(f64::from).collect())
}

fn by_head(all: Vec<f64>) -> BTreeMap<&'static str, Vec<f64>> {
    let mut rest = &all[..];
    let mut by_head = BTreeMap::new();
    for (head, n) in HEADS.into_iter().zip([8, 17, 17, 17, 17, 5]) {
        let (own, other) = rest.split_at(n);
        by_head.insert(head, own.to_vec());
        rest = other;
    }
    by_head
}

fn imported(name: &str) -> Imported {
    import(&golden(name), &Asked::default()).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn the_reference_computes_the_answers_of_axon() {
    for name in POLICIES {
        let (params, answers) = (read(&format!("{name}.bin")), answers(name));
        let initial = initial(&answers);
        let gap = worst(name, "logits", &answers, |x| heads(&params, &trunk(&params, x, &initial)));
        assert!(gap < 3e-6, "{name}: {gap:e}");
        let x = &answers["x"];
        let Some((_, frames)) = answers.get("padded.frames") else { continue };
        for (j, k) in frames.iter().enumerate() {
            for i in 0..x.0[0] {
                let got =
                    heads(&params, &trunk(&params, &padded(&rows(x, i), *k as usize), &initial));
                for head in HEADS {
                    let want = rows(&answers[&format!("padded.{head}")], i);
                    let gap = distance(&got[head], &want[j]);
                    assert!(gap < 3e-6, "{name} {head}, {k} frames: {gap:e}");
                }
            }
        }
    }
}

#[test]
fn an_imported_policy_computes_the_answers_of_axon() {
    for name in POLICIES {
        let (params, answers) = (read(&format!("{name}.bin")), answers(name));
        let initial = initial(&answers);
        let policy = imported(&format!("{name}.bin")).policy;
        let gap = worst(name, "logits", &answers, |x| logits(&policy, x));
        assert!(gap < 1e-5, "{name}: {gap:e}");
        let exact = |x: &Rows| heads(&params, &trunk(&params, x, &initial));
        let theirs = worst(name, "logits", &answers, exact);
        let x = &answers["x"];
        let mut ours: f64 = 0.0;
        for i in 0..x.0[0] {
            let (got, want) = (logits(&policy, &rows(x, i)), exact(&rows(x, i)));
            ours = HEADS.iter().map(|head| distance(&got[head], &want[head])).fold(ours, f64::max);
        }
        println!("{name}: {ours:.1e} of the exact answers, Axon {theirs:.1e}");
        assert!(ours <= 2.0 * theirs + F32, "{name}: {ours:e}, and Axon is {theirs:e} away");
    }
}

#[test]
fn initial_states_are_those_that_axon_draws() {
    for (name, kinds) in [("lstm", &["h", "c"][..]), ("gru", &["h"])] {
        let (bytes, answers) = (bytes(&format!("{name}.bin")), answers(name));
        let file = file::read(name, &bytes, false).unwrap();
        for kind in kinds {
            for layer in 0..2 {
                let key = format!("{name}_{}_{kind}_hidden_state.key", layer + 1);
                let key = file.layers.get(&key).and_then(|leaf| leaf.key()).unwrap();
                for (rows, of) in [(1, format!("{kind}0")), (4, format!("batch.{kind}0"))] {
                    let (shape, numbers) = &answers[&of];
                    let width = *shape.last().unwrap();
                    let want = &numbers[layer * rows * width..(layer + 1) * rows * width];
                    let got: Vec<f64> =
                        state::drawn(key, rows, width).into_iter().map(f64::from).collect();
                    assert_eq!(got, want, "{of} of {name}");
                }
            }
        }
    }
}

/// The policy with the weights of a file whose frames are the recorded vectors.
fn of_vectors(name: &str) -> Arc<Policy> {
    let policy = imported(&format!("{name}.bin")).policy;
    let spec = Spec { embedding: Embedding::vector(288), ..policy.spec().clone() };
    Arc::new(Policy::from_weights(&spec, policy.weights().clone()).unwrap())
}

fn session(policy: &Arc<Policy>, mode: Mode, window_size: usize) -> Session {
    let options = Options {
        mode,
        window_size,
        sampling: Sampling::default(),
        seed: 1,
        weights: Format::F32,
        lane: None,
        rollback: 0,
        frame_delay: None,
        project_out: None,
    };
    Session::open(policy.clone(), options).unwrap()
}

/// The largest distance of a session's logits after each frame of the windows from the answers `PREFIX.HEAD`, of the
/// frames that `recorded` lists, counted from 1.
fn played(name: &str, mode: Mode, prefix: &str, recorded: &[usize]) -> f64 {
    let (answers, policy) = (answers(name), of_vectors(name));
    let x = &answers["x"];
    let mut most: f64 = 0.0;
    for i in 0..x.0[0] {
        let mut session = session(&policy, mode, x.0[1]);
        for (t, frame) in rows(x, i).iter().enumerate() {
            let raw: Vec<f32> = frame.iter().map(|x| *x as f32).collect();
            let act = session.act(&raw, &Overrides::default()).unwrap();
            let Some(j) = recorded.iter().position(|k| *k == t + 1) else { continue };
            let got = by_head(act.decision.logits.into_iter().map(f64::from).collect());
            for head in HEADS {
                let want = &answers[&format!("{prefix}.{head}")];
                let want = match want.0.len() {
                    2 => &want.1[i * want.0[1]..(i + 1) * want.0[1]],
                    _ => &want.1[(i * want.0[1] + j) * want.0[2]..][..want.0[2]],
                };
                most = most.max(distance(&got[head], want));
            }
        }
    }
    most
}

#[test]
fn a_session_decides_as_exphil_does() {
    for name in POLICIES.iter().filter(|name| !name.contains("fused") && !name.contains("bf16")) {
        let answers = answers(name);
        let window = answers["x"].0[1];
        let gap = played(name, Mode::Window, "logits", &[window]);
        assert!(gap < 1e-5, "{name}: {gap:e}");
        if let Some((_, frames)) = answers.get("padded.frames") {
            let frames: Vec<usize> = frames.iter().map(|k| *k as usize).collect();
            let gap = played(name, Mode::Window, "padded", &frames);
            assert!(gap < 1e-5, "{name}, padded: {gap:e}");
        }
        if answers.contains_key("carry.buttons") {
            let gap = played(name, Mode::Carry, "carry", &(1..=window).collect::<Vec<_>>());
            assert!(gap < 1e-5, "{name}, carried: {gap:e}");
        }
    }
}

#[test]
fn without_their_keys_lstm_and_gru_start_from_zeros() {
    for name in ["lstm", "gru"] {
        let asked = Asked { zero_state: true, ..Asked::default() };
        let policy = import(&golden(&format!("{name}.bin")), &asked).unwrap().policy;
        let gap = worst(name, "zero", &answers(name), |x| logits(&policy, x));
        assert!(gap < 1e-5, "{name}: {gap:e}");
    }
}
